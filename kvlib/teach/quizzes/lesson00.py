"""The quick questions of lesson 00."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="00-why-not-q",
        stem="A cache keeps K and V. Why not Q?",
        options=(
            Option(
                "Q is too large to keep.",
                "In MHA a query is as large as a key. Size is not the reason.",
            ),
            Option(
                "A query is used once; keys and values are used by every later token.",
                "The new token's query asks its question in its own step and is never read again.",
            ),
            Option(
                "Q changes when later tokens arrive, K and V do not.",
                "Under a causal mask none of the three changes. Q would stay valid; nobody "
                "would read it.",
            ),
        ),
        right=1,
    ),
    Question(
        key="00-same-text",
        stem="Same model, same prompt, greedy decoding. What does a plain KV cache change in "
        "the text?",
        options=(
            Option(
                "It makes the text a little worse: a cache is an approximation.",
                "A plain cache keeps the very numbers that would be computed again. Quantised "
                "and windowed caches "
                "are approximations, and they come in a later lesson.",
            ),
            Option(
                "It forgets the oldest tokens.",
                "The plain cache keeps every token. Only windowed caches drop some, and they "
                "say so.",
            ),
            Option(
                "Nothing, mathematically: attention is the same. Another kernel shape may "
                "round differently.",
                "The cache is exact. What can differ is rounding, and the lessons show how "
                "large that is.",
            ),
        ),
        right=2,
    ),
    Question(
        key="00-what-grows",
        stem="The context of one request doubles. What doubles with it?",
        options=(
            Option(
                "The weights that a decode step reads.",
                "The weights do not depend on the context: each step reads the same ones.",
            ),
            Option(
                "The bytes of the cache.",
                "Each token adds the same number of bytes, so the cache grows in step with the "
                "context.",
            ),
            Option(
                "The number of query rows in a decode step.",
                "A decode step has one new row, however long the context is.",
            ),
        ),
        right=1,
    ),
    Question(
        key="00-prefill-decode",
        stem="What tells prefill and decode apart?",
        options=(
            Option(
                "In prefill many positions share each read of the weights; a decode step reads "
                "them for one.",
                "That is why decode is so often bound by reading bytes: all weights and all "
                "K/V, for one position.",
            ),
            Option(
                "Prefill does not fill the cache, decode does.",
                "Prefill fills the cache with the whole prompt in one pass; decode adds a row "
                "at a time.",
            ),
            Option(
                "Prefill has no causal mask.",
                "It has one: each position of the prompt sees the positions up to itself.",
            ),
        ),
        right=0,
    ),
)

"""The quick questions of lesson 00."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="00-why-not-q",
        stem="A cache keeps K and V. Why not Q?",
        options=(
            Option(
                "A query cannot be kept: it exists only while attention runs.",
                "It is an array like K and V and could be kept. Nothing would read it again.",
            ),
            Option(
                "A query is used once; keys and values are used by every later token.",
                "The new token's query asks its question in its own step and is never read again.",
            ),
            Option(
                "Later tokens change the queries of earlier ones, but not their keys and values.",
                "Under a causal mask none of the three changes. Q would stay valid; nothing would "
                "read it.",
            ),
        ),
        right=1,
    ),
    Question(
        key="00-same-text",
        stem="Same model, same prompt, greedy decoding. What does a plain KV cache change in the text?",
        options=(
            Option(
                "It makes the text a little worse: a cache approximates keys and values.",
                "A plain cache keeps the very numbers that would be computed again. Quantised and "
                "windowed caches are approximations, and they come in a later lesson.",
            ),
            Option(
                "It forgets the oldest tokens once the text is long.",
                "The plain cache keeps every token. Only windowed caches drop some, and they say "
                "so.",
            ),
            Option(
                "It lets the model see its whole history, which it could not see without.",
                "Without a cache the model is given the whole text in each step and sees all of "
                "it. How far back it can see is its context window; the cache only saves the work "
                "of computing old keys and values again.",
            ),
            Option(
                "Nothing. Rounding may differ in the logits behind it.",
                "Attention is the same in mathematics. In floats a sum may be taken in another order, so "
                "the logits may differ in their last digits. The lessons measure by how much.",
            ),
        ),
        right=3,
    ),
    Question(
        key="00-what-grows",
        stem="The context of one request doubles. What doubles with it?",
        options=(
            Option(
                "The bytes of the cache.",
                "Each token adds the same number of bytes, so the cache grows in step with the "
                "context.",
            ),
            Option(
                "The weights that a decode step reads.",
                "The weights do not depend on the context: each step reads the same ones.",
            ),
            Option(
                "The number of query rows in a decode step.",
                "A decode step has one new row, however long the context is.",
            ),
        ),
        right=0,
    ),
    Question(
        key="00-prefill-decode",
        stem="One request runs alone. What is the difference between its prefill and a decode step?",
        options=(
            Option(
                "Prefill needs no causal mask, because the whole prompt is known.",
                "It has one: each position of the prompt sees the positions up to itself.",
            ),
            Option(
                "Prefill leaves the cache empty; decode fills it.",
                "Prefill fills the cache with the whole prompt in one pass; decode adds a row at a"
                " time.",
            ),
            Option(
                "Prefill runs many positions for one read of the weights, a decode step only one.",
                "So the decode step of a single request is mostly bound by reading bytes: all "
                "weights and all K and V, for one position. In a batch, several requests share the"
                " read of the weights.",
            ),
        ),
        right=2,
    ),
)

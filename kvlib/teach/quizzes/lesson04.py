"""The quick questions of lesson 04."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="04-what-it-depends-on",
        stem="Two models keep K and V of all tokens in all layers, in 16 bits. Which has the larger "
        "cache for a token?",
        options=(
            Option(
                "The one with more parameters, since each layer is then larger.",
                "Llama 3.1 70B has ten times the parameters of Llama 2 7B and the smaller cache. "
                "Experts add parameters and no cache at all.",
            ),
            Option(
                "The one with the larger hidden size.",
                "The hidden size equals KV heads x head_dim only in some models. With grouped "
                "heads the cache is smaller than that.",
            ),
            Option(
                "The one with more layers x KV heads x head_dim.",
                "These three, times 2 for K and V and the bytes of a number. Windows and latent "
                "caches (MLA) keep something else than K and V of all tokens, and follow other "
                "formulas.",
            ),
            Option(
                "The one with the longer context window.",
                "A longer window lets more tokens in. What one token takes stays the same.",
            ),
        ),
        right=2,
    ),
    Question(
        key="04-hidden-size",
        stem="A script computes 2 x layers x hidden_size x tokens x 2 bytes. It is tested on Llama 2 7B"
        " and is right. What does it say for Llama 3.1 8B?",
        options=(
            Option(
                "Half of what it takes, as V is forgotten.",
                "The first 2 is K and V; it is there. What is wrong is how wide a key is.",
            ),
            Option(
                "The truth: both have hidden size 4096 and 32 layers.",
                "Both do, and their caches still differ by four: Llama 2 7B keeps 32 KV heads, "
                "Llama 3.1 8B keeps 8.",
            ),
            Option(
                "Twice what it takes, as 16 bits are counted twice.",
                "16 bits are 2 bytes, counted once. The other 2 is K and V.",
            ),
            Option(
                "Four times what it takes.",
                "32 query heads share 8 KV heads, so keys and values are a quarter as wide as the "
                "hidden state.",
            ),
        ),
        right=3,
    ),
    Question(
        key="04-batch",
        stem="A server runs 16 requests instead of 8. They are as long as before and have nothing in "
        "common. What doubles?",
        options=(
            Option(
                "The cache.",
                "Each request keeps its own keys and values. Only a common beginning could be "
                "shared, which is a later lesson.",
            ),
            Option(
                "Weights and cache.",
                "All requests share one copy of the weights. That is what a batch is for.",
            ),
            Option(
                "Neither, as the batch is computed together.",
                "Computed together, yes. But each sequence has other tokens, so other keys and "
                "values.",
            ),
            Option(
                "The weights, which each request reads.",
                "All requests read one copy, and it is stored once however many there are.",
            ),
        ),
        right=0,
    ),
    Question(
        key="04-window",
        stem="In Gemma 3 27B, 52 of 62 layers keep a window of 1,024 tokens. From 64k to 128k tokens, "
        "the cache",
        options=(
            Option(
                "stays as it is, since all windows are full.",
                "Those 52 layers stay. The other 10 keep every token, and they are most of the "
                "cache by then.",
            ),
            Option(
                "almost doubles: ten layers keep every token.",
                "At that length the windows are a few percent of it, so it nearly doubles; but it "
                "is a sixth of what it would be without them.",
            ),
            Option(
                "doubles exactly, as the cache of every model does.",
                "Only the part in the 10 full layers doubles. The part in the windows stays.",
            ),
        ),
        right=1,
    ),
)

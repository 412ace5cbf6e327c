"""The quick questions of lesson 09's second part, on latent attention."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="09-latent-kept",
        stem="What does a layer with latent attention (MLA) cache for each token?",
        options=(
            Option(
                "One small latent for each head, and a rotary key for each head.",
                "One row serves all heads, so its size does not depend on the number of heads.",
            ),
            Option(
                "One latent and one rotary key, shared by all heads.",
                "In DeepSeek V3 that is 512 + 64 numbers. Keys and values both come from the latent, so "
                "there is no factor 2.",
            ),
            Option(
                "The keys and values of all heads, compressed while they are not needed.",
                "They are never stored, and in absorbed decode they are not even computed.",
            ),
        ),
        right=1,
    ),
    Question(
        key="09-latent-absorb",
        stem="In decode, MLA multiplies the query by the keys' up-projection, and the output by the values'. "
        "What is gained over expanding the latent rows to keys and values?",
        options=(
            Option(
                "Each score takes fewer multiplications.",
                "It takes more: in DeepSeek V3 576 instead of 192 in each head. What is saved is making the "
                "keys.",
            ),
            Option(
                "A smaller cache.",
                "The cache holds the same latent rows either way.",
            ),
            Option(
                "No keys and values have to be made for all cached tokens in each step.",
                "Only the new token's query and output are multiplied. The result is the same, apart from "
                "rounding.",
            ),
        ),
        right=2,
    ),
    Question(
        key="09-latent-later",
        stem="Can you factor a trained MHA model's key and value projections into a small latent, and so get "
        "MLA?",
        options=(
            Option(
                "Not for free: what the smaller rank drops is lost.",
                "RoPE also stands between the two factors and cannot be absorbed, which is why MLA has a "
                "separate rotary key. MLA models are trained with their latent from the start, or converted "
                "and then trained further (MHA2MLA and TransMLA report short fine-tunes).",
            ),
            Option(
                "Yes, because it is the same product in two steps.",
                "It is the same only at full rank. That already halves an MHA cache, RoPE aside, as keys "
                "and values come from one input of half their joint size. A small latent loses something.",
            ),
            Option(
                "Yes, if the latent is kept in full precision.",
                "Precision is not the problem: a smaller rank drops part of the keys and values themselves.",
            ),
        ),
        right=0,
    ),
)

"""The quick questions of lesson 01."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="01-why-reusable",
        stem="Why is the key of position 37 the same in every later step?",
        options=(
            Option(
                "Token 37 is the same token each time, and a key depends on its token alone.",
                "From the second layer on, the layer input has attended to all earlier tokens. And"
                " without the causal mask it would change with later ones.",
            ),
            Option(
                "Keys are rounded, so that small changes of their input are lost.",
                "Nothing has to be lost: the key is computed from the same numbers each time. "
                "Rounding is what can still differ, in the last digits.",
            ),
            Option(
                "Its layer input, its position and W_K all stay the same.",
                "The causal mask keeps later tokens out of the layer input, the token does not "
                "move, and the trained weights are fixed.",
            ),
            Option(
                "The cache puts the old key back in each step.",
                "The key came out the same without any cache. It can be kept because it does not "
                "change, not the other way round.",
            ),
        ),
        right=2,
    ),
    Question(
        key="01-edit-earlier",
        stem="You edit token 10 of a cached prompt of 100. Which rows can you keep in every layer?",
        options=(
            Option(
                "Those before row 10.",
                "They never saw token 10. Everything from row 10 on is new work.",
            ),
            Option(
                "All but row 10.",
                "Rows 11 and later attended to token 10. From the second layer on, their K and V "
                "may differ.",
            ),
            Option(
                "Those after row 10, as their tokens are the same.",
                "The same token after another past has other layer inputs, so other keys and "
                "values.",
            ),
            Option(
                "None: the model must run the whole prompt again.",
                "Tokens 0 to 9 are the same and saw nothing of token 10, so their rows are still "
                "right.",
            ),
        ),
        right=0,
    ),
    Question(
        key="01-square-or-line",
        stem="As a text grows to T tokens, how do the projections that a cache avoids and the bytes "
        "that it stores grow?",
        options=(
            Option(
                "The projections with T squared, the bytes with T.",
                "T(T-1)/2 projections are avoided, and one row of K and V per token and layer is "
                "kept.",
            ),
            Option(
                "Both with T.",
                "The avoided projections are T(T-1)/2: doubling T makes about four times as many.",
            ),
            Option(
                "Both with T squared.",
                "The cache holds one row per token and layer: it grows with T alone.",
            ),
        ),
        right=0,
    ),
    Question(
        key="01-what-is-counted",
        stem="A text grows from 1 to 2,000 tokens without a cache: 1,999,000 of the projections in a "
        "layer are redundant. What does that number count?",
        options=(
            Option(
                "Matrix-multiply launches that a cache avoids.",
                "One launch projects all positions of a step together. The launches do not grow "
                "like that.",
            ),
            Option(
                "Milliseconds saved, up to a constant factor.",
                "Time depends on the device: many positions share each read of the weights. "
                "Measure it.",
            ),
            Option(
                "Rows that a cache would have to store instead.",
                "A cache of 2,000 tokens stores 2,000 rows in a layer, one for each position.",
            ),
            Option(
                "Positions evaluated again, K and V counted as one.",
                "It counts position-level evaluations. How much time they take is measured, not "
                "counted.",
            ),
        ),
        right=3,
    ),
)

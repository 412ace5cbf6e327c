"""The quick questions of lesson 01."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="01-why-reusable",
        stem="Why is the key of position 37 the same in every later step?",
        options=(
            Option(
                "Because token 37 is the same token each time.",
                "Needed, but not enough: without the causal mask its layer inputs would change "
                "with later tokens.",
            ),
            Option(
                "Because its layer input never depends on later tokens, and W_K does not change.",
                "Both halves are needed: the causal mask keeps the input fixed, the trained "
                "weights are fixed.",
            ),
            Option(
                "Because keys do not depend on the tokens before, either.",
                "They do, from the second layer on: the layer input has attended to all "
                "earlier tokens.",
            ),
        ),
        right=1,
    ),
    Question(
        key="01-edit-earlier",
        stem="You edit token 10 of a cached prompt of 100. Which rows of the cache can you keep?",
        options=(
            Option(
                "All but row 10.",
                "Rows 11 and later attended to token 10. From the second layer on, their K and "
                "V may differ.",
            ),
            Option(
                "Those after row 10, as their tokens are the same.",
                "The same token after another past has other layer inputs, so other keys and "
                "values.",
            ),
            Option(
                "Those before row 10.",
                "They never saw token 10. Everything from row 10 on is new work.",
            ),
        ),
        right=2,
    ),
    Question(
        key="01-square-or-line",
        stem="With T tokens, how do avoided work and stored bytes grow?",
        options=(
            Option(
                "Both with T.",
                "The avoided projections are T(T-1)/2: doubling T makes about four times as many.",
            ),
            Option(
                "Avoided work with T squared, storage with T.",
                "T(T-1)/2 projections are saved, and one row of K and V per token and layer is "
                "kept.",
            ),
            Option(
                "Both with T squared.",
                "The cache holds one row per token and layer: it grows with T alone.",
            ),
        ),
        right=1,
    ),
    Question(
        key="01-what-is-counted",
        stem="At T = 2,000, 1,999,000 of the projections are redundant. What does that number "
        "count?",
        options=(
            Option(
                "Matrix-multiply launches that a cache avoids.",
                "One launch projects all positions of a step together. The launches do not "
                "grow like that.",
            ),
            Option(
                "Positions evaluated again: K and V of one position, in one step, count as one.",
                "It counts position-level evaluations. How much time they take is measured, "
                "not counted.",
            ),
            Option(
                "Milliseconds saved, up to a constant.",
                "Time depends on the device: many positions share each read of the weights. "
                "Measure it.",
            ),
        ),
        right=1,
    ),
)

"""The quick questions of lesson 02."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="02-append-first",
        stem="The new token stands at position t, counted from 0. To which positions does it attend?",
        options=(
            Option(
                "0 to t - 1: the tokens that are in the cache.",
                "Many texts say so, and it is a real bug: without the token's own row the result "
                "is another one, and the first token has nothing to attend to.",
            ),
            Option(
                "t alone: the past is summed up in the cache.",
                "The cache sums nothing up. It holds every row, and the new query reads them all.",
            ),
            Option(
                "0 to the end of the context window.",
                "There is nothing after t yet, and a causal mask would hide it.",
            ),
            Option(
                "0 to t: its own key and value are appended first.",
                "The causal mask lets a token see itself. Append first, attend second.",
            ),
        ),
        right=3,
    ),
    Question(
        key="02-why-not-weights",
        stem="The attention weights of old tokens were computed too. Why not keep those?",
        options=(
            Option(
                "They would change when tokens are added, so they would soon be wrong.",
                "Under a causal mask they stay as they are. They would be right, and useless.",
            ),
            Option(
                "A new query makes its own row of weights and reads no old one.",
                "The same reason as for Q: nothing later asks for them. K and V are asked for by "
                "every later token.",
            ),
            Option(
                "They are rounded too much.",
                "They are as exact as anything else in that precision.",
            ),
            Option(
                "They can be made again from the old queries, which are kept.",
                "Old queries are not kept either. Nothing later needs the old weights, so nothing "
                "makes them again.",
            ),
        ),
        right=1,
    ),
    Question(
        key="02-exact",
        stem="A float32 decode step differs from the full recompute in the seventh digit. Why?",
        options=(
            Option(
                "The cache is an approximation, with an error of that size.",
                "The plain cache holds the very numbers that would be computed again. The "
                "difference of an approximation would not shrink with the precision; this one "
                "does.",
            ),
            Option(
                "Subtracting the largest score changes the weights.",
                "It changes nothing but rounding: the factor cancels between numerator and "
                "denominator. And both ways do it.",
            ),
            Option(
                "Floats round, and another shape may be added up in another order.",
                "In float64 the difference is about half a billion (2^29) times smaller: it is "
                "rounding, not another formula.",
            ),
            Option(
                "The cache stores K and V in 16 bits.",
                "It keeps the dtype that the rows come in, here float32. In 16 bits the third or "
                "fourth digit would differ.",
            ),
        ),
        right=2,
    ),
    Question(
        key="02-still-quadratic",
        stem="With a cache and d fixed, how does the work of a whole generated text of T tokens grow?",
        options=(
            Option(
                "With T squared: each step attends to all tokens so far.",
                "Attention's part of step t grows with t, and 1 + 2 + ... + T grows with T "
                "squared. 'From n squared to n' is said of attention in one step, not of a text.",
            ),
            Option(
                "With T: each step costs the same, whatever stands before it.",
                "The weights' part of a step does. Attention reads all t keys in step t.",
            ),
            Option(
                "With T cubed, as without a cache, only faster.",
                "T cubed is the text without a cache: t squared for attention in each of T steps.",
            ),
            Option(
                "With T log T: the steps grow, but slowly.",
                "1 + 2 + ... + T is T(T + 1)/2, which grows with T squared.",
            ),
        ),
        right=0,
    ),
)

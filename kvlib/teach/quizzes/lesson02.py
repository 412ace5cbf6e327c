"""The quick questions of lesson 02."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="02-append-first",
        stem="The new token stands at position t. To which positions does it attend?",
        options=(
            Option(
                "0 to t - 1: the tokens that are in the cache.",
                "A sentence found in many texts, and a real bug: without its own row the result is "
                "another one, and the first token has nothing to attend to.",
            ),
            Option(
                "0 to t: its own key and value are appended first.",
                "The causal mask lets a token see itself. Append first, attend second.",
            ),
            Option(
                "t alone: the past is summed up in the cache.",
                "The cache sums nothing up. It holds every row, and the new query reads them all.",
            ),
        ),
        right=1,
    ),
    Question(
        key="02-why-not-weights",
        stem="The attention weights of old tokens were computed too. Why not keep those?",
        options=(
            Option(
                "They would change when tokens are added.",
                "Under a causal mask they stay as they are. They would be right, and useless.",
            ),
            Option(
                "They are rounded too much.",
                "They are as exact as anything else in that precision.",
            ),
            Option(
                "A new query makes a new row of weights, and reads no old one.",
                "The same reason as for Q: nothing later asks for them. K and V are asked for by "
                "every later token.",
            ),
        ),
        right=2,
    ),
    Question(
        key="02-exact",
        stem="A float32 decode step differs from the full recompute in the seventh digit. Why?",
        options=(
            Option(
                "Another shape may be summed in another order, and floats round.",
                "In float64 the same difference is about a billion times smaller: it is rounding, "
                "not another formula.",
            ),
            Option(
                "The cache is an approximation.",
                "The plain cache holds the very numbers that would be computed again. Then the "
                "difference would not shrink with the precision.",
            ),
            Option(
                "Subtracting the largest score changes the weights a little.",
                "It changes nothing but rounding: the factor cancels between numerator and "
                "denominator. And both ways do it.",
            ),
        ),
        right=0,
    ),
    Question(
        key="02-still-quadratic",
        stem="With a cache and d fixed, how does the work of a whole generated text of T tokens grow?",
        options=(
            Option(
                "With T: each step costs the same.",
                "The weights' part of a step does. Attention reads all t keys in step t.",
            ),
            Option(
                "With T squared: attention's part of step t grows with t, and steps add up.",
                "1 + 2 + ... + T again. 'From n squared to n' is said of attention in one step, not "
                "of a text.",
            ),
            Option(
                "With T cubed, as without a cache, only faster.",
                "T cubed is the text without a cache: t squared for attention in each of T steps.",
            ),
        ),
        right=1,
    ),
)

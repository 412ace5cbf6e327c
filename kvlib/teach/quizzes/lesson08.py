"""The quick questions of lesson 08."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="08-what-shrinks",
        stem="You switch a model from attention by the formula to FlashAttention. What becomes smaller?",
        options=(
            Option(
                "The KV cache: its keys and values are kept in tiles.",
                "The cache is as it was, row for row and byte for byte: you printed its nbytes for "
                "both. Tiles are only the order in which it is read.",
            ),
            Option(
                "The memory for scores, which no longer stand anywhere all at once.",
                "That is what it saves, and the traffic of writing and reading them with it.",
            ),
            Option(
                "The number of multiplications.",
                "Each query still meets each key it may see: the same products, plus a little rescaling.",
            ),
        ),
        right=1,
    ),
    Question(
        key="08-why-faster",
        stem="Apart from the future, which it skips, the fused kernel does as many multiplications as the "
        "formula. What else makes it faster on a long prompt?",
        options=(
            Option(
                "It leaves out scores that are too small to matter.",
                "It leaves out nothing that a query may see. Its result is exact, but for rounding.",
            ),
            Option(
                "It computes in a lower precision.",
                "Here both ran in the same precision, and their errors against float64 are about the same.",
            ),
            Option(
                "A tile of scores is made, used and dropped without leaving the processor's fast memory.",
                "The formula writes all scores to memory and reads them again, several times.",
            ),
        ),
        right=2,
    ),
    Question(
        key="08-which-logarithm",
        stem="One kernel returns a part's log-sum as a logarithm of base 2, your merge expects a "
        "natural one. What happens?",
        options=(
            Option(
                "Nothing: only differences of log-sums matter.",
                "The differences are larger by 1 / ln 2, 1.44 times, so the heavier parts count too much.",
            ),
            Option(
                "The output is wrong, by more the more the parts differ in weight, and no error is raised.",
                "Multiply by ln 2 first. Parts of equal weight would hide the mistake, so test unequal ones.",
            ),
            Option(
                "The output is not finite.",
                "It is finite, plausible and wrong: the shares still sum to 1.",
            ),
        ),
        right=1,
    ),
    Question(
        key="08-empty-part",
        stem="Sixteen parts, but the sequence has only ten keys so far: some parts are empty. What "
        "must an empty "
        "part hand to the merge?",
        options=(
            Option(
                "Log-sum 0 and output 0: it adds nothing.",
                "Log-sum 0 means a sum of exp(0) = 1: it would take a share and pull the output towards 0.",
            ),
            Option(
                "Log-sum minus infinity: its share is exp(-inf) = 0.",
                "Its output is then never looked at. It must not be nan times 0, which is nan.",
            ),
            Option(
                "Anything, if the merge divides by the number of parts that are not empty.",
                "Parts are not averaged at all: each counts by its share of the sum.",
            ),
        ),
        right=1,
    ),
)

"""The quick questions of lesson 08."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="08-what-shrinks",
        stem="You switch a model from attention by the formula to FlashAttention. What becomes smaller?",
        options=(
            Option(
                "The KV cache, because keys and values are kept in tiles.",
                "The cache is as it was, row for row and byte for byte: you printed its nbytes for both. "
                "Tiles are only the order in which it is read.",
            ),
            Option(
                "The memory for scores.",
                "They never exist all at once. That also saves the traffic of writing and reading them.",
            ),
            Option(
                "The number of keys that count for a query.",
                "The result is exact: every key that the mask allows still counts. Under a causal mask "
                "whole tiles of future keys are skipped, but those never counted.",
            ),
        ),
        right=1,
    ),
    Question(
        key="08-why-faster",
        stem="Apart from future keys, which it skips, the fused kernel does as many multiplications as the "
        "formula. What else makes it faster on a long prompt?",
        options=(
            Option(
                "It uses and drops each tile of scores in the processor's fast memory.",
                "The formula writes all scores to memory and reads them again, several times.",
            ),
            Option(
                "It leaves out scores that are too small to matter.",
                "It leaves out nothing that a query may see. Its result is exact, apart from rounding.",
            ),
            Option(
                "It computes in a lower precision than the formula does.",
                "Here both ran in the same precision, and their errors against float64 are about the same.",
            ),
        ),
        right=0,
    ),
    Question(
        key="08-which-logarithm",
        stem="A kernel returns each part's log-sum as a logarithm of base 2, but your merge expects a "
        "natural one. What happens?",
        options=(
            Option(
                "Nothing, because only the differences of log-sums matter.",
                "The differences are 1 / ln 2 = 1.44 times too large, so the heavier parts count too much.",
            ),
            Option(
                "The output becomes infinite or nan.",
                "It is finite, plausible and wrong: the shares still add up to 1.",
            ),
            Option(
                "The output is wrong, and no error is raised.",
                "The more the parts differ in weight, the more wrong it is. Multiply by ln 2 first. Parts "
                "of equal weight hide the mistake, so test with unequal ones.",
            ),
        ),
        right=2,
    ),
    Question(
        key="08-empty-part",
        stem="A kernel splits the keys into sixteen parts, but the sequence has only ten keys so far. What "
        "must an empty part hand to the merge?",
        options=(
            Option(
                "Log-sum 0 and output 0, which add nothing.",
                "Log-sum 0 means a sum of exp(0) = 1: the part would get a share and pull the output "
                "towards 0.",
            ),
            Option(
                "Anything, if the merge divides by the number of parts that are not empty.",
                "The merge is no average of the parts: each counts by its share of the sum.",
            ),
            Option(
                "Log-sum minus infinity and a finite output.",
                "Its share is then exp(-inf) = 0. The output must be finite, as 0 times nan is nan.",
            ),
        ),
        right=2,
    ),
)

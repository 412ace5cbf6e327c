"""The quick questions of lesson 06."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="06-what-batching-shares",
        stem="You decode 16 sequences in one batch instead of one. What happens to the bytes that a "
        "step reads for each sequence?",
        options=(
            Option(
                "Weights and cache both fall to a sixteenth.",
                "The weights do: one read serves all. But nobody else attends to your keys and "
                "values, so each sequence's cache is read for it alone.",
            ),
            Option(
                "The weights' share falls to a sixteenth, the cache's stays.",
                "That is why a large batch at a long context waits for its cache, not its weights.",
            ),
            Option(
                "Nothing changes: each sequence needs all the weights.",
                "Each needs them, but they are read once and used for all 16 rows of the product.",
            ),
        ),
        right=1,
    ),
    Question(
        key="06-why-prefill-is-cheap",
        stem="A prompt of 512 tokens takes far less time in one prefill than in 512 decode steps. Why?",
        options=(
            Option(
                "Prefill skips the attention among the prompt's own tokens.",
                "It does not: each token attends to all before it, as in decode. The results are equal.",
            ),
            Option(
                "The prompt needs fewer multiplications when it is run at once.",
                "A fifth fewer (by this lesson's cost, 118 GFLOP for 147), nearly all because the output "
                "head runs once instead of 512 times. That explains little: the reads fall by far more.",
            ),
            Option(
                "All 512 positions share one read of the weights; decode reads them for each.",
                "Apart from the output head, the arithmetic is the same. The reads of the weights fall to "
                "one in 512, so prefill comes to wait for arithmetic and decode for memory.",
            ),
        ),
        right=2,
    ),
    Question(
        key="06-dense-or-sparse",
        stem="A table says an H100 does 1,979 TFLOP/s in bfloat16. You compute the batch at which its "
        "weights turn compute-bound and get about 590. What went wrong?",
        options=(
            Option(
                "1,979 counts operations on zeros that structured sparsity skips; dense it is 989.",
                "Ordinary weights are dense. The right figure gives about 295, half as much.",
            ),
            Option(
                "The bandwidth should be in GiB/s.",
                "That changes the result by 7 percent, and both data sheets and this course use GB/s.",
            ),
            Option(
                "Nothing; 590 is right.",
                "The table prints the sparse rate as if it were dense. Dense is 989 TFLOP/s.",
            ),
        ),
        right=0,
    ),
    Question(
        key="06-attention-and-batch",
        stem="Decode attention is bound by memory. Does a larger batch make it bound by arithmetic, as "
        "it does for the weights?",
        options=(
            Option(
                "Yes, from the same batch on.",
                "A weight is shared by the batch. Keys and values are not, so bytes and operations "
                "grow together.",
            ),
            Option(
                "No: its FLOP per byte is about the group size in 16 bits, whatever the batch.",
                "Only more query heads for each KV head raise it: GQA and MQA, not the batch.",
            ),
            Option(
                "Yes, but only at long contexts.",
                "Context cancels as well: each token costs the same bytes and the same operations.",
            ),
        ),
        right=1,
    ),
)

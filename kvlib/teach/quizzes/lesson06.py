"""The quick questions of lesson 06."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="06-what-batching-shares",
        stem="You decode 16 unrelated sequences together instead of one alone. What happens to the bytes "
        "that a step reads for each sequence?",
        options=(
            Option(
                "The weights' share falls to a sixteenth, the cache's share stays.",
                "One read of the weights serves all 16. That is why a large batch at a long context waits "
                "for its cache, not for its weights.",
            ),
            Option(
                "Weights and cache both fall to a sixteenth.",
                "The weights do: one read serves all. But no other sequence attends to your keys and "
                "values, so each cache is read for its own sequence alone.",
            ),
            Option(
                "Nothing changes, since each sequence needs all of the weights.",
                "Each needs them, but they are read once and used for all 16 rows of the product.",
            ),
        ),
        right=0,
    ),
    Question(
        key="06-why-prefill-is-cheap",
        stem="A prompt of 512 tokens takes far less time in one prefill than in 512 decode steps. What "
        "explains most of the difference?",
        options=(
            Option(
                "Prefill needs fewer multiplications.",
                "It does need a fifth fewer (by this lesson's cost, 118 GFLOP instead of 147), because the "
                "output head runs once. But the reads of the weights fall by a factor of 512.",
            ),
            Option(
                "Prefill leaves out the attention among the prompt's own tokens.",
                "It does not: each token attends to all before it, as in decode. The results are equal.",
            ),
            Option(
                "All positions share one read of the weights.",
                "Decode reads the weights again for every position. So prefill of a long prompt waits for "
                "arithmetic, and decode of one sequence waits for memory.",
            ),
        ),
        right=2,
    ),
    Question(
        key="06-what-always-holds",
        stem="Which of these holds for every model, batch and context?",
        options=(
            Option(
                "Prefill is compute-bound.",
                "A long prompt usually is. But a prompt, or a last chunk, of a few tokens reads all the "
                "weights for those few: it is bound by memory, like decode.",
            ),
            Option(
                "A step takes at least its bytes over the bandwidth and its operations over the FLOP rate.",
                "Those are the two roofs. Which one is higher depends on model, batch, context and device.",
            ),
            Option(
                "Decode is limited by reading the cache.",
                "At a short context and a small batch it mostly reads weights. On a CPU, or in a very large "
                "batch, arithmetic may take longest.",
            ),
        ),
        right=1,
    ),
    Question(
        key="06-attention-and-batch",
        stem="A larger batch makes the weights' products bound by arithmetic. Does it do the same for "
        "decode attention, with GQA, 16 bits and one new token for each sequence?",
        options=(
            Option(
                "Yes, from the same batch on.",
                "A weight is shared by the batch. Each sequence has its own keys and values, so bytes and "
                "operations grow together.",
            ),
            Option(
                "Yes, but only at long contexts, where attention has the most to compute.",
                "A longer context adds bytes and operations in the same proportion.",
            ),
            Option(
                "No: its FLOP per byte is about the group size, whatever the batch.",
                "It rises when more queries share each key and value: larger groups, a latent cache, "
                "several new tokens in one step, a prefix that is read once for several sequences. It also "
                "rises when a number takes fewer bytes.",
            ),
        ),
        right=2,
    ),
)

"""The quick questions of lesson 05."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="05-gqa-in-between",
        stem="Llama 3.1 70B has 64 query heads and 8 KV heads. How large is its cache?",
        options=(
            Option(
                "An eighth of MHA's, and 8 times as large as MQA's.",
                "That is GQA. For each token it holds 327,680 bytes in 16 bits; MHA would hold 2,621,440 "
                "and MQA 40,960.",
            ),
            Option(
                "Nearly as small as MQA's, since it uses GQA.",
                "The cache grows with the number of KV heads. MQA has one, this model has 8, so its cache is "
                "8 times as large.",
            ),
            Option(
                "As small as MQA's, because models in production use MQA.",
                "A few do, such as Falcon 7B. Llama 3, Qwen, Mistral and Gemma use GQA: it keeps more of "
                "MHA's quality than a single KV head does.",
            ),
        ),
        right=0,
    ),
    Question(
        key="05-what-is-shared",
        stem="Two query heads share a KV head. What do they have in common?",
        options=(
            Option(
                "Their attention patterns.",
                "A pattern comes from a query and the keys. Each head has a query of its own, so each has a "
                "pattern of its own.",
            ),
            Option(
                "Their queries, and with them everything that follows.",
                "Each query head keeps its own projection and its own query.",
            ),
            Option(
                "The keys and values they read.",
                "Queries, scores, patterns and outputs stay one per query head.",
            ),
        ),
        right=2,
    ),
    Question(
        key="05-when-not-faster",
        stem="You replace MHA by GQA with a quarter of the KV heads, and a decode step is no faster. "
        "Which of these is NOT a possible reason?",
        options=(
            Option(
                "The context is short.",
                "It is a possible reason: then a step mostly reads weights and starts kernels, and the cache "
                "hardly matters.",
            ),
            Option(
                "The model now has fewer queries to compute.",
                "It has not: GQA keeps every query head. Only keys and values are fewer.",
            ),
            Option(
                "The attention kernel first copies each KV head to all its query heads.",
                "It is a possible reason: the copy is written and read again, so more bytes move than with "
                "MHA.",
            ),
        ),
        right=1,
    ),
    Question(
        key="05-toggle-a-model",
        stem="You take trained MHA weights, keep one KV head in each layer and drop the others. What do you "
        "have?",
        options=(
            Option(
                "A broken model, until it is trained further.",
                "Most query heads now read keys they were not trained with. Conversion merges heads instead "
                "of dropping them, and then trains on for a while (Ainslie et al. 2023).",
            ),
            Option(
                "The same model with a smaller cache.",
                "The cache is smaller, but most query heads now read keys they were not trained with. The "
                "switch in a panel shows the arithmetic of such a model, not the model.",
            ),
            Option(
                "A slightly worse model, by an amount that follows from the number of heads.",
                "No formula gives that amount. Quality is measured, for one architecture and one training.",
            ),
        ),
        right=0,
    ),
)

"""The quick questions of lesson 05."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="05-which-head",
        stem="A model has 12 query heads and 4 KV heads. Which KV head does query head 7 read?",
        options=(
            Option(
                "KV head 3, as 7 % 4 = 3.",
                "That is tile order. The weights were trained with neighbours sharing a head.",
            ),
            Option(
                "KV head 2, as 7 // 3 = 2.",
                "A group has 12 // 4 = 3 heads: 0 to 2, 3 to 5, 6 to 8. Head 7 is in the third.",
            ),
            Option(
                "KV head 1, as 7 // 4 = 1.",
                "Divide by the size of a group, which is 3, not by the number of groups.",
            ),
        ),
        right=1,
    ),
    Question(
        key="05-what-is-shared",
        stem="Two query heads share a KV head. What do they have in common?",
        options=(
            Option(
                "Their attention patterns.",
                "A pattern is made of a query and the keys. Each head has a query of its own, so "
                "each has a pattern of its own.",
            ),
            Option(
                "The keys and values they read.",
                "Queries, scores, patterns and outputs stay one per query head.",
            ),
            Option(
                "Nothing: each reads its own copy.",
                "A copy would hold the same numbers. It takes memory and traffic, and gives nothing.",
            ),
        ),
        right=1,
    ),
    Question(
        key="05-when-not-faster",
        stem="You replace MHA by GQA with a quarter of the KV heads, and a decode step is no faster. "
        "Which is NOT a possible reason?",
        options=(
            Option(
                "The context is short.",
                "It is a reason: then a step mostly reads weights and starts kernels, and the cache "
                "hardly counts.",
            ),
            Option(
                "The attention kernel repeats K and V to all query heads first.",
                "It is a reason: the copy is written and read again, which moves more than MHA does.",
            ),
            Option(
                "The queries became fewer, too.",
                "They did not: GQA keeps every query head. Only K and V are fewer.",
            ),
        ),
        right=2,
    ),
    Question(
        key="05-toggle-a-model",
        stem="You take trained MHA weights, keep one KV head and drop the others. What do you have?",
        options=(
            Option(
                "The same model with a smaller cache.",
                "Most query heads now meet keys they were not trained with. The switch in a panel "
                "shows arithmetic, not such a model.",
            ),
            Option(
                "A slightly worse model, by an amount that the number of heads gives.",
                "No formula gives it. Quality is measured, for one architecture and one training.",
            ),
            Option(
                "A broken model, until it is trained further.",
                "Conversion merges heads and trains on for a while (Ainslie et al. 2023).",
            ),
        ),
        right=2,
    ),
)

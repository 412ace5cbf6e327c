"""The quick questions of lesson 03."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="03-rows-after-generation",
        stem="A prompt of 10 tokens has been answered with 5. How many rows does each layer's cache hold?",
        options=(
            Option(
                "15: a row for every token of the text.",
                "The last token has been chosen from the logits, and nothing has run it. Its key and "
                "value do not exist yet.",
            ),
            Option(
                "14: the prompt's rows, and those of four of the new tokens.",
                "The prefill makes 10 rows and the first new token, each of 4 decode steps one row "
                "and one token more.",
            ),
            Option(
                "5: a row for every step.",
                "The prefill is one step and makes a row for each of the 10 tokens it is given.",
            ),
        ),
        right=1,
    ),
    Question(
        key="03-shared-between-layers",
        stem="By a slip, all layers append to one store, while each counts its own tokens. Which test "
        "finds it?",
        options=(
            Option(
                "One that checks each cache's seq_len.",
                "Each layer counts its own tokens, and rightly. The rows behind the count are the "
                "wrong ones.",
            ),
            Option(
                "One that compares a model of a single layer with the full pass.",
                "With one layer there is no one to share with, and the class is right.",
            ),
            Option(
                "One that runs a model of two layers or more in several passes, and compares with "
                "the full pass.",
                "A first pass reads only its own rows, and goes right. In the next, queries meet rows "
                "that other layers left in the store, and the logits differ.",
            ),
        ),
        right=2,
    ),
    Question(
        key="03-top-left",
        stem="A mask is aligned at the top left by mistake. Which use of it goes wrong?",
        options=(
            Option(
                "Prefilling a whole prompt into an empty cache.",
                "There are as many queries as keys. The mask is square, and both corners are on its "
                "diagonal.",
            ),
            Option(
                "Every pass behind rows that are held already: later chunks, and decode.",
                "There the queries are the last tokens. From the top left they would see the start "
                "of the text alone, and not even themselves.",
            ),
            Option(
                "Decode only, as a chunk has a triangle of its own.",
                "The triangle must end at the bottom right for a chunk just as for a single query.",
            ),
        ),
        right=1,
    ),
    Question(
        key="03-position-behind-padding",
        stem="Two prompts, of 8 and 5 tokens, are padded on the left and prefilled. Which rotary "
        "position does the next token of the short one get?",
        options=(
            Option(
                "8, as the cache's seq_len is 8 for both.",
                "That is the index of its row. The three padding rows in front take no position.",
            ),
            Option(
                "5, the number of tokens of its own text so far.",
                "Position is the index less the padding, 8 - 3. So the text is computed as if it were alone.",
            ),
            Option(
                "3, the padding in front of it.",
                "The padding is what is taken off the index, not what is left of it.",
            ),
        ),
        right=1,
    ),
)

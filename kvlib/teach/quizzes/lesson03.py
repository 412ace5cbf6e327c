"""The quick questions of lesson 03."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="03-rows-after-generation",
        stem="A prompt of 10 tokens has been answered with 5. How many rows does each layer's cache "
        "hold?",
        options=(
            Option(
                "15: a row for every token of the prompt and of the answer.",
                "The last token has been chosen from the logits, and nothing has run it. Its key "
                "and value do not exist yet.",
            ),
            Option(
                "14: every token but the last has been run.",
                "The prefill makes 10 rows and the first new token, each of 4 decode steps one row"
                " and one token more.",
            ),
            Option(
                "5: a row for every step.",
                "The prefill is one step and makes a row for each of the 10 tokens it is given.",
            ),
            Option(
                "16: one more than the text, for the token that comes next.",
                "That token has not been chosen yet, and a row is made only when a token is run.",
            ),
        ),
        right=1,
    ),
    Question(
        key="03-shared-between-layers",
        stem="By mistake, all layers append to one store, while each counts its own tokens. Which test "
        "finds it?",
        options=(
            Option(
                "One that compares each cache's seq_len with the number of tokens run.",
                "Each layer counts its own tokens, and correctly. The rows that it reads are the "
                "wrong ones.",
            ),
            Option(
                "One that compares a model of a single layer with the full pass.",
                "With one layer there is no other to share with, and the logits are right.",
            ),
            Option(
                "One that compares several passes through several layers with the full pass.",
                "In a later pass, queries meet rows that other layers left in the store, and the "
                "logits differ.",
            ),
            Option(
                "One that prefills a whole prompt in one pass and compares with the full pass.",
                "A first pass reads only the newest rows, which are its own, and the logits are "
                "right. The error shows in the next pass.",
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
                "There are as many queries as keys. The mask is square, and both corners are on "
                "its diagonal.",
            ),
            Option(
                "Decode only, as a chunk has a triangle of its own.",
                "The triangle must end at the bottom right for a chunk just as for a single query.",
            ),
            Option(
                "None: softmax makes up for keys that are hidden.",
                "The weights of a row still sum to 1, but over the wrong keys.",
            ),
            Option(
                "Every pass after the first: later chunks, and decode.",
                "There the queries are the last tokens. From the top left they would see the start"
                " of the text alone, and not even themselves.",
            ),
        ),
        right=3,
    ),
    Question(
        key="03-position-behind-padding",
        stem="Two prompts, of 8 and 5 tokens, are padded on the left. Each is prefilled at the "
        "positions of its own text, from 0. Which rotary position does the next token of the short"
        " one get?",
        options=(
            Option(
                "8, as the cache's seq_len is 8 for both.",
                "That is the index of its row. Only if all tokens of this text were shifted by 3 "
                "alike would it do no harm, as RoPE is relative; here it would open a gap of 3.",
            ),
            Option(
                "5, the number of tokens of its own text so far.",
                "Position is the index less the padding, 8 - 3. So the text is computed as if it "
                "were alone.",
            ),
            Option(
                "3, the number of padding rows that stand in front of it.",
                "The padding is what is subtracted from the index, not what remains.",
            ),
        ),
        right=1,
    ),
)

"""The quick questions of lesson 07."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="07-twice-the-text",
        stem="A cache appends with torch.cat, token by token. The text becomes twice as long. How many "
        "times the bytes are copied, all in all?",
        options=(
            Option(
                "Twice as many.",
                "Twice as many steps, and the later ones copy more than the first ones did.",
            ),
            Option(
                "About four times as many.",
                "T steps that copy T/2 rows on average: the bytes grow with the square of T.",
            ),
            Option(
                "The same: a row is copied once, when it is appended.",
                "That is a preallocated buffer. torch.cat makes a new tensor and copies every row into it.",
            ),
        ),
        right=1,
    ),
    Question(
        key="07-what-attention-reads",
        stem="A static cache has room for 8,192 tokens and holds 512. What must decode attention read?",
        options=(
            Option(
                "All 8,192 rows: the buffer is one tensor.",
                "Only where the whole buffer is handed over with a mask. A slice of it is a tensor too.",
            ),
            Option(
                "512 rows, if it is handed a slice of the used length.",
                "The slice is a view: it costs nothing to make, and the unwritten slots are never touched.",
            ),
            Option(
                "Less than with torch.cat, as nothing is copied.",
                "Attention reads the same rows from either. What the static cache saves is the copying "
                "before it.",
            ),
        ),
        right=1,
    ),
    Question(
        key="07-past-the-end",
        stem="A buffer of 8 slots is full, and a program without a check writes one more token: "
        "k[:, :, 8:9] = row. What happens?",
        options=(
            Option(
                "PyTorch raises an IndexError.",
                "An index past the end is an error, but a slice is cut off at the end: here to no slots.",
            ),
            Option(
                "The last slot is overwritten.",
                "That is what index -1 does. A slice past the end writes nowhere.",
            ),
            Option(
                "Nothing: no error, and no row.",
                "The slice is empty, and one row spreads over no slots without complaint. The model goes on, "
                "blind to its newest tokens.",
            ),
        ),
        right=2,
    ),
    Question(
        key="07-recorded",
        stem="Why can a recorded step, as in a CUDA graph, not run on a cache that appends with torch.cat?",
        options=(
            Option(
                "torch.cat does not run on a GPU.",
                "It does, and it can even be recorded. What fails is playing the record again.",
            ),
            Option(
                "The record holds addresses, and after each append the rows lie at another one.",
                "Played again, it would read and write where the cache was when the record was made.",
            ),
            Option(
                "Copying is too slow for it.",
                "Slow would still be right. A record that reads freed memory is wrong.",
            ),
        ),
        right=1,
    ),
)

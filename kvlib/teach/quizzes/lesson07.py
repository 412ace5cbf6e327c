"""The quick questions of lesson 07."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="07-twice-the-text",
        stem="A cache appends with torch.cat, one token at a time. The text becomes twice as long. How many "
        "bytes are copied in total, compared with before?",
        options=(
            Option(
                "About twice as many.",
                "There are twice as many steps, and the later steps copy more than the first ones did.",
            ),
            Option(
                "About four times as many.",
                "T steps copy T / 2 rows each on average, so the bytes grow with the square of T.",
            ),
            Option(
                "About eight times as many.",
                "That is how attention's work grows over a whole text without a cache, with the cube of T.",
            ),
        ),
        right=1,
    ),
    Question(
        key="07-what-attention-reads",
        stem="A static cache has room for 8,192 tokens and holds 512. How many rows does decode attention "
        "have to read?",
        options=(
            Option(
                "512, if it is given a slice of the used length.",
                "The slice is a view: it costs nothing to make, and the unwritten slots are never read.",
            ),
            Option(
                "All 8,192, because the buffer is one tensor.",
                "It reads all of them only if it is given the whole buffer and a mask. A slice of the buffer "
                "is a tensor too.",
            ),
            Option(
                "Fewer than 512, because nothing was copied.",
                "Attention reads every row that the query may see, however the row came there. What a "
                "static cache saves is the copying before that.",
            ),
        ),
        right=0,
    ),
    Question(
        key="07-past-the-end",
        stem="A buffer of 8 slots is full, and a program without a check writes one more token: "
        "k[:, :, 8:9] = row. What happens?",
        options=(
            Option(
                "PyTorch raises an IndexError.",
                "An index past the end is an error. A slice is cut off at the end: here nothing is left of "
                "it.",
            ),
            Option(
                "The last slot is overwritten.",
                "That is what index -1 does. A slice past the end writes nowhere.",
            ),
            Option(
                "Nothing: no error, and no row.",
                "The slice is empty, and PyTorch assigns one row to no slots without complaint. The model "
                "goes on without its newest tokens.",
            ),
        ),
        right=2,
    ),
    Question(
        key="07-recorded",
        stem="Why can a recorded step, such as a CUDA graph, not use a cache that appends with torch.cat?",
        options=(
            Option(
                "The recording holds addresses, and each append moves the rows to another address.",
                "When it is played again it reads and writes where the cache was when it was recorded.",
            ),
            Option(
                "torch.cat does not run on a GPU, where the graph is recorded.",
                "It does, and it can even be recorded. What fails is playing the recording again.",
            ),
            Option(
                "Copying all rows in each step would make the graph too slow to be worth recording.",
                "A slow step would still be right. A recording that reads freed memory is wrong.",
            ),
        ),
        right=0,
    ),
)

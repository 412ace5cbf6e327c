"""The quick questions of lesson 09."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="09-how-much-smaller",
        stem="A 16-bit cache is kept in 4 bits, with 16-bit scale and zero for every 32 numbers. How much "
        "smaller is what is kept in codes?",
        options=(
            Option("4 times.", "The codes are. Scale and zero add 2 x 16 / 32 = 1 bit to each number."),
            Option(
                "3.2 times.",
                "4 + 1 = 5 bits a number, and 16 / 5 = 3.2. Rows kept in full precision make it less still.",
            ),
            Option(
                "8 times.",
                "That compares with 32 bits. Say what a cache is compared with: most are kept in 16 bits.",
            ),
        ),
        right=1,
    ),
    Question(
        key="09-key-axis",
        stem="Why do keys share a scale along a channel, and not along a token?",
        options=(
            Option(
                "A few channels are large in every token.",
                "In a token's own group such a channel sets the step, and all the small channels fall on a "
                "few codes. Along the channel it only meets numbers of its own size.",
            ),
            Option(
                "It takes fewer bytes.",
                "With groups of equal size it takes the same. What differs is the error.",
            ),
            Option(
                "Keys are rotated, values are not.",
                "RoPE mixes pairs of channels and makes this a little harder, not easier. The reason is the "
                "sizes.",
            ),
        ),
        right=0,
    ),
    Question(
        key="09-what-sinks-do",
        stem="A window keeps the first 4 tokens as sinks. What does the model know of a name that stood at "
        "token 50 and has left the window?",
        options=(
            Option(
                "What the sinks remember of it.",
                "The sinks' rows were made before token 50 and never change. They hold nothing of it.",
            ),
            Option(
                "Only what later tokens in the window took up from it.",
                "Its row is gone. Sinks keep the softmax in order; they bring nothing back.",
            ),
            Option(
                "All of it, a little less exactly.",
                "That is quantising. A window keeps some rows exactly, and the others not at all.",
            ),
        ),
        right=1,
    ),
    Question(
        key="09-latent-later",
        stem="May one take a trained MHA model, factor its key and value projections into a small latent, "
        "and so get MLA?",
        options=(
            Option(
                "Yes: it is the same product in two steps.",
                "Only at full rank, and then nothing is saved. A smaller rank drops a part of the keys.",
            ),
            Option(
                "Not for free: what the rank drops is lost, and rotary positions still stand between the two "
                "steps.",
                "Well chosen directions lose less, but something. And the rotation of each position cannot "
                "be absorbed, which is why MLA keeps a separate rotary key. MLA models are trained with "
                "their latent from the start, or trained on for long after a conversion.",
            ),
            Option(
                "Yes, if the latent is quantised too.",
                "Quantising adds an error of its own; it repairs none.",
            ),
        ),
        right=1,
    ),
)

"""The quick questions of lesson 09, on quantised and windowed caches."""

from kvlib.teach.quizzes import Option, Question

QUESTIONS = (
    Question(
        key="09-how-much-smaller",
        stem="A 16-bit cache is quantised to 4 bits, with a 16-bit scale and a 16-bit zero for every 32 "
        "numbers. How much smaller are the quantised rows, scales and zeros included?",
        options=(
            Option(
                "3.2 times.",
                "4 + 2 x 16 / 32 = 5 bits a number, and 16 / 5 = 3.2. Recent rows that stay in full "
                "precision make the whole cache larger than that.",
            ),
            Option(
                "4 times.",
                "The codes alone are. Scale and zero add 2 x 16 / 32 = 1 bit to each number.",
            ),
            Option(
                "8 times.",
                "That compares the codes with 32 bits. Always say what a cache is compared with.",
            ),
        ),
        right=0,
    ),
    Question(
        key="09-key-axis",
        stem="Why do keys share a scale along a channel, and not along a token?",
        options=(
            Option(
                "It takes fewer bytes.",
                "Groups of equal size take the same bytes either way. What differs is the error.",
            ),
            Option(
                "A few channels are large in every token.",
                "If the channels of a token share a scale, such a channel sets the step, and all small "
                "channels fall on a few codes. Along a channel, numbers of similar size share the scale.",
            ),
            Option(
                "Keys are rotated, and values are not.",
                "RoPE mixes pairs of channels, so a scale per channel fits a little worse, not better.",
            ),
        ),
        right=1,
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
                "All of it, but a little less exactly than before.",
                "That is what quantising does. A window keeps some rows exactly, and the others not at all.",
            ),
            Option(
                "Only what later tokens still in the window took from it.",
                "Its own row is gone. Sinks keep the softmax stable; they bring nothing back.",
            ),
        ),
        right=2,
    ),
)

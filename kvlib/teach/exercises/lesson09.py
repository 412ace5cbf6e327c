"""The exercises of lesson 09: a group in few bits, what a window keeps, and what is really held."""

import math

from kvlib.teach.exercises.contract import Exercise
from kvlib.teach.exercises.quantising import QUANTISE
from kvlib.teach.exercises.reading import Counts, Positions, Real


def _keep(condition: str) -> str:
    return f"def rows_to_keep(n, W, S):\n    return {condition}\n"


def _kept(window: str) -> str:
    return _keep(f"[j for j in range(n) if {window}]")


def _keep_rule(given, wanted, n, W, S) -> str:
    if not set(given) <= set(range(n)):
        return "only 0 to n - 1 were appended"
    if len(set(given)) < len(given):
        return "a position is in it twice: sinks may lie inside the window"
    if sorted(given) == wanted:
        return "the right positions in another order: count up"
    if lost := [j for j in wanted if j not in given]:
        return f"position {lost[0]} is missing, which token {n} will read"
    return f"position {next(j for j in given if j not in wanted)} can go: token {n} does not see it"


KEEP = Exercise(
    key="09-rows-to-keep",
    lesson=9,
    title="What may a window let go?",
    minutes=6,
    difficulty=2,
    importance=3,
    name="rows_to_keep",
    task="""
n tokens have been appended, at positions 0 to n - 1. A token sees a window of W tokens, itself included. The
first S tokens, the sinks, stay forever.

The next token comes at position n. Return the list of the positions, counting up, whose rows it will still
read. Every other row may go.""",
    hints=(
        "The next token is at position n. Which positions are fewer than W away from it?",
        "j is in the window where n - j < W. Position n itself is not in the cache yet.",
        "`[j for j in range(n) if ...]`: j is a sink, or j is in the window.",
    ),
    stub=_keep("..."),
    solution=_kept("j < S or n - j < W"),
    answer=Positions("positions"),
    cases=(
        (10, 4, 0), (10, 4, 2), (3, 4, 0), (3, 4, 2), (4, 4, 1), (6, 4, 2), (1, 8, 4), (9, 1, 1), (0, 4, 2),
        (1, 4, 0),
    ),
    right="the window counts the new token itself, so the sinks and W - 1 older rows are enough",
    rule=_keep_rule,
    wrong={
        "one row too many: the next token is itself one of the W, and brings its own row":
            _kept("j < S or n - j <= W"),
        "one row too few: the next token sees W tokens, itself and W - 1 before it":
            _kept("j < S or n - j < W - 1"),
        "the first S tokens stay forever, outside the window too": _kept("n - j < W"),
        "these are the rows that may go; return those that stay": _kept("not (j < S or n - j < W)"),
        "the sinks are kept in addition to the window; they do not make it smaller":
            _kept("j < S or n - j < W - S"),
    },
)  # fmt: skip


def _bits(result: str) -> str:
    return f"def bits_per_number(bits, group, w):\n    return {result}\n"


def _bits_rule(given, wanted, *case) -> str | None:
    rounded = (math.floor(wanted), math.ceil(wanted), *(round(wanted, digits) for digits in (0, 1, 2)))
    return "do not round: it may be a fraction" if given in rounded else None


BITS = Exercise(
    key="09-bits-per-number",
    lesson=9,
    title="How many bits does a number take?",
    minutes=4,
    difficulty=1,
    importance=2,
    name="bits_per_number",
    task="""
`group` numbers share one scale and one zero, which take `w` bits each. Every number has a code of `bits`
bits.

Return how many bits a number takes in all, with its share of scale and zero. Do not round: it may be a
fraction.""",
    hints=(
        "Count the bits of a whole group first: codes, one scale, one zero.",
        "A group takes group x bits + 2 x w bits.",
        "Divide by the numbers in the group.",
    ),
    stub=_bits("..."),
    solution=_bits("bits + 2 * w / group"),
    answer=Real("a number of bits"),
    cases=((4, 32, 16), (8, 32, 16), (4, 24, 16), (4, 32, 32), (2, 128, 16), (3, 48, 16)),
    right="4 bits in groups of 32 with 16-bit scales are 5 bits a number: 3.2 times smaller, not 4",
    otherwise="add this number's share of two numbers of w bits to its code",
    rule=_bits_rule,
    wrong={
        "that is the code alone; scale and zero take memory too": _bits("bits"),
        "a group keeps two numbers, its scale and its zero": _bits("bits + w / group"),
        "scale and zero are shared by the whole group": _bits("bits + 2 * w"),
        "that is the whole group; divide by its numbers": _bits("bits * group + 2 * w"),
        "w is in bits already": _bits("bits + 2 * w / 8 / group"),
        "that is in bytes; the bits are asked for": _bits("(bits + 2 * w / group) / 8"),
        "that is how many times smaller than 16 bits; the bits themselves are asked for":
            _bits("16 / (bits + 2 * w / group)"),
        "turned over: w bits are spread over `group` numbers": _bits("bits + 2 * group / w"),
    },
)  # fmt: skip

KEPT, EXPANDED = "L * (latent + rope) * T * b", "L * H * (D + rope + D) * T * b"


def _latent(kept: str, expanded: str) -> str:
    lines = f"kept = {kept}\n    expanded = {expanded}\n    return kept, expanded\n"
    return f"def latent_bytes(L, H, D, latent, rope, T, b):\n    {lines}"


LATENT = Exercise(
    key="09-latent-bytes",
    lesson=9,
    title="What a latent saves",
    minutes=5,
    difficulty=1,
    importance=1,
    name="latent_bytes",
    task="""
A model of L layers and H heads keeps, for each token and layer, one latent of `latent` numbers and one
rotary key of `rope` numbers. A number takes b bytes. For T tokens, return the bytes
- `kept`: of this latent cache
- `expanded`: if each head kept a value of D numbers, and a key of D followed by `rope` rotary numbers""",
    hints=(
        "`kept`: how many numbers does one row hold, and how many rows are there in all?",
        "A row is latent + rope numbers. The whole row is the key, and its first part is the value.",
        "`expanded`: a head keeps D + rope for the key and D for the value.",
    ),
    stub=_latent("...", "..."),
    solution=_latent(KEPT, EXPANDED),
    answer=Counts("kept", "expanded"),
    cases=((2, 6, 8, 20, 7, 10, 4), (61, 128, 128, 512, 64, 1000, 2), (1, 1, 3, 5, 2, 1, 2)),
    right="one row for all heads, and no factor 2",
    otherwise=(
        "`kept`: a token keeps one latent and one rotary key in each layer",
        "`expanded`: each of H heads keeps a key of D + rope numbers and a value of D",
    ),
    wrong={
        "these are the right numbers in the other order: return (kept, expanded)": _latent(EXPANDED, KEPT),
        "`kept`: no factor 2: the value is part of the row that is the key": _latent(f"2 * {KEPT}", EXPANDED),
        "`kept`: the rotary key is kept, too": _latent("L * latent * T * b", EXPANDED),
        "`kept`: one rotary key serves all heads": _latent("L * (latent + H * rope) * T * b", EXPANDED),
        "`kept`: one row serves all heads, so H does not appear": _latent(f"H * {KEPT}", EXPANDED),
        "`kept`: the latent is kept once: it serves as key and as value":
            _latent("L * (2 * latent + rope) * T * b", EXPANDED),
        "`kept`: that counts numbers; each has b bytes": _latent(f"{KEPT} // b", f"{EXPANDED} // b"),
        "that is in bits; the bytes are asked for": _latent(f"8 * {KEPT}", f"8 * {EXPANDED}"),
        "`expanded`: D does not include the rotary numbers: a head's key has D + rope":
            _latent(KEPT, "L * H * 2 * D * T * b"),
        "`expanded`: D does not include the rotary numbers: a head's key has D + rope, and its value D":
            _latent(KEPT, "L * H * (2 * D - rope) * T * b"),
        "`expanded`: the values are kept as well": _latent(KEPT, "L * H * (D + rope) * T * b"),
        "`expanded`: a value has no rotary part": _latent(KEPT, "L * H * 2 * (D + rope) * T * b"),
        "`expanded`: every head's key then has a rotary part of its own":
            _latent(KEPT, "L * (H * 2 * D + rope) * T * b"),
        "`expanded`: that counts numbers; each has b bytes": _latent(KEPT, f"{EXPANDED} // b"),
    },
)  # fmt: skip

EXERCISES = (QUANTISE, KEEP, BITS, LATENT)

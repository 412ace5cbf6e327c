"""The exercises of lesson 09: a group in few bits, what a window keeps, and what is really held."""

import math
from numbers import Rational

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet
from kvlib.teach.exercises.quantising import QUANTISE
from kvlib.teach.exercises.reading import counts, positions, short
from kvlib.teach.exercises.watching import number, show

KEEP_CASES = (
    (10, 4, 0),
    (10, 4, 2),
    (3, 4, 0),
    (3, 4, 2),
    (4, 4, 1),
    (6, 4, 2),
    (1, 8, 4),
    (9, 1, 1),
    (0, 4, 2),
    (1, 4, 0),
)


def rows_to_keep(n: int, W: int, S: int) -> list[int]:
    """Return the positions, of n tokens, that the next token will read: sinks and W - 1 more."""
    return [j for j in range(n) if j < S or j > n - W]


def _check_keep(candidate) -> Verdict:
    for n, W, S in KEEP_CASES:
        answer = candidate(n, W, S)
        case = f"with n={n}, W={W}, S={S} it gives {show(answer, 90)}"
        rows = positions(answer, "positions")
        if isinstance(rows, str):
            return not_yet(f"{rows}; {case}")
        wanted = rows_to_keep(n, W, S)
        if rows == wanted:
            continue
        for wrong, meaning in _KEEP_MISTAKES:
            if rows == wrong(n, W, S):
                return not_yet(f"{meaning}; {case}")
        if rows and (min(rows) < 0 or max(rows) >= n):
            return not_yet(f"only 0 to n - 1 were appended; {case}")
        if len(set(rows)) < len(rows):
            return not_yet(f"a position is in it twice: sinks may lie inside the window; {case}")
        if sorted(rows) == wanted:
            return not_yet(f"the right positions in another order: count up; {case}")
        lost = [j for j in wanted if j not in rows]
        if lost:
            return not_yet(f"position {lost[0]} is missing, which token {n} will read; {case}")
        extra = next(j for j in rows if j not in wanted)
        return not_yet(f"position {extra} can go: token {n} does not see it; {case}")
    return correct("the window counts the new token itself, so the sinks and W - 1 older rows are enough")


_KEEP_MISTAKES = (
    (
        lambda n, W, S: [j for j in range(n) if j < S or j >= n - W],
        "one row too many: the next token is itself one of the W, and brings its own row",
    ),
    (
        lambda n, W, S: [j for j in range(n) if j < S or j > n - W + 1],
        "one row too few: the next token sees W tokens, itself and W - 1 before it",
    ),
    (
        lambda n, W, S: [j for j in range(n) if j > n - W],
        "the first S tokens stay forever, outside the window too",
    ),
    (
        lambda n, W, S: [j for j in range(n) if j < S or j > n - W + S],
        "the sinks are kept in addition to the window; they do not make it smaller",
    ),
)


def _keep_source(expression: str) -> str:
    return f"def rows_to_keep(n, W, S):\n    return {expression}\n"


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
    stub=_keep_source("..."),
    solution=_keep_source("[j for j in range(n) if j < S or n - j < W]"),
    judge=_check_keep,
    wrong={
        "keeps W rows": _keep_source("[j for j in range(n) if j < S or n - j <= W]"),
        "keeps W - 2 rows": _keep_source("[j for j in range(n) if j < S or n - j < W - 1]"),
        "no sinks": _keep_source("[j for j in range(n) if n - j < W]"),
        "sinks inside the window's size": _keep_source("[j for j in range(n) if j < S or n - j < W - S]"),
        "counts a row twice": _keep_source("list(range(min(S, n))) + list(range(max(0, n - W + 1), n))"),
        "the last first": _keep_source("[j for j in reversed(range(n)) if j < S or n - j < W]"),
        "everything": _keep_source("list(range(n))"),
        "a future row": _keep_source("[j for j in range(n + 1) if j < S or n - j < W]"),
        "a number": _keep_source("min(n, S + W - 1)"),
    },
)


BITS_CASES = ((4, 32, 16), (8, 32, 16), (4, 24, 16), (4, 32, 32), (2, 128, 16), (3, 48, 16))


def bits_per_number(bits: int, group: int, w: int) -> float:
    """Return the bits one number takes, its share of scale and zero included."""
    return bits + 2 * w / group


def _check_bits(candidate) -> Verdict:
    for bits, group, w in BITS_CASES:
        answer = candidate(bits, group, w)
        case = f"with bits={bits}, group={group}, w={w} it gives {show(answer)}"
        exact = isinstance(answer, Rational) and not isinstance(answer, bool)
        given = float(answer) if exact else number(answer)
        if given is None or not math.isfinite(given):
            return not_yet(f"return a number of bits; {case}")
        right = bits_per_number(bits, group, w)
        if math.isclose(given, right, rel_tol=1e-6):
            continue
        for wrong, meaning in (
            (bits, "that is the code alone; scale and zero take memory too"),
            (bits + w / group, "a group keeps two numbers, its scale and its zero"),
            (bits + 2 * w, "scale and zero are shared by the whole group"),
            (bits * group + 2 * w, "that is the whole group; divide by its numbers"),
            (bits + 2 * w / 8 / group, "w is in bits already"),
            (right / 8, "that is in bytes; the bits are asked for"),
            (16 / right, "that is how many times smaller than 16 bits; the bits themselves are asked for"),
            (bits + 2 * group / w, "turned over: w bits are spread over `group` numbers"),
        ):
            if math.isclose(given, wrong, rel_tol=1e-6):
                return not_yet(f"{meaning}; {case}")
        if any(given == way(right) for way in (math.floor, math.ceil, round, _to_1, _to_2)):
            return not_yet(f"do not round: it may be a fraction; {case}")
        return not_yet(f"add this number's share of two numbers of w bits to its code; {case}")
    return correct("4 bits in groups of 32 with 16-bit scales are 5 bits a number: 3.2 times smaller, not 4")


def _to_1(x: float) -> float:
    return round(x, 1)


def _to_2(x: float) -> float:
    return round(x, 2)


def _bits_source(expression: str) -> str:
    return f"def bits_per_number(bits, group, w):\n    return {expression}\n"


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
    stub=_bits_source("..."),
    solution=_bits_source("bits + 2 * w / group"),
    judge=_check_bits,
    wrong={
        "codes alone": _bits_source("bits"),
        "no zero": _bits_source("bits + w / group"),
        "not shared": _bits_source("bits + 2 * w"),
        "the whole group": _bits_source("bits * group + 2 * w"),
        "bytes": _bits_source("bits + 2 * w / 8 / group"),
        "turned over": _bits_source("bits + 2 * group / w"),
        "rounded": _bits_source("round(bits + 2 * w / group)"),
        "a ratio": _bits_source("16 / (bits + 2 * w / group)"),
    },
)


LATENT_CASES = ((2, 6, 8, 20, 7, 10, 4), (61, 128, 128, 512, 64, 1000, 2), (1, 1, 3, 5, 2, 1, 2))


def latent_bytes(L: int, H: int, D: int, latent: int, rope: int, T: int, b: int) -> tuple[int, int]:
    """Return the bytes of T tokens kept as latents, and as keys and values of all heads."""
    return L * (latent + rope) * T * b, L * H * (D + rope + D) * T * b


def _check_latent(candidate) -> Verdict:
    for L, H, D, latent, rope, T, b in LATENT_CASES:
        answer = candidate(L, H, D, latent, rope, T, b)
        case = f"with L={L}, H={H}, D={D}, latent={latent}, rope={rope}, T={T}, b={b} it gives {show(answer)}"
        given = counts(answer, "kept", "expanded")
        if isinstance(given, str):
            return not_yet(f"{given}; {case}")
        wanted = list(latent_bytes(L, H, D, latent, rope, T, b))
        if given == wanted:
            continue
        said = short(answer, wanted) or _latent_mistake(given, wanted, H, D, latent, rope, L * T * b, b)
        return not_yet(f"{said}; {case}")
    return correct("one row for all heads, and no factor 2")


def _latent_mistake(given, wanted, H: int, D: int, latent: int, rope: int, tokens: int, b: int) -> str:
    """Say what is wrong with (kept, expanded); `tokens` is layers x tokens x bytes of a number."""
    kept, expanded = given
    if given == wanted[::-1]:
        return "these are the right numbers in the other order: return (kept, expanded)"
    if kept != wanted[0]:
        meaning = {
            2 * tokens * (latent + rope): "no factor 2: the value is part of the row that is the key",
            tokens * latent: "the rotary key is kept, too",
            tokens * (latent + H * rope): "one rotary key serves all heads",
            tokens * H * (latent + rope): "one row serves all heads, so H does not appear",
            tokens * (2 * latent + rope): "the latent is kept once: it serves as key and as value",
            wanted[0] // b: "that counts numbers; each has b bytes",
        }.get(kept, "a token keeps one latent and one rotary key in each layer")
        return f"`kept`: {meaning}"
    meaning = {
        tokens * H * 2 * D: "D does not include the rotary numbers: a head's key has D + rope",
        tokens * H * (2 * D - rope): "D does not include the rotary numbers: a head's key has D + rope, "
        "and its value D",
        tokens * H * (D + rope): "the values are kept as well",
        tokens * H * 2 * (D + rope): "a value has no rotary part",
        tokens * (H * 2 * D + rope): "every head's key then has a rotary part of its own",
        wanted[1] // b: "that counts numbers; each has b bytes",
    }.get(expanded, "each of H heads keeps a key of D + rope numbers and a value of D")
    return f"`expanded`: {meaning}"


def _latent_source(small: str, large: str = "L * H * (D + rope + D) * T * b") -> str:
    return (
        "def latent_bytes(L, H, D, latent, rope, T, b):\n"
        f"    kept = {small}\n"
        f"    expanded = {large}\n"
        "    return kept, expanded\n"
    )


_KEPT = "L * (latent + rope) * T * b"

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
    stub=_latent_source("...", "..."),
    solution=_latent_source(_KEPT),
    judge=_check_latent,
    wrong={
        "a factor 2": _latent_source("2 * L * (latent + rope) * T * b"),
        "no rope": _latent_source("L * latent * T * b"),
        "rope per head": _latent_source("L * (latent + H * rope) * T * b"),
        "row per head": _latent_source("L * H * (latent + rope) * T * b"),
        "the latent twice": _latent_source("L * (2 * latent + rope) * T * b"),
        "expanded without rope": _latent_source(_KEPT, "L * H * 2 * D * T * b"),
        "expanded keys alone": _latent_source(_KEPT, "L * H * (D + rope) * T * b"),
        "rope in the value": _latent_source(_KEPT, "L * H * 2 * (D + rope) * T * b"),
        "one rope for all": _latent_source(_KEPT, "L * (H * 2 * D + rope) * T * b"),
        "numbers, not bytes": _latent_source("L * (latent + rope) * T"),
    },
)

EXERCISES = (QUANTISE, KEEP, BITS, LATENT)

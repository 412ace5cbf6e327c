"""The exercises of lesson 05: who reads a KV head, what copies move, one's own attention."""

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet
from kvlib.teach.exercises.own_attention import ATTENTION
from kvlib.teach.exercises.reading import counts, positions, short
from kvlib.teach.exercises.watching import show

HEAD_CASES = ((12, 2), (9, 3), (32, 8), (6, 6), (7, 1))  # query heads, KV heads


def query_heads_of(j: int, H: int, KV: int) -> list[int]:
    """Return the query heads that read KV head j."""
    G = H // KV
    return list(range(j * G, (j + 1) * G))


def _check_heads(candidate) -> Verdict:
    for H, KV in HEAD_CASES:
        given = []  # for each KV head
        for j in range(KV):
            answer = candidate(j, H, KV)
            heads = positions(answer, "query heads")
            if isinstance(heads, str):
                return not_yet(f"{heads}; with j={j}, H={H}, KV={KV} it gives {show(answer)}")
            given.append(heads)
        wanted = [query_heads_of(j, H, KV) for j in range(KV)]
        if given == wanted:
            continue
        j = next(j for j in range(KV) if given[j] != wanted[j])
        said = _heads_mistake(given, wanted, H, KV)
        return not_yet(f"{said}; with j={j}, H={H}, KV={KV} it gives {show(given[j])}")
    return correct("neighbours share: the first G query heads read KV head 0, the next G read KV head 1")


def _heads_mistake(given, wanted, H: int, KV: int) -> str:
    G, every = H // KV, range(KV)
    for wrong, meaning in (
        (
            [list(range(j, H, KV)) for j in every],
            "that deals the query heads out in turn, which is tile order; neighbours share",
        ),
        (
            [list(range(j * KV, (j + 1) * KV)) for j in every],
            "a group has G = H / KV query heads, the size of a group; KV is how many groups there are",
        ),
        ([list(range(j, j + G)) for j in every], "these groups overlap: group j begins at j * G"),
        ([heads[:-1] for heads in wanted], "one too few: `range` stops before its end"),
        (
            [[*heads, heads[-1] + 1] for heads in wanted],
            "one too many: `range` stops before its end, so group j ends at (j + 1) * G",
        ),
        ([[h + 1 for h in heads] for heads in wanted], "heads count from 0, query heads too"),
        (wanted[::-1], "the groups run the other way: KV head 0 is read by query heads 0 to G - 1"),
        ([list(range(H))] * KV, "that is MQA, one KV head for all; here each has a group of its own"),
    ):
        if given == wrong:
            return meaning
    if [sorted(heads) for heads in given] == wanted:
        return "the right heads in another order: count up"
    if G > 1 and all(len(heads) == 1 for heads in given):
        return "that is one query head; a group has G of them"
    if any(h < 0 or h >= H for heads in given for h in heads):
        return "the query heads are 0 to H - 1"
    return "query heads 0 to G - 1 read KV head 0, the next G read KV head 1"


def _heads_source(*lines: str) -> str:
    return "def query_heads_of(j, H, KV):\n" + "".join(f"    {line}\n" for line in lines)


_GROUP = "G = H // KV"

HEADS = Exercise(
    key="05-kv-head-of",
    lesson=5,
    title="Who reads this KV head?",
    minutes=5,
    difficulty=1,
    importance=3,
    name="query_heads_of",
    task="""
A model has H query heads and KV key-value heads, and H is a multiple of KV. You want to move KV head
`j` to another device, together with all query heads that read it.

Return the list of these query heads, counting up. All heads count from 0.""",
    hints=(
        "How many query heads share one KV head? Call it G.",
        "Write out H = 8, KV = 2: query heads 0, 1, 2, 3 read KV head 0, and the others read KV head 1. "
        "With which query head does each group begin?",
        "Group j begins with query head j * G, and group j + 1 with (j + 1) * G. `range(start, end)` stops "
        "before its end.",
    ),
    stub=_heads_source("return ..."),
    solution=_heads_source(_GROUP, "return list(range(j * G, (j + 1) * G))"),
    judge=_check_heads,
    wrong={
        "tile order": _heads_source("return list(range(j, H, KV))"),
        "a group of KV heads": _heads_source("return list(range(j * KV, (j + 1) * KV))"),
        "overlapping groups": _heads_source(_GROUP, "return list(range(j, j + G))"),
        "one too few": _heads_source(_GROUP, "return list(range(j * G, (j + 1) * G - 1))"),
        "one too many": _heads_source(_GROUP, "return list(range(j * G, (j + 1) * G + 1))"),
        "counts from 1": _heads_source(_GROUP, "return list(range(j * G + 1, (j + 1) * G + 1))"),
        "from the end": _heads_source(_GROUP, "return list(range(H - (j + 1) * G, H - j * G))"),
        "all of them": _heads_source("return list(range(H))"),
        "the first one": _heads_source("return [j * (H // KV)]"),
        "a number": _heads_source("return j // (H // KV)"),
    },
)


MOVE_CASES = ((32, 8, 128, 1000, 4), (9, 3, 64, 77, 4), (12, 12, 64, 5, 2), (71, 1, 64, 10, 2))


def bytes_moved(H: int, KV: int, D: int, T: int, b: int) -> tuple[int, int]:
    """Return the bytes of K and V that one layer's step moves, shared and repeated."""
    one = 2 * T * D * b  # K and V of one head
    return KV * one, KV * one + 2 * H * one


def _check_moved(candidate) -> Verdict:
    for H, KV, D, T, b in MOVE_CASES:
        answer = candidate(H, KV, D, T, b)
        case = f"with H={H}, KV={KV}, D={D}, T={T}, b={b} it gives {show(answer)}"
        given = counts(answer, "shared", "repeated")
        if isinstance(given, str):
            return not_yet(f"{given}; {case}")
        wanted = list(bytes_moved(H, KV, D, T, b))
        if given == wanted:
            continue
        said = short(answer, wanted) or _moved_mistake(given, H, KV, 2 * T * D * b, b)
        return not_yet(f"{said}; {case}")
    return correct("the copies move more than MHA would: they are written and read in full at every step")


def _moved_mistake(given, H: int, KV: int, one: int, b: int) -> str:
    """Say what is wrong with (shared, repeated); `one` is the bytes of K and V of one head."""
    shared, repeated = given
    right = KV * one, (KV + 2 * H) * one
    if (repeated, shared) == right:
        return "these are the right numbers in the other order: return (shared, repeated)"
    if shared != right[0]:
        return {
            KV * one // 2: "`shared` counts K or V, and both are read",
            H * one: "`shared` reads a KV head once for its whole group, so KV heads, not H",
            KV * one // b: "`shared` counts numbers: each has b bytes",
        }.get(shared, "`shared` is K and V of KV heads: T rows each, D numbers in a row, b bytes a number")
    return {
        right[1] // 2: "`repeated` counts K or V, and both are copied and read",
        right[1] // b: "`repeated` counts numbers: each has b bytes",
        H * one: "`repeated` counts only reading the copies; they have to be made first",
        (KV + H) * one: "`repeated` moves the H copied heads once; they move twice: "
        "written when they are made, then read by attention",
        2 * H * one: "`repeated` leaves out reading the KV heads themselves, to copy them",
        KV * one: "`repeated` makes H heads out of KV, which moves more than `shared`",
    }.get(repeated, "`repeated` reads KV heads, writes H heads, and reads those H heads")


def _moved_source(shared: str, repeated: str) -> str:
    return (
        "def bytes_moved(H, KV, D, T, b):\n"
        f"    shared = {shared}\n"
        f"    repeated = {repeated}\n"
        "    return shared, repeated\n"
    )


MOVED = Exercise(
    key="05-bytes-moved",
    lesson=5,
    title="What a copy moves",
    minutes=6,
    difficulty=2,
    importance=2,
    name="bytes_moved",
    task="""
One decode step of one layer reads K and V of T tokens: KV heads of D numbers, b bytes each.
Count the bytes of K and V together that move between memory and processor:
- `shared`: each KV head is read once for its whole group
- `repeated`: K and V are first copied to H heads, and attention reads the copies

Count every byte that is read and every byte that is written.""",
    hints=(
        "K and V of one head are 2 x T x D x b bytes. `shared` reads KV such heads.",
        "Making the copies reads KV heads and writes H heads.",
        "Attention then reads the H heads that were written: KV + H + H heads in all.",
    ),
    stub=_moved_source("...", "..."),
    solution=_moved_source("2 * KV * T * D * b", "2 * (KV + H + H) * T * D * b"),
    judge=_check_moved,
    wrong={
        "K alone": _moved_source("KV * T * D * b", "(KV + H + H) * T * D * b"),
        "as many as query heads": _moved_source("2 * H * T * D * b", "2 * (KV + 2 * H) * T * D * b"),
        "the copies alone": _moved_source("2 * KV * T * D * b", "2 * H * T * D * b"),
        "the copies not read": _moved_source("2 * KV * T * D * b", "2 * (KV + H) * T * D * b"),
        "the originals not read": _moved_source("2 * KV * T * D * b", "2 * (H + H) * T * D * b"),
        "no difference": _moved_source("2 * KV * T * D * b", "shared"),
        "numbers, not bytes": _moved_source("2 * KV * T * D", "2 * (KV + H + H) * T * D"),
    },
)

EXERCISES = (HEADS, MOVED, ATTENTION)

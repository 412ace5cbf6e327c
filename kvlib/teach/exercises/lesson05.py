"""The exercises of lesson 05: who reads which KV head, what copies move, one's own attention."""

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet, show
from kvlib.teach.exercises.own_attention import ATTENTION

HEAD_CASES = ((8, 2), (9, 3), (32, 8), (6, 6), (7, 1))  # query heads, KV heads


def kv_head_of(h: int, H: int, KV: int) -> int:
    """Return the KV head that query head h reads."""
    return h // (H // KV)


def _check_head(candidate) -> Verdict:
    for H, KV in HEAD_CASES:
        given = [candidate(h, H, KV) for h in range(H)]
        case = f"with H={H} and KV={KV} the heads in turn get {show(given, 90)}"
        for number in given:
            if isinstance(number, bool) or not isinstance(number, int | float):
                return not_yet(f"return the number of a KV head, a whole number; {case}")
        if any(isinstance(number, float) for number in given):
            return not_yet(f"a head number is whole: divide with `//`; {case}")
        wanted = [kv_head_of(h, H, KV) for h in range(H)]
        if given == wanted:
            continue
        G = H // KV
        for wrong, meaning in (
            (
                [h % KV for h in range(H)],
                "that deals the heads out in turn, which is tile order; neighbours share",
            ),
            ([h % G for h in range(H)], "h % G is a head's place inside its group, not the group"),
            ([h // KV for h in range(H)], "divide by the size of a group, G, not by how many there are"),
            ([number + 1 for number in wanted], "heads count from 0, KV heads too"),
            (
                [KV - 1 - number for number in wanted],
                "the groups run the other way: head 0 reads KV head 0",
            ),
            (list(range(H)), "that is MHA, a KV head for each query head; here G of them share one"),
            ([0] * H, "that is MQA, one KV head for all; here there are KV of them"),
        ):
            if given == wrong:
                return not_yet(f"{meaning}; {case}")
        if min(given) < 0 or max(given) >= KV:
            return not_yet(f"the KV heads are 0 to KV - 1; {case}")
        return not_yet(f"the first G query heads read KV head 0, the next G read KV head 1; {case}")
    return correct("neighbours share: the first G heads read KV head 0, the next G read KV head 1")


def _head_source(expression: str) -> str:
    return f"def kv_head_of(h, H, KV):\n    return {expression}\n"


HEAD = Exercise(
    key="05-kv-head-of",
    lesson=5,
    title="Which KV head?",
    minutes=4,
    difficulty=1,
    importance=3,
    name="kv_head_of",
    task="""
A model has H query heads and KV key-value heads, and H is a multiple of KV. Query heads that
stand next to each other share a KV head.

Return the number of the KV head that query head `h` reads. All heads count from 0.""",
    hints=(
        "How many query heads share one KV head? Call it G.",
        "Write out H = 8, KV = 2: heads 0, 1, 2, 3 read KV head 0, the others KV head 1.",
        "G is `H // KV`. Which group of G does `h` fall into?",
    ),
    stub=_head_source("..."),
    solution=_head_source("h // (H // KV)"),
    judge=_check_head,
    wrong={
        "tile order": _head_source("h % KV"),
        "the place in the group": _head_source("h % (H // KV)"),
        "divides by the number of groups": _head_source("h // KV"),
        "a fraction": _head_source("h / (H / KV)"),
        "counts from 1": _head_source("h // (H // KV) + 1"),
        "its own head": _head_source("h"),
        "one head for all": _head_source("0"),
    },
)


MOVE_CASES = ((32, 8, 128, 1000, 4), (9, 3, 64, 77, 4), (12, 12, 64, 5, 2), (71, 1, 64, 10, 2))


def bytes_moved(H: int, KV: int, D: int, T: int, b: int) -> tuple[int, int]:
    """Return the bytes of K and V that one layer's step moves, shared and repeated."""
    one = 2 * T * D * b  # K and V of one head
    return KV * one, KV * one + 2 * H * one


def _check_moved(candidate) -> Verdict:
    for H, KV, D, T, b in MOVE_CASES:
        given = candidate(H, KV, D, T, b)
        case = f"with H={H}, KV={KV}, D={D}, T={T}, b={b} it gives {show(given)}"
        if not isinstance(given, tuple | list) or len(given) != 2:
            return not_yet(f"return two numbers, (shared, repeated); {case}")
        if any(isinstance(n, bool) or not isinstance(n, int) for n in given):
            return not_yet(f"bytes are whole numbers, as int; {case}")
        shared, repeated = given
        one = 2 * T * D * b
        if shared != KV * one:
            meaning = {
                KV * one // 2: "`shared` counts K or V, and both are read",
                H * one: "`shared` reads a KV head once for its whole group, so KV heads, not H",
                KV * one // b: "`shared` counts numbers: each has b bytes",
            }.get(shared, "`shared` is K and V of KV heads, T rows of D numbers of b bytes each")
            return not_yet(f"{meaning}; {case}")
        if repeated != KV * one + 2 * H * one:
            meaning = {
                H * one: "`repeated` counts reading the copies alone; they are made first",
                KV * one + H * one: "`repeated` moves the H copied heads once; they move twice: "
                "written when they are made, then read by attention",
                2 * H * one: "to copy, the KV heads themselves are read as well, in `repeated`",
                KV * one: "`repeated` makes H heads out of KV, which moves more than `shared`",
            }.get(repeated, "`repeated` is read KV heads, write H heads, read H heads")
            return not_yet(f"{meaning}; {case}")
    return correct("the copy moves more than MHA would: it is written and read in full, every step")


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

Reading counts, and writing counts.""",
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
        "reads every query head's": _moved_source("2 * H * T * D * b", "2 * (KV + 2 * H) * T * D * b"),
        "the copies only": _moved_source("2 * KV * T * D * b", "2 * H * T * D * b"),
        "the copies not read": _moved_source("2 * KV * T * D * b", "2 * (KV + H) * T * D * b"),
        "the originals not read": _moved_source("2 * KV * T * D * b", "2 * (H + H) * T * D * b"),
        "no difference": _moved_source("2 * KV * T * D * b", "shared"),
        "numbers, not bytes": _moved_source("2 * KV * T * D", "2 * (KV + H + H) * T * D"),
    },
)

EXERCISES = (HEAD, MOVED, ATTENTION)

"""The exercises of lesson 05: who reads a KV head, what copies move, one's own attention."""

from kvlib.teach.exercises.contract import Exercise
from kvlib.teach.exercises.own_attention import ATTENTION
from kvlib.teach.exercises.reading import Counts, Positions


def _heads(result: str) -> str:
    return f"def query_heads_of(j, H, KV):\n    G = H // KV\n    return {result}\n"


def _heads_rule(given, wanted, j, H, KV) -> str | None:
    if sorted(given) == wanted:
        return "the right heads in another order: count up"
    if H > KV and len(given) == 1:
        return "that is one query head; a group has G of them"
    return "the query heads are 0 to H - 1" if not set(given) <= set(range(H)) else None


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
    stub="def query_heads_of(j, H, KV):\n    return ...\n",
    solution=_heads("list(range(j * G, (j + 1) * G))"),
    answer=Positions("query heads"),
    cases=tuple((j, H, KV) for H, KV in ((12, 2), (9, 3), (32, 8), (6, 6), (7, 1)) for j in range(KV)),
    right="neighbours share: the first G query heads read KV head 0, the next G read KV head 1",
    otherwise="query heads 0 to G - 1 read KV head 0, the next G read KV head 1",
    rule=_heads_rule,
    wrong={
        "that deals the query heads out in turn, which is tile order; neighbours share":
            _heads("list(range(j, H, KV))"),
        "a group has G = H / KV query heads, the size of a group; KV is how many groups there are":
            _heads("list(range(j * KV, (j + 1) * KV))"),
        "these groups overlap: group j begins at j * G": _heads("list(range(j, j + G))"),
        "one too few: `range` stops before its end": _heads("list(range(j * G, (j + 1) * G - 1))"),
        "one too many: `range` stops before its end, so group j ends at (j + 1) * G":
            _heads("list(range(j * G, (j + 1) * G + 1))"),
        "heads count from 0, query heads too": _heads("list(range(j * G + 1, (j + 1) * G + 1))"),
        "the groups run the other way: KV head 0 is read by query heads 0 to G - 1":
            _heads("list(range(H - (j + 1) * G, H - j * G))"),
        "that is MQA, one KV head for all; here each has a group of its own": _heads("list(range(H))"),
    },
)  # fmt: skip


def _moved(shared: str, repeated: str) -> str:
    one = "one = 2 * T * D * b  # K and V of one head"
    return f"def bytes_moved(H, KV, D, T, b):\n    {one}\n    return {shared}, {repeated}\n"


SHARED, REPEATED = "KV * one", "(KV + H + H) * one"

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
    stub="def bytes_moved(H, KV, D, T, b):\n    shared = ...\n    repeated = ...\n"
    "    return shared, repeated\n",
    solution="def bytes_moved(H, KV, D, T, b):\n    shared = 2 * KV * T * D * b\n"
    "    repeated = 2 * (KV + H + H) * T * D * b\n    return shared, repeated\n",
    answer=Counts("shared", "repeated"),
    cases=((32, 8, 128, 1000, 4), (9, 3, 64, 77, 4), (12, 12, 64, 5, 2), (71, 1, 64, 10, 2)),
    right="the copies move more than MHA would: they are written and read in full at every step",
    otherwise=(
        "`shared` is K and V of KV heads: T rows each, D numbers in a row, b bytes a number",
        "`repeated` reads KV heads, writes H heads, and reads those H heads",
    ),
    wrong={
        "these are the right numbers in the other order: return (shared, repeated)": _moved(REPEATED, SHARED),
        "`shared` counts K or V, and both are read": _moved(f"{SHARED} // 2", f"{REPEATED} // 2"),
        "`shared` reads a KV head once for its whole group, so KV heads, not H": _moved("H * one", REPEATED),
        "`shared` counts numbers: each has b bytes": _moved(f"{SHARED} // b", f"{REPEATED} // b"),
        "`repeated` counts K or V, and both are copied and read": _moved(SHARED, f"{REPEATED} // 2"),
        "`repeated` counts numbers: each has b bytes": _moved(SHARED, f"{REPEATED} // b"),
        "`repeated` counts only reading the copies; they have to be made first": _moved(SHARED, "H * one"),
        "`repeated` moves the H copied heads once; they move twice: written when they are made, then read by "
        "attention": _moved(SHARED, "(KV + H) * one"),
        "`repeated` leaves out reading the KV heads themselves, to copy them": _moved(SHARED, "2 * H * one"),
        "`repeated` makes H heads out of KV, which moves more than `shared`": _moved(SHARED, SHARED),
    },
)  # fmt: skip

EXERCISES = (HEADS, MOVED, ATTENTION)

"""The exercises of lesson 07: what growing copies, a cache that does not grow, the mask of a buffer."""

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet
from kvlib.teach.exercises.own_buffer import BUFFER
from kvlib.teach.exercises.reading import counts, short
from kvlib.teach.exercises.watching import show

GROW_CASES = ((100, 20, 46080), (1, 3, 10), (7, 1, 6), (5, 40, 512), (9, 0, 4))


def cat_cost(p: int, n: int, row: int) -> tuple[int, int]:
    """Return the bytes written by appending p rows at once and then n one by one, and the peak."""
    written = row * (p + n * p + n * (n + 1) // 2)
    return written, row * (2 * (p + n) - 1 if n else p)


def _check_cost(candidate) -> Verdict:
    for p, n, row in GROW_CASES:
        answer = candidate(p, n, row)
        case = f"with p={p}, n={n}, row={row} it gives {show(answer)}"
        given = counts(answer, "written", "peak")
        if isinstance(given, str):
            return not_yet(f"{given}; {case}")
        wanted = list(cat_cost(p, n, row))
        if given == wanted:
            continue
        said = short(answer, wanted) or _cost_mistake(given, wanted, p, n, row)
        return not_yet(f"{said}; {case}")
    return correct("each of the n steps writes all rows anew, and holds the old ones until it is done")


def _cost_mistake(given, wanted, p: int, n: int, row: int) -> str:
    if given == wanted[::-1]:
        return "these are the right numbers in the other order: return (written, peak)"
    if given == [2 * x for x in wanted]:
        return "that is twice as much: `row` is K and V already"
    written, peak = given
    if written != wanted[0]:
        return _written_mistake(written, p, n, row)
    return _peak_mistake(peak, p, n, row)


def _written_mistake(written: int, p: int, n: int, row: int) -> str:
    if written == (p + n) * row:
        return "`written` counts each row once, as in a preallocated buffer: `cat` writes all rows again"
    if written == cat_cost(p, n, row)[0] // row:
        return "`written` counts rows: each has `row` bytes"
    if written == row * (n * p + n * (n + 1) // 2):
        return "`written` leaves out the first update, which writes the p rows of the prompt"
    if written == row * (p + n * (n + 1) // 2):
        return "`written` forgets the prompt's rows in the later steps: step i writes p + i rows"
    if written == row * (p + n * p + n * (n - 1) // 2):
        return "`written` counts the old rows that are copied; the new row is written as well"
    if written == row * (p + n * (p + n)):
        return "`written` takes the last step for all of them: the first ones write fewer rows"
    if written == row * (p + n) * (p + n + 1) // 2:
        return "`written` grows from the first token; the p rows of the prompt come in one update"
    if written == row * (p + 2 * (n * p + n * (n - 1) // 2) + n):
        return "`written` counts reading the old rows as well as writing them; only writing counts"
    return "`written` is p rows, then p + 1, p + 2 and so on up to p + n"


def _peak_mistake(peak: int, p: int, n: int, row: int) -> str:
    if n and peak == 2 * cat_cost(p, n, row)[1]:
        return "`peak` is twice as much: `row` is K and V already"
    if n == 0 and peak == 2 * p * row:
        return "`peak` is twice what is held: do not count the rows that come in, only the cache's tensors"
    if n == 0:
        return "without a later step there is nothing old: `peak` is then the p rows alone"
    if peak == (p + n) * row:
        return "`peak` is what is held in the end; while `cat` runs, the old tensors are still there"
    if peak == 2 * (p + n) * row:
        return (
            "`peak` is one row too many: the old tensors hold p + n - 1 rows in the last step. If your extra "
            "row is the incoming one, do not count the row that comes in, only the cache's tensors"
        )
    if peak == cat_cost(p, n, row)[0]:
        return "`peak` adds up all that was ever written; older tensors are freed, step by step"
    if peak == cat_cost(p, n, row)[1] // row:
        return "`peak` counts rows: each has `row` bytes"
    return "`peak` is the last step's: p + n - 1 rows of the old tensors, p + n of the new"


def _cost_source(written: str, peak: str) -> str:
    return f"def cat_cost(p, n, row):\n    written = {written}\n    peak = {peak}\n    return written, peak\n"


WRITTEN = "row * (p + n * p + n * (n + 1) // 2)"
PEAK = "row * (p + n + p + n - 1) if n else row * p"

COST = Exercise(
    key="07-cat-cost",
    lesson=7,
    title="What growing writes",
    minutes=8,
    difficulty=2,
    importance=3,
    name="cat_cost",
    task="""
A layer's cache appends with `torch.cat`, K and V in one go. First it gets a prompt of `p` tokens in one
update, which writes p rows. Then it gets n tokens, one at a time. Each time `cat` writes all rows so far, old
and new, into new tensors, and only then are the old ones freed. n may be 0. `row` is the bytes of a token's
K and V in this layer.

Return two whole numbers:
- `written`: bytes written into new tensors, over all updates
- `peak`: the most bytes the cache's own tensors take at one moment, without the rows that are passed in""",
    hints=(
        "Write out p = 2 and n = 3: how many rows does each of the four updates write?",
        "p, then p + 1, p + 2, ... p + n. The sum of 1 to n is n (n + 1) / 2, and each step also writes the "
        "p rows of the prompt.",
        "The peak is in the last step, while old and new tensors are alive: p + n - 1 old rows and p + n new "
        "ones. With n = 0 there is no such step.",
    ),
    stub=_cost_source("...", "..."),
    solution=_cost_source(WRITTEN, PEAK),
    judge=_check_cost,
    wrong={
        "each row once": _cost_source("row * (p + n)", PEAK),
        "rows, not bytes": _cost_source("p + n * p + n * (n + 1) // 2", PEAK),
        "without the prompt's update": _cost_source("row * (n * p + n * (n + 1) // 2)", PEAK),
        "the prompt only once": _cost_source("row * (p + n * (n + 1) // 2)", PEAK),
        "copies alone": _cost_source("row * (p + n * p + n * (n - 1) // 2)", PEAK),
        "every step the longest": _cost_source("row * (p + n * (p + n))", PEAK),
        "token by token from the start": _cost_source("row * (p + n) * (p + n + 1) // 2", PEAK),
        "twice as much": _cost_source(f"2 * {WRITTEN}", f"2 * ({PEAK})"),
        "the peak is the end": _cost_source(WRITTEN, "row * (p + n)"),
        "twice the end": _cost_source(WRITTEN, "2 * row * (p + n) if n else row * p"),
        "old ones without a step": _cost_source(WRITTEN, "row * (2 * (p + n) - 1)"),
        "nothing is freed": _cost_source(WRITTEN, "written"),
    },
)


MASK_CASES = ((5, 2, 9), (4, 1, 8), (0, 3, 6), (5, 3, 12), (7, 1, 8), (0, 1, 1), (2, 4, 6))


def buffer_mask(start: int, num_new: int, max_seq_len: int):
    """Return who may see which slot of a whole buffer, bool (num_new, max_seq_len)."""
    import torch

    return torch.ones(num_new, max_seq_len, dtype=torch.bool).tril(start)


def _check_mask(candidate) -> Verdict:
    import torch

    for start, num_new, room in MASK_CASES:
        given = candidate(start, num_new, room)
        wanted = buffer_mask(start, num_new, room)
        case = f"with start={start}, num_new={num_new}, max_seq_len={room}"
        if not isinstance(given, torch.Tensor):
            return not_yet(f"return a tensor of bools; {case} it gives {show(given)}")
        if (shape := tuple(given.shape)) != (num_new, room):
            meaning = {
                (room, num_new): "rows are queries and columns are slots, not the other way round",
                (num_new, start + num_new): "the whole buffer is handed to attention, so every slot needs a "
                "column, the unwritten ones too",
                (room,): "each new query needs a row of its own",
                (room, room): "only the new tokens have queries",
                (num_new,): "each new query needs a column for each slot of the buffer",
            }.get(shape, "a row for each new query, a column for each slot of the buffer")
            return not_yet(f"{case} the shape must be {(num_new, room)}, not {shape}: {meaning}")
        if given.dtype != torch.bool:
            return not_yet(f"return bools, True where a query may look; the dtype is {given.dtype}")
        if not torch.equal(given, wanted):
            rows = ", ".join("".join("1" if seen else "0" for seen in row) for row in given.tolist())
            return not_yet(f"{_mask_mistake(torch, given, wanted, start)}; {case} the rows are {rows}")
    return correct("query i is token start + i: it sees slots 0 to start + i and no unwritten one")


def _mask_mistake(torch, given, wanted, start: int) -> str:
    num_new, room = wanted.shape
    ones = torch.ones(num_new, room, dtype=torch.bool)
    used = torch.arange(room) < start + num_new
    if torch.equal(given, ~wanted):
        return "that is the opposite: True where a query may look"
    if torch.equal(given, ones):
        return "the queries see the whole buffer, unwritten slots too, which hold whatever was there before"
    if torch.equal(given, ones & used):
        return "the unwritten slots are hidden, but the first new query sees those that come after it"
    if torch.equal(given, ones.tril(room - num_new)):
        return (
            "that ends in the bottom right corner, which is right where the keys end with the new rows; "
            "here unwritten slots follow them"
        )
    if torch.equal(given, ones.tril()):
        return f"the first new query is token {start}, not token 0, and sees slots 0 to {start}"
    if torch.equal(given, ones.tril(num_new)):
        return f"the diagonal is the number of rows before the new ones, {start}, not num_new"
    if torch.equal(given, ones.tril(start - 1)):
        return "a query must see its own slot as well: it was just written"
    if given.any() and not (given & (~wanted | (torch.arange(room) < start))).any():
        return "the old rows are hidden: a new query sees slots 0 to start - 1 as well"
    if torch.equal(given, ones & (torch.arange(room) < start)):
        return "the new tokens' own slots are hidden: they are written before attention runs"
    if torch.equal(given, ones.tril(start + 1)):
        return "each query sees one slot too many, and the last one a slot that was never written"
    return "query i sees slots 0 to start + i, whatever max_seq_len is"


def _mask_source(body: str) -> str:
    return f"import torch\n\n\ndef buffer_mask(start, num_new, max_seq_len):\n    return {body}\n"


_ONES = "torch.ones(num_new, max_seq_len, dtype=torch.bool)"
_SLOTS = "torch.arange(max_seq_len)"

MASK = Exercise(
    key="07-buffer-mask",
    lesson=7,
    title="The mask of a whole buffer",
    minutes=7,
    difficulty=2,
    importance=2,
    name="buffer_mask",
    task="""
A cache gives attention its whole buffer of max_seq_len slots. The first `start` slots were filled before.
The `num_new` new rows have just been written into the next slots. All later slots were never written.

Return a bool tensor of shape (num_new, max_seq_len), True where new query i may look at slot j.""",
    hints=(
        "Query i is token start + i. Which is the last slot it may see?",
        "Compare slot numbers j with start + i. Or use `.tril(diagonal)`, which keeps row i up to column "
        "i + diagonal.",
        f"`{_ONES}.tril(start)`: unlike in lesson 03 the diagonal does not depend on the number of columns.",
    ),
    stub=_mask_source("..."),
    solution=_mask_source(f"{_ONES}.tril(start)"),
    judge=_check_mask,
    wrong={
        name: _mask_source(body)
        for name, body in {
            "bottom right": f"{_ONES}.tril(max_seq_len - num_new)",
            "top left": f"{_ONES}.tril()",
            "sees everything": _ONES,
            "sees all that is used": f"({_SLOTS} < start + num_new).expand(num_new, -1)",
            "sees only the old": f"({_SLOTS} < start).expand(num_new, -1)",
            "not itself": f"{_ONES}.tril(start - 1)",
            "one too many": f"{_ONES}.tril(start + 1)",
            "the opposite": f"~{_ONES}.tril(start)",
            "numbers": "torch.ones(num_new, max_seq_len).tril(start)",
            "the used slots alone": "torch.ones(num_new, start + num_new, dtype=torch.bool).tril(start)",
            "one row for all": f"{_SLOTS} < start + num_new",
            "slots by queries": f"{_ONES}.tril(start).T",
        }.items()
    },
)

EXERCISES = (COST, BUFFER, MASK)

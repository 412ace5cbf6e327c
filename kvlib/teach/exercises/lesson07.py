"""The exercises of lesson 07: what growing copies, a cache that does not grow, the mask of a buffer."""

from kvlib.teach.exercises.contract import Exercise
from kvlib.teach.exercises.own_buffer import BUFFER
from kvlib.teach.exercises.reading import Bools, Counts


def _cost(written: str, peak: str) -> str:
    return f"def cat_cost(p, n, row):\n    written = {written}\n    peak = {peak}\n    return written, peak\n"


def _rows(written: str) -> str:
    return _cost(f"row * ({written})", PEAK)


def _cost_rule(given, wanted, p, n, row) -> str | None:
    if given[0] == wanted[0] and n == 0:
        return "without a later step there is nothing old: `peak` is then the p rows alone"


WRITTEN, PEAK = "row * (p + n * p + n * (n + 1) // 2)", "row * (2 * (p + n) - 1 if n else p)"

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
    stub=_cost("...", "..."),
    solution=_cost(WRITTEN, "row * (p + n + p + n - 1) if n else row * p"),
    answer=Counts("written", "peak"),
    cases=((100, 20, 46080), (1, 3, 10), (7, 1, 6), (5, 40, 512), (9, 0, 4)),
    right="each of the n steps writes all rows anew, and holds the old ones until it is done",
    otherwise=(
        "`written` is p rows, then p + 1, p + 2 and so on up to p + n",
        "`peak` is the last step's: p + n - 1 rows of the old tensors, p + n of the new",
    ),
    rule=_cost_rule,
    wrong={
        "these are the right numbers in the other order: return (written, peak)": _cost(PEAK, WRITTEN),
        "that is twice as much: `row` is K and V already": _cost(f"2 * {WRITTEN}", f"2 * {PEAK}"),
        "`written` counts each row once, as in a preallocated buffer: `cat` writes all rows again":
            _rows("p + n"),
        "`written` counts rows: each has `row` bytes": _cost(f"{WRITTEN} // row", f"{PEAK} // row"),
        "`written` leaves out the first update, which writes the p rows of the prompt":
            _rows("n * p + n * (n + 1) // 2"),
        "`written` forgets the prompt's rows in the later steps: step i writes p + i rows":
            _rows("p + n * (n + 1) // 2"),
        "`written` counts the old rows that are copied; the new row is written as well":
            _rows("p + n * p + n * (n - 1) // 2"),
        "`written` takes the last step for all of them: the first ones write fewer rows":
            _rows("p + n * (p + n)"),
        "`written` grows from the first token; the p rows of the prompt come in one update":
            _rows("(p + n) * (p + n + 1) // 2"),
        "`written` counts reading the old rows as well as writing them; only writing counts":
            _rows("p + 2 * (n * p + n * (n - 1) // 2) + n"),
        "`peak` is twice as much: `row` is K and V already": _cost(WRITTEN, f"{PEAK} * (2 if n else 1)"),
        "`peak` is twice what is held: do not count the rows that come in, only the cache's tensors":
            _cost(WRITTEN, "row * (2 * (p + n) - (n > 0))"),
        "`peak` is what is held in the end; while `cat` runs, the old tensors are still there":
            _cost(WRITTEN, "row * (p + n)"),
        "`peak` is one row too many: the old tensors hold p + n - 1 rows in the last step. If your extra row "
        "is the incoming one, do not count the row that comes in, only the cache's tensors":
            _cost(WRITTEN, "row * (2 * (p + n) if n else p)"),
        "`peak` adds up all that was ever written; older tensors are freed, step by step":
            _cost(WRITTEN, f"written if n else {PEAK}"),
        "`peak` counts rows: each has `row` bytes": _cost(WRITTEN, f"{PEAK} // row"),
    },
)  # fmt: skip


def _mask(result: str) -> str:
    return f"import torch\n\n\ndef buffer_mask(start, num_new, max_seq_len):\n    return {result}\n"


def _mask_rule(given, wanted, start, num_new, max_seq_len) -> str:
    import torch

    if given.shape != wanted.shape:
        meaning = {
            (max_seq_len, num_new): "rows are queries and columns are slots, not the other way round",
            (num_new, start + num_new): "the whole buffer is handed to attention, so every slot needs a "
            "column, the unwritten ones too",
            (max_seq_len,): "each new query needs a row of its own",
            (max_seq_len, max_seq_len): "only the new tokens have queries",
            (num_new,): "each new query needs a column for each slot of the buffer",
        }.get(tuple(given.shape), "a row for each new query, a column for each slot of the buffer")
        return f"the shape must be {tuple(wanted.shape)}: {meaning}"
    if given.dtype != torch.bool:
        return "return bools, True where a query may look"
    if given.any() and not ((given & ~wanted).any() or given[:, :start].any()):
        return "the old rows are hidden: a new query sees slots 0 to start - 1 as well"
    return "query i sees slots 0 to start + i, whatever max_seq_len is"


ONES, SLOTS = "torch.ones(num_new, max_seq_len, dtype=torch.bool)", "torch.arange(max_seq_len)"

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
        f"`{ONES}.tril(start)`: unlike in lesson 03 the diagonal does not depend on the number of columns.",
    ),
    stub=_mask("..."),
    solution=_mask(f"{ONES}.tril(start)"),
    answer=Bools("rows"),
    cases=((5, 2, 9), (4, 1, 8), (0, 3, 6), (5, 3, 12), (7, 1, 8), (0, 1, 1), (2, 4, 6)),
    right="query i is token start + i: it sees slots 0 to start + i and no unwritten one",
    rule=_mask_rule,
    wrong={
        "that is the opposite: True where a query may look": _mask(f"~{ONES}.tril(start)"),
        "the queries see the whole buffer, unwritten slots too, which hold whatever was there before":
            _mask(ONES),
        "the unwritten slots are hidden, but the first new query sees those that come after it":
            _mask(f"({SLOTS} < start + num_new).expand(num_new, -1)"),
        "that ends in the bottom right corner, which is right where the keys end with the new rows; here "
        "unwritten slots follow them": _mask(f"{ONES}.tril(max_seq_len - num_new)"),
        "the first new query is token {start}, not token 0, and sees slots 0 to {start}":
            _mask(f"{ONES}.tril()"),
        "the diagonal is the number of rows before the new ones, {start}, not num_new":
            _mask(f"{ONES}.tril(num_new)"),
        "a query must see its own slot as well: it was just written": _mask(f"{ONES}.tril(start - 1)"),
        "the new tokens' own slots are hidden: they are written before attention runs":
            _mask(f"({SLOTS} < start).expand(num_new, -1)"),
        "each query sees one slot too many, and the last one a slot that was never written":
            _mask(f"{ONES}.tril(start + 1)"),
    },
)  # fmt: skip

EXERCISES = (COST, BUFFER, MASK)

"""The exercise of the learner's own preallocated cache; `buffer_suite` judges it."""

from kvlib.teach.exercises.buffer_suite import judge_buffer
from kvlib.teach.exercises.contract import Exercise

CHECK = (
    "if end > self.max_seq_len:",
    '    raise ValueError(f"{end} tokens do not fit a cache of {self.max_seq_len}")',
)
MAKE = (
    "if self.k is None:",
    "    B, KV, _, D = k_new.shape",
    "    self.k = k_new.new_empty(B, KV, self.max_seq_len, D)",
    "    self.v = v_new.new_empty(B, KV, self.max_seq_len, D)",
)
WRITE = (
    "self.k[:, :, start:end] = k_new.detach()",
    "self.v[:, :, start:end] = v_new.detach()",
)
ADVANCE = ("self.seq_len = end",)
RETURN = ("return self.k[:, :, :end], self.v[:, :, :end]",)


def _source(*, top=(), init=(), check=CHECK, make=MAKE, write=WRITE, advance=ADVANCE, end=RETURN) -> str:
    """Return the cell of the class, right as it stands; each argument replaces one part."""
    init = init or (
        "self.max_seq_len = max_seq_len",
        "self.seq_len = 0",
        "self.k = None  # (B, KV, max_seq_len, D), made in the first update",
        "self.v = None",
    )
    lines = ["import torch", "", "", "class MyStaticCache:", *(f"    {line}" for line in top)]
    lines += ["    def __init__(self, max_seq_len):", *(f"        {line}" for line in init), ""]
    lines += ["    def update(self, k_new, v_new):  # each (B, KV, t, D)"]
    body = ["start, end = self.seq_len, self.seq_len + k_new.shape[2]"]
    body += [*check, *make, *write, *advance, *end]
    return "\n".join(lines + [f"        {line}" for line in body]) + "\n"


STUB = """import torch


class MyStaticCache:
    def __init__(self, max_seq_len):
        self.max_seq_len = max_seq_len
        self.seq_len = 0
        self.k = None  # (B, KV, max_seq_len, D), made in the first update
        self.v = None

    def update(self, k_new, v_new):  # each (B, KV, t, D)
        return ...
"""

BUFFER = Exercise(
    key="07-my-static-cache",
    lesson=7,
    title="Your own static cache",
    minutes=15,
    difficulty=2,
    importance=3,
    name="MyStaticCache",
    task="""
Write the preallocated cache of one layer. `update(k_new, v_new)` gets new rows, each of shape (B, KV, t,
D), for any t of at least 1.
- The first update makes two buffers (B, KV, max_seq_len, D), like the new rows in dtype and device
- New rows go into the slots after those already filled
- `update` returns `(k, v)`: views of the used rows, the new ones included
- `seq_len` is the number of tokens appended so far, an int
- Rows that would pass max_seq_len are refused with a ValueError that says why; max_seq_len rows fit
- A refusal changes nothing: not the length, not a number in the buffers, and it makes no buffers

Keep no gradient: `k_new.detach()` is the same numbers without one. `torch` is imported already.""",
    hints=(
        "Name the two ends: the new rows go into slots start to end - 1, with "
        "`start, end = self.seq_len, self.seq_len + k_new.shape[2]`. What must be true of `end`, before "
        "anything is made or written?",
        "`k_new.new_empty(B, KV, self.max_seq_len, D)` makes a buffer like k_new; do it once. Assigning to a "
        "slice, `self.k[:, :, start:end] = ...`, writes into it.",
        "In order: raise if end > max_seq_len; make both buffers if self.k is None; write both slices; "
        "self.seq_len = end; return self.k[:, :, :end], self.v[:, :, :end].",
    ),
    stub=STUB,
    solution=_source(),
    judge=judge_buffer,
    wrong={
        "concatenates": _source(
            make=(), write=tuple(
                f"self.{x} = {x}_new.detach() if start == 0 else torch.cat([self.{x}, {x}_new.detach()], 2)"
                for x in "kv"
            ),
        ),
        "a new buffer of the full size each time": _source(
            make=(), write=tuple(
                line for x in "kv" for line in (
                    f"old, (B, KV, _, D) = self.{x}, {x}_new.shape",
                    f"self.{x} = {x}_new.new_empty(B, KV, self.max_seq_len, D)",
                    f"if start: self.{x}[:, :, :start] = old[:, :, :start]",
                    f"self.{x}[:, :, start:end] = {x}_new.detach()",
                )
            ),
        ),
        "float32 buffers for any rows": _source(make=(
            "if self.k is None:",
            "    B, KV, _, D = k_new.shape",
            "    self.k, self.v = torch.zeros(2, B, KV, self.max_seq_len, D)",
        )),
        "an empty buffer each time": _source(make=tuple(line.strip() for line in MAKE[1:])),
        "returns the whole buffer": _source(end=("return self.k, self.v",)),
        "returns the old rows": _source(end=("return self.k[:, :, :start], self.v[:, :, :start]",)),
        "returns the new rows": _source(end=("return self.k[:, :, start:end], self.v[:, :, start:end]",)),
        "writes from slot 0": _source(write=(
            "self.k[:, :, :end - start] = k_new.detach()", "self.v[:, :, :end - start] = v_new.detach()",
        )),
        "writes one slot too early": _source(write=(
            "if start == 0: self.k[:, :, :end], self.v[:, :, :end] = k_new.detach(), v_new.detach()",
            "else: self.k[:, :, start - 1:end - 1] = k_new.detach()",
        )),
        "forgets the values": _source(write=WRITE[:1]),
        "values are the keys": _source(write=(
            "self.k[:, :, start:end] = k_new.detach()", "self.v[:, :, start:end] = k_new.detach()",
        )),
        "never counts": _source(advance=(), end=("return self.k[:, :, :end], self.v[:, :, :end]",)),
        "counts the calls": _source(
            init=("self.max_seq_len = max_seq_len", "self.seq_len = self.used = 0", "self.k = self.v = None"),
            check=("start, end = self.used, self.used + k_new.shape[2]", *CHECK),
            advance=("self.used = end", "self.seq_len += 1"),
        ),
        "a length that is the room": _source(
            init=("self.max_seq_len = self.seq_len = max_seq_len", "self.used = 0", "self.k = self.v = None"),
            check=("start, end = self.used, self.used + k_new.shape[2]", *CHECK),
            advance=("self.used = end",),
        ),
        "never refuses": _source(
            check=(),
            write=(
                "room = self.max_seq_len - start",
                "self.k[:, :, start:end] = k_new[:, :, :room].detach()",
                "self.v[:, :, start:end] = v_new[:, :, :room].detach()",
            ),
        ),
        "leaves it to PyTorch": _source(check=()),
        "refuses a chunk, but not one row": _source(
            check=("if end > self.max_seq_len and end - start > 1:", CHECK[1])
        ),
        "refuses the last slot": _source(check=("if end >= self.max_seq_len:", CHECK[1])),
        "more room than asked for": _source(make=(
            "if self.k is None:",
            "    B, KV, _, D = k_new.shape",
            "    self.k = k_new.new_empty(B, KV, 2 * self.max_seq_len, D)",
            "    self.v = v_new.new_empty(B, KV, 2 * self.max_seq_len, D)",
        )),
        "changes the new rows": _source(write=(*WRITE, "k_new.zero_()")),
        "takes one batch size": _source(check=("if k_new.shape[0] != 2: raise ValueError('batch')", *CHECK)),
        "makes its buffers, then refuses": _source(check=(), make=(*MAKE, *CHECK)),
        "refuses without a word": _source(check=(CHECK[0], "    raise ValueError")),
        "counts, then refuses": _source(check=("self.seq_len = end", *CHECK), advance=()),
        "writes what fits, then refuses": _source(
            check=(),
            write=(
                "room = self.max_seq_len - start",
                "self.k[:, :, start:end] = k_new[:, :, :room].detach()",
                "self.v[:, :, start:end] = v_new[:, :, :room].detach()",
                *CHECK,
            ),
        ),
        "checks only what follows": _source(check=("if start and end > self.max_seq_len:", CHECK[1]), write=(
            "self.k[:, :, start:end] = k_new[:, :, :self.max_seq_len].detach()",
            "self.v[:, :, start:end] = v_new[:, :, :self.max_seq_len].detach()",
        )),
        "one buffer for all layers": _source(
            top=("k = v = None", ""),
            init=("self.max_seq_len, self.seq_len = max_seq_len, 0",),
            make=(
                "B, KV, _, D = k_new.shape",
                "cls, shape = type(self), (B, KV, self.max_seq_len, D)",
                "if cls.k is None or cls.k.shape != shape or cls.k.dtype != k_new.dtype:",
                "    cls.k, cls.v = k_new.new_empty(shape), v_new.new_empty(shape)",
            ),
        ),
        "keeps the gradient": _source(write=("self.k[:, :, start:end] = k_new",
                                             "self.v[:, :, start:end] = v_new")),
    },
)  # fmt: skip

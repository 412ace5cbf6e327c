"""The exercise of the learner's own cache class; `cache_suite` judges it."""

from kvlib.teach.exercises.cache_suite import judge_cache
from kvlib.teach.exercises.contract import Exercise

MANY = 5000  # rows: more than any fixed buffer or window that a learner might think enough


def _source(
    *,
    init=("self.k = None  # (B, KV, T, D) once there are rows", "self.v = None"),
    top=(),
    first="self.k, self.v = k_new.detach(), v_new.detach()",
    then=(
        "self.k = torch.cat([self.k, k_new.detach()], dim=2)",
        "self.v = torch.cat([self.v, v_new.detach()], dim=2)",
    ),
    before=(),
    returns="self.k, self.v",
    length="0 if self.k is None else self.k.shape[2]",
    prop="    @property\n",
) -> str:
    """Return the cell of the class, right as it stands; each argument replaces one place."""
    lines = ["import torch", "", "", "class MyKVCache:", *(f"    {line}" for line in top)]
    lines += ["    def __init__(self):", *(f"        {line}" for line in init), ""]
    lines += ["    def update(self, k_new, v_new):  # each (B, KV, t, D)"]
    lines += [f"        {line}" for line in before]
    lines += ["        if self.k is None:", f"            {first}", "        else:"]
    lines += [f"            {line}" for line in then]
    lines += [f"        return {returns}", ""]
    return "\n".join(lines) + f"\n{prop}    def seq_len(self):\n        return {length}\n"


def _cat(what: str = "[self.{0}, {0}_new.detach()]", call: str = "cat", dim: int = 2) -> tuple:
    return tuple(f"self.{x} = torch.{call}({what.format(x)}, dim={dim})" for x in "kv")


STUB = """class MyKVCache:
    def __init__(self):
        self.k = None  # (B, KV, T, D) once there are rows
        self.v = None

    def update(self, k_new, v_new):  # each (B, KV, t, D)
        return ...

    @property
    def seq_len(self):
        return ...
"""

CACHE = Exercise(
    key="03-my-cache",
    lesson=3,
    title="Your own cache",
    minutes=15,
    difficulty=2,
    importance=3,
    name="MyKVCache",
    task="""
Write the cache of one layer. `update(k_new, v_new)` gets new rows, each of shape (B, KV, t, D), for
any t of at least 1. It appends them after the rows held, along the token axis, and returns
`(k, v)`, everything held, the new rows included. `seq_len` is the number of tokens appended so far,
0 at first.

A model makes one object for each layer, by `MyKVCache()`. Keep no gradient: `k_new.detach()` is the
same numbers without one. `torch` is imported already.""",
    hints=(
        "In the first update there is nothing to append to: what is held is then just the new "
        "rows. In every later one, `torch.cat([old, new], dim=...)`. Which axis of (B, KV, T, D) "
        "are the tokens?",
        "Append first, return after: a token attends to itself. The length is `self.k.shape[2]`, "
        "but `self.k` is None before the first update.",
        "if self.k is None: self.k, self.v = k_new.detach(), v_new.detach(); else: cat both along "
        "dim=2. Then return self.k, self.v.",
    ),
    stub=STUB,
    solution=_source(),
    judge=lambda candidate: judge_cache(candidate, most=MANY),
    wrong={
        "returns before it appends": _source(before=("old = self.k, self.v",), returns="old"),
        "appends behind the batch": _source(then=_cat(dim=0)),
        "appends behind the heads": _source(then=_cat(dim=1)),
        "appends to the vectors": _source(then=_cat(dim=3)),
        "stacks": _source(then=_cat(call="stack")),
        "puts new rows in front": _source(then=_cat("[{0}_new.detach(), self.{0}]")),
        "returns only the new rows": _source(returns="k_new.detach(), v_new.detach()"),
        "overwrites": _source(then=("self.k, self.v = k_new.detach(), v_new.detach()",)),
        "stores K for V": _source(
            first="self.k, self.v = k_new.detach(), k_new.detach()",
            then=("self.k = self.v = torch.cat([self.k, k_new.detach()], dim=2)",),
        ),
        "returns V before K": _source(returns="self.v, self.k"),
        "forgets to append V": _source(then=_cat()[:1]),
        "appends the first rows twice": _source(first="self.k, self.v = " + ", ".join(
            f"torch.cat([{x}_new.detach()] * 2, dim=2)" for x in "kv"
        )),
        "counts the batch": _source(length="0 if self.k is None else self.k.shape[0]"),
        "counts the heads": _source(length="0 if self.k is None else self.k.shape[1]"),
        "counts the calls": _source(
            init=("self.k = self.v = None", "self.calls = 0"),
            before=("self.calls += 1",),
            length="self.calls",
        ),
        "off by one": _source(length="0 if self.k is None else self.k.shape[2] - 1"),
        "a length that is a tensor": _source(
            length="0 if self.k is None else torch.tensor(self.k.shape[2])"
        ),
        "a length that is a method": _source(prop=""),
        "shares rows between layers": _source(
            top=("k = v = None", ""), init=("pass",)
        ).replace("self.k", "MyKVCache.k").replace("self.v", "MyKVCache.v"),
        "keeps the gradient": _source().replace(".detach()", ""),
        "keeps the graph inside": _source(returns="self.k.detach(), self.v.detach()")
        .replace("_new.detach()", "_new"),
        "keeps the newest 64 rows": _source(
            init=("self.k = self.v = None", "self.count = 0"),
            before=("self.count += k_new.shape[2]",),
            then=tuple(f"{line}[:, :, -64:]" for line in _cat()),
            length="self.count",
        ),
        "converts to 32 bits": _source(returns="self.k.float(), self.v.float()"),
        "drops axes of one": _source(returns="self.k.squeeze(1), self.v.squeeze(1)"),
        "changes what it is given": _source(before=("k_new *= 1.5",)),
        "forgets to return": _source(returns="None"),
        "returns a list of updates": _source(
            init=("self.k = None", "self.rows = []"),
            before=("self.rows.append((k_new.detach(), v_new.detach()))",),
            returns="self.rows",
        ),
    },
)  # fmt: skip

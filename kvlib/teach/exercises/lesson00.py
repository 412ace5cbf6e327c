"""The exercises of lesson 00: the shapes of a decode step, and what a device can hold."""

from kvlib.teach.exercises.contract import Exercise, by_part, show
from kvlib.teach.exercises.reading import Answer, Whole
from kvlib.teach.exercises.watching import whole

_OFF_BY_ONE = "T already counts the new token, so the key axis is T long"
_MISTAKES = {
    "q": {
        "(B, H, T, D)": "in decode only the newest token asks a question, so q has one row",
        "(B, KV, 1, D)": "sharing keys and values does not change the queries: there are H of them",
        "(B, 1, H, D)": "the layout is (batch, heads, rows, D): heads come before rows",
        "(B, H, D)": "keep the row axis, even when it is 1",
        "(H, 1, D)": "there is no batch axis: B comes first",
    },
    "k_all": {
        "(B, H, T, D)":
            "the cache has one head per KV head, not per query head: that is what GQA saves",
        "(B, KV, 1, D)": "that is the new key alone; `k_all` is every key so far",
        "(B, KV, T + 1, D)": _OFF_BY_ONE,
        "(B, KV, T - 1, D)": f"the new token attends to itself too: {_OFF_BY_ONE}",
        "(B, T, KV, D)": "the layout is (batch, heads, rows, D): heads come before rows",
        "(B, KV, D, T)": "the cache keeps rows of D numbers; transpose only inside the product",
    },
    "scores": {
        "(B, H, T, T)": "that is a full pass; one new query makes one row of scores",
        "(B, KV, 1, T)": "each query head makes scores of its own, also where it shares keys",
        "(B, H, 1, T + 1)": _OFF_BY_ONE,
        "(B, H, 1, T - 1)": f"the new token attends to itself too: {_OFF_BY_ONE}",
        "(B, H, 1, D)": "a score is one number per key: the D axis is summed away",
        "(B, H, T, 1)": "rows are queries, columns are keys: one row, T columns",
    },
    "output": {
        "(B, H, T, D)": "one query makes one output row per head",
        "(B, KV, 1, D)": "there is one output per query head, not per KV head",
        "(B, H, 1, T)": "the weights mix the values, and a value has D numbers",
        "(B, 1, H * D)": "that is after the heads are joined; here they are still apart",
        "(B, H, D)": "keep the row axis, even when it is 1",
    },
}  # fmt: skip


class _Shapes(Answer):
    """A dict of the four shapes, which are read in this order."""

    def read(self, result) -> list[tuple[int, ...]] | str:
        if not isinstance(result, dict):
            return "return a dict with the four names"
        missing = next((name for name in _MISTAKES if name not in result), None)
        if missing:
            return f"`{missing}` is missing from the dict"
        shapes = {name: _whole_sizes(result[name]) for name in _MISTAKES}
        bad = next((name for name, shape in shapes.items() if shape is None), None)
        return f"`{bad}` must be a tuple of whole numbers" if bad else list(shapes.values())

    def tell(self, result, wanted) -> str:
        if not isinstance(result, dict):
            return f"this returned {show(result)}"
        for name, right in zip(_MISTAKES, wanted):
            if name in result and (shape := _whole_sizes(result[name])) != right:
                return f"`{name}` is {shape or show(result[name])}"
        return f"the dict is {show(result)}"


def _shapes_rule(given, wanted, *sizes) -> str | None:
    name, shape, right = next(each for each in zip(_MISTAKES, given, wanted) if each[1] != each[2])
    return f"`{name}`: there is no batch axis: B comes first" if shape == right[1:] else None


def _whole_sizes(given) -> tuple[int, ...] | None:
    """Return a shape as a tuple of ints, None for what is none."""
    if isinstance(given, str | bytes | dict | set):
        return None
    try:
        sizes = tuple(whole(size) for size in given)
    except TypeError:
        return None
    return None if None in sizes else sizes


def _shapes_source(**changed: str) -> str:
    shapes = {
        "q": "(B, H, 1, D)",
        "k_all": "(B, KV, T, D)",
        "scores": "(B, H, 1, T)",
        "output": "(B, H, 1, D)",
    }
    lines = [f'        "{name}": {shape},' for name, shape in (shapes | changed).items()]
    return "\n".join(["def decode_shapes(B, H, KV, D, T):", "    return {", *lines, "    }", ""])


SHAPES = Exercise(
    key="00-decode-shapes",
    lesson=0,
    title="The shapes of one decode step",
    minutes=8,
    difficulty=1,
    importance=3,
    name="decode_shapes",
    task="""
One decode step, one layer, grouped attention: B sequences, H query heads, KV key/value heads, D
numbers per head. The cache holds T tokens per sequence once the new token's key and value are
appended.

Give the shape of each tensor as a tuple, in the layout (batch, heads, rows, columns):
- `q`: the queries of this step
- `k_all`: all keys, as the cache holds them
- `scores`: the queries times the keys
- `output`: the scores, after softmax, times the values; heads not yet joined""",
    hints=(
        "How many tokens enter the model in a decode step? That is the number of query rows.",
        "Two tensors belong to query heads alone, one to KV heads alone; scores have a row per "
        "query and a "
        "column per key.",
        "(1, d) @ (d, T) -> (1, T), for each of the H query heads. And (1, T) @ (T, d) -> (1, d).",
    ),
    stub=_shapes_source(q="...", k_all="...", scores="...", output="..."),
    solution=_shapes_source(),
    answer=_Shapes("the shapes"),
    # Sizes that differ from one another, so that a wrong shape says which size went wrong.
    cases=((2, 15, 5, 8, 11), (1, 9, 3, 64, 100), (4, 6, 6, 16, 32), (3, 8, 1, 4, 1)),
    right="one query row per head, T keys per KV head, one row of scores, one output row per head",
    otherwise=tuple(
        f"`{name}`: say in words what each axis counts, then count again" for name in _MISTAKES
    ),
    rule=_shapes_rule,
    wrong=by_part(_shapes_source, _MISTAKES),
)


def _context(body: str) -> str:
    return f"def longest_context(free_bytes, weight_bytes, bytes_per_token):\n    return {body}\n"


def _room(above: str, below="// bytes_per_token") -> str:
    return _context(f"max(0, {above} {below})")


_ROOM = "(free_bytes - weight_bytes)"
_NEGATIVE = "where the weights alone do not fit, the answer is 0, not a negative number"
_NO_ROOM = "the weights leave no room there, so no token fits: the answer is 0. Cut what is left at 0, "


def _context_rule(given, wanted, free_bytes, weight_bytes, bytes_per_token) -> str | None:
    if weight_bytes < free_bytes:
        return None
    return _NEGATIVE if given < 0 else f"{_NO_ROOM}without abs() and without a smallest answer of 1"


GB = 10**9
# (free bytes, weight bytes, bytes per token, what the case is about); in each, a mistake is alone
HOLD_CASES = (
    (1000, 400, 100, "tokens that fill the room exactly"),
    (1000, 500, 100, "an odd number of tokens that fill the room exactly"),
    (1060, 401, 100, "room for 6 tokens and a part of one"),
    (1000, 401, 100, "one byte too few for 6 tokens"),
    (80 * GB, 16 * GB, 131_072, "8 billion 16-bit weights, 80 GB"),
    (80 * GB, 16 * GB - 123, 1151, "a small cache on 80 GB, more tokens than float32 can count"),
    (80 * GB, 141 * GB, 327_680, "weights larger than the memory"),
    (1000, 1000, 100, "weights that fill the memory"),
    (1000, 1001, 100, "weights one byte larger than the memory"),
)

CONTEXT = Exercise(
    key="00-longest-context",
    lesson=0,
    title="What the device can hold",
    minutes=5,
    difficulty=1,
    importance=2,
    name="longest_context",
    task="""
A device has `free_bytes` of memory. The model's weights take `weight_bytes` of it, and each
token in the cache takes `bytes_per_token`, K and V of all layers together.

Return the longest context one request can have, in whole tokens. Where nothing fits, return 0.""",
    hints=(
        "The weights come first. What is left is for the cache.",
        "A token that fits only in part does not fit: which division rounds down?",
        "`//` on a negative number gives a negative number. Which function keeps it from "
        "falling below 0?",
    ),
    stub=_context("...  # whole tokens"),
    solution=_room(_ROOM),
    answer=Whole("the number of tokens"),
    cases=tuple(
        (*sizes, "free_bytes={:,}, weight_bytes={:,} and bytes_per_token={:,} ({})".format(*sizes, about))
        for *sizes, about in HOLD_CASES
    ),
    right="whole tokens, next to the weights, and 0 where the weights alone do not fit",
    otherwise="what is free after the weights, and how often do the bytes of a token go into it?",
    rule=_context_rule,
    wrong={
        "the weights need room too": _room("free_bytes"),
        "the weights take room away, they do not add it": _room("(free_bytes + weight_bytes)"),
        "`bytes_per_token` counts K and V already, do not double it":
            _room(_ROOM, "// (2 * bytes_per_token)"),
        "those are bytes: how many tokens of `bytes_per_token` bytes is that?": _room(_ROOM, ""),
        "`//` binds closer than `-`: put the difference in brackets": _room("free_bytes - weight_bytes"),
        "that is the weights less the memory: subtract the other way round":
            _context(f"-{_ROOM} // bytes_per_token"),
        _NEGATIVE: _context(f"{_ROOM} // bytes_per_token"),
        _NO_ROOM + "without abs()": _context(f"abs({_ROOM}) // bytes_per_token"),
        _NO_ROOM + "without a smallest answer of 1": _context(f"max(1, {_ROOM} // bytes_per_token)"),
        "part of a token cannot be stored: return whole tokens, as an int": _room(_ROOM, "/ bytes_per_token"),
        "round once, after the subtraction: two quotients rounded by themselves do not add up":
            _room("free_bytes // bytes_per_token - weight_bytes // bytes_per_token", ""),
        "round down: a token that fits only in part does not fit":
            _room(f"-(-{_ROOM}", "// bytes_per_token)"),
        "one too many: {wanted} tokens fill the room exactly": _room(_ROOM, "// bytes_per_token + 1"),
        "one more token fits": _room(_ROOM, "// bytes_per_token - 1"),
    },
)  # fmt: skip

EXERCISES = (SHAPES, CONTEXT)

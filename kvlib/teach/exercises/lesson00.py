"""The exercises of lesson 00: the shapes of a decode step, and what a device can hold."""

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet, show
from kvlib.teach.exercises.watching import rounded, whole, why_not_whole

# Sizes that differ from one another, so that a wrong shape says which size went wrong.
SHAPE_CASES = ((2, 15, 5, 8, 11), (1, 9, 3, 64, 100), (4, 6, 6, 16, 32), (3, 8, 1, 4, 1))


def decode_shapes(B: int, H: int, KV: int, D: int, T: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one decode step by name; T counts the new token."""
    return {
        "q": (B, H, 1, D),
        "k_all": (B, KV, T, D),
        "scores": (B, H, 1, T),
        "output": (B, H, 1, D),
    }


def _shape_mistakes(name: str, B: int, H: int, KV: int, D: int, T: int) -> list[tuple[tuple, str]]:
    """Return (wrong shape, what it means) for one tensor of the decode step."""
    off_by_one = "T already counts the new token, so the key axis is T long"
    mistakes = {
        "q": [
            ((B, H, T, D), "in decode only the newest token asks a question, so q has one row"),
            (
                (B, KV, 1, D),
                "sharing keys and values does not change the queries: there are H of them",
            ),
            ((B, 1, H, D), "the layout is (batch, heads, rows, D): heads come before rows"),
            ((B, H, D), "keep the row axis, even when it is 1"),
        ],
        "k_all": [
            (
                (B, H, T, D),
                "the cache has one head per KV head, not per query head: that is what GQA saves",
            ),
            ((B, KV, 1, D), "that is the new key alone; `k_all` is every key so far"),
            ((B, KV, T + 1, D), off_by_one),
            ((B, KV, T - 1, D), f"the new token attends to itself too: {off_by_one}"),
            ((B, T, KV, D), "the layout is (batch, heads, rows, D): heads come before rows"),
            ((B, KV, D, T), "the cache keeps rows of D numbers; transpose only inside the product"),
        ],
        "scores": [
            ((B, H, T, T), "that is a full pass; one new query makes one row of scores"),
            ((B, KV, 1, T), "each query head makes scores of its own, also where it shares keys"),
            ((B, H, 1, T + 1), off_by_one),
            ((B, H, 1, T - 1), f"the new token attends to itself too: {off_by_one}"),
            ((B, H, 1, D), "a score is one number per key: the D axis is summed away"),
            ((B, H, T, 1), "rows are queries, columns are keys: one row, T columns"),
        ],
        "output": [
            ((B, H, T, D), "one query makes one output row per head"),
            ((B, KV, 1, D), "there is one output per query head, not per KV head"),
            ((B, H, 1, T), "the weights mix the values, and a value has D numbers"),
            ((B, 1, H * D), "that is after the heads are joined; here they are still apart"),
            ((B, H, D), "keep the row axis, even when it is 1"),
        ],
    }
    return mistakes[name]


def _check_shapes(candidate) -> Verdict:
    for case in SHAPE_CASES:
        given = candidate(*case)
        B, H, KV, D, T = case
        sizes = f"with B={B}, H={H}, KV={KV}, D={D}, T={T}"
        if not isinstance(given, dict):
            return not_yet(f"return a dict with the four names; {sizes} this returned {show(given)}")
        for name, wanted in decode_shapes(*case).items():
            if name not in given:
                return not_yet(f"`{name}` is missing from the dict")
            shape = _whole_sizes(given[name])
            if shape is None:
                return not_yet(
                    f"`{name}` must be a tuple of whole numbers, it is {show(given[name])} {sizes}"
                )
            if shape == wanted:
                continue
            if shape == wanted[1:]:
                return not_yet(f"`{name}` has no batch axis: B comes first")
            for wrong, meaning in _shape_mistakes(name, *case):
                if shape == wrong:
                    return not_yet(f"`{name}` is {shape} {sizes}: {meaning}")
            return not_yet(
                f"`{name}` is {shape} {sizes}; say in words what each axis counts, then count again"
            )
    return correct(
        "one query row per head, T keys per KV head, one row of scores, one output row per head"
    )


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
    judge=_check_shapes,
    wrong={
        "a query for every token": _shapes_source(q="(B, H, T, D)"),
        "keys repeated for every query head": _shapes_source(k_all="(B, H, T, D)"),
        "forgets that the new token attends to itself": _shapes_source(scores="(B, H, 1, T - 1)"),
        "a full score matrix": _shapes_source(scores="(B, H, T, T)"),
        "scores per KV head": _shapes_source(scores="(B, KV, 1, T)"),
        "output as wide as the context": _shapes_source(output="(B, H, 1, T)"),
        "no batch axis": _shapes_source(q="(H, 1, D)"),
    },
)

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


def longest_context(free_bytes: int, weight_bytes: int, bytes_per_token: int) -> int:
    """Return how many whole tokens of cache fit next to the weights."""
    return max(0, (free_bytes - weight_bytes) // bytes_per_token)


def _check_context(candidate) -> Verdict:
    for free, weights, per_token, about in HOLD_CASES:
        given = candidate(free, weights, per_token)
        wanted = longest_context(free, weights, per_token)
        tokens = whole(given)
        if tokens == wanted:
            continue
        mistake = _context_mistake(given, tokens, wanted, free, weights, per_token)
        return not_yet(
            f"{mistake}; with free_bytes={free:,}, weight_bytes={weights:,} and "
            f"bytes_per_token={per_token:,} ({about}) it gives {show(given)}"
        )
    return correct("whole tokens, next to the weights, and 0 where the weights alone do not fit")


def _context_mistake(given, tokens, wanted, free: int, weights: int, per_token: int) -> str:
    """Say which mistake gives this answer."""
    room = free - weights
    known = {
        free // per_token: "the weights need room too",
        (free + weights) // per_token: "the weights take room away, they do not add it",
        room // (2 * per_token): "`bytes_per_token` counts K and V already, do not double it",
        room: "those are bytes: how many tokens of `bytes_per_token` bytes is that?",
        free - weights // per_token: "`//` binds closer than `-`: put the difference in brackets",
        -room // per_token: "that is the weights less the memory: subtract the other way round",
    }
    read = given // 1 if isinstance(given, float) and abs(given) < 1e30 else tokens
    if room < 0 and read is not None and read < 0:
        return "where the weights alone do not fit, the answer is 0, not a negative number"
    if room <= 0 and read is not None:
        return (
            "the weights leave no room there, so no token fits: the answer is 0. Cut what is left at 0, "
            "without abs() and without a smallest answer of 1"
        )
    if read in known and read != wanted:
        return known[read]
    if tokens is None:
        if isinstance(given, float) and read == wanted:
            return "part of a token cannot be stored: return whole tokens, as an int"
        return why_not_whole(given, "the number of tokens")
    if (short := rounded(given, wanted)) is not None:
        return short
    if tokens == wanted + 1:
        if room % per_token == 0:
            return f"one too many: {wanted} tokens fill the room exactly"
        if free // per_token - weights // per_token == tokens and room % per_token == per_token - 1:
            return "round once, after the subtraction: two quotients rounded by themselves do not add up"
        return "round down: a token that fits only in part does not fit"
    if tokens == wanted - 1:
        return "one more token fits"
    return "what is free after the weights, and how often do the bytes of a token go into it?"


def _context_source(*lines: str) -> str:
    body = [f"    {line}" for line in lines]
    return "\n".join(["def longest_context(free_bytes, weight_bytes, bytes_per_token):", *body, ""])


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
    stub=_context_source("return ...  # whole tokens"),
    solution=_context_source("return max(0, (free_bytes - weight_bytes) // bytes_per_token)"),
    judge=_check_context,
    wrong={
        "forgets the weights": _context_source("return max(0, free_bytes // bytes_per_token)"),
        "a fraction of a token": _context_source(
            "return max(0, (free_bytes - weight_bytes) / bytes_per_token)"
        ),
        "rounds up": _context_source(
            "return max(0, -(-(free_bytes - weight_bytes) // bytes_per_token))"
        ),
        "a negative context": _context_source(
            "return (free_bytes - weight_bytes) // bytes_per_token"
        ),
        "counts K and V twice": _context_source(
            "return max(0, (free_bytes - weight_bytes) // (2 * bytes_per_token))"
        ),
        "adds the weights": _context_source(
            "return (free_bytes + weight_bytes) // bytes_per_token"
        ),
        "one too many": _context_source(
            "return max(0, (free_bytes - weight_bytes) // bytes_per_token + 1)"
        ),
        "bytes, not tokens": _context_source("return max(0, free_bytes - weight_bytes)"),
        "a slip of precedence": _context_source(
            "return max(0, free_bytes - weight_bytes // bytes_per_token)"
        ),
        "the sign dropped": _context_source(
            "return abs(free_bytes - weight_bytes) // bytes_per_token"
        ),
        "rounded twice": _context_source(
            "return max(0, free_bytes // bytes_per_token - weight_bytes // bytes_per_token)"
        ),
    },
)

EXERCISES = (SHAPES, CONTEXT)

"""The exercises of lesson 04: the formula, what fits beside the weights, and windows."""

from __future__ import annotations

from fractions import Fraction

from kvlib.memory import kv_cache_bytes
from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet, show
from kvlib.teach.exercises.watching import number, rounded, whole, why_not_whole


def _ratio(given, wanted: int) -> Fraction | None:
    """Return given / wanted exactly, None where that makes no number."""
    real = number(given) if whole(given) is None else whole(given)
    try:
        return Fraction(real) / wanted
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None


def _floor(given) -> int | None:
    """Return a number rounded down, None for what is none."""
    try:
        return number(given).__floor__() if whole(given) is None else whole(given)
    except (AttributeError, ValueError, OverflowError):
        return None


def _source(head: str, *lines: str) -> str:
    return "\n".join([head, *(f"    {line}" for line in lines), ""])


# The formula ------------------------------------------------------------------------------------

# L, H, KV, D, hidden size, tokens, sequences, bits; two mistakes give the first the same ratio only where
# another case tells them apart
ODD_SHAPE = (7, 15, 5, 9, 105, 11, 13, 64)
BYTES_CASES = (
    (ODD_SHAPE, "7 layers, 15 query heads, 5 KV heads of 9, hidden 105, 11 tokens, 13 sequences, 64 bits"),
    ((80, 64, 8, 128, 8192, 32_768, 1, 16), "Llama 3.1 70B, 32,768 tokens, 16 bits"),
    ((30, 9, 3, 64, 576, 2048, 4, 32), "SmolLM2 135M, 4 sequences of 2,048 tokens, 32 bits"),
    ((32, 32, 8, 128, 4096, 1000, 2, 4), "Llama 3.1 8B, 2 sequences of 1,000 tokens, 4 bits"),
    ((61, 9, 3, 65, 585, 100_003, 7, 8), "61 layers, 3 KV heads of 65, 100,003 tokens, 7 sequences, 8 bits"),
    ((12, 12, 12, 64, 768, 0, 1, 16), "GPT-2 before its first token"),
)
SLIPS = (
    (Fraction(1, 2), "a half of the truth: both keys and values are kept"),
    (Fraction(2), "twice the truth: K and V are two, so the 2 belongs in once"),
    (Fraction(15, 5), "you counted query heads: only KV heads keep keys and values"),
    (Fraction(105, 45), "you used the hidden size, which is KV heads x head_dim only for some models"),
    (Fraction(7, 9), "you used hidden_size / num_heads for head_dim: the model says its own head_dim"),
    (Fraction(105, 5), "you used the hidden size where the KV heads belong"),
    (Fraction(105, 9), "you used the hidden size where head_dim, the width of one head, belongs"),
    (Fraction(8), "those are bits: 8 of them make a byte"),
    (Fraction(1, 8), "that counts numbers: each takes bits / 8 bytes"),
    (Fraction(1, 4), "each number takes bits / 8 bytes here, not always 2"),
    (Fraction(1, 13), "the batch is missing: each sequence has a cache of its own"),
    (Fraction(1, 11), "the tokens are missing: each keeps its own key and value"),
    (Fraction(1, 7), "the layers are missing: each has a cache of its own"),
    (Fraction(1, 5), "the KV heads are missing: each keeps its own key and value"),
    (Fraction(1, 9), "head_dim is missing: a key has that many numbers"),
)


def cache_bytes(
    num_layers, num_heads, num_kv_heads, head_dim, hidden_size, seq_len, batch_size, bits
) -> int:
    """Return the bytes of a KV cache; query heads and hidden size do not matter."""
    return kv_cache_bytes(
        num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, seq_len=seq_len,
        batch_size=batch_size, bytes_per_element=bits / 8,
    )  # fmt: skip


def _check_bytes(candidate) -> Verdict:
    for shape, about in BYTES_CASES:
        given = candidate(*shape)
        wanted = cache_bytes(*shape)
        if whole(given) != wanted:
            mistake = _bytes_mistake(candidate, shape, given, wanted)
            return not_yet(f"{mistake}; for {about}, it gives {show(given)}")
    return correct("2 x layers x KV heads x head_dim x tokens x sequences x bits / 8")


def _bytes_mistake(candidate, shape, given, wanted: int) -> str:
    """Say which mistake gives these bytes."""
    ratio, bits = _ratio(given, wanted), shape[-1]
    if whole(given) is None and ratio is None:
        return why_not_whole(given, "the number of bytes")
    if short := rounded(given, wanted):
        return short
    if shape == ODD_SHAPE:
        in_32_bits = (*shape[:-1], 32)
        if ratio == Fraction(1, 2) and whole(candidate(*in_32_bits)) == cache_bytes(*in_32_bits):
            return "each number takes bits / 8 bytes here, not always 4"
        for slip, words in SLIPS:
            if ratio == slip:
                return words
    if not wanted:
        return "no tokens, no bytes"
    if ratio == 0 and bits < 8:
        return "bits // 8 is 0 for 4 bits: multiply by the bits first, and divide last"
    if ratio == Fraction(64, bits):
        return "each number takes bits / 8 bytes here, not always 8"
    if whole(given) is None:
        return why_not_whole(given, "the number of bytes")
    return f"it should be {wanted:,}: which factors make the cache, and how many bytes is a number?"


BYTES_HEAD = (
    "def cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, hidden_size,\n"
    "                seq_len, batch_size, bits):"
)


def _bytes_source(*lines: str) -> str:
    return _source(BYTES_HEAD, *lines)


def _product(**changed: str) -> str:
    names = ("two", "num_layers", "num_kv_heads", "head_dim", "seq_len", "batch_size")
    factors = {name: name for name in names} | {"two": "2"} | changed
    body = " * ".join(factor for factor in factors.values() if factor)
    return body


BYTES = Exercise(
    key="04-cache-bytes",
    lesson=4,
    title="The formula, from memory",
    minutes=5,
    difficulty=1,
    importance=3,
    name="cache_bytes",
    task="""
Without looking up: return the bytes that a plain KV cache holds, as an int. You are given more
than you need. `bits` are the bits of one stored number: 64, 32, 16, 8 or 4.""",
    hints=(
        "Six factors and a size: what is kept for one token, in how many layers, for how many "
        "tokens and sequences?",
        "A query is never kept, so num_heads does not matter; nor does hidden_size.",
        "Begin with 2, for K and V. Multiply everything by `bits`, and divide by 8 last, with //.",
    ),
    stub=_bytes_source("return ..."),
    solution=_bytes_source(f"numbers = {_product()}", "return numbers * bits // 8"),
    judge=_check_bytes,
    wrong={
        "forgets that K and V are two": _bytes_source(f"return {_product(two='')} * bits // 8"),
        "query heads": _bytes_source(f"return {_product(num_kv_heads='num_heads')} * bits // 8"),
        "hidden size": _bytes_source(
            f"return {_product(num_kv_heads='hidden_size', head_dim='')} * bits // 8"
        ),
        "head_dim from the hidden size": _bytes_source(
            f"return {_product(head_dim='(hidden_size // num_heads)')} * bits // 8"
        ),
        "forgets the batch": _bytes_source(f"return {_product(batch_size='')} * bits // 8"),
        "forgets the layers": _bytes_source(f"return {_product(num_layers='')} * bits // 8"),
        "forgets the tokens": _bytes_source(f"return {_product(seq_len='')} * bits // 8"),
        "bits for bytes": _bytes_source(f"return {_product()} * bits"),
        "numbers for bytes": _bytes_source(f"return {_product()}"),
        "always 16 bits": _bytes_source(f"return {_product()} * 2"),
        "always 32 bits": _bytes_source(f"return {_product()} * 4"),
        "always 64 bits": _bytes_source(f"return {_product()} * 8"),
        "hidden size for head_dim": _bytes_source(f"return {_product(head_dim='hidden_size')} * bits // 8"),
        "rounds half a byte to nothing": _bytes_source(f"return {_product()} * (bits // 8)"),
    },
)


# What fits --------------------------------------------------------------------------------------

# memory, percent, parameters, bytes a parameter, cache bytes a token, context, what the case is about
FIT_CASES = (  # the first two are chosen so that every mistake gives another number
    (8 * 10**9, 50, 550 * 10**6, 4, 10**6, 100, "requests that fill half of 8 GB exactly"),
    (3 * 10**9, 90, 501_500_000, 2, 1000, 10_000,
     "501.5 million parameters of 2 bytes, 10 MB a request, 90 percent of 3 GB"),
    (85_899_345_920, 90, 8_030_261_248, 2, 131_072, 32_768,
     "Llama 3.1 8B at 16 bits, 32,768 tokens, 90 percent of an A100's 85.9 GB"),
    (24_152_899_584, 95, 8_030_261_248, 1, 131_072, 8192,
     "Llama 3.1 8B at 8 bits, 8,192 tokens, 95 percent of an L4's 24.2 GB"),
    (150_754_820_096, 90, 70_553_706_496, 2, 327_680, 32_768,
     "Llama 3.1 70B at 16 bits on 90 percent of an H200's 150.8 GB, too little for the weights"),
    (85_520_809_984, 90, 70_553_706_496, 2, 327_680, 32_768,
     "Llama 3.1 70B at 16 bits on 90 percent of an H100's 85.5 GB, far too little for the weights"),
    (20 * 10**9, 85, 8_030_261_248, 2, 131_072, 32_768, "room for the weights and little more"),
    (134_141_719_893, 60, 8_030_261_248, 2, 131_072, 32_768, "a share one byte short of 15 requests"),
)  # fmt: skip


def requests_that_fit(memory_bytes, percent, num_params, bytes_per_param, bytes_per_token, context) -> int:
    """Return how many requests of one context fit next to the weights, in a share of the memory."""
    room = memory_bytes * percent // 100 - num_params * bytes_per_param
    return max(0, room // (bytes_per_token * context))


def _fit_slips(memory, percent, params, size, token, context) -> list[tuple[int, str]]:
    """Return what each common mistake gives, with what to say to it."""
    one, weights = token * context, params * size
    usable = memory * percent // 100
    room = usable - weights
    return [
        (usable // one, "the weights take room too"),
        ((memory - weights) // one, "only `percent` percent of the memory may be used"),
        ((memory - weights) * percent // 100 // one, "`percent` is a share of the whole memory, weights "
         "included: take it before the weights are subtracted"),
        ((memory * percent - weights) // one, "`percent` is in hundredths: divide by 100"),
        ((usable - params) // one, "a parameter takes `bytes_per_param` bytes, not one"),
        (room, "those are bytes: how many requests is that?"),
        (room // token, "that many tokens fit: how many requests of `context` tokens is that?"),
        (room // context, "multiply the context by the bytes of a token"),
        (room // token * context, "divide by the context too: `//` and `*` go from left to right"),
        (room // (2 * one), "`bytes_per_token` counts K and V already, do not double it"),
        ((usable + weights) // one, "the weights take room away, they do not add it"),
        (usable - weights // one, "`//` binds closer than `-`: put the difference in brackets"),
    ]  # fmt: skip


def _check_fit(candidate) -> Verdict:
    for *values, about in FIT_CASES:
        given = candidate(*values)
        wanted = requests_that_fit(*values)
        if whole(given) != wanted:
            return not_yet(f"{_fit_mistake(given, wanted, *values)}; for {about}, it gives {show(given)}")
    return correct("what the weights leave of the share, divided by the cache of one request, rounded down")


def _fit_mistake(given, wanted: int, memory, percent, params, size, token, context) -> str:
    """Say which mistake gives this number of requests."""
    down = _floor(given)
    room = memory * percent // 100 - params * size
    if down is None:
        return why_not_whole(given, "the number of requests")
    if room < 0 and down < 0:
        return "where the weights alone do not fit, 0 requests do, not fewer than none"
    for slip, words in _fit_slips(memory, percent, params, size, token, context):
        if down == slip != wanted:
            return words
    if room < 0:
        return (
            "the weights alone do not fit there: the answer is 0. Cut at 0, without abs() or a smallest "
            "answer of 1"
        )
    if whole(given) is None and down == wanted:
        return "requests are whole, and a part of one is of no use: round down"
    if down == wanted + 1:
        if room % (token * context) == 0:
            return f"one too many: {wanted} requests fill the memory exactly"
        if (room + 1) % (token * context) == 0:
            return f"one too many: for {down} requests one byte is missing, so count all bytes"
        return "round down: a request that fits only in part does not fit"
    return (
        f"it should be {wanted:,}: what do the weights leave of the share, and how many caches of one "
        "request go into that?"
    )


FIT_HEAD = (
    "def requests_that_fit(memory_bytes, percent, num_params, bytes_per_param,\n"
    "                      bytes_per_token, context):"
)
_ROOM = "room = memory_bytes * percent // 100 - num_params * bytes_per_param"


def _fit_source(*lines: str) -> str:
    return _source(FIT_HEAD, *lines)


FIT = Exercise(
    key="04-requests-that-fit",
    lesson=4,
    title="How many requests fit?",
    minutes=8,
    difficulty=2,
    importance=3,
    name="requests_that_fit",
    task="""
A device reports `memory_bytes` bytes of memory. A server keeps some of them free: weights and caches
together may take `percent` percent. The model has `num_params` parameters of `bytes_per_param` bytes.
Each token of a request takes `bytes_per_token` bytes of cache, and each request needs room for
`context` tokens.

Return how many requests fit next to the weights.""",
    hints=(
        "How many bytes may be used in all? The weights come first: what do they leave of these?",
        "One request takes bytes_per_token x context. How often does that go into what is left?",
        "`//` rounds down, as it must. On a negative number it gives a negative one: keep it from "
        "falling below 0.",
    ),
    stub=_fit_source("return ...  # whole requests"),
    solution=_fit_source(_ROOM, "return max(0, room // (bytes_per_token * context))"),
    judge=_check_fit,
    wrong={
        "forgets the weights": _fit_source(
            "return memory_bytes * percent // 100 // (bytes_per_token * context)"
        ),
        "uses all the memory": _fit_source(
            _ROOM.replace(" * percent // 100", ""), "return max(0, room // (bytes_per_token * context))"
        ),
        "a share of what the weights leave": _fit_source(
            "room = (memory_bytes - num_params * bytes_per_param) * percent // 100",
            "return max(0, room // (bytes_per_token * context))",
        ),
        "percent for a factor": _fit_source(
            _ROOM.replace(" // 100", ""), "return max(0, room // (bytes_per_token * context))"
        ),
        "one too many": _fit_source(_ROOM, "return max(0, room // (bytes_per_token * context) + 1)"),
        "no brackets": _fit_source(_ROOM, "return max(0, room // bytes_per_token * context)"),
        "a fraction of a request": _fit_source(
            _ROOM, "return max(0, room / (bytes_per_token * context))"
        ),
        "rounds up": _fit_source(_ROOM, "return max(0, -(-room // (bytes_per_token * context)))"),
        "fewer than none": _fit_source(_ROOM, "return room // (bytes_per_token * context)"),
        "parameters for bytes": _fit_source(
            "room = memory_bytes * percent // 100 - num_params",
            "return max(0, room // (bytes_per_token * context))",
        ),
        "tokens, not requests": _fit_source(_ROOM, "return max(0, room // bytes_per_token)"),
        "K and V twice": _fit_source(_ROOM, "return max(0, room // (2 * bytes_per_token * context))"),
        "adds the weights": _fit_source(
            _ROOM.replace(" - ", " + "), "return max(0, room // (bytes_per_token * context))"
        ),
    },
)


# Windows ----------------------------------------------------------------------------------------

# layers, one layer in so many keeps all, window, bytes of a token in one layer, tokens
WINDOW_CASES = (
    (11, 4, 10, 8, 100, "11 layers, every fourth one full, window 10, 100 tokens"),
    (11, 4, 10, 8, 4, "the same layers at 4 tokens, fewer than the window"),
    (11, 4, 10, 8, 10, "the same layers at 10 tokens, exactly the window"),
    (3, 4, 10, 8, 100, "3 layers, every fourth one full, window 10, 100 tokens"),
    (42, 2, 4096, 8192, 131_072, "Gemma 2 9B at 131,072 tokens"),
    (62, 6, 1024, 8192, 131_072, "Gemma 3 27B at 131,072 tokens, whose 62 layers leave a rest"),
)


def windowed_cache_bytes(num_layers, full_every, window, layer_token_bytes, seq_len) -> int:
    """Return the bytes of one request's cache where most layers keep no more than a window."""
    full = num_layers // full_every
    held = full * seq_len + (num_layers - full) * min(seq_len, window)
    return held * layer_token_bytes


def _window_slips(layers, every, window, size, tokens) -> list[tuple[int, str]]:
    full = layers // every
    short, rest = min(tokens, window), layers - full
    return [
        (layers * tokens, "that is every layer keeping all tokens: windowed ones keep a window's worth"),
        (layers * short, f"some layers have no window: one in every {every} keeps all tokens"),
        (full * short + rest * tokens, "the two kinds are swapped: most layers have the window"),
        (full * tokens + rest * window, "a window that is not full yet holds only the tokens there are"),
        (full * tokens + rest * min(tokens, window - 1),
         "a full window holds `window` tokens, not one fewer"),
        (full * tokens + rest * min(tokens, window + 1), "a full window holds `window` tokens, not one more"),
        (every * tokens + (layers - every) * short,
         "`full_every` says how far apart the full layers are, not "
         "how many there are"),
        (full * tokens, "windowed layers keep something too: their last tokens"),
        (rest * short, "the layers without a window are missing"),
        (2 * (full * tokens + rest * short), "`layer_token_bytes` counts K and V already"),
        (
            (full + 1) * tokens + (rest - 1) * short,
            "round down: layers left over at the end have no full one among them",
        ),
    ]  # fmt: skip


def _check_window(candidate) -> Verdict:
    for *values, about in WINDOW_CASES:
        given = candidate(*values)
        wanted = windowed_cache_bytes(*values)
        if whole(given) != wanted:
            mistake = _window_mistake(candidate, given, wanted, *values)
            return not_yet(f"{mistake}; for {about}, it gives {show(given)}")
    return correct("full layers x T, and windowed layers x min(T, W)")


def _window_mistake(candidate, given, wanted: int, layers, every, window, size, tokens) -> str:
    """Say which mistake gives these bytes."""
    held = whole(given)
    if held is None and number(given) is None:
        return why_not_whole(given, "the number of bytes")
    if short := rounded(given, wanted):
        return short
    full = layers // every
    one = whole(candidate(layers, every, window, size, 1))
    if held == layers * tokens * size and one == (full + (layers - full) * window) * size:
        return "min, not max: a window is the most that a layer holds"
    for slip, words in _window_slips(layers, every, window, size, tokens):
        if held == slip * size != wanted:
            return words
    if held is not None and held * size == wanted:
        return "those are tokens: each takes `layer_token_bytes` in a layer"
    parts = layers / every
    if abs(number(given) - size * (parts * tokens + (layers - parts) * min(tokens, window))) < 1e-6 * wanted:
        return "layers are whole: divide them with //"
    if held is None:
        return why_not_whole(given, "the number of bytes")
    return f"it should be {wanted:,}: count the layers of each kind, and the tokens that each holds"


WINDOW_HEAD = (
    "def windowed_cache_bytes(num_layers, full_every, window, layer_token_bytes, seq_len):"
)


def _window_source(*lines: str) -> str:
    return _source(WINDOW_HEAD, *lines)


_FULL = "full = num_layers // full_every"
_WINDOWED = "windowed = num_layers - full"


def _held(expression: str, full: str = _FULL) -> str:
    return _window_source(full, _WINDOWED, f"return ({expression}) * layer_token_bytes")


WINDOW = Exercise(
    key="04-windowed-layers",
    lesson=4,
    title="A model with windows",
    minutes=10,
    difficulty=2,
    importance=2,
    name="windowed_cache_bytes",
    task="""
In Gemma's models most layers look back no further than `window` tokens, and keep no more. Of
`num_layers` layers, one in every `full_every` has no window (for 6: layers 5, 11, ..., counted from
0); layers left over at the end have one. A token takes `layer_token_bytes` in one layer, K and V together.

Return the bytes of one request's cache at `seq_len` tokens.""",
    hints=(
        "How many layers have no window? Count whole groups of `full_every` layers.",
        "A layer without a window holds seq_len tokens. One with a window holds that many or "
        "the window, whichever is less.",
        "(full x seq_len + windowed x min(seq_len, window)) x layer_token_bytes.",
    ),
    stub=_window_source("return ..."),
    solution=_held("full * seq_len + windowed * min(seq_len, window)"),
    judge=_check_window,
    wrong={
        "no windows": _held("num_layers * seq_len"),
        "windows everywhere": _held("num_layers * min(seq_len, window)"),
        "swapped": _held("full * min(seq_len, window) + windowed * seq_len"),
        "always a full window": _held("full * seq_len + windowed * window"),
        "max for min": _held("full * seq_len + windowed * max(seq_len, window)"),
        "K and V twice": _held("2 * (full * seq_len + windowed * min(seq_len, window))"),
        "rounds the layers up": _held(
            "full * seq_len + windowed * min(seq_len, window)", "full = -(-num_layers // full_every)"
        ),
        "parts of a layer": _held(
            "full * seq_len + windowed * min(seq_len, window)", "full = num_layers / full_every"
        ),
        "at least one full layer": _held(
            "full * seq_len + windowed * min(seq_len, window)", "full = max(1, num_layers // full_every)"
        ),
        "as many full layers as the distance": _held(
            "full * seq_len + windowed * min(seq_len, window)", "full = full_every"
        ),
        "a window one short": _held("full * seq_len + windowed * min(seq_len, window - 1)"),
        "tokens for bytes": _window_source(
            _FULL, _WINDOWED, "return full * seq_len + windowed * min(seq_len, window)"
        ),
        "forgets the full layers": _held("windowed * min(seq_len, window)"),
    },
)

EXERCISES = (BYTES, FIT, WINDOW)

"""The exercises of lesson 04: the formula, what fits beside the weights, and windows."""

from __future__ import annotations

import operator
from fractions import Fraction

from kvlib.memory import GB, kv_cache_bytes
from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet, show


def _whole(given) -> int | None:
    """Return a learner's whole number as an int, None for anything else."""
    if isinstance(given, bool | float):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None


def _ratio(given, wanted: int) -> Fraction | None:
    """Return given / wanted exactly, None where that makes no number."""
    if not isinstance(given, int | float) or isinstance(given, bool) or not wanted:
        return None
    return Fraction(given) / wanted


def _source(head: str, *lines: str) -> str:
    return "\n".join([head, *(f"    {line}" for line in lines), ""])


# The formula ------------------------------------------------------------------------------------

# L, H, KV, D, hidden size, tokens, sequences, bits; no two mistakes give the first the same ratio
ODD_SHAPE = (7, 15, 5, 9, 105, 11, 13, 64)
BYTES_CASES = (
    (ODD_SHAPE, "7 layers, 15 query heads, 5 KV heads of 9, hidden 105, 11 tokens, 13 sequences, 64 bits"),
    ((80, 64, 8, 128, 8192, 32_768, 1, 16), "Llama 3.1 70B, 32,768 tokens, 16 bits"),
    ((30, 9, 3, 64, 576, 2048, 4, 32), "SmolLM2 135M, 4 sequences of 2,048 tokens, 32 bits"),
    ((32, 32, 8, 128, 4096, 1000, 2, 4), "Llama 3.1 8B, 2 sequences of 1,000 tokens, 4 bits"),
    ((12, 12, 12, 64, 768, 0, 1, 16), "GPT-2 before its first token"),
)
SLIPS = (
    (Fraction(1, 2), "a half of the truth: both keys and values are kept"),
    (Fraction(2), "twice the truth: K and V are two, so the 2 belongs in once"),
    (Fraction(15, 5), "you counted query heads: only KV heads keep keys and values"),
    (Fraction(105, 45), "you used the hidden size, which is KV heads x head_dim only for some models"),
    (Fraction(7, 9), "you used hidden_size / num_heads for head_dim: the model says its own head_dim"),
    (Fraction(7, 3), "you took the hidden size for all KV heads together"),
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
        case = f"for {about}, it gives {show(given)}"
        if _whole(given) == wanted:
            continue
        if given is None:
            return not_yet(f"it returns nothing; {case}")
        ratio = _ratio(given, wanted)
        if ratio == 1 or (not wanted and given == 0 and isinstance(given, float)):
            return not_yet(
                "the number is right, but bytes are whole: multiply all factors first, then use "
                f"// 8, and it is an int; {case}"
            )
        if shape is ODD_SHAPE:
            for slip, words in SLIPS:
                if ratio == slip:
                    return not_yet(f"{words}; {case}")
        if not wanted:
            return not_yet(f"no tokens, no bytes; {case}")
        if given == 0 and shape[-1] < 8:
            return not_yet(
                f"bits // 8 is 0 for 4 bits: multiply by the bits first, and divide last; {case}"
            )
        if _whole(given) is None and ratio is None:
            return not_yet(f"return a number of bytes, as an int; {case}")
        return not_yet(
            f"{case}, and it should be {wanted:,}; which factors make the cache, and how many bytes "
            "is a number?"
        )
    return correct("2 x layers x KV heads x head_dim x tokens x sequences x bits / 8")


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
        "a float": _bytes_source(f"return {_product()} * bits / 8"),
        "rounds half a byte to nothing": _bytes_source(f"return {_product()} * (bits // 8)"),
    },
)


# What fits --------------------------------------------------------------------------------------

# device GB, parameters, bytes a parameter, cache bytes a token, context, what the case is about
FIT_CASES = (  # the first is chosen so that every mistake gives another number
    (2, 503 * 10**6, 2, 1000, 10_000, "503 million parameters of 2 bytes and 10 MB a request on 2 GB"),
    (80, 8_030_261_248, 2, 131_072, 32_768, "Llama 3.1 8B at 16 bits, 32,768 tokens, an 80 GB device"),
    (24, 8_030_261_248, 1, 131_072, 8192, "Llama 3.1 8B at 8 bits, 8,192 tokens, a 24 GB device"),
    (80, 70_553_706_496, 2, 327_680, 32_768, "Llama 3.1 70B at 16 bits on one 80 GB device"),
    (17, 8_030_261_248, 2, 131_072, 32_768, "a device with room for the weights and little more"),
    (4, 10**9, 2, 10**6, 100, "a case without a rest"),
)


def requests_that_fit(device_gb, num_params, bytes_per_param, bytes_per_token, context) -> int:
    """Return how many requests of one context fit on the device beside the weights."""
    room = device_gb * GB - num_params * bytes_per_param
    return max(0, room // (bytes_per_token * context))


def _fit_slips(gb, params, size, token, context) -> list[tuple[float, str]]:
    """Return what each common mistake gives, with what to say to it."""
    one = token * context
    room = gb * GB - params * size
    gib_room = gb * 2**30 - params * size
    return [
        (gb * GB // one, "the weights take room too"),
        (gib_room // one, "that counts GiB (2**30): the data sheet's GB is 10**9 bytes"),
        ((gb * GB - params) // one, "a parameter takes `bytes_per_param` bytes, not one"),
        (room // token, "that many tokens fit: how many requests of `context` tokens is that?"),
        (room // context, "multiply the context by the bytes of a token"),
        (room // (2 * one), "`bytes_per_token` counts K and V already, do not double it"),
        ((gb * GB + params * size) // one, "the weights take room away, they do not add it"),
    ]


def _check_fit(candidate) -> Verdict:
    for *values, about in FIT_CASES:
        given = candidate(*values)
        wanted = requests_that_fit(*values)
        case = f"for {about}, it gives {show(given)}"
        if _whole(given) == wanted:
            continue
        if not isinstance(given, int | float) or isinstance(given, bool):
            return not_yet(f"return a number of requests, as an int; {case}")
        gb, params, size, token, context = values
        exact = (gb * GB - params * size) / (token * context)
        if exact < 0 and given < 0:
            return not_yet(
                f"where the weights alone do not fit, 0 requests do, not fewer than none; {case}"
            )
        rounded = int(given // 1) if given == given and abs(given) < 1e30 else None
        if isinstance(given, float) and rounded == exact // 1:
            return not_yet(f"requests are whole, and a part of one is of no use: use //; {case}")
        if given == wanted + 1:
            return not_yet(f"round down: a request that fits only in part does not fit; {case}")
        for slip, words in _fit_slips(*values):
            if rounded in (slip, slip + 1) and slip != wanted:
                return not_yet(f"{words}; {case}")
        return not_yet(
            f"{case}, and it should be {wanted:,}; what do the weights leave free, and how many "
            "caches of one request go into that?"
        )
    return correct("what the weights leave, divided by the cache of one request, rounded down")


FIT_HEAD = "def requests_that_fit(device_gb, num_params, bytes_per_param, bytes_per_token, context):"
_ROOM = "room = device_gb * 10**9 - num_params * bytes_per_param"


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
A device has `device_gb` GB of memory, as its data sheet counts them. The model has `num_params`
parameters of `bytes_per_param` bytes. Each token of a request takes `bytes_per_token` bytes of
cache, and each request is to have room for `context` tokens.

Return how many requests fit beside the weights. Nothing else needs memory here.""",
    hints=(
        "A GB is 10**9 bytes. The weights come first: what do they leave?",
        "One request takes bytes_per_token x context. How often does that go into what is left?",
        "`//` rounds down, as it must. On a negative number it gives a negative one: keep it from "
        "falling below 0.",
    ),
    stub=_fit_source("return ...  # whole requests"),
    solution=_fit_source(_ROOM, "return max(0, room // (bytes_per_token * context))"),
    judge=_check_fit,
    wrong={
        "forgets the weights": _fit_source(
            "return device_gb * 10**9 // (bytes_per_token * context)"
        ),
        "GiB for GB": _fit_source(
            _ROOM.replace("10**9", "2**30"), "return max(0, room // (bytes_per_token * context))"
        ),
        "a fraction of a request": _fit_source(
            _ROOM, "return max(0, room / (bytes_per_token * context))"
        ),
        "rounds up": _fit_source(_ROOM, "return max(0, -(-room // (bytes_per_token * context)))"),
        "fewer than none": _fit_source(_ROOM, "return room // (bytes_per_token * context)"),
        "parameters for bytes": _fit_source(
            "room = device_gb * 10**9 - num_params",
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
    (6, 3, 10, 8, 100, "6 layers, every third one full, window 10, 100 tokens"),
    (6, 3, 10, 8, 4, "the same layers at 4 tokens, fewer than the window"),
    (6, 3, 10, 8, 10, "the same layers at 10 tokens, exactly the window"),
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
        (full * tokens, "windowed layers keep something too: their last tokens"),
        (rest * short, "the layers without a window are missing"),
        (2 * (full * tokens + rest * short), "`layer_token_bytes` counts K and V already"),
        (
            (full + 1) * tokens + (rest - 1) * short,
            "round down: a rest of layers at the end has no full one",
        ),
    ]


def _check_window(candidate) -> Verdict:
    for *values, about in WINDOW_CASES:
        given = candidate(*values)
        wanted = windowed_cache_bytes(*values)
        case = f"for {about}, it gives {show(given)}"
        if _whole(given) == wanted:
            continue
        if not isinstance(given, int | float) or isinstance(given, bool):
            return not_yet(f"return a number of bytes, as an int; {case}")
        if given == wanted:
            return not_yet(f"the number is right, but bytes are whole: return an int; {case}")
        layers, every, window, size, tokens = values
        if given == layers * tokens * size and candidate(layers, every, window, size, 1) == (
            (layers // every + (layers - layers // every) * window) * size
        ):
            return not_yet(f"min, not max: a window is the most that a layer holds; {case}")
        for slip, words in _window_slips(*values):
            if given == slip * size:
                return not_yet(f"{words}; {case}")
        if given * size == wanted:
            return not_yet(f"those are tokens: each takes `layer_token_bytes` in a layer; {case}")
        if isinstance(given, float) and layers % every:
            return not_yet(f"layers are whole: divide them with //; {case}")
        return not_yet(
            f"{case}, and it should be {wanted:,}; count the layers of each kind, and the tokens "
            "that each holds"
        )
    return correct("full layers x T, and windowed layers x min(T, W)")


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
`num_layers` layers, one in every `full_every` has no window (layer 6, 12, 18, ... for 6); what
is left over at the end has one. A token takes `layer_token_bytes` in one layer, K and V together.

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
        "tokens for bytes": _window_source(
            _FULL, _WINDOWED, "return full * seq_len + windowed * min(seq_len, window)"
        ),
        "forgets the full layers": _held("windowed * min(seq_len, window)"),
    },
)

EXERCISES = (BYTES, FIT, WINDOW)

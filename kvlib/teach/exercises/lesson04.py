"""The exercises of lesson 04: the formula, what fits beside the weights, and windows."""

import math

from kvlib.teach.exercises.contract import Exercise, cell
from kvlib.teach.exercises.reading import Rounded, Whole
from kvlib.teach.exercises.watching import why_not_whole


def _bytes(*lines: str) -> str:
    head = "def cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, hidden_size,\n"
    return cell(f"{head}                seq_len, batch_size, bits):", *lines)


def _product(size: str = "bits // 8", **changed: str) -> str:
    names = ("num_layers", "num_kv_heads", "head_dim", "seq_len", "batch_size")
    factors = {"two": "2"} | {name: name for name in names} | changed
    return _bytes(f"return {' * '.join(filter(None, factors.values()))} * {size}")


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
    stub=_bytes("return ..."),
    solution=_bytes(
        "numbers = 2 * num_layers * num_kv_heads * head_dim * seq_len * batch_size",
        "return numbers * bits // 8",
    ),
    answer=Whole("the number of bytes"),
    cases=(  # layers, heads, KV heads, head_dim, hidden size, tokens, sequences, bits
        (7, 15, 5, 9, 105, 11, 13, 64,
         "7 layers, 15 query heads, 5 KV heads of 9, hidden 105, 11 tokens, 13 sequences, 64 bits"),
        (80, 64, 8, 128, 8192, 32_768, 1, 16, "Llama 3.1 70B, 32,768 tokens, 16 bits"),
        (30, 9, 3, 64, 576, 2048, 4, 32, "SmolLM2 135M, 4 sequences of 2,048 tokens, 32 bits"),
        (32, 32, 8, 128, 4096, 1000, 2, 4, "Llama 3.1 8B, 2 sequences of 1,000 tokens, 4 bits"),
        (61, 9, 3, 65, 585, 100_003, 7, 8,
         "61 layers, 3 KV heads of 65, 100,003 tokens, 7 sequences, 8 bits"),
        (12, 12, 12, 64, 768, 0, 1, 16, "GPT-2 before its first token"),
    ),
    right="2 x layers x KV heads x head_dim x tokens x sequences x bits / 8",
    otherwise="it should be {wanted:,}: which factors make the cache, and how many bytes is a number?",
    rule=lambda given, wanted, *case: None if wanted else "no tokens, no bytes",
    wrong={
        "a half of the truth: both keys and values are kept": _product(two=""),
        "twice the truth: K and V are two, so the 2 belongs in once": _product(two="2 * 2"),
        "you counted query heads: only KV heads keep keys and values": _product(num_kv_heads="num_heads"),
        "you used the hidden size, which is KV heads x head_dim only for some models":
            _product(num_kv_heads="hidden_size", head_dim=""),
        "you used hidden_size / num_heads for head_dim: the model says its own head_dim":
            _product(head_dim="(hidden_size // num_heads)"),
        "you used the hidden size where the KV heads belong": _product(num_kv_heads="hidden_size"),
        "you used the hidden size where head_dim, the width of one head, belongs":
            _product(head_dim="hidden_size"),
        "those are bits: 8 of them make a byte": _product("bits"),
        "that counts numbers: each takes bits / 8 bytes": _product("1"),
        "each number takes bits / 8 bytes here, not always 2": _product("2"),
        "each number takes bits / 8 bytes here, not always 4": _product("4"),
        "each number takes bits / 8 bytes here, not always 8": _product("8"),
        "bits // 8 is 0 for 4 bits: multiply by the bits first, and divide last": _product("(bits // 8)"),
        "the batch is missing: each sequence has a cache of its own": _product(batch_size=""),
        "the tokens are missing: each keeps its own key and value": _product(seq_len=""),
        "the layers are missing: each has a cache of its own": _product(num_layers=""),
        "the KV heads are missing: each keeps its own key and value": _product(num_kv_heads=""),
        "head_dim is missing: a key has that many numbers": _product(head_dim=""),
    },
)  # fmt: skip


USABLE, WEIGHTS = "memory_bytes * percent // 100", "num_params * bytes_per_param"
ONE = "(bytes_per_token * context)"


def _fits(*lines: str) -> str:
    head = "def requests_that_fit(memory_bytes, percent, num_params, bytes_per_param,\n"
    return cell(f"{head}                      bytes_per_token, context):", *lines)


def _room(room: str = f"{USABLE} - {WEIGHTS}", into: str = f"// {ONE}") -> str:
    return _fits(f"room = {room}", f"return max(0, room {into})")


def _fits_rule(given, wanted, memory, percent, params, size, token, context) -> str | None:
    room = memory * percent // 100 - params * size
    if room < 0 and given < 0:
        return "where the weights alone do not fit, 0 requests do, not fewer than none"
    if room < 0:
        return (
            "the weights alone do not fit there: the answer is 0. Cut at 0, without abs() or a smallest "
            "answer of 1"
        )
    if isinstance(given, float) and math.floor(given) == wanted:
        return "requests are whole, and a part of one is of no use: round down"
    if math.floor(given) != wanted + 1:
        return why_not_whole(given, "the number of requests") if isinstance(given, float) else None
    if room % (token * context) == 0:
        return "one too many: {wanted} requests fill the memory exactly"
    if (room + 1) % (token * context) == 0:
        return "one too many: for {given} requests one byte is missing, so count all bytes"
    return "round down: a request that fits only in part does not fit"


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
    stub=_fits("return ...  # whole requests"),
    solution=_room(),
    answer=Rounded("the number of requests"),
    # memory, percent, parameters, bytes a parameter, cache bytes a token, context
    cases=(  # in the first two every mistake gives another number
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
    ),
    right="what the weights leave of the share, divided by the cache of one request, rounded down",
    otherwise="it should be {wanted:,}: what do the weights leave of the share, and how many caches of one "
        "request go into that?",
    rule=_fits_rule,
    wrong={
        "the weights take room too": _room(USABLE),
        "only `percent` percent of the memory may be used": _room(f"memory_bytes - {WEIGHTS}"),
        "`percent` is a share of the whole memory, weights included: take it before the weights are "
        "subtracted": _room(f"(memory_bytes - {WEIGHTS}) * percent // 100"),
        "`percent` is in hundredths: divide by 100": _room(f"memory_bytes * percent - {WEIGHTS}"),
        "a parameter takes `bytes_per_param` bytes, not one": _room(f"{USABLE} - num_params"),
        "those are bytes: how many requests is that?": _room(into=""),
        "that many tokens fit: how many requests of `context` tokens is that?":
            _room(into="// bytes_per_token"),
        "multiply the context by the bytes of a token": _room(into="// context"),
        "divide by the context too: `//` and `*` go from left to right":
            _room(into="// bytes_per_token * context"),
        "`bytes_per_token` counts K and V already, do not double it": _room(into=f"// (2 * {ONE})"),
        "the weights take room away, they do not add it": _room(f"{USABLE} + {WEIGHTS}"),
        "`//` binds closer than `-`: put the difference in brackets":
            _room(f"{USABLE} - {WEIGHTS} // {ONE}", ""),
    },
)  # fmt: skip


HELD = "full * seq_len + windowed * min(seq_len, window)"


def _windows(*lines: str) -> str:
    head = "def windowed_cache_bytes(num_layers, full_every, window, layer_token_bytes, seq_len):"
    return cell(head, *lines)


def _held(held: str, full: str = "num_layers // full_every", size: str = " * layer_token_bytes") -> str:
    return _windows(f"full = {full}", "windowed = num_layers - full", f"return ({held}){size}")


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
    stub=_windows("return ..."),
    solution=_held(HELD),
    answer=Whole("the number of bytes"),
    cases=(  # layers, one layer in so many keeps all, window, bytes of a token in one layer, tokens
        (11, 4, 10, 8, 100, "11 layers, every fourth one full, window 10, 100 tokens"),
        (11, 4, 10, 8, 4, "the same layers at 4 tokens, fewer than the window"),
        (11, 4, 10, 8, 10, "the same layers at 10 tokens, exactly the window"),
        (3, 4, 10, 8, 100, "3 layers, every fourth one full, window 10, 100 tokens"),
        (42, 2, 4096, 8192, 131_072, "Gemma 2 9B at 131,072 tokens"),
        (62, 6, 1024, 8192, 131_072, "Gemma 3 27B at 131,072 tokens, whose 62 layers leave a rest"),
    ),
    right="full layers x T, and windowed layers x min(T, W)",
    otherwise="it should be {wanted:,}: count the layers of each kind, and the tokens that each holds",
    wrong={
        "that is every layer keeping all tokens: windowed ones keep a window's worth":
            _held("num_layers * seq_len"),
        "min, not max: a window is the most that a layer holds":
            _held("full * seq_len + windowed * max(seq_len, window)"),
        "some layers have no window: one in every {full_every} keeps all tokens":
            _held("num_layers * min(seq_len, window)"),
        "the two kinds are swapped: most layers have the window":
            _held("full * min(seq_len, window) + windowed * seq_len"),
        "a window that is not full yet holds only the tokens there are":
            _held("full * seq_len + windowed * window"),
        "a full window holds `window` tokens, not one fewer":
            _held("full * seq_len + windowed * min(seq_len, window - 1)"),
        "a full window holds `window` tokens, not one more":
            _held("full * seq_len + windowed * min(seq_len, window + 1)"),
        "`full_every` says how far apart the full layers are, not how many there are":
            _held(HELD, "full_every"),
        "windowed layers keep something too: their last tokens": _held("full * seq_len"),
        "the layers without a window are missing": _held("windowed * min(seq_len, window)"),
        "`layer_token_bytes` counts K and V already": _held(f"2 * ({HELD})"),
        "round down: layers left over at the end have no full one among them":
            _held(HELD, "-(-num_layers // full_every)"),
        "those are tokens: each takes `layer_token_bytes` in a layer": _held(HELD, size=""),
        "layers are whole: divide them with //": _held(HELD, "num_layers / full_every"),
    },
)  # fmt: skip

EXERCISES = (BYTES, FIT, WINDOW)

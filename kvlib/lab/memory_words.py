"""The findings of the memory panel in words: titles, and the sentence under the picture."""

from __future__ import annotations

from kvlib.lab.curves import CONTEXTS
from kvlib.lab.memory_view import MemorySetting, attention_kind
from kvlib.lab.style import format_bytes, format_ratio, format_tokens
from kvlib.lab.words import rounded


def main_title(setting: MemorySetting) -> str:
    """Return whether weights and cache fit, and by how much."""
    if setting.room < 0:
        return f"The weights alone are {format_bytes(-setting.room)} too large for {setting.device.name}"
    if setting.free < 0:
        return f"Does not fit: {format_bytes(-setting.free)} more than {setting.device.name} has"
    if setting.free == 0:
        return f"Fits exactly: nothing of {setting.device.name} stays free"
    return f"Fits: {format_bytes(setting.free)} of {setting.device.name} stay free, and the {larger(setting)}"


def larger(setting: MemorySetting) -> str:
    """Return which of weights and cache is the larger part, and how many times the other."""
    weights, cache = setting.weights, setting.cache
    ratio = format_ratio(max(weights, cache) / min(weights, cache))
    if ratio == "1":
        return "weights and the cache are equally large"
    if cache > weights:
        return f"cache dominates: {ratio} times the weights"
    return f"weights dominate: {ratio} times the cache"


def setting_line(setting: MemorySetting) -> str:
    """Return the setting in short."""
    return (
        f"{setting.preset.name} at {setting.weight_bits} bits, "
        f"{requests(setting.requests)} of {setting.context:,} tokens, cache at "
        f"{setting.cache_bits} bits"
    )


def shape_line(setting: MemorySetting) -> str:
    """Return the numbers of the shape that the cache follows from."""
    preset, kind = setting.preset, attention_kind(setting.preset)
    if kind == "MLA":
        return f"MLA: {preset.num_layers} layers, {preset.latent_dim} numbers a token in each"
    heads = "1 KV head" if preset.num_kv_heads == 1 else f"{preset.num_kv_heads} KV heads"
    window = ""
    if preset.window is not None:
        window = f", {preset.windowed_layers} with window {preset.window:,}"
    return f"{kind}: {preset.num_layers} layers{window}, {heads} of {preset.head_dim}"


def cache_title(setting: MemorySetting) -> str:
    """Return where the cache of the chosen requests outgrows the weights."""
    whose = "One cache" if setting.requests == 1 else f"{setting.requests:,} caches"
    verb = "outgrows" if setting.requests == 1 else "outgrow"
    crossing = crossing_context(setting)
    if crossing is None:
        stay = "stays" if setting.requests == 1 else "stay"
        return f"{whose} {stay} below the weights up to 128k"
    if crossing < CONTEXTS[0]:
        return f"{whose} {verb} the weights at every context shown"
    return f"{whose} {verb} the weights at about {rounded(crossing)} tokens"


def crossing_context(setting: MemorySetting) -> int | None:
    """Return the first context at which the cache of all requests is larger than the weights.

    None where that is beyond the picture.
    """
    low, high = 0, CONTEXTS[-1]
    if setting.requests * setting.one_request(high) <= setting.weights:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if setting.requests * setting.one_request(middle) > setting.weights:
            high = middle
        else:
            low = middle
    return high


def fitting_title(setting: MemorySetting) -> str:
    """Return how many requests of the chosen context fit."""
    count, tokens = setting.fitting(), format_tokens(setting.context)
    if setting.room < 0:
        return "No request fits: there is no room for a cache"
    if count == 0:
        return f"No request of {tokens} tokens fits"
    return f"{requests(count)} of {tokens} tokens {'fits' if count == 1 else 'fit'} at most"


def sentence(setting: MemorySetting) -> str:
    """Return everything the panel shows, with the numbers."""
    one = setting.one_request()
    many = f"{setting.requests:,} × {format_bytes(one)} = " if setting.requests > 1 else ""
    parts = [
        f"{setting.preset.name} on {setting.device.name}: {format_bytes(setting.weights)} of weights "
        f"at {setting.weight_bits} bits, and a cache of {many}{format_bytes(setting.cache)} at "
        f"{setting.cache_bits} bits for {requests(setting.requests)} of {setting.context:,} tokens.",
        _balance(setting),
        f"The {larger(setting)}.",
        _capacity(setting),
    ]
    if min(setting.weight_bits, setting.cache_bits) < 16:
        parts.append("The scale factors that 8-bit and 4-bit numbers need are not counted.")
    return " ".join(filter(None, parts))


def _balance(setting: MemorySetting) -> str:
    memory, total = format_bytes(setting.memory), format_bytes(setting.total)
    if setting.room < 0:
        return (
            f"The weights alone exceed the {memory} of memory by {format_bytes(-setting.room)}; "
            f"with the cache, {format_bytes(-setting.free)} are missing."
        )
    if setting.free < 0:
        return f"Together {total}, which exceeds the {memory} of memory by {format_bytes(-setting.free)}."
    return f"Together {total} of {memory}; {format_bytes(setting.free)} stay free."


def _capacity(setting: MemorySetting) -> str:
    if setting.room < 0:
        return "Fewer bits for the weights, a larger device, or several devices would be needed."
    count = setting.fitting()
    if count == 0:
        longest = setting.longest(1)
        if not longest:
            return "Not even one token of cache fits next to the weights."
        return f"No request of this context fits; one alone may have {longest:,} tokens."
    fit = f"At most {requests(count)} of this context {'fits' if count == 1 else 'fit'}"
    longest = setting.longest()
    whose = "one request" if setting.requests == 1 else f"{setting.requests:,} requests"
    if longest is None:
        return f"{fit}; {whose} may have any number of tokens, as every layer has a window."
    if longest == 0:
        return f"{fit}; {whose} have no room, however short the context."
    return f"{fit}; {whose} may have up to {longest:,} tokens{'' if setting.requests == 1 else ' each'}."


def requests(count: int) -> str:
    """Return "1 request" or "8 requests"."""
    return "1 request" if count == 1 else f"{count:,} requests"

"""The findings of the live lab in words: titles, and the sentence under the picture."""

from __future__ import annotations

import re

from kvlib.lab.curves import CONTEXTS, View
from kvlib.lab.style import format_bytes, format_ratio, format_time

FAR = 4.0  # times its floor: above it no cause is named, except a busy machine that was measured
SPREAD = 1.5  # slowest over fastest repeat: above it the time is uncertain
DEVICE_LENGTH = 27  # characters of a device's name that fit over the right half


def memory_title(view: View) -> str:
    """Return what the left half shows."""
    setting = view.setting
    if view.total_bytes > view.memory:
        return f"{setting.kind} needs {format_bytes(view.total_bytes)}: more than this device has"
    crossing = view.crossing
    if crossing is None or crossing > CONTEXTS[-1]:
        return f"{setting.kind}: the weights outweigh the cache up to 128k tokens"
    if crossing < CONTEXTS[0]:
        return f"{setting.kind}: the cache outweighs the weights everywhere here"
    return f"{setting.kind}: the cache outgrows the weights at {int(crossing):,} tokens"


def time_title(view: View) -> str:
    """Return what the right half shows."""
    kind, floor, timing = view.setting.kind, view.floor, view.timing
    if floor is None:
        return "How long does one step take here?"
    if timing is None:
        return f"{kind}: one step cannot take less than {format_time(floor.seconds)}"
    ratio = timing.seconds / floor.seconds
    return f"{kind}: one step takes {format_time(timing.seconds)}, {_times_floor(ratio)}"


def shape_line(view: View) -> str:
    """Return the setting that both halves share, short."""
    setting = view.setting
    many = "1 sequence" if setting.batch == 1 else f"{setting.batch} sequences"
    return f"{setting.preset.name}, {setting.dtype}, {many}"


def device_line(view: View) -> str:
    """Return how to read the right half: the device, and what it was measured to read a second."""
    if view.rates is None:
        return shortened(view.device_name, 50)
    device = re.sub(r" Processor| CPU| @ [\d.]+GHz", "", view.device_name)
    if len(device) > DEVICE_LENGTH:
        device = shortened(re.sub(r", \d+ threads?$", "", device), DEVICE_LENGTH)
    rate = format_bytes(view.rates.bandwidth)
    return f"● measured on {device}   ╌╌ floor at {rate}/s"


def sentence(view: View) -> str:
    """Return what is selected in words, its bytes, its time, its floor, and why they differ."""
    setting = view.setting
    heads = setting.kv_heads()
    parts = [
        f"{setting.kind} ({heads} KV {'head' if heads == 1 else 'heads'} for "
        f"{setting.preset.num_heads} query heads), {shape_line(view)}, {setting.context:,} tokens: "
        f"the cache takes {format_bytes(setting.cache_bytes())}, the weights "
        f"{format_bytes(setting.weight_bytes())}."
    ]
    if heads != setting.preset.num_kv_heads:
        parts.append(_own_kind(setting))
    floor, timing = view.floor, view.timing
    if floor is not None:
        parts.append(_time_part(view, floor, timing))
    if timing is None and view.refusal:
        parts.append(view.refusal)
    guess = view.guess_shown
    if guess is not None and guess[0].point() == setting.point():
        parts.append(_guess_part(guess[1], timing))
    return " ".join(parts)


def _own_kind(setting) -> str:
    """Return what the model itself is, where another number of KV heads is selected."""
    preset, heads = setting.preset, setting.kv_heads()
    own = preset.num_kv_heads
    kind = {preset.num_heads: "MHA", 1: "MQA"}.get(own, f"GQA with {own} KV heads")
    here = f"{setting.kind} with {heads} KV {'head' if heads == 1 else 'heads'}"
    change = "fewer" if heads < own else "more"
    return f"{preset.name} itself uses {kind}; {here} is its shape with {change} KV heads."


def _left_out(preset) -> str:
    """Return which weights one step does not read, in brackets; nothing where it reads all."""
    parts = ["only the active experts"] if preset.experts is not None else []
    parts += [] if preset.tie_embeddings else ["without the input embedding: a step looks up one row"]
    return f" ({'; '.join(parts)})" if parts else ""


def _time_part(view: View, floor, timing) -> str:
    left_out = _left_out(view.setting.preset)
    bytes_part = (
        f"{format_time(floor.weights_s)} to read the weights{left_out} + "
        f"{format_time(floor.cache_s)} to read the cache"
    )
    if floor.bound_by == "arithmetic":
        bytes_part = f"limited by arithmetic, {format_time(floor.compute_s)}; {bytes_part}"
    if timing is None:
        return f"One decode step takes at least {format_time(floor.seconds)} ({bytes_part})."
    ratio = timing.seconds / floor.seconds
    took = (
        f"One decode step took {format_time(timing.seconds)} on {view.device_name}, "
        f"{_times_floor(ratio)} of {format_time(floor.seconds)} ({bytes_part})."
    )
    said = [took, why_far(view, ratio)]
    if timing.high > SPREAD * timing.low:
        said.append("Its repeats differ by more than half, so the time is uncertain.")
    if view.busy:
        said.append(f"{view.busy} Measure again when it is quieter.")
    return " ".join(said)


def why_far(view: View, ratio: float) -> str:
    """Return why the measured step is as far from its floor as it is, in one sentence."""
    setting, floor = view.setting, view.floor
    if ratio < 0.95:
        return (
            "Below the floor: probably part of what it reads was still in the processor's own cache, "
            "which is faster than memory."
        )
    if ratio < 1.5:
        return "That is close to the floor: the step does little but read these bytes."
    if setting.device.startswith("cuda") and floor.seconds < 2e-3:
        return (
            "The bytes are few for this GPU: probably it takes longer to start the step's many kernels "
            "(compiled functions) than to read them."
        )
    if ratio > FAR:
        return "Reading explains only a small part of this time."
    if setting.device == "cpu" and setting.dtype != "float32":
        return f"Many CPUs have no fast arithmetic in {setting.dtype} and convert every number first."
    if floor.cache_s > floor.weights_s:
        return "Attention reads such a long cache more slowly than a plain read would."
    return (
        "The weights are the larger part, and multiplying one row by a matrix, layer after layer, "
        "reads them more slowly than one long read would."
    )


def _guess_part(guess: float, timing) -> str:
    if timing is None:
        return f"Your guess: {format_time(guess)}."
    ratio = guess / timing.seconds
    if 0.8 <= ratio <= 1.25:
        return f"Your guess of {format_time(guess)} is within a quarter of the measured time."
    side = "too high" if ratio > 1 else "too low"
    times = format_ratio(max(ratio, 1 / ratio))
    return f"Your guess of {format_time(guess)} is {times} times {side}."


def _times_floor(ratio: float) -> str:
    return "at its floor" if 0.95 <= ratio < 1.05 else f"{format_ratio(ratio)} times its floor"


def rounded(count: float) -> str:
    """Return a count with two digits, grouped: 11,689 as 12,000."""
    digits = len(str(int(count)))
    return f"{round(count, 2 - digits):,.0f}" if digits > 2 else f"{count:.0f}"


def shortened(text: str, length: int) -> str:
    """Return the text, its middle left out if it is longer than `length`."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head].rstrip()}…{text[-(length - 1 - head) :].lstrip()}"


def begun(text: str, length: int) -> str:
    """Return the text, its end left out if it is longer than `length`."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def first_line(error: Exception) -> str:
    """Return what an error says first; its type's name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

"""What one decode step waits for, by batch and context, as plain numbers and words.

Everything here is arithmetic on two rates. Where the rates come from is told with every number:
measured on this machine, or published by its maker. Nothing is timed and nothing is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlib.lab.style import format_bytes, format_ratio, format_time
from kvlib.memory import ModelPreset
from kvlib.timing import Floor, Timing, decode_step_floor

PARTS = ("weights", "cache", "arithmetic")


@dataclass(frozen=True)
class Machine:
    """What a device reads and computes a second, its memory, and where the rates come from."""

    name: str
    bandwidth: float  # bytes a second
    flop_rate: float  # dense, a second
    memory: int
    measured: bool  # here; False: published ones

    @property
    def source(self) -> str:
        """Return in words where the rates come from, and what they are."""
        rates = f"{format_bytes(self.bandwidth)}/s and {format_flops(self.flop_rate)}"
        if self.measured:
            return f"at the rates measured on {self.name} ({rates})"
        return f"at the published rates of {self.name} ({rates}, dense), not measured"


@dataclass(frozen=True)
class Case:
    """A shape, the bytes of an element and a machine: everything but batch and context."""

    preset: ModelPreset
    element_bytes: int
    machine: Machine

    def floor(self, context: int, batch: int) -> Floor:
        """Return the least time of one decode step: bytes or arithmetic, the larger."""
        return decode_step_floor(
            weight_bytes=self.preset.step_weight_bytes(self.element_bytes),
            cache_bytes=self.preset.cache_bytes(context, batch, self.element_bytes),
            flops=self.preset.step_flops(context, batch),
            bandwidth=self.machine.bandwidth,
            flop_rate=self.machine.flop_rate,
        )

    def dominant(self, context: int, batch: int) -> str:
        """Return the part a step waits for most: "weights", "cache" or "arithmetic"."""
        floor = self.floor(context, batch)
        if floor.bound_by == "arithmetic":
            return "arithmetic"
        return "weights" if floor.weights_s >= floor.cache_s else "cache"

    def needs(self, context: int, batch: int) -> int:
        """Return the bytes of all weights and of the cache."""
        size = self.element_bytes
        return self.preset.weight_bytes(size) + self.preset.cache_bytes(context, batch, size)

    def cache_batch(self, context: int) -> float:
        """Return the batch at which reading the cache takes as long as reading the weights."""
        one = self.floor(context, 1)
        return one.weights_s / one.cache_s

    def arithmetic_batch(self, context: int) -> float | None:
        """Return the batch at which arithmetic takes as long as all reading; None where never."""
        one = self.floor(context, 1)
        gain = one.compute_s - one.cache_s  # both grow with the batch
        return one.weights_s / gain if gain > 0 else None

    def weights_batch(self) -> float:
        """Return the batch at which multiplying by a weight takes as long as reading it."""
        return self.element_bytes * self.machine.flop_rate / (2 * self.machine.bandwidth)

    def dominants(self, contexts, batches) -> np.ndarray:
        """Return indices into PARTS, one row a context and one column a batch."""
        ones = [self.floor(context, 1) for context in contexts]
        cache, compute = (
            np.outer([getattr(one, part) for one in ones], batches) for part in ("cache_s", "compute_s")
        )
        weights = ones[0].weights_s
        return np.where(compute > weights + cache, 2, np.where(cache > weights, 1, 0))


def sentence(case: Case, context: int, batch: int, timing: Timing | None = None) -> str:
    """Return what a step costs at the least, what dominates it, and where that changes."""
    floor, machine = case.floor(context, batch), case.machine
    weights, cache, compute = map(format_time, (floor.weights_s, floor.cache_s, floor.compute_s))
    said = [f"{shape_words(case)}, {batch_words(batch)} of {context:,} tokens, {machine.source}."]
    if floor.bound_by == "arithmetic":
        said.append(
            f"One decode step takes at least {format_time(floor.seconds)}, the time of its arithmetic; "
            f"reading the weights ({weights}) and the cache ({cache}) takes less. Arithmetic dominates."
        )
    else:
        what = case.dominant(context, batch)
        said.append(
            f"One decode step takes at least {format_time(floor.seconds)}: {weights} to read the "
            f"weights and {cache} to read the cache; its arithmetic takes less, {compute}. "
            f"The {what} {'dominate' if what == 'weights' else 'dominates'}."
        )
    said.append(crossover_words(case, context))
    said.append(f"The products with the weights turn compute-bound near batch {at(case.weights_batch())}.")
    needed = case.needs(context, batch)
    if needed > machine.memory:
        said.append(
            f"It would need {format_bytes(needed)}, and the device has "
            f"{format_bytes(machine.memory)}: it does not fit, and these times are arithmetic only."
        )
    if timing is not None:
        ratio = timing.seconds / floor.seconds
        said.append(
            f"Measured on {timing.device}: {format_time(timing.seconds)}, "
            f"{format_ratio(ratio)} times the floor."
        )
        if ratio < 1:
            said.append(
                "That is below the floor: part of it was read from the processor's cache, or the rates "
                "were measured while other programs ran."
            )
    return " ".join(said)


def crossover_words(case: Case, context: int) -> str:
    """Return at which batches the dominant part changes at this context."""
    cache, arithmetic = case.cache_batch(context), case.arithmetic_batch(context)
    if arithmetic is not None and arithmetic <= cache:
        if arithmetic <= 1:
            return "At this context arithmetic dominates at every batch."
        return f"At this context arithmetic takes over from the weights at batch {at(arithmetic)}."
    if cache <= 1:
        first = "At this context the cache takes longer to read than the weights at every batch"
    else:
        first = f"At this context the cache takes over from the weights at batch {at(cache)}"
    if arithmetic is None:
        return f"{first}; no batch is bound by arithmetic."
    return f"{first}, and arithmetic takes over from both at batch {at(arithmetic)}."


def map_title(case: Case, context: int, batch: int) -> str:
    """Return what the map shows at the selected point."""
    what = case.dominant(context, batch)
    return {
        "weights": "This step waits for its weights",
        "cache": "This step waits for its cache",
        "arithmetic": "This step waits for arithmetic",
    }[what]


def lines_title(case: Case, context: int) -> str:
    """Return where the lines cross, short."""
    cache, arithmetic = case.cache_batch(context), case.arithmetic_batch(context)
    if arithmetic is not None and arithmetic <= cache:
        if arithmetic <= 1:
            return "Arithmetic takes longest at every batch"
        return f"Arithmetic takes over at batch {at(arithmetic)}"
    if cache <= 1:
        return "The cache takes longer than the weights at every batch"
    return f"The cache takes over at batch {at(cache)}"


def shape_words(case: Case) -> str:
    """Return the shape and its heads in words."""
    preset = case.preset
    heads = f"{preset.num_kv_heads} KV head{'s' * (preset.num_kv_heads > 1)}"
    return f"{preset.name} with {heads} for {preset.num_heads} query heads ({kind_of(preset)})"


def kind_of(preset: ModelPreset) -> str:
    """Return MHA, GQA or MQA."""
    if preset.num_kv_heads == preset.num_heads:
        return "MHA"
    return "MQA" if preset.num_kv_heads == 1 else "GQA"


def batch_words(batch: int) -> str:
    """Return the number of sequences in words."""
    return "1 sequence" if batch == 1 else f"{batch:,} sequences"


def at(batch: float) -> str:
    """Return a crossover's batch as text: 1.3, 14, 2,300."""
    return f"{batch:.2g}" if batch < 10 else f"{batch:,.0f}" if batch < 1e6 else "a million and more"


def format_flops(rate: float) -> str:
    """Return operations a second as text, in GFLOP/s or TFLOP/s."""
    if rate >= 1e12:
        return f"{rate / 1e12:,.3g} TFLOP/s" if rate < 1e15 else f"{rate / 1e12:,.0f} TFLOP/s"
    return f"{rate / 1e9:,.3g} GFLOP/s"

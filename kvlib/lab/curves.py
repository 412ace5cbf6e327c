"""What the live lab draws, as plain numbers: no widgets, no figure, nothing allocated or timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvlib.grid import (  # noqa: F401  (the lab's names for them)
    BATCHES,
    CONTEXTS,
    ELEMENT_BYTES,
    grouped_choices,
    kv_heads_of,
    lab_presets,
    usual_group,
)
from kvlib.memory import ModelPreset
from kvlib.recording import Recording
from kvlib.timing import Floor, Timing, decode_step_floor


class Point(NamedTuple):
    """Name one measurement: two points are the same only if every field is."""

    shape: str
    kv_heads: int
    context: int
    batch: int
    dtype: str
    device: str


@dataclass(frozen=True)
class Setting:
    """Hold the state of every control."""

    preset: ModelPreset
    kind: str
    grouped: int  # KV heads of GQA, kept while another kind is selected
    context: int
    batch: int
    dtype: str
    device: str

    def kv_heads(self, kind: str | None = None) -> int:
        """Return the KV heads of a kind (the selected one by default)."""
        return kv_heads_of(self.preset, kind or self.kind, self.grouped)

    def point(self, kind: str | None = None, context: int | None = None) -> Point:
        """Return the measurement of this setting, or of another kind or context beside it."""
        return Point(
            self.preset.name, self.kv_heads(kind), context or self.context, self.batch,
            self.dtype, self.device,
        )  # fmt: skip

    @property
    def frame(self) -> tuple:
        """Return what all points of one picture have in common."""
        return (self.preset, self.batch, self.dtype, self.device)

    def cache_bytes(self, kind: str | None = None, context: int | None = None) -> int:
        """Return the bytes of the cache, for this setting or another kind or context."""
        return self.preset.cache_bytes(
            context or self.context, self.batch, ELEMENT_BYTES[self.dtype], self.kv_heads(kind)
        )

    def weight_bytes(self, kind: str | None = None) -> int:
        """Return the bytes of all weights; fewer KV heads have smaller K and V projections."""
        return self.preset.with_kv_heads(self.kv_heads(kind)).weight_bytes(ELEMENT_BYTES[self.dtype])

    def floor(self, rates: Rates, kind: str | None = None, context: int | None = None) -> Floor:
        """Return the shortest time of one decode step: every byte once, every operation once."""
        preset = self.preset.with_kv_heads(self.kv_heads(kind))
        return decode_step_floor(
            weight_bytes=preset.step_weight_bytes(ELEMENT_BYTES[self.dtype]),
            cache_bytes=self.cache_bytes(kind, context),
            flops=preset.step_flops(context or self.context, self.batch),
            bandwidth=rates.bandwidth,
            flop_rate=rates.flop_rate,
        )


class Rates(NamedTuple):
    """Hold what was measured of a device: bytes a second and, for one dtype, FLOP a second."""

    bandwidth: float
    flop_rate: float


@dataclass(frozen=True)
class Overlay:
    """Hold one more curve of step times, such as those with the learner's own attention."""

    label: str
    seconds: Mapping[int, float]  # context -> seconds
    color: str


@dataclass(frozen=True)
class View:
    """Hold everything one picture of the lab shows; times are None until they are measured."""

    setting: Setting
    device_name: str
    memory: int
    rates: Rates | None = None
    measured: Mapping[Point, Timing] = field(default_factory=dict)
    guess: tuple[Setting, float] | None = None  # what was guessed about, and the seconds
    refusal: str | None = None  # why the selected point is not measured, as a sentence
    overlays: tuple[Overlay, ...] = ()
    recorded: Recording | None = None  # measured elsewhere, of this shape, element type and batch
    busy: str | None = None  # where other programs were measured right after the selected step

    def cache_curve(self, kind: str) -> list[int]:
        """Return the cache's bytes at each of CONTEXTS."""
        return [self.setting.cache_bytes(kind, context) for context in CONTEXTS]

    def floor_curve(self, kind: str) -> list[float]:
        """Return the floor in seconds at each of CONTEXTS; empty while the rates are unknown."""
        if self.rates is None:
            return []
        return [self.setting.floor(self.rates, kind, c).seconds for c in CONTEXTS]

    def measured_curve(self, kind: str) -> tuple[list[int], list[float]]:
        """Return the contexts measured in this frame and their seconds."""
        found = [(c, self.measured.get(self.setting.point(kind, c))) for c in CONTEXTS]
        return (
            [context for context, timing in found if timing],
            [timing.seconds for _, timing in found if timing],
        )

    @property
    def floor(self) -> Floor | None:
        """Return the selected point's floor."""
        return None if self.rates is None else self.setting.floor(self.rates)

    @property
    def timing(self) -> Timing | None:
        """Return the selected point's measurement, if there is one."""
        return self.measured.get(self.setting.point())

    @property
    def guess_shown(self) -> tuple[Setting, float] | None:
        """Return the guess where this picture is of what it was about (any kind or context)."""
        if self.guess is None or self.guess[0].frame != self.setting.frame:
            return None
        return self.guess

    @property
    def total_bytes(self) -> int:
        """Return what the selected point keeps in memory: weights and cache."""
        return self.setting.weight_bytes() + self.setting.cache_bytes()

    @property
    def crossing(self) -> float | None:
        """Return the context at which the selected cache is as large as the weights.

        None where no context does it (windowed layers stop growing).
        """
        weights, curve = self.setting.weight_bytes(), self.cache_curve(self.setting.kind)
        first = curve[0] / CONTEXTS[0]
        if curve[0] >= weights:
            return weights / first
        for i in range(1, len(CONTEXTS)):
            if curve[i] >= weights:
                part = (weights - curve[i - 1]) / (curve[i] - curve[i - 1])
                return CONTEXTS[i - 1] + part * (CONTEXTS[i] - CONTEXTS[i - 1])
        slope = (curve[-1] - curve[-2]) / (CONTEXTS[-1] - CONTEXTS[-2])
        return CONTEXTS[-1] + (weights - curve[-1]) / slope if slope > 0 else None

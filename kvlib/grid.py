"""The grid on which decode steps are measured, live and recorded: kinds of attention by context."""

from __future__ import annotations

import math

from kvlib.memory import MODELS, ModelPreset

KINDS = ("MHA", "GQA", "MQA")
CONTEXTS = tuple(2**power for power in range(7, 18))  # 128 to 131,072
BATCHES = (1, 2, 4, 8, 16, 32, 64)
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def grouped_choices(preset: ModelPreset) -> tuple[int, ...]:
    """Return the KV head counts between MQA and MHA: the divisors of num_heads but 1 and itself."""
    return tuple(n for n in preset.kv_head_choices if 1 < n < preset.num_heads)


def usual_group(preset: ModelPreset) -> int:
    """Return the model's own number of KV heads where that is GQA, else the middle choice."""
    choices = grouped_choices(preset)
    if preset.num_kv_heads in choices:
        return preset.num_kv_heads
    return min(choices, key=lambda n: abs(math.log(n * n / preset.num_heads)))


def kv_heads_of(preset: ModelPreset, kind: str, grouped: int | None = None) -> int:
    """Return the KV heads of a kind in this shape; `grouped` is GQA's, by default the usual one."""
    if kind == "GQA":
        return usual_group(preset) if grouped is None else grouped
    return preset.num_heads if kind == "MHA" else 1


def lab_presets() -> dict[str, ModelPreset]:
    """Return the presets that can be toggled: with KV heads, and a count between one and all."""
    return {name: preset for name, preset in MODELS.items() if grouped_choices(preset)}


def measurable_presets() -> dict[str, ModelPreset]:
    """Return those of them whose decode step can be run and timed."""
    return {name: preset for name, preset in lab_presets().items() if preset.why_not_llama() is None}

"""A recording: decode steps measured on one named device, as a small JSON file.

It is made by `kvlib.record`, read by `kvlib.recording_file`, and shown by the live lab.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from kvlib.grid import ELEMENT_BYTES, kv_heads_of
from kvlib.memory import ModelPreset
from kvlib.timing import decode_step_floor

FORMAT, VERSION = "kvlib recording of decode steps", 1
SHAPE = (
    "name", "num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_size",
    "intermediate_size", "vocab_size", "tie_embeddings",
)  # fmt: skip


@dataclass(frozen=True)
class RecordedPoint:
    """Hold one measured step: median, quartiles and floor in seconds."""

    kind: str
    kv_heads: int
    context: int
    seconds: float
    low: float
    high: float
    samples: int
    floor: float


@dataclass(frozen=True)
class RefusedPoint:
    """Hold a point of the grid that was not measured, and why, as a sentence."""

    kind: str
    kv_heads: int
    context: int
    reason: str


@dataclass(frozen=True)
class Recording:
    """Hold the measured grid of one shape, element type and batch on one device.

    `bandwidth` is in bytes a second and `flop_rate` in FLOP a second, both measured in the same
    run. A `partial` one was ended before its grid was: by an interruption, or by its budget.
    """

    device: str
    date: str  # of the day it was made, YYYY-MM-DD
    kvlib: str
    torch: str
    cuda: str | None
    preset: ModelPreset
    dtype: str
    batch: int
    bandwidth: float
    flop_rate: float
    partial: bool
    points: tuple[RecordedPoint, ...]
    refused: tuple[RefusedPoint, ...]

    def fits(self, preset: ModelPreset, dtype: str, batch: int) -> bool:
        """Tell whether it shows steps of this shape, element type and batch."""
        return (self.preset, self.dtype, self.batch) == (preset, dtype, batch)

    def kv_heads(self, kind: str) -> int:
        """Return the KV heads that a kind had."""
        known = {row.kind: row.kv_heads for row in (*self.points, *self.refused)}
        return known.get(kind, kv_heads_of(self.preset, kind))

    def curve(self, kind: str, kv_heads: int) -> tuple[RecordedPoint, ...]:
        """Return the points measured with so many KV heads, by context."""
        return tuple(p for p in self.points if (p.kind, p.kv_heads) == (kind, kv_heads))

    def point(self, kind: str, kv_heads: int, context: int) -> RecordedPoint | None:
        """Return one point, or None where it was not measured."""
        return next((p for p in self.curve(kind, kv_heads) if p.context == context), None)

    def refusal(self, kind: str, kv_heads: int, context: int) -> str | None:
        """Return why a point of its grid was not measured, or None where it was no part of it."""
        wanted = (kind, kv_heads, context)
        found = (r.reason for r in self.refused if (r.kind, r.kv_heads, r.context) == wanted)
        return next(found, None)

    def floor(self, kv_heads: int, context: int) -> float:
        """Return the least seconds of a step at the rates of this recording."""
        rates = (self.bandwidth, self.flop_rate)
        return step_floor(self.preset, self.dtype, self.batch, kv_heads, context, *rates)

    # As a file ----------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the file's text: the same keys in the same order, one line a point."""
        head = {
            "format": FORMAT, "version": VERSION, "device": self.device, "date": self.date,
            "kvlib": self.kvlib, "torch": self.torch, "cuda": self.cuda,
            "model": {name: getattr(self.preset, name) for name in SHAPE},
            "dtype": self.dtype, "batch": self.batch, "bandwidth": _rounded(self.bandwidth),
            "flop_rate": _rounded(self.flop_rate), "partial": self.partial,
        }  # fmt: skip
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        for name, rows in (("points", self.points), ("refused", self.refused)):
            told = (json.dumps({k: _rounded(v) for k, v in asdict(row).items()}) for row in rows)
            inside = ",\n  ".join(told)
            lines.append(f'"{name}": [\n  {inside}\n ]' if rows else f'"{name}": []')
        return "{\n " + ",\n ".join(lines) + "\n}\n"

    @property
    def file_name(self) -> str:
        """Return the name its file gets: device, shape, element type, batch and day."""
        said = f"{self.device} {self.preset.name} {self.dtype} batch {self.batch} {self.date}"
        return re.sub(r"[^a-z0-9.]+", "-", said.lower()).strip("-.") + ".json"

    def save(self, folder: Path) -> Path:
        """Write it into the folder in one go and return the file; no older file is replaced."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=folder, prefix="recording.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(self.to_json())
            os.chmod(part, 0o644)
            path, number = folder / self.file_name, 1
            while os.path.lexists(path):
                number += 1
                path = folder / f"{Path(self.file_name).stem}-{number}.json"
            os.replace(part, path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
        return path


def recorded_folder() -> Path:
    """Return the folder in which recordings belong, assets/recorded beside kvlib."""
    return Path(__file__).resolve().parents[1] / "assets" / "recorded"


def step_floor(preset, dtype: str, batch, kv_heads, context, bandwidth, flop_rate) -> float:
    """Return the least seconds of one decode step at these rates (bytes and FLOP a second)."""
    shape, size = preset.with_kv_heads(kv_heads), ELEMENT_BYTES[dtype]
    return decode_step_floor(
        weight_bytes=shape.step_weight_bytes(size),
        cache_bytes=shape.cache_bytes(context, batch, size),
        flops=shape.step_flops(context, batch), bandwidth=bandwidth, flop_rate=flop_rate,
    ).seconds  # fmt: skip


def _rounded(value):
    """Return a measured number in 6 digits, which is more than it is worth; the rest as it is."""
    return float(f"{value:.6g}") if isinstance(value, float) else value

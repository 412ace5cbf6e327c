"""Record the live lab's grid on this machine: `python -m kvlib.record --device cuda`.

Times one decode step of MHA, GQA and MQA at every context of the grid, on random weights and a
random cache, and writes what it measured into a small JSON file that the live lab lays beside live
points. A point that does not fit, fails or finds no time left is written down as refused, with the
reason. Ctrl-C, or the end of `--budget`, ends it: what is measured by then is kept, marked partial.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import torch

from kvlib import timing
from kvlib.deadline import TimeUp, time_limit
from kvlib.devices import best_device, device_name, resolve, supported_dtypes
from kvlib.grid import (
    BATCHES,
    CONTEXTS,
    ELEMENT_BYTES,
    KINDS,
    grouped_choices,
    kv_heads_of,
    measurable_presets,
)
from kvlib.memory import ModelPreset
from kvlib.recording import RecordedPoint, Recording, RefusedPoint, recorded_folder, step_floor
from kvlib.steps import DecodeStep, DoesNotFit
from kvlib.timing import Timing

POINT_S = 1.0  # of repeats for one point
LEAST_BUDGET_S = 10.0  # the two rates alone take some seconds
KEPT_BACK_S = 0.5  # of the budget, for the last operation and the file
FIRST_STEP = 4.0  # times its floor, as long as nothing is known of this device
FILLING = {"cuda": 20e9, "mps": 5e9, "cpu": 0.5e9}  # bytes a second at the least, to prepare a step


TIME_OVER = "The time for recording was over before this point."
INTERRUPTED = "The recording was interrupted before this point."


@dataclass
class _Run:
    """Hold what is measured so far of one shape; every point of the grid ends up in one of two lists."""

    preset: ModelPreset
    device: torch.device
    dtype: str
    batch: int
    say: Callable[[str], None]
    until: float  # on time.perf_counter's clock
    rates: tuple[float, float] = (0.0, 0.0)
    timings: dict[tuple[str, int], Timing] = field(default_factory=dict)
    refused: dict[tuple[str, int], str] = field(default_factory=dict)

    def measure(self, grid: Sequence[tuple[str, int]]) -> None:
        """Measure the rates, then point after point, the cheapest first."""
        dtype = getattr(torch, self.dtype)
        self.say(f"Measuring how fast {device_name(self.device)} reads and computes in {self.dtype}.")
        self.rates = (
            timing.read_bandwidth(self.device, fresh=True),
            timing.flop_rate(self.device, dtype, fresh=True),
        )
        step = DecodeStep(self.preset, device=self.device, dtype=dtype)
        try:
            for number, (kind, context) in enumerate(grid):
                self._point(step, kind, context, len(grid) - number)
                told = self.refused.get((kind, context)) or self._told(kind, context)
                self.say(f"{number + 1:>3} of {len(grid)}  {kind} {context:>7,} tokens  {told}")
        finally:
            step.release()

    def _point(self, step: DecodeStep, kind: str, context: int, left: int) -> None:
        """Measure one point, or write down why not."""
        point, shape = (kind, context), (kv_heads_of(self.preset, kind), context, self.batch)
        needed, limit = step.needs(*shape), step.limit_bytes
        if needed > limit:
            self.refused[point] = _too_large(needed, limit)
            return
        time_left = self.until - time.perf_counter()
        expected = needed / FILLING.get(self.device.type, 0.5e9) + 2 * self._expected(point)
        if expected > time_left:
            self.refused[point] = TIME_OVER
            return
        try:
            budget = min(POINT_S, max(0.02, (time_left - expected) / (2 * left)))
            self.timings[point] = step.run(*shape, budget_s=budget)
            self.rates = (timing.read_bandwidth(self.device), self.rates[1])  # a step may raise it
        except DoesNotFit as error:
            self.refused[point] = _too_large(error.needed, error.limit)
        except Exception as error:  # the message, which may name files, is for the screen only
            self.refused[point] = f"The step failed with {type(error).__name__}."
            self.say(f"{kind} at {context:,} tokens: {type(error).__name__}: {error}")

    def _expected(self, point: tuple[str, int]) -> float:
        """Return the seconds a step will take, from the most similar smaller one measured so far."""
        floor = self._floor(point)
        known = [(self._floor(p), t.seconds) for p, t in self.timings.items()]
        below = max((pair for pair in known if pair[0] <= floor), default=None)
        if below is None:
            return FIRST_STEP * floor + 0.05
        return 1.5 * below[1] * floor / below[0]

    def _floor(self, point: tuple[str, int]) -> float:
        kind, context = point
        heads = kv_heads_of(self.preset, kind)
        return step_floor(self.preset, self.dtype, self.batch, heads, context, *self.rates)

    def _told(self, kind: str, context: int) -> str:
        seconds = self.timings[kind, context].seconds
        return f"{seconds * 1e3:10.3f} ms, {seconds / self._floor((kind, context)):.2f} times its floor"

    def recording(self) -> Recording:
        """Return what was measured, by kind and context, with the reason for every other point."""
        points = []
        for kind, context in sorted(self.timings, key=_place):
            heads, it = kv_heads_of(self.preset, kind), self.timings[kind, context]
            numbers = (it.seconds, it.low, it.high, len(it.samples), self._floor((kind, context)))
            points.append(RecordedPoint(kind, heads, context, *numbers))
        refused = [
            RefusedPoint(kind, kv_heads_of(self.preset, kind), context, self.refused[kind, context])
            for kind, context in sorted(self.refused, key=_place)
        ]
        return Recording(
            device=_plain(device_name(self.device), 80), date=date.today().isoformat(),
            kvlib=_version(), torch=str(torch.__version__), cuda=_cuda(self.device),
            preset=self.preset, dtype=self.dtype, batch=self.batch, bandwidth=self.rates[0],
            flop_rate=self.rates[1], points=tuple(points), refused=tuple(refused),
            partial=any(why in (TIME_OVER, INTERRUPTED) for why in self.refused.values()),
        )  # fmt: skip


def record(
    preset: ModelPreset, *, device, dtype: str, batch: int = 1,
    contexts: Sequence[int] = CONTEXTS, budget_s: float = 600.0,
    say: Callable[[str], None] = lambda text: None,
) -> Recording:  # fmt: skip
    """Measure the grid of one shape within `budget_s` seconds and return the recording.

    An interruption (KeyboardInterrupt) ends it early; the recording is then `partial`, as it is
    when the budget ends first. Raises ValueError for what cannot be measured, and RuntimeError,
    with the reasons, where no point could be.
    """
    device = resolve(device)
    _check(preset, device, dtype, batch, contexts, budget_s)
    contexts = sorted(set(contexts))
    grid = [(kind, context) for context in contexts for kind in reversed(KINDS)]
    until = time.perf_counter() + budget_s - KEPT_BACK_S
    run = _Run(preset, device, dtype, batch, say, until)
    try:
        with time_limit(budget_s - KEPT_BACK_S):
            run.measure(grid)
    except (TimeUp, KeyboardInterrupt) as end:
        why = TIME_OVER if isinstance(end, TimeUp) else INTERRUPTED
        say(why)
        run.refused.update({p: why for p in grid if p not in run.timings and p not in run.refused})
    if not run.timings:
        reasons = " ".join(dict.fromkeys(run.refused[point] for point in grid[:3]))
        raise RuntimeError(f"Nothing was measured of {preset.name}, so nothing is recorded. {reasons}")
    return run.recording()


def _check(preset, device: torch.device, dtype, batch, contexts, budget_s) -> None:
    if not isinstance(preset, ModelPreset):
        raise ValueError(f"A recording is of a ModelPreset, and {preset!r} is none.")
    if preset.why_not_llama() or not grouped_choices(preset):
        why = preset.why_not_llama() or "It has no choice of KV heads between 1 and all."
        raise ValueError(f"{preset.name} cannot be recorded. {why}")
    offered = dtypes_of(device)
    if dtype not in offered:
        raise ValueError(f"{device} is recorded in {', '.join(offered)}, not in {dtype!r}.")
    if batch not in BATCHES or isinstance(batch, bool):
        raise ValueError(f"The batch must be one of {', '.join(map(str, BATCHES))}, not {batch!r}.")
    wrong = [context for context in contexts if context not in CONTEXTS]
    if wrong or not contexts:
        raise ValueError(f"Contexts must be some of {', '.join(map(str, CONTEXTS))}, not {contexts!r}.")
    if not LEAST_BUDGET_S <= budget_s < math.inf:
        raise ValueError(f"The budget must be {LEAST_BUDGET_S:g} seconds or more, not {budget_s!r}.")


def dtypes_of(device) -> list[str]:
    """Return the element types of the grid that a device supports, its usual one first."""
    names = [str(dtype).removeprefix("torch.") for dtype in supported_dtypes(device)]
    return [name for name in names if name in ELEMENT_BYTES]


def _place(point: tuple[str, int]) -> tuple[int, int]:
    return KINDS.index(point[0]), point[1]


def _too_large(needed: int, limit: int) -> str:
    return f"It would need {needed / 1e9:.2f} GB, and {limit / 1e9:.2f} GB could be used."


def _plain(text: str, longest: int) -> str:
    """Return a name as every font and screen can show it."""
    text = "".join(c if c.isascii() and c.isprintable() else " " for c in text)
    return " ".join(text.split())[:longest].strip() or "unnamed device"


def _version() -> str:
    try:
        return importlib.metadata.version("kvlib")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cuda(device: torch.device) -> str | None:
    """Return the CUDA (or ROCm) that torch was built for, where the device is one of it."""
    if device.type != "cuda":
        return None
    return torch.version.cuda or f"ROCm {torch.version.hip}"


def main(arguments: list[str] | None = None) -> int:
    """Record each shape that is asked for; return 0 where every one was written."""
    begun = time.perf_counter()
    options = _parser().parse_args(arguments)
    names = list(dict.fromkeys(options.model or ["SmolLM2 135M"]))
    missed = 0
    for number, name in enumerate(names):
        left = options.budget - (time.perf_counter() - begun)
        try:
            made = record(
                measurable_presets()[name], device=options.device or best_device(),
                dtype=options.dtype or dtypes_of(options.device or best_device())[0],
                batch=options.batch, contexts=options.contexts,
                budget_s=left / (len(names) - number), say=_print,
            )  # fmt: skip
            path = made.save(options.out)
        except (ValueError, RuntimeError, OSError) as error:
            print(error, file=sys.stderr)
            missed += 1
            continue
        what = "Partial recording" if made.partial else "Recording"
        _print(f"{what} of {len(made.points)} points, {len(made.refused)} refused: {path}")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvlib.record", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--device", help="cuda, cuda:1, mps or cpu (default: the fastest here)")
    add("--dtype", choices=list(ELEMENT_BYTES), help="element type (default: the device's usual one)")
    add("--model", action="append", choices=list(measurable_presets()), metavar="NAME",
        help="model shape, may be given again (default: SmolLM2 135M)")  # fmt: skip
    add("--batch", type=int, default=1, choices=BATCHES, help="sequences (default: 1)")
    add("--contexts", type=int, nargs="+", default=CONTEXTS, metavar="TOKENS",
        help="contexts of the grid (default: all, 128 to 131072)")  # fmt: skip
    add("--budget", type=float, default=600.0, metavar="SECONDS",
        help="seconds it may take in all, after Python's own start (default: 600)")  # fmt: skip
    add("--out", type=Path, default=recorded_folder(), metavar="FOLDER",
        help="where the files go (default: assets/recorded of this course)")  # fmt: skip
    return parser


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

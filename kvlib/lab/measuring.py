"""What the live lab measures, and in which order: one point at a time, the newest wish first.

Knows no widgets. `jobs()` is a generator that does one short piece of work between two yields; each
yield says how many seconds may pass before the next. An event loop sleeps there, so that clicks get
through; without a loop the generator is simply run to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from kvlib import timing
from kvlib.devices import free_memory, is_out_of_memory
from kvlib.lab.curves import Point, Rates, Setting
from kvlib.lab.style import format_bytes, format_time
from kvlib.lab.words import FAR, SPREAD, first_line
from kvlib.steps import CPU_LIMIT, DecodeStep
from kvlib.timing import Timing

BUDGET_S = 0.4  # for one point, so that a click waits no longer
QUIET_S = 0.15  # a wish must stand this long before it is measured: rapid clicks coalesce
LONGEST_S = 5.0  # a step expected to take longer is not run
SLOWDOWN = 4.0  # how far above its floor a first step is expected to be


class Measurer:
    """Keep every measured point, and measure what is asked for.

    `say(text)` is told before something long; `changed()` is called when there is something new.
    With `steps=False` only the rates of devices are measured.
    """

    def __init__(self, say: Callable[[str], None], changed: Callable[[], None], steps: bool = True):
        self.say, self.changed, self.steps = say, changed, steps
        self.points: dict[Point, Timing] = {}
        self.rates: dict[tuple[str, str], Rates] = {}
        self.failed: dict[Point, str] = {}
        self.busy: dict[Point, str] = {}  # where other programs took much of the processor
        self.done = self.total = 0  # of the sweep
        self._wish: Setting | None = None
        self._again: Point | None = None  # measured, and wished anew
        self._sweep: list[Setting] = []
        self._step: DecodeStep | None = None
        self._step_frame = self._ran = ()
        self._slowdown: dict[tuple[str, str], float] = {}

    # Asking -------------------------------------------------------------------------------------

    def want(self, setting: Setting, again: bool = False) -> bool:
        """Ask for what is not known yet of a setting; return whether there is anything to do.

        This replaces an older wish. A point that failed is tried again, a measured
        one with `again`; its old time stays until then.
        """
        self.failed.pop(setting.point(), None)
        self._again = setting.point() if again else None
        self._wish = setting if self._missing(setting) else None
        return self._wish is not None

    def sweep(self, settings: Sequence[Setting]) -> None:
        """Ask for many points, in this order; those already measured count as done."""
        self._sweep = list(settings)
        self.done, self.total = 0, len(self._sweep)

    def stop(self) -> None:
        """Forget everything asked for; a step that is running ends by itself."""
        self._wish, self._again, self._sweep = None, None, []
        self.done = self.total = 0

    def release(self) -> None:
        """Free the weights and caches that steps are measured on."""
        if self._step is not None:
            self._step.release()
        self._step, self._step_frame, self._ran = None, (), ()

    # Doing --------------------------------------------------------------------------------------

    def jobs(self) -> Iterator[float]:
        """Measure what is wanted, then the sweep, until nothing is left; yield between points."""
        while self._wish is not None or self._sweep:
            if self._wish is not None:
                setting = self._wish
                yield QUIET_S
                if self._wish is not setting:
                    continue
                self._wish = None
            else:
                setting = self._sweep[0]
                yield 0.02
                if not self._sweep or self._sweep[0] is not setting or self._wish is not None:
                    continue
                del self._sweep[0]
                self.done += 1
            if self._missing(setting):
                self._measure(setting)
            self.changed()
            yield 0.0
        self.done = self.total = 0
        self.changed()

    def _missing(self, setting: Setting) -> bool:
        if (setting.device, setting.dtype) not in self.rates:
            return True
        point = setting.point()
        return self.steps and (point not in self.points or point == self._again)

    def rates_of(self, setting: Setting) -> Rates:
        """Return what the device reads and computes a second, measuring it the first time.

        Asked again after every step: one that read faster raises the rate.
        """
        key = (setting.device, setting.dtype)
        self.rates[key] = Rates(
            timing.read_bandwidth(setting.device),
            timing.flop_rate(setting.device, getattr(torch, setting.dtype)),
        )
        return self.rates[key]

    def _measure(self, setting: Setting) -> None:
        point = setting.point()
        try:
            if (setting.device, setting.dtype) not in self.rates:
                self.say(f"Preparing: measuring how fast {setting.device} reads and computes.")
                self.rates_of(setting)
            if not self.steps or self.refusal(setting) is not None:
                return
            if point == self._again:  # what a busy moment took is no guide to what follows
                self._slowdown.pop((setting.device, setting.dtype), None)
            step = self._step_for(setting)
            expected = self._expected(setting)
            if setting.frame != self._ran:
                self.say("Preparing random weights and a random cache of this shape.")
            elif expected > 2 * BUDGET_S:
                self.say(
                    f"Now measuring {setting.kind} at {setting.context:,} tokens, "
                    f"about {format_time(expected)} for each step."
                )
            self._ran = setting.frame
            found = step.run(point.kv_heads, point.context, point.batch, budget_s=BUDGET_S)
            self.points[point] = found
            floor = setting.floor(self.rates_of(setting)).seconds
            odd = found.seconds > FAR * floor or found.high > SPREAD * found.low
            self.busy.pop(point, None)
            if odd and (note := timing.busy_note()):
                self.busy[point] = note
            key = (setting.device, setting.dtype)
            self._slowdown[key] = max(self._slowdown.get(key, 1.0), found.seconds / floor)
        except Exception as error:
            if is_out_of_memory(error):
                self.release()
            self.points.pop(point, None)
            self.failed[point] = f"Not measured: {first_line(error)}"
        finally:
            self._again = None if point == self._again else self._again

    def _step_for(self, setting: Setting) -> DecodeStep:
        """Return the step of this shape; making one allocates nothing."""
        frame = (setting.preset, setting.dtype, setting.device)
        if self._step is None or self._step_frame != frame:
            if self._step is not None and self._step_frame[2] != setting.device:
                self._step.release()
            self._step = DecodeStep(
                setting.preset, device=setting.device, dtype=getattr(torch, setting.dtype)
            )
            self._step_frame = frame
        return self._step

    def _expected(self, setting: Setting) -> float:
        key = (setting.device, setting.dtype)
        slowdown = self._slowdown.get(key, SLOWDOWN)
        return setting.floor(self.rates[key]).seconds * slowdown

    def refusal(self, setting: Setting) -> str | None:
        """Return why this point is not measured, as a sentence; None if it is or can be.

        Asks the step what it would need and what may be allocated; allocates nothing.
        """
        point = setting.point()
        if not self.steps or point in self.points:
            return None
        if point in self.failed:
            return self.failed[point]
        reason = setting.preset.why_not_llama()
        if reason is not None:
            return f"Arithmetic only: {reason}"
        step = self._step_for(setting)
        shape = (point.kv_heads, point.context, point.batch)
        if not step.fits(*shape):
            why = ""
            if setting.device == "cpu" and step.limit_bytes == CPU_LIMIT:
                why = " (the course stays under 4 GB, so that laptops stay usable)"
            return (
                f"Not measured: it would need {format_bytes(step.needs(*shape))}, and of the "
                f"{format_bytes(free_memory(setting.device))} free here this panel uses at most "
                f"{format_bytes(step.limit_bytes)}{why}. Only the floor is drawn."
            )
        if (setting.device, setting.dtype) in self.rates:
            expected = self._expected(setting)
            if expected > LONGEST_S:
                return (
                    f"Not measured: one step would take about {format_time(expected)} here. "
                    "Only the floor is drawn."
                )
        return None

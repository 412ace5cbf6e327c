"""The live lab: what MHA, GQA and MQA keep in memory, and how long a decode step takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from kvlib.devices import best_device, device_name, total_memory
from kvlib.lab import checks, style, words
from kvlib.lab.checks import listed, one_of, shown
from kvlib.lab.controls import Controls, device_key, dtype_options
from kvlib.lab.curves import (
    BATCHES,
    CONTEXTS,
    ELEMENT_BYTES,
    Overlay,
    Setting,
    View,
    grouped_choices,
    lab_presets,
    usual_group,
)
from kvlib.lab.measuring import Measurer
from kvlib.lab.panel import PicturePanel
from kvlib.lab.picture import HEIGHT, WIDTH, LabPicture
from kvlib.lab.recorded import notice, recordings_from
from kvlib.lab.recorded import sentence as recorded_sentence
from kvlib.memory import ModelPreset

SWEEP = CONTEXTS[::2]


class LiveLab(PicturePanel):
    """Show cache and step time for every setting, drawn from arithmetic at once and measured after.

    `preset` is a name in MODELS or a ModelPreset; `device` and `dtype` default to this machine's
    usual ones. `guess` has a `.value` in ms (or None) about the setting the panel opens with. With
    `measure=False` steps are not run; the floors still need the device's measured rates. Recordings
    of this shape, element type and batch can be laid beside the live points: those in
    assets/recorded, or `recorded`, a file, a folder or a Recording, which is then shown at once.
    Raises ValueError for a shape without a choice of KV heads, or an unknown name.
    """

    def __init__(
        self, preset: str | ModelPreset | None = None, device=None, dtype=None,
        measure: bool = True, *, kind: str = "GQA", context: int = 8192, batch: int = 1, guess=None,
        recorded=None,
    ):  # fmt: skip
        presets = lab_presets()
        chosen = _preset(presets, preset)
        presets = {**presets, chosen.name: chosen}
        device = device_key(best_device() if device is None else device)
        offered = dtype_options(device)
        dtype = offered[0] if dtype is None else str(dtype).removeprefix("torch.")
        dtype, kind = one_of("dtype", dtype, offered), one_of("kind", kind, style.KINDS)
        context, batch = one_of("context", context, CONTEXTS), one_of("batch", batch, BATCHES)
        if guess is not None and not hasattr(guess, "value"):
            raise ValueError(f"guess must have a .value, as predict() returns; {shown(guess)} has none.")
        self.recordings, problems = recordings_from(recorded)
        self._notice = notice(problems)  # until a control is changed
        start = Setting(chosen, kind, usual_group(chosen), context, batch, dtype, device)
        self._opened, self._guess = start, guess
        self._overlays: dict[str, Overlay] = {}
        self._task, self._draining = None, False
        self.picture = LabPicture()
        self.controls = Controls(presets, start, self.recordings)
        if recorded is not None and len(self.controls.recorded.options) > 1:
            self.controls.recorded.index = 1
        self.measurer = Measurer(say=self._say, changed=self._refresh, steps=measure)
        super().__init__([self.controls.box], "kvlib-lab", [(WIDTH // 2, HEIGHT)] * 2)
        self.controls.sweep.disabled = self.controls.again.disabled = not measure
        self.controls.on_change(self._changed)
        self.controls.sweep.on_click(lambda _: self._guarded(self._sweep_clicked))
        self.controls.again.on_click(lambda _: self._guarded(self._again_clicked))
        self.controls.stop.on_click(lambda _: self._guarded(self.stop))
        self._frame = start.frame
        self._drawn: tuple = ()
        self._refresh()
        self._guarded(self._prepare)

    def _prepare(self) -> None:
        """Measure the device's rates, in the cell that opens the panel."""
        self.measurer.rates_of(self.setting)
        self._show()

    # For a cell ---------------------------------------------------------------------------------

    @property
    def setting(self) -> Setting:
        """Return what the controls say now."""
        return self.controls.setting()

    def sweep(self, contexts=SWEEP, kinds=style.KINDS) -> LiveLab:
        """Measure these points now, before returning, and return the panel.

        Raises ValueError, with nothing measured, for a context or kind that has no place in it.
        """
        contexts = [one_of("context", context, CONTEXTS) for context in listed("contexts", contexts)]
        kinds = [one_of("kind", kind, style.KINDS) for kind in listed("kinds", kinds)]
        self.measurer.sweep(_points(self.setting, contexts, kinds))
        self._drain()
        return self

    def opened_ms(self) -> float | None:
        """Return the measured ms of the setting it opened with, or None where it has none."""
        self.measurer.sweep([self._opened])
        self._drain()
        timing = self.measurer.points.get(self._opened.point())
        return None if timing is None else timing.seconds * 1e3

    def stop(self) -> None:
        """Stop measuring; what was measured stays."""
        self.measurer.stop()
        self._refresh()

    def overlay(self, label: str, seconds: Mapping[int, float], color: str = style.FLOOR) -> None:
        """Draw one more curve, context -> seconds; the same label replaces it.

        Three at most are drawn; of the label 12 characters are shown. Raises ValueError, with
        nothing drawn, for what is no curve.
        """
        checks.curve(label, seconds, color)
        self._overlays[label] = Overlay(label, dict(seconds), color)
        self._refresh()

    def remove_overlay(self, label: str) -> None:
        """Take one curve off the picture; nothing happens where there is none."""
        self._overlays.pop(label, None)
        self._refresh()

    def summary(self) -> str:
        """Return the panel in words, without anything measured: bytes in the element type it opened with."""
        preset, size = self._opened.preset, ELEMENT_BYTES[self._opened.dtype]
        tokens = ", ".join(
            f"{kind} {preset.with_kv_heads(self._opened.kv_heads(kind)).bytes_per_token(size):,}"
            for kind in style.KINDS
        )
        return (
            f"Live lab: {preset.name}, {preset.num_heads} query heads. Bytes of cache for each "
            f"token in {self._opened.dtype}: {tokens}. Run this cell to use the controls and to measure."
        )

    def _repr_mimebundle_(self, include=None, exclude=None, **kwargs):
        bundle = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        self._guarded(self._wish)  # the first point is measured once the panel is on the screen
        return bundle

    # Events -------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._guarded(self._follow)

    def _follow(self) -> None:
        """Draw the new setting's arithmetic, then ask for its measurement."""
        self._notice = ""
        setting = self.setting
        if setting.frame != self._frame:
            self.measurer.stop()
            self._frame = setting.frame
        self._refresh()
        self._wish()

    def _wish(self) -> None:
        if self.measurer.want(self.setting):
            self._start()

    def _again_clicked(self) -> None:
        if self.measurer.want(self.setting, again=True):
            self._start()

    def _sweep_clicked(self) -> None:
        self.measurer.sweep(_points(self.setting, SWEEP, style.KINDS))
        self._refresh()
        self._start()

    def _start(self) -> None:
        """Let the jobs run between events; without an event loop, now."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._drain()
            return
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            for pause in self.measurer.jobs():
                await asyncio.sleep(pause)
        except Exception as error:
            self._failed(error)

    def _drain(self) -> None:
        if self._draining:  # a change made by a callback: the jobs that are running see it
            return
        self._draining = True
        try:
            for _ in self.measurer.jobs():
                pass
        except BaseException:  # an interrupt means Stop: nothing goes on with the next click
            self.stop()
            raise
        finally:
            self._draining = False

    # Showing ------------------------------------------------------------------------------------

    def view(self) -> View:
        """Return what the picture shows now."""
        setting = self.setting
        value = None if self._guess is None else self._guess.value
        guess = None if value is None or not value > 0 else (self._opened, value / 1e3)
        return View(
            setting, device_name(setting.device), total_memory(setting.device),
            self.measurer.rates.get((setting.device, setting.dtype)), self.measurer.points, guess,
            self.measurer.refusal(setting), tuple(self._overlays.values()),
            self.controls.recording(), self.measurer.busy.get(setting.point()),
        )  # fmt: skip

    def _refresh(self) -> None:
        """Redraw picture, sentence and progress."""
        self._guarded(self._show)

    def _show(self) -> None:
        view = self.view()
        drawn = (view, dict(view.measured))
        if drawn != self._drawn:
            self._drawn = ()
            self.picture.update(view)
            for image, half in zip(self.images, self.picture.halves(), strict=True):
                image.value = style.png(half)  # an unchanged half is not sent again
            self._drawn = drawn
        self._write(self._sentence(view))
        self.controls.show_progress(self.measurer.done, self.measurer.total)

    def _say(self, text: str) -> None:
        """Announce something that takes longer than a moment, with the progress bar beside it."""
        self.controls.show_progress(self.measurer.done, self.measurer.total or 1)
        self._write(f"{self._sentence(self.view())} {text}")

    def _sentence(self, view: View) -> str:
        said = (words.sentence(view), recorded_sentence(view), self._notice)
        return " ".join(text for text in said if text)


def _points(setting: Setting, contexts, kinds) -> list[Setting]:
    return [replace(setting, kind=kind, context=c) for c in contexts for kind in kinds]


def _preset(presets: Mapping[str, ModelPreset], preset) -> ModelPreset:
    if isinstance(preset, ModelPreset):
        if not grouped_choices(preset):
            raise ValueError(f"{preset.name} has no choice of KV heads between 1 and all.")
        return preset
    return presets[one_of("preset", "SmolLM2 135M" if preset is None else preset, presets)]

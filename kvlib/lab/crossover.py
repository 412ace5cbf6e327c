"""The crossover panel: what a decode step waits for (weights, cache, arithmetic) and where that changes."""

from __future__ import annotations

import ipywidgets as widgets
import torch

from kvlib import timing
from kvlib.devices import available_devices, best_device, device_name, total_memory
from kvlib.lab import crossover_step as step
from kvlib.lab import style
from kvlib.lab.checks import one_of
from kvlib.lab.controls import _list, _row, device_key, dtype_options
from kvlib.lab.crossover_picture import BATCHES, CONTEXTS, HEIGHT, WIDTH, CrossoverPicture
from kvlib.lab.curves import ELEMENT_BYTES
from kvlib.lab.panel import PicturePanel
from kvlib.lab.words import first_line, shortened
from kvlib.memory import DEVICES, MODELS
from kvlib.steps import DecodeStep

LONGEST_S = 5.0  # a step whose floor says more is not run
FAR = 3  # times the floor: above, it is measured whether other programs run
DATA_SHEET_DTYPE = "bfloat16"  # what the presets' FLOP rates are for


class CrossoverPanel(PicturePanel):
    """A panel of what dominates a decode step by batch and context, at measured or published rates.

    `preset` is a name in MODELS without experts, `device` a device of this machine (measured) or a
    name in DEVICES with a dense FLOP rate; `kv_heads` defaults to the model's own.
    Raises ValueError for what is not offered.
    """

    def __init__(
        self, preset: str = "SmolLM2 135M", device=None, *, kv_heads: int | None = None,
        context: int = 1024, batch: int = 1, dtype: str | None = None,
    ):  # fmt: skip
        presets, sheets = presets_shown(), sheets_shown()
        preset = one_of("preset", preset, presets)
        if not isinstance(device, str) or device not in sheets:
            device = device_key(best_device() if device is None else device)
        context, batch = one_of("context", context, CONTEXTS), one_of("batch", batch, BATCHES)
        own, choices = MODELS[preset].num_kv_heads, MODELS[preset].kv_head_choices
        kv_heads = own if kv_heads is None else one_of("kv_heads", kv_heads, choices)
        offered = _dtypes(device)
        dtype = offered[0] if dtype is None else str(dtype).removeprefix("torch.")
        dtype = one_of("dtype", dtype, offered)
        self.picture = CrossoverPicture()
        self.measured: dict[tuple, timing.Timing] = {}
        self._quiet = False
        self._was_sheet = device in sheets
        self.batch = _toggles("Batch", [(str(b), b) for b in BATCHES], batch, "sequences")
        self.context = _toggles(
            "Context", [(style.format_tokens(c), c) for c in CONTEXTS], context, "tokens each"
        )
        self.shape = _list("Model shape", presets, 226)
        self.shape.value = preset
        self.heads = _list("KV heads", _head_options(preset), 210)
        self.heads.value = kv_heads
        self.device = _list("Device", _device_options(sheets), 330)
        self.device.value = device
        self.dtype = _list("Element type", offered, 178)
        self.dtype.value = dtype
        self.button = widgets.Button(
            description="Measure this step", layout={"width": "150px"},
            tooltip="Run the selected step on this machine, with random weights and cache",
        )  # fmt: skip
        super().__init__(
            [
                _row(self.batch),
                _row(self.context),
                _row(self.shape, self.heads, self.dtype),
                _row(self.device, self.button),
            ],
            "kvlib-crossover",
            [(WIDTH, HEIGHT)],
        )
        for control in (self.batch, self.context, self.shape, self.heads, self.device, self.dtype):
            control.observe(self._changed, "value")
        self.button.on_click(lambda _: self.measure())
        self._guarded(self._show)
        if not self.image.value:  # the rates failed: empty axes, and why in the status line
            self.image.value = self.picture.png()

    # For a cell ---------------------------------------------------------------------------------

    def case(self) -> step.Case:
        """Return shape, element and machine as the controls say; measures rates not yet known."""
        preset = MODELS[self.shape.value].with_kv_heads(self.heads.value)
        return step.Case(preset, ELEMENT_BYTES[self.dtype.value], self._machine())

    def measure(self) -> CrossoverPanel:
        """Time the selected step on this machine where it is here and fits; return the panel.

        What goes wrong is said in the status line; only an interruption is raised.
        """
        self._guarded(self._measure)
        return self

    def _measure(self) -> None:
        refusal = self._refusal()
        if refusal:
            self._show(refusal)
            return
        self._write("Measuring: preparing random weights and a random cache of this shape.")
        device, dtype = self.device.value, getattr(torch, self.dtype.value)
        try:
            runner = DecodeStep(MODELS[self.shape.value], device=device, dtype=dtype)
            found = runner.run(self.heads.value, self.context.value, self.batch.value, budget_s=0.5)
        except KeyboardInterrupt:
            self._show("Not measured: it was interrupted.")
            raise
        except Exception as error:
            self._show(f"Not measured: {type(error).__name__}: {first_line(error)}")
            return
        self.measured[self._point()] = found
        floor = self.case().floor(self.context.value, self.batch.value)
        far = found.seconds > FAR * floor.seconds
        self._show((timing.busy_note() if far else None) or "")

    def summary(self) -> str:
        """Return the panel in words, without anything measured: the same on every machine."""
        return (
            "Crossover panel: a map, by batch 1 to 1,024 and context 128 to 131,072 tokens, of what one "
            "decode step waits for (weights, cache or arithmetic), and the least time of each by batch. "
            "Run this cell to use the controls."
        )

    # Events -------------------------------------------------------------------------------------

    def _changed(self, change) -> None:
        if self._quiet:
            return
        self._quiet = True
        try:
            if change["owner"] is self.shape:
                self.heads.options = _head_options(self.shape.value)
                self.heads.value = MODELS[self.shape.value].num_kv_heads
            elif change["owner"] is self.device:
                kept, offered = self.dtype.value, _dtypes(self.device.value)
                self.dtype.options = offered
                keep = kept in offered and not self._was_sheet  # a sheet offers no other
                self.dtype.value = kept if keep else offered[0]
                self._was_sheet = self.device.value in DEVICES
        finally:
            self._quiet = False
        self._guarded(self._show)

    def _machine(self) -> step.Machine:
        name = self.device.value
        if name in DEVICES:
            sheet = DEVICES[name]
            return step.Machine(name, sheet.bandwidth, sheet.flops, sheet.memory_bytes, False)
        dtype = getattr(torch, self.dtype.value)
        return step.Machine(
            device_name(name), timing.read_bandwidth(name), timing.flop_rate(name, dtype),
            total_memory(name), True,
        )  # fmt: skip

    def _point(self) -> tuple:
        controls = (self.shape, self.heads, self.context, self.batch, self.device, self.dtype)
        return tuple(control.value for control in controls)

    def _refusal(self) -> str | None:
        """Return why the selected step is not run, as a sentence, or None if it can be."""
        name, preset = self.device.value, MODELS[self.shape.value]
        if name in DEVICES:
            return f"Not measured: {name} is not here. Choose a device of this machine."
        reason = preset.why_not_llama()
        if reason:
            return f"Not measured: {reason}"
        shape = (self.heads.value, self.context.value, self.batch.value)
        runner = DecodeStep(preset, device=name, dtype=getattr(torch, self.dtype.value))
        if not runner.fits(*shape):
            return (
                f"Not measured: it would need {style.format_bytes(runner.needs(*shape))}, and "
                f"{style.format_bytes(runner.limit_bytes)} may be used here."
            )
        floor = self.case().floor(self.context.value, self.batch.value)
        if floor.seconds > LONGEST_S:
            return f"Not measured: the step would take {style.format_time(floor.seconds)} or more."
        return None

    # Showing ------------------------------------------------------------------------------------

    def _show(self, more: str = "") -> None:
        case, context, batch = self.case(), self.context.value, self.batch.value
        found = self.measured.get(self._point())
        self.button.disabled = self.device.value in DEVICES
        self.picture.update(case, context, batch, found, self.dtype.value)
        self.image.value = self.picture.png()
        self._write(f"{step.sentence(case, context, batch, found)} {more}".strip())


def presets_shown() -> list[str]:
    """Return the presets whose weights read do not depend on the batch, with KV heads to choose."""
    return [name for name, p in MODELS.items() if p.experts is None and p.latent_dim is None]


def sheets_shown() -> list[str]:
    """Return the names of the presets that list a dense FLOP rate."""
    return [name for name, sheet in DEVICES.items() if sheet.flops is not None]


def _dtypes(device: str) -> list[str]:
    return [DATA_SHEET_DTYPE] if device in DEVICES else dtype_options(device)


def _head_options(name: str) -> list[tuple[str, int]]:
    preset = MODELS[name]
    options = []
    for n in reversed(preset.kv_head_choices):
        kind = step.kind_of(preset.with_kv_heads(n))
        options.append((f"{n} ({kind}{', as trained' if n == preset.num_kv_heads else ''})", n))
    return options


def _device_options(sheets: list[str]) -> list[tuple[str, str]]:
    here = [(f"{d}: {shortened(device_name(d), 26)}, measured", str(d)) for d in available_devices()]
    return here + [(f"{name}, published rates", name) for name in sheets]


def _toggles(label: str, options, value, unit: str) -> widgets.ToggleButtons:
    return widgets.ToggleButtons(
        options=options, value=value, description=label,
        tooltips=[f"{number:,} {unit}" for _, number in options], style={"button_width": "58px"},
    )  # fmt: skip

"""The live lab's controls: every one a native button or list, so that the keyboard reaches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import ipywidgets as widgets

from kvlib.devices import available_devices, device_name, resolve, supported_dtypes
from kvlib.lab import recorded, style
from kvlib.lab.curves import (
    BATCHES,
    CONTEXTS,
    ELEMENT_BYTES,
    Setting,
    grouped_choices,
    usual_group,
)
from kvlib.lab.words import shortened
from kvlib.memory import ModelPreset
from kvlib.recording import Recording

_RULES = "".join(
    f".kvlib-kinds button:nth-of-type({i}) {{ border-bottom: 3px solid {color} !important; }}"
    for i, color in enumerate(style.COLORS.values(), 1)
)
KINDS_CSS = f"<style>{_RULES}</style>"


NO_RECORDING = ("none", None)


class Controls:
    """Hold the widgets; `setting()` reads them, `on_change(callback)` is called once per change."""

    def __init__(
        self, presets: Mapping[str, ModelPreset], start: Setting,
        recordings: Sequence[Recording] = (),
    ):  # fmt: skip
        self.presets, self.recordings = presets, recordings
        self._listener: Callable[[], None] = lambda: None
        self._quiet = False
        self.kind = widgets.ToggleButtons(
            options=style.KINDS, value=start.kind, description="Attention",
            tooltips=["a KV head for each query head", "a KV head for each group", "one KV head"],
            style={"button_width": "64px"},
        )  # fmt: skip
        self.kind.add_class("kvlib-kinds")
        self.context = widgets.ToggleButtons(
            options=[(style.format_tokens(c), c) for c in CONTEXTS], value=start.context,
            description="Context", tooltips=[f"{c:,} tokens" for c in CONTEXTS],
            style={"button_width": "58px"},
        )  # fmt: skip
        self.grouped = _list("KV heads (GQA)", _named(grouped_choices(start.preset)), 172)
        self.grouped.value = start.grouped
        self.batch = _list("Batch", _named(BATCHES), 118)
        self.batch.value = start.batch
        self.model = _list("Model shape", list(presets), 226)
        self.model.value = start.preset.name
        self.device = _list("Device", _device_options(), 300)
        self.device.value = start.device
        self.dtype = _list("Element type", dtype_options(start.device), 178)
        self.dtype.value = start.dtype
        self.sweep = widgets.Button(
            description="Measure sweep", tooltip="Measure MHA, GQA and MQA at every second context",
            layout={"width": "130px"},
        )  # fmt: skip
        self.again = widgets.Button(
            description="Measure again", tooltip="Measure the selected point again",
            layout={"width": "118px"},
        )  # fmt: skip
        self.stop = widgets.Button(
            description="Stop", tooltip="Stop measuring", disabled=True, layout={"width": "70px"}
        )
        self.progress = widgets.IntProgress(
            value=0, max=1, description="", layout={"width": "150px", "visibility": "hidden"}
        )
        self.recorded = _list("Recorded", [NO_RECORDING], 420)
        self._recorded_row = _row(self.recorded)
        self._sync()
        for widget in (self.kind, self.context, self.grouped, self.batch, self.model, self.device,
                       self.dtype, self.recorded):  # fmt: skip
            widget.observe(self._changed, "value")
        self.box = widgets.VBox(
            [
                widgets.HTML(KINDS_CSS),
                _row(self.kind, self.grouped, self.model, self.batch),
                _row(self.context),
                _row(self.dtype, self.device, self.again, self.sweep, self.stop, self.progress),
                self._recorded_row,
            ]
        )

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back after any control changed and the others have followed."""
        self._listener = callback

    def setting(self) -> Setting:
        """Return what the controls say."""
        return Setting(
            self.presets[self.model.value], self.kind.value, self.grouped.value,
            self.context.value, self.batch.value, self.dtype.value, self.device.value,
        )  # fmt: skip

    def recording(self) -> Recording | None:
        """Return the recording that is chosen, or None."""
        index = self.recorded.value
        return None if index is None else self.recordings[index]

    def show_progress(self, done: int, total: int) -> None:
        """Show the sweep's progress, or hide it when total is 0."""
        self.stop.disabled = total == 0
        self.progress.layout.visibility = "visible" if total else "hidden"
        self.progress.max = max(total, 1)
        self.progress.value = done
        self.progress.description = f"{done} of {total}" if total else ""

    def _changed(self, change) -> None:
        if self._quiet:
            return
        self._quiet = True
        try:
            if change["owner"] is self.model:
                self._offer_groups()
            elif change["owner"] is self.device:
                self._offer_dtypes()
            self._sync()
        finally:
            self._quiet = False
        self._listener()

    def _offer_groups(self) -> None:
        preset = self.presets[self.model.value]
        self.grouped.options = _named(grouped_choices(preset))
        self.grouped.value = usual_group(preset)

    def _offer_dtypes(self) -> None:
        kept, options = self.dtype.value, dtype_options(self.device.value)
        self.dtype.options = options
        self.dtype.value = kept if kept in options else options[0]

    def _sync(self) -> None:
        self.grouped.disabled = self.kind.value != "GQA"
        kept, offered = self.recorded.value, recorded.options(self.recordings, self.setting())
        if tuple(self.recorded.options) != (NO_RECORDING, *offered):
            self.recorded.options = (NO_RECORDING, *offered)
            self.recorded.value = kept if kept in [index for _, index in offered] else None
        self._recorded_row.layout.display = None if offered else "none"


def dtype_options(device: str) -> list[str]:
    """Return the element types of the lab that the device supports, its usual one first."""
    names = [str(dtype).removeprefix("torch.") for dtype in supported_dtypes(device)]
    return [name for name in names if name in ELEMENT_BYTES]


def device_key(device) -> str:
    """Return the name under which the lab lists a device; ValueError if it is not here."""
    return str(resolve(device))


def _device_options() -> list[tuple[str, str]]:
    return [(f"{device}: {shortened(device_name(device), 30)}", str(device))
            for device in available_devices()]  # fmt: skip


def _named(counts) -> list[tuple[str, int]]:
    return [(str(n), n) for n in counts]


def _list(label: str, options, width: int) -> widgets.Dropdown:
    return widgets.Dropdown(
        description=label, options=options, layout={"width": f"{width}px"},
        style={"description_width": "initial"},
    )  # fmt: skip


def _row(*children) -> widgets.HBox:
    return widgets.HBox(children, layout={"flex_flow": "row wrap", "align_items": "center"})

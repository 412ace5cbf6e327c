"""The memory panel: what a model and its cache fill of a device, computed and never allocated."""

from __future__ import annotations

from collections.abc import Mapping

import ipywidgets as widgets

from kvlib.devices import available_devices, device_name, total_memory
from kvlib.lab import memory_words, style
from kvlib.lab.checks import one_of, whole_between
from kvlib.lab.curves import CONTEXTS
from kvlib.lab.memory_picture import HEIGHT, WIDTH, MemoryPicture
from kvlib.lab.memory_view import BITS, MOST_REQUESTS, MemorySetting
from kvlib.lab.panel import PicturePanel
from kvlib.lab.words import shortened
from kvlib.memory import DEVICES, MODELS, DevicePreset, ModelPreset

HERE = "this machine"


class MemoryPanel(PicturePanel):
    """A panel of weights, cache and free memory of any preset on any device, and how many requests fit.

    `model` is a name in MODELS or a ModelPreset, `device` a name in DEVICES, a DevicePreset, or a
    device of this machine ("cpu", "cuda:0"). `context` is one of CONTEXTS, `requests` 1 to 4096,
    the bits 32, 16, 8 or 4. All of it is arithmetic: nothing is allocated. Raises ValueError for
    anything that is not on offer.
    """

    def __init__(
        self, model: str | ModelPreset = "Llama 3.1 8B", device: str | DevicePreset = "H100 SXM",
        *, context: int = 32768, requests: int = 8, weight_bits: int = 16, cache_bits: int = 16,
    ):  # fmt: skip
        self.presets = _with(MODELS, model, ModelPreset)
        self.devices = _with({**DEVICES, **devices_here()}, device, DevicePreset)
        model = model.name if isinstance(model, ModelPreset) else model
        device = device.name if isinstance(device, DevicePreset) else device
        model, device = one_of("model", model, self.presets), one_of("device", device, self.devices)
        context = one_of("context", context, CONTEXTS)
        weight_bits = one_of("weight_bits", weight_bits, BITS)
        cache_bits = one_of("cache_bits", cache_bits, BITS)
        requests = whole_between("requests", requests, 1, MOST_REQUESTS)
        self.model = _list("Model", list(self.presets), model, 200)
        self.device = _list("Device", self._device_options(), device, 330)
        self.context = widgets.ToggleButtons(
            options=[(style.format_tokens(c), c) for c in CONTEXTS], value=context,
            description="Context", tooltips=[f"{c:,} tokens" for c in CONTEXTS],
            style={"button_width": "58px"},
        )  # fmt: skip
        self.requests = widgets.BoundedIntText(
            value=requests, min=1, max=MOST_REQUESTS, description="Requests",
            style={"description_width": "initial"}, layout={"width": "150px"},
        )  # fmt: skip
        bits = [(f"{count} bits", count) for count in BITS]
        self.weight_bits = _list("Weights", bits, weight_bits, 150)
        self.cache_bits = _list("Cache", bits, cache_bits, 140)
        self.picture = MemoryPicture()
        self._drawn: MemorySetting | None = None
        super().__init__(
            [
                _row(self.model, self.weight_bits, self.cache_bits, self.requests),
                _row(self.context),
                _row(self.device),
            ],
            "kvlib-memory",
            [(WIDTH, HEIGHT)],
        )
        for control in self.controls:
            control.observe(lambda _: self._refresh(), "value")
        self._refresh()

    @property
    def controls(self) -> tuple:
        """Return every control, in the order of the keyboard."""
        return (
            self.model, self.weight_bits, self.cache_bits, self.requests, self.context, self.device,
        )  # fmt: skip

    @property
    def setting(self) -> MemorySetting:
        """Return what the controls say, with all numbers that follow from it."""
        return MemorySetting(
            self.presets[self.model.value], self.devices[self.device.value], self.context.value,
            self.requests.value, self.weight_bits.value, self.cache_bits.value,
        )  # fmt: skip

    def summary(self) -> str:
        """Return the panel in words; without numbers of this machine, the same everywhere."""
        setting = self.setting
        if self.device.value in DEVICES:
            return f"Memory panel: {memory_words.sentence(setting)}"
        return f"Memory panel: {memory_words.setting_line(setting)}, on {HERE}."

    def _refresh(self) -> None:
        """Draw the setting and say it; what goes wrong is said too."""
        try:
            setting = self.setting
            if setting != self._drawn:
                self._drawn = None
                self.picture.update(setting)
                self.image.value = self.picture.png()
                self._drawn = setting
            self._write(memory_words.sentence(setting))
        except Exception as error:
            self._write(f"{type(error).__name__}: {error} The panel still works: change a control.")

    def _device_options(self) -> list[tuple[str, str]]:
        names = []
        for key, device in self.devices.items():
            label, has = device.name, style.format_bytes(device.memory_bytes)
            if device.name.startswith(HERE):
                label = f"{HERE}, {key}: {shortened(device_name(key), 24)}"
            if device.datasheet_bytes is not None:
                has += f" (sold as {style.format_bytes(device.datasheet_bytes)})"
            names.append((f"{label}, {has}", key))
        return names


def devices_here() -> dict[str, DevicePreset]:
    """Return the devices of this machine by their PyTorch names, with the memory each has."""
    return {
        str(device): DevicePreset(f"{HERE} ({device})", total_memory(device), 0.0)
        for device in available_devices()
    }


def _with(known: Mapping, value, kind: type) -> dict:
    """Return the presets on offer, and the given one if it is of the learner's own making."""
    return {**known, value.name: value} if isinstance(value, kind) else dict(known)


def _list(label: str, options, value, width: int) -> widgets.Dropdown:
    return widgets.Dropdown(
        description=label, options=options, value=value, layout={"width": f"{width}px"},
        style={"description_width": "initial"},
    )  # fmt: skip


def _row(*children) -> widgets.HBox:
    return widgets.HBox(children, layout={"flex_flow": "row wrap", "align_items": "center"})

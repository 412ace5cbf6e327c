"""A panel that shows which query head reads which KV head, and what that saves."""

from __future__ import annotations

import ipywidgets as widgets

from kvlib.lab.checks import one_of, shown, whole_between
from kvlib.lab.panel import PicturePanel
from kvlib.lab.sharing_picture import HEIGHT, WIDTH, SharingPicture
from kvlib.lab.sharing_view import MOST_HEADS, RIGHT, TILE, Sharing, kind_of, sharing_presets
from kvlib.memory import ModelPreset


class SharingPanel(PicturePanel):
    """A panel of a model's heads: who reads whom, bytes a token, and the folded shapes.

    `preset` is a name in MODELS or a ModelPreset of at most 71 query heads, `num_kv_heads` any
    divisor of its query heads (its own by default), `head` the query head it opens with. Raises
    ValueError for a shape it cannot show.
    """

    def __init__(
        self, preset: str | ModelPreset = "SmolLM2 135M", num_kv_heads: int | None = None,
        head: int = 0,
    ):  # fmt: skip
        self.presets = sharing_presets()
        chosen = self._chosen(preset)
        kept = chosen.num_kv_heads if num_kv_heads is None else num_kv_heads
        try:
            kept = one_of("num_kv_heads", kept, chosen.kv_head_choices)
        except ValueError:
            choices = ", ".join(map(str, chosen.kv_head_choices))
            raise ValueError(
                f"{chosen.num_heads} query heads can share {choices} KV heads, not {shown(kept)}."
            ) from None
        head = whole_between("head", head, 0, chosen.num_heads - 1)
        self._opened = Sharing(chosen, kept, head)
        self._quiet = False
        self.picture = SharingPicture()
        self._make_controls()
        super().__init__(
            [
                _row(self.model, self.kv_heads),
                _row(self.previous, self.next, self.head, self.order),
            ],
            "kvlib-sharing",
            [(WIDTH, HEIGHT)],
        )
        self._guarded(self._show)

    def _chosen(self, preset) -> ModelPreset:
        if isinstance(preset, ModelPreset):
            if not preset.kv_head_choices:
                raise ValueError(f"{preset.name} has no KV heads to share.")
            if preset.num_heads > MOST_HEADS:
                raise ValueError(f"{preset.name} has more than {MOST_HEADS} query heads: too many to show.")
            self.presets = {**self.presets, preset.name: preset}
            return preset
        return self.presets[one_of("preset", preset, self.presets)]

    def _make_controls(self) -> None:
        it = self._opened
        plain = {"description_width": "initial"}
        self.model = widgets.Dropdown(
            description="Model shape", options=list(self.presets), value=it.preset.name,
            style=plain, layout={"width": "230px"},
        )  # fmt: skip
        self.kv_heads = widgets.ToggleButtons(
            description="KV heads", options=_choices(it.preset), value=it.num_kv_heads,
            style={"button_width": "auto"},
        )  # fmt: skip
        self.head = widgets.IntSlider(
            description="Query head", value=it.head, min=0, max=it.num_heads - 1, style=plain,
            layout={"width": "330px"},
        )  # fmt: skip
        self.previous = widgets.Button(
            description="Previous", tooltip="The query head before", layout={"width": "90px"}
        )
        self.next = widgets.Button(
            description="Next", tooltip="The next query head", layout={"width": "90px"}
        )
        self.order = widgets.ToggleButtons(
            description="Order", options=[("h // G", RIGHT), ("h % KV (wrong)", TILE)], value=RIGHT,
            tooltips=["adjacent heads share, the order of repeat_interleave", "the order of tile"],
            style={"button_width": "auto"},
        )  # fmt: skip
        self.previous.on_click(lambda _: self._guarded(lambda: self._move(-1)))
        self.next.on_click(lambda _: self._guarded(lambda: self._move(1)))
        self.model.observe(lambda _: self._guarded(self._new_shape), "value")
        for control in (self.kv_heads, self.head, self.order):
            control.observe(lambda _: self._guarded(self._show), "value")

    def sharing(self) -> Sharing:
        """Return what the panel shows now."""
        return Sharing(
            self.presets[self.model.value], self.kv_heads.value, self.head.value, self.order.value
        )

    def summary(self) -> str:
        """Return the panel in words, the same on every run."""
        return (
            f"Head sharing. {self._opened.sentence()} "
            "Run this cell to step through the heads and to change their number."
        )

    def _new_shape(self) -> None:
        """Offer the new model's KV heads and query heads, then draw once."""
        preset = self.presets[self.model.value]
        self._quiet = True
        try:
            self.kv_heads.options = _choices(preset)
            self.kv_heads.value = preset.num_kv_heads
            self.head.value = min(self.head.value, preset.num_heads - 1)
            self.head.max = preset.num_heads - 1
        finally:
            self._quiet = False
        self._show()

    def _move(self, by: int) -> None:
        """Go on or back; after the last head comes the first."""
        self.head.value = (self.head.value + by) % (self.head.max + 1)

    def _show(self) -> None:
        if self._quiet:
            return
        it = self.sharing()
        self.picture.update(it)
        self.image.value = self.picture.png()
        self._write(it.sentence())


def _choices(preset: ModelPreset) -> list[tuple[str, int]]:
    """Return the divisors of the query heads, most first, the ends named."""
    named = []
    for n in reversed(preset.kv_head_choices):
        kind = kind_of(preset.num_heads, n)
        named.append((f"{n}" if kind == "GQA" else f"{n} ({kind})", n))
    return named


def _row(*children) -> widgets.HBox:
    return widgets.HBox(children, layout={"flex_flow": "row wrap", "align_items": "center"})

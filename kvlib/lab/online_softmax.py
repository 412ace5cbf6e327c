"""A panel that steps through a softmax tile by tile, or in parts that are merged at the end."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets
import numpy as np

from kvlib.lab import style
from kvlib.lab.online_softmax_picture import HEIGHT, MOST_KEYS, WIDTH, OnlineSoftmaxPicture
from kvlib.lab.online_softmax_steps import ORDERS, PARTS, TILES, Frame, OnlineSoftmax
from kvlib.lab.online_softmax_words import sentence
from kvlib.lab.panel import SteppedPanel
from kvlib.lab.watching import watch_attention


class OnlineSoftmaxPanel(SteppedPanel):
    """A panel of one query's scores, what is kept of them, and the answer so far with the exact one.

    `words` name the T keys (at most 64), `scores` (T,) are the query's scaled scores, at most 1e6 in
    size, or -inf where masked, `values` (T, D) the values. `tile` keys come at a time, 4 where None
    or all of fewer; `mode` is "tiles" or "parts", `step` where it opens. Raises ValueError for what
    does not fit together.
    `OnlineSoftmaxPanel.of_model` takes them from a real model.
    """

    def __init__(
        self, words: Sequence[str], scores, values, *, tile: int | None = None, mode: str = TILES,
        step: int = 1,
    ):  # fmt: skip
        if len(words) > MOST_KEYS:
            raise ValueError(f"{len(words)} keys are more than the {MOST_KEYS} there is room for.")
        self._given = [str(word) for word in words], np.asarray(scores), np.asarray(values)
        self.softmax = OnlineSoftmax(*self._given, tile, mode)
        self.softmax.frame(step)  # refuses what does not exist
        tile, step = self.softmax.tile, int(step)
        self._opened = self.softmax, step
        self.picture = OnlineSoftmaxPicture()
        self._make_controls(tile, mode, step)
        rows = [self.mode, self.tile, self.order], [self.previous, self.next, self.slider]
        layout = {"flex_flow": "row wrap", "align_items": "center"}
        boxes = [widgets.HBox(row, layout=layout) for row in rows]
        super().__init__(boxes, "kvlib-softmax", [(WIDTH, HEIGHT)])
        self._guarded(self._show)

    @classmethod
    def of_model(
        cls, model, tokenizer, tokens: Sequence[int], *, layer: int = 0, query_head: int = 0, **options
    ) -> OnlineSoftmaxPanel:
        """Return a panel over the last token's scores in one head of a model's layer (from 0).

        Raises ValueError for a layer or head that the model does not have.
        """
        q, k, v = watch_attention(model, tokens, query_head)
        if layer not in range(len(q)):
            raise ValueError(f"layer {layer} is not one of 0 to {len(q) - 1}.")
        scores = k[layer] @ q[layer][-1] / np.sqrt(q.shape[-1])
        return cls([tokenizer.decode([token]) for token in tokens], scores, v[layer], **options)

    def _make_controls(self, tile: int, mode: str, step: int) -> None:
        plain, T = {"description_width": "initial"}, self.softmax.num_keys
        self.mode = widgets.ToggleButtons(
            description="Softmax", options=[("tile by tile", TILES), ("in parts, merged", PARTS)], value=mode,
            tooltips=["one after the other, rescaled", "each for itself, merged by log-sum"],
            style={"button_width": "auto"},
        )  # fmt: skip
        sizes = sorted({2**i for i in range(T.bit_length()) if 2**i < T} | {T, tile})
        names = [(f"all {n}" if n == T > 1 else str(n), n) for n in sizes]
        self.tile = widgets.Dropdown(
            description="Keys a tile", options=names, value=tile, style=plain, layout={"width": "160px"}
        )
        self.order = widgets.Dropdown(
            description="Order of the keys", options=ORDERS, style=plain, layout={"width": "240px"}
        )
        self.slider = widgets.IntSlider(
            description="Step", value=step, min=0, max=self.softmax.last_step, style=plain,
            layout={"width": "420px"},
        )  # fmt: skip
        self.previous = widgets.Button(description="Previous", tooltip="One step back")
        self.next = widgets.Button(description="Next", tooltip="One step on")
        self.previous.on_click(lambda _: self._guarded(lambda: self._move(-1)))
        self.next.on_click(lambda _: self._guarded(lambda: self._move(1)))
        for control in (self.mode, self.tile, self.order):
            control.observe(lambda _: self._guarded(self._cut), "value")
        self.slider.observe(lambda _: self._guarded(self._show), "value")

    def frame(self) -> Frame:
        """Return what the panel shows now."""
        return self.softmax.frame(self.slider.value)

    def sentence(self) -> str:
        """Return what the panel shows now, in words."""
        return sentence(self.softmax, self.frame())

    def summary(self) -> str:
        """Return the panel in words, the same on every run."""
        it, step = self._opened
        way = "in parts that are merged" if it.mode == PARTS else "tile by tile"
        return (
            f"One query's softmax over {it.num_keys} keys, {way}. {sentence(it, it.frame(step))} "
            "Run this cell to step through it with Previous, Next or the slider."
        )

    def _cut(self) -> None:
        """Cut the keys anew, keep the step where there is one, and draw once."""
        self.softmax = OnlineSoftmax(*self._given, self.tile.value, self.mode.value, self.order.value)
        self._end_at(self.softmax.last_step)

    def _show(self) -> None:
        if self._quiet:
            return
        self.picture.update(self.softmax, self.frame())
        self.image.value = style.png(self.picture.image())
        self._write(self.sentence())

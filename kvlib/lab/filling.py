"""A panel that steps through a text and shows the cache fill, row by row and layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets

from kvlib.lab import style
from kvlib.lab.filling_picture import HEIGHT, WIDTH, FillingPicture
from kvlib.lab.filling_steps import Filling, Frame
from kvlib.lab.panel import SteppedPanel
from kvlib.lab.watching import watch_attention


class FillingPanel(SteppedPanel):
    """Show word, query, K, V, weights and output of every step, one step at a time.

    `words` are the T words or tokens of a text; `q`, `k`, `v` its arrays (T, D), or (L, T, D) for
    L layers, of one query head and the KV head it reads (NumPy, or torch on a CPU), as attention
    uses them, after any rotation. `prefill` is the prompt's length, which is run in one pass, or
    the lengths of its chunks, as (4, 3); every later token is a step of its own. Step 0 is the
    empty cache; `step` and `layer` (from 0) are where it opens. Raises ValueError for shapes that
    do not belong together. `FillingPanel.of_model` takes the arrays from a real model.
    """

    BEFORE, BEHIND = "This is the empty cache.", "That was the last token."

    def __init__(
        self, words: Sequence[str], q, k, v, *, prefill: int | Sequence[int] = 1, step: int = 1,
        layer: int = 0,
    ):  # fmt: skip
        self.filling = Filling(words, q, k, v, prefill)
        self.filling.frame(step, layer)  # refuses what does not exist
        self.picture = FillingPicture(self.filling)
        self.slider = widgets.IntSlider(
            value=step, min=0, max=self.filling.last_step, description="Step",
            continuous_update=True, style={"description_width": "initial"},
            layout={"width": "420px"},
        )  # fmt: skip
        self.previous = widgets.Button(description="Previous", tooltip="One step back")
        self.next = widgets.Button(description="Next", tooltip="One step on")
        self.layer = widgets.Dropdown(
            options=[(str(i), i) for i in range(self.filling.num_layers)], value=layer,
            description="Layer", style={"description_width": "initial"}, layout={"width": "120px"},
        )  # fmt: skip
        row = [self.previous, self.next, self.slider]
        if self.filling.num_layers > 1:
            row.append(self.layer)
        controls = widgets.HBox(row, layout={"flex_flow": "row wrap", "align_items": "center"})
        super().__init__([controls], "kvlib-filling", [(WIDTH, HEIGHT)])
        self.previous.on_click(lambda _: self._move(-1))
        self.next.on_click(lambda _: self._move(1))
        for control in (self.slider, self.layer):
            control.observe(lambda _: self._guarded(self._show), "value")
        self._show()

    @classmethod
    def of_model(
        cls, model, tokenizer, tokens: Sequence[int], *, query_head: int = 0, **options
    ) -> FillingPanel:
        """Return a panel over a model's own q, K and V of `tokens`, in all its layers.

        `query_head` chooses the head; K and V are those of the KV head it reads. `options` are
        `prefill`, `step` and `layer`. Raises ValueError for a head the model does not have.
        """
        q, k, v = watch_attention(model, tokens, query_head)
        return cls([tokenizer.decode([token]) for token in tokens], q, k, v, **options)

    def frame(self) -> Frame:
        """Return what the panel shows now."""
        return self.filling.frame(self.slider.value, self.layer.value)

    def sentence(self) -> str:
        """Return what the panel shows now, in words."""
        return self.filling.sentence(self.frame())

    def summary(self) -> str:
        """Return the panel in words, the same on every run."""
        it = self.filling
        prompt = it.ends[it.prompt_passes]
        layers = f" in {it.num_layers} layers" if it.num_layers > 1 else ""
        return (
            f"The cache filling{layers}: a prompt of {prompt} tokens, then "
            f"{it.num_tokens - prompt} one at a time. Shown is {self.sentence()} "
            "Run this cell to step through it with Previous, Next or the slider."
        )

    def _show(self) -> None:
        self.picture.update(self.frame())
        self.image.value = style.png(self.picture.image())
        self._write(self.sentence())

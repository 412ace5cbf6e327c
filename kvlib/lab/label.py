"""A text whose pixels are kept: drawing the same words again costs next to nothing.

Drawing text takes most of the time of a small figure, and most words stay the same from one picture
to the next.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform

from kvlib.lab import style

_PAD = 2
_MOST = 600  # kept pictures of words, about 10 kB each
_kept: dict[tuple, np.ndarray] = {}


class Label(Text):
    """One line of words at a pixel of a figure drawn at 100 dots an inch.

    `place` sets the middle of its height; with `halo` it hides what is under it.
    """

    def __init__(self, size: float = 9.5, color: str = style.INK, ha: str = "left", halo: bool = False):
        super().__init__(
            0, 0, "", fontsize=size, color=color, ha=ha, va="baseline", parse_math=False,
            transform=IdentityTransform(), animated=True,
        )  # fmt: skip
        self._halo = halo

    def place(self, x: float, y: float, ha: str | None = None) -> None:
        """Put the left or right end at x and the middle at y, in pixels from the lower left."""
        self.set_position((round(x), round(y - 0.36 * self.get_fontsize() * 100 / 72)))
        if ha is not None:
            self.set_horizontalalignment(ha)

    def draw(self, renderer) -> None:
        """Copy the kept pixels of these words, drawing them the first time."""
        if not self.get_text() or not self.get_visible():
            return
        key = (
            self.get_text(), self.get_fontsize(), self.get_fontweight(), self.get_color(),
            self._halo, renderer.dpi,
        )  # fmt: skip
        if key not in _kept:
            if len(_kept) >= _MOST:
                _kept.clear()
            _kept[key] = self._pixels(renderer)
        pixels = _kept[key]
        x, y = self.get_position()
        if self.get_horizontalalignment() == "right":
            x -= pixels.shape[1] - 2 * _PAD
        gc = renderer.new_gc()
        renderer.draw_image(gc, x - _PAD, y - self._below(renderer), pixels)
        gc.restore()

    def _below(self, renderer) -> int:
        """Return the pixels kept under the baseline."""
        return round(0.26 * self.get_fontsize() * renderer.dpi / 72) + _PAD

    def _pixels(self, renderer) -> np.ndarray:
        font = self.get_fontproperties()
        width, _, _ = renderer.get_text_width_height_descent(self.get_text(), font, ismath=False)
        height = round(1.28 * self.get_fontsize() * renderer.dpi / 72)
        small = RendererAgg(math.ceil(width) + 2 * _PAD, height + 2 * _PAD, renderer.dpi)
        twin = Text(
            _PAD, self._below(renderer), self.get_text(), fontproperties=font, va="baseline",
            color=self.get_color(), parse_math=False, transform=IdentityTransform(),
        )  # fmt: skip
        twin.set_figure(self.get_figure(root=True))
        twin.draw(small)
        pixels = np.array(small.buffer_rgba())
        if self._halo:
            alpha = pixels[..., 3:] / 255
            card = np.array([int(style.CARD[i : i + 2], 16) for i in (1, 3, 5)])
            pixels[..., :3] = pixels[..., :3] * alpha + card * (1 - alpha)
            pixels[..., 3] = np.maximum(pixels[..., 3], 215)
        return np.ascontiguousarray(pixels[::-1])  # draw_image counts rows from below

"""The picture of a cache that fills: word, query, K, V, weights and output of a row on one line.

One figure, its artists made once. The first axis of every pane is the position in the text, from
the top down, so that a new token is one band across all of them.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Polygon, Rectangle
from matplotlib.transforms import IdentityTransform

from kvlib.lab import style
from kvlib.lab.filling_steps import Filling, Frame
from kvlib.lab.label import Label
from kvlib.lab.panel_picture import PanelPicture

WIDTH, HEIGHT = 1032, 460
TOP, BOTTOM = 380, 80  # of the panes, in pixels from below
KEY = 24  # the middle of the colour key
LEFT, GAP = 112, 24
NEW, NEW_TEXT, BAND = "#C98A0B", "#7A5200", "#F6E9CB"
FUTURE, ZERO, HELD, LINES = "#E6E3DA", "#FFFFFF", "#B5B1A5", "#D8D5CA"
GONE, STRIPES = "#CDCED1", "#85888E"  # striped, as no number is
SIGNED = LinearSegmentedColormap.from_list("signed", ["#2B5C8A", ZERO, "#7C4A1E"])
SHARE = LinearSegmentedColormap.from_list("share", [ZERO, "#D9A441", "#5E3A00"])


def _rgb(color: str) -> np.ndarray:
    return np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])


class Pane:
    """Draw one matrix with a name and its shape above it and its fate below; rows are positions."""

    def __init__(self, figure, left: int, width: int, rows: int, columns: int, name: str):
        w, h = figure.canvas.get_width_height()
        self.axes = figure.add_axes([left / w, BOTTOM / h, width / w, (TOP - BOTTOM) / h])
        self.axes.set_axis_off()
        self.rows, self.columns, self.left, self.width = rows, columns, left, width
        empty = np.ones((rows, columns, 3)) * _rgb(FUTURE)
        self.image = self.axes.imshow(
            empty, extent=(0, columns, rows, 0), aspect="auto", interpolation="nearest"
        )
        self.axes.set(xlim=(0, columns), ylim=(rows, 0))
        if (TOP - BOTTOM) / rows >= 6:
            self.axes.hlines(range(1, rows), 0, columns, color=LINES, linewidth=1)
        if width / columns >= 6:
            self.axes.vlines(range(1, columns), 0, rows, color=LINES, linewidth=1)
        self.gone = Polygon([(0, 0)] * 3, fill=False, edgecolor=STRIPES, linewidth=0, hatch="////")
        self.gone.set(hatch_linewidth=0.8, zorder=2.5)
        self.axes.add_patch(self.gone)
        self.frame = Rectangle((0, 0), columns, 0, fill=False, edgecolor=NEW, linewidth=1.6)
        self.frame.set(clip_on=False, zorder=5)
        self.axes.add_patch(self.frame)
        self.name = _label(figure, left, TOP + 44, name, size=10.5)
        self.shape = _label(figure, left, TOP + 24, size=9.5, color=style.MUTED)
        self.fate = _label(figure, left, BOTTOM - 16, size=9.5)

    def show(
        self, colours: np.ndarray, frame: Frame, shape: str, fate: str, *, kept: bool = False,
        used: int | None = None, gone: list[tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        """Show (rows, columns, 3) colours; frame the new rows, in the first `used` columns.

        `gone` is the outline, (x, y) corners, of what is striped.
        """
        self.image.set_data(colours)
        self.gone.set_visible(bool(gone))
        if gone:
            self.gone.set_xy(gone)
        outset = 1.2 * self.rows / (TOP - BOTTOM)  # a little over a pixel, so that no row is hidden
        height = frame.end - frame.start + 2 * outset
        self.frame.set_bounds(0, frame.start - outset, self.columns if used is None else used, height)
        self.frame.set_visible(frame.end > frame.start)
        self.shape.set_text(shape)
        self.fate.set(text=fate, color=style.INK if kept else style.MUTED)
        self.fate.set_fontweight("bold" if kept else "normal")


def _label(figure, x: float, y: float, text: str = "", **look) -> Label:
    label = Label(**look)
    label.set_animated(False)
    label.set_text(text)
    label.place(x, y)
    figure.add_artist(label)
    return label


class FillingPicture(PanelPicture):
    """Hold the figure of one text; `update(frame)` redraws it, `image()` returns what it shows."""

    def __init__(self, filling: Filling):
        self.filling = filling
        super().__init__(WIDTH, HEIGHT)
        rows, size = filling.num_tokens, filling.head_dim
        parts = [
            ("q", "q", size, 3), ("k", "K", size, 4), ("v", "V", size, 4),
            ("weights", "softmax(q Kᵀ / √D), percent", rows, 9), ("output", "output", size, 3),
        ]  # fmt: skip
        if filling.num_layers > 1:
            parts.append(("layers", "K, V by layer", filling.num_layers, 3))
        room = WIDTH - LEFT - 12 - GAP * len(parts)
        unit = room / sum(share for *_, share in parts)
        self.band = Rectangle((8, 0), WIDTH - 16, 0, facecolor=BAND, transform=IdentityTransform())
        self.band.set_zorder(-1)
        self.figure.add_artist(self.band)
        self.panes: dict[str, Pane] = {}
        left = LEFT + GAP / 2
        for key, name, columns, share in parts:
            width = unit * share
            self.panes[key] = Pane(self.figure, round(left), round(width), rows, columns, name)
            left += width + GAP
        self.selected = Rectangle((0, 0), 1, rows, fill=False, edgecolor=style.INK, linewidth=1.2)
        if "layers" in self.panes:
            self.selected.set_clip_on(False)
            self.panes["layers"].axes.add_patch(self.selected)
        _label(self.figure, LEFT, TOP + 24, "token, position", size=9.5, color=style.MUTED, ha="right")
        self.words = [_label(self.figure, LEFT, 0, size=9, ha="right") for _ in range(rows)]
        self.numbers: list[Label] = []
        self._draw_key()

    def update(self, frame: Frame) -> None:
        """Show one step of one layer: move every artist, then draw."""
        new, held, size = frame.end - frame.start, frame.end, self.filling.head_dim
        for key, values in (("k", frame.k), ("v", frame.v)):
            fate = f"kept: {held} row{'' if held == 1 else 's'}"
            self.panes[key].show(self._rows(values, frame, True), frame, f"({held}, {size})", fate,
                                 kept=True)  # fmt: skip
        dropped = "not kept" if new else ""
        for key, values in (("q", frame.q), ("output", frame.output)):
            shape = f"({new}, {size})" if new else ""
            gone = [(0, 0), (size, 0), (size, frame.start), (0, frame.start)] if frame.start else None
            self.panes[key].show(self._rows(values, frame, False), frame, shape, dropped, gone=gone)
        shape = f"({new}, {held})" if new else ""
        steps = [corner for i in range(frame.start) for corner in ((i + 1, i), (i + 1, i + 1))]
        gone = [(0, 0), *steps, (0, frame.start)] if frame.start else None
        self.panes["weights"].show(self._weights(frame), frame, shape, dropped, used=held, gone=gone)
        if "layers" in self.panes:
            shape = f"{self.filling.num_layers} × {held} rows"
            here = f"shown: layer {frame.layer}"
            self.panes["layers"].show(self._layers(frame), frame, shape, here)
            self.selected.set_x(frame.layer)
        height = self._height(1)
        self.band.set_bounds(8, self._y(frame.end), WIDTH - 16, new * height)
        self.band.set_visible(new > 0)
        self._write_words(frame)
        self._write_numbers(frame)
        self.figure.canvas.draw()

    def labels(self) -> list[Label]:
        """Return every text that is shown."""
        return [a for a in self.figure.artists if isinstance(a, Label) and a.get_text()]

    # Colours ------------------------------------------------------------------------------------

    def _rows(self, values: np.ndarray, frame: Frame, kept: bool) -> np.ndarray:
        """Return the colours of a (T, D) matrix; a kept row looks as it did when it was new."""
        most = np.abs(values).max() or 1.0
        colours = SIGNED(0.5 + 0.5 * values / most)[..., :3]
        if not kept:
            colours[: frame.start] = _rgb(GONE)
        colours[frame.end :] = _rgb(FUTURE)
        return colours

    def _weights(self, frame: Frame) -> np.ndarray:
        colours = SHARE(frame.weights)[..., :3]
        rows, columns = np.indices(frame.weights.shape)
        colours[(columns > rows) | (rows >= frame.end)] = _rgb(FUTURE)
        colours[(columns <= rows) & (rows < frame.start)] = _rgb(GONE)
        return colours

    def _layers(self, frame: Frame) -> np.ndarray:
        colours = np.ones((self.filling.num_tokens, self.filling.num_layers, 3)) * _rgb(FUTURE)
        colours[: frame.start] = _rgb(HELD)
        colours[frame.start : frame.end] = _rgb(NEW)
        return colours

    def _draw_key(self) -> None:
        """Draw the colour key, from left to right along the lower edge."""
        x = 12
        parts = [
            ({"facecolor": BAND, "edgecolor": NEW, "linewidth": 1.6}, "new in this step"),
            ({"facecolor": GONE, "edgecolor": STRIPES, "linewidth": 0, "hatch": "////"},
             "computed earlier, gone"),
            ({"facecolor": FUTURE, "linewidth": 0}, "future"),
        ]  # fmt: skip
        if "layers" in self.panes:
            parts.append(({"facecolor": HELD, "linewidth": 0}, "kept, by layer"))
        for look, words in parts:
            swatch = Rectangle((x, KEY - 6), 18, 12, transform=IdentityTransform(), **look)
            swatch.set_hatch_linewidth(0.8)
            self.figure.add_artist(swatch)
            x = self._name(x + 24, words)
        for colours, low, high in ((SIGNED, "below 0", "above 0 (middle: 0)"), (SHARE, "weight 0", "100%")):
            x = self._name(x, low, 6)
            axes = self.figure.add_axes([x / WIDTH, (KEY - 6) / HEIGHT, 60 / WIDTH, 12 / HEIGHT])
            axes.set_axis_off()
            axes.imshow(colours(np.linspace(0, 1, 60))[None], aspect="auto")
            x = self._name(x + 66, high)

    def _name(self, x: float, words: str, gap: int = 20) -> float:
        """Write words of the key from x on and return where the next part begins."""
        label = _label(self.figure, x, KEY, words, size=9)
        renderer = self.figure.canvas.get_renderer()
        return x + gap + renderer.get_text_width_height_descent(
            words, label.get_fontproperties(), ismath=False
        )[0]

    # Words --------------------------------------------------------------------------------------

    def _height(self, rows: int) -> float:
        return rows * (TOP - BOTTOM) / self.filling.num_tokens

    def _y(self, row: float) -> float:
        """Return the pixel height of the upper edge of a row."""
        return TOP - self._height(row)

    def _write_words(self, frame: Frame) -> None:
        """Name the rows: all where there is room, else some, and always the newest."""
        count = self.filling.num_tokens
        stride = max(1, math.ceil(14 / self._height(1)))
        newest = frame.end - 1
        named = {i for i in range(0, count, stride) if newest < 0 or abs(i - newest) >= stride}
        named |= {newest} if newest >= 0 else set()
        for i, label in enumerate(self.words):
            new = frame.start <= i < frame.end
            label.set_text(f"{_shortened(self.filling.words[i])}  {i}" if i in named else "")
            label.set_color(NEW_TEXT if new else style.INK if i < frame.start else style.MUTED)
            label.set_fontweight("bold" if new else "normal")
            label.place(LEFT, self._y(i + 0.5))

    def _write_numbers(self, frame: Frame) -> None:
        """Write the new weights in percent where a cell has room for them."""
        pane, count = self.panes["weights"], self.filling.num_tokens
        cell = pane.width / count
        cells = [(i, j) for i in range(frame.start, frame.end) for j in range(i + 1)]
        if cell < 22 or self._height(1) < 14:
            cells = []
        while len(self.numbers) < len(cells):
            self.numbers.append(_label(self.figure, 0, 0, size=8))
        for label in self.numbers:
            label.set_text("")
        for label, (i, j) in zip(self.numbers, cells):
            weight = frame.weights[i, j]
            text = f"{100 * weight:.0f}"
            label.set(text=text, color=style.CARD if weight > 0.55 else style.INK, zorder=9)
            label.place(pane.left + cell * (j + 0.5) - 3.4 * len(text), self._y(i + 0.5))


def _shortened(word: str, limit: int = 12) -> str:
    word = word.strip() or repr(word)
    return word if len(word) <= limit else word[: limit - 1] + "…"

"""The parts of a picture: a log plot with a gutter of labels, and a stacked bar under it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import IdentityTransform

from kvlib.lab import style
from kvlib.lab.curves import CONTEXTS
from kvlib.lab.label import Label
from kvlib.lab.layout import decade_ticks, round_down, round_up, spread

GUTTER_GAP = 17  # pixels between the middles of two labels


class Pane:
    """Draw curves over the context length on log axes; every artist is made once.

    Coordinates are pixels from the figure's lower left corner. `static` artists change with the
    axes' limits only; `moving` ones with every update.
    """

    def __init__(self, figure: Figure, left: int, bottom: int, width: int, height: int):
        w, h = figure.canvas.get_width_height()
        self.figure, self.box = figure, (left, bottom, width, height)
        self.axes = figure.add_axes([left / w, bottom / h, width / w, height / h])
        axes = self.axes
        axes.set(xscale="log", yscale="log", xlim=(CONTEXTS[0] / 1.25, CONTEXTS[-1] * 1.25))
        shown = CONTEXTS[::2]
        axes.xaxis.set_major_locator(FixedLocator(shown))
        axes.xaxis.set_major_formatter(FixedFormatter([style.format_tokens(c) for c in shown]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.tick_params(length=3, pad=3)
        axes.set_xlabel("context, tokens", labelpad=2, fontsize=9.5)
        self.moving: list = []
        self.title = self.text(left, 0, size=12)
        self.note = self.text(left, 0, size=9, color=style.MUTED)
        self.head_at(left)
        self.here = self._line(color=style.HAIRLINE, linewidth=1.2, zorder=0.5)
        self.curves = {
            kind: self._line(color=style.COLORS[kind], solid_capstyle="round") for kind in style.KINDS
        }
        self.level = self._line(color=style.WEIGHTS, linestyle=style.WEIGHTS_LINE, linewidth=1.4)
        self._gutter: list[tuple] = []
        self._limits: tuple = ()

    def head_at(self, left: int) -> None:
        """Let title and note begin at this pixel."""
        _, bottom, _, height = self.box
        self.title.place(left, bottom + height + 28)
        self.note.place(left, bottom + height + 11)

    def name_axis(self, words: str, x: int) -> None:
        """Write what the vertical axis counts, upright, its middle at pixel x."""
        self.axes.set_ylabel(words, fontsize=9.5, va="center")
        _, bottom, _, height = self.box
        self.axes.yaxis.set_label_coords(x, bottom + height / 2, IdentityTransform())

    def text(self, x: float, y: float, ha: str = "left", **look) -> Label:
        """Return an empty label at this pixel."""
        label = Label(ha=ha, **look)
        label.place(x, y)
        self.figure.add_artist(label)
        self.moving.append(label)
        return label

    def _line(self, **kwargs):
        (line,) = self.axes.plot([], [], animated=True, **kwargs)
        self.moving.append(line)
        return line

    def set_limits(self, low: float, high: float, words) -> bool:
        """Set the vertical axis to round limits around low and high; return whether it moved."""
        limits = (round_down(low), round_up(high))
        if limits == self._limits:
            return False
        self._limits = limits
        self.axes.set_ylim(limits[0] * 0.93, limits[1] * 1.07)
        ticks = decade_ticks(*limits)
        self.axes.yaxis.set_major_locator(FixedLocator(ticks))
        self.axes.yaxis.set_major_formatter(FixedFormatter([words(value) for value in ticks]))
        return True

    def pixel_y(self, value: float) -> float:
        """Return the height of a value in pixels from the figure's bottom."""
        return float(self.axes.transData.transform((CONTEXTS[0], value))[1])

    def pixel_x(self, context: float) -> float:
        """Return the place of a context in pixels from the figure's left."""
        low, _ = self.axes.get_ylim()
        return float(self.axes.transData.transform((context, low))[0])

    def mark_context(self, context: int) -> None:
        """Put the hairline at the selected context."""
        self.here.set_data([context, context], self.axes.get_ylim())

    def label_right(self, labels: Sequence[tuple[float, str, str, bool]]) -> None:
        """Write labels (value, words, colour, bold) beside the right edge, none over another."""
        left, bottom, width, height = self.box
        edge = left + width
        while len(self._gutter) < len(labels):
            text = self.text(edge + 13, 0)
            (leader,) = self.axes.plot(
                [], [], transform=IdentityTransform(), clip_on=False, linewidth=0.8, animated=True
            )
            self.moving.append(leader)
            self._gutter.append((text, leader))
        heights = [self.pixel_y(value) for value, *_ in labels]
        placed = spread(heights, GUTTER_GAP, bottom + 4, bottom + height + 6)
        for (text, leader), (_, words, color, bold), own, y in zip(
            self._gutter, labels, heights, placed, strict=False
        ):
            text.set(text=words, color=color, fontweight="bold" if bold else "normal")
            text.place(edge + 13, y)
            leader.set(data=([edge + 1, edge + 5, edge + 10], [own, own, y]), color=color)
        for text, leader in self._gutter[len(labels) :]:
            text.set_text("")
            leader.set_data([], [])


class Bar:
    """Draw one horizontal bar of parts on a linear scale from 0, with a row of words above it."""

    SEGMENTS = 3

    def __init__(self, pane: Pane, left: int, bottom: int, width: int, height: int):
        figure = pane.figure
        w, h = figure.canvas.get_width_height()
        self.axes = figure.add_axes([left / w, bottom / h, width / w, height / h])
        self.axes.set_axis_off()
        self.axes.set(xlim=(0, 1), ylim=(0, 1))
        self.frame = Rectangle((0, 0), 0, 1, fill=False, linewidth=1.2, clip_on=False)
        self.frame.set_animated(True)
        self.parts = [Rectangle((0, 0), 0, 1, animated=True) for _ in range(self.SEGMENTS)]
        for patch in (*self.parts, self.frame):
            self.axes.add_patch(patch)
        self.words = [
            pane.text(left + share * width, bottom + height + 11, ha=ha)
            for share, ha in ((0, "left"), (0.34, "left"), (1, "right"))
        ]
        pane.moving += [*self.parts, self.frame]

    def show(
        self,
        parts: Sequence[tuple[float, str]],
        words: Sequence[tuple[str, str]],
        frame: tuple[float, str] | None = None,
    ) -> None:
        """Stack parts and outline a frame, (size, colour) each; write words, (text, colour) each."""
        total = sum(size for size, _ in parts)
        scale = max(total, frame[0] if frame else 0) or 1
        start = 0.0
        for i, patch in enumerate(self.parts):
            size, color = parts[i] if i < len(parts) else (0.0, style.CARD)
            patch.set_bounds(start, 0, size / scale, 1)
            patch.set(facecolor=color, edgecolor=style.CARD, linewidth=0.6 if size > 0.01 * scale else 0)
            start += size / scale
        self.frame.set_bounds(0, 0, (frame[0] if frame else 0) / scale, 1)
        self.frame.set_edgecolor(frame[1] if frame else style.CARD)
        for i, text in enumerate(self.words):
            label, color = words[i] if i < len(words) else ("", style.INK)
            text.set(text=label, color=color)

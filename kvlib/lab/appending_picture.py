"""The picture of two caches that append: their slots above, bytes written and bytes held below.

One figure, its artists made once. Everything is placed in pixels from the lower left corner.
"""

from __future__ import annotations

import matplotlib
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator
from matplotlib.transforms import IdentityTransform

from kvlib.lab import style
from kvlib.lab.appending_steps import Appending, Frame
from kvlib.lab.label import Label
from kvlib.lab.panel_picture import PanelPicture

WIDTH, HEIGHT = 1032, 470
LEFT, RIGHT, HALF = 16, 532, 484  # the two halves
OLD, NEW, SLOT = 366, 296, 26  # the lower edges of the strips, and their height
CAT, BUFFER = style.MEMORY, style.INK  # lines, words
FRESH, COPIED, HELD, FREE = "#C98A0B", "#D9939B", "#B5B1A5", "#FFFFFF"
GONE, STRIPES = "#CDCED1", "#85888E"


class Strip:
    """A row of slots, each a token's K and V, from the left."""

    def __init__(self, figure, left: int, bottom: int, slots: int, width: float):
        self.slots = [
            Rectangle(
                (left + i * width, bottom), width - 1, SLOT, transform=IdentityTransform(), linewidth=0.8
            )
            for i in range(slots)
        ]  # fmt: skip
        for slot in self.slots:
            slot.set_hatch_linewidth(0.8)
            figure.add_artist(slot)
        self.end = left + slots * width

    def show(self, looks: list[str]) -> None:
        """Show the first len(looks) slots, each "gone", "copied", "held", "new" or "free"."""
        for i, slot in enumerate(self.slots):
            slot.set_visible(i < len(looks))
            if i >= len(looks):
                continue
            face, edge, hatch = {
                "gone": (GONE, STRIPES, "////"), "copied": (COPIED, CAT, ""), "held": (HELD, style.MUTED, ""),
                "new": (FRESH, style.INK, ""), "free": (FREE, style.HAIRLINE, ""),
            }[looks[i]]  # fmt: skip
            slot.set(facecolor=face, edgecolor=edge, hatch=hatch)


class AppendingPicture(PanelPicture):
    """The figure of one run; `update(frame)` redraws it, `image()` returns what it shows."""

    def __init__(self, run: Appending):
        super().__init__(WIDTH, HEIGHT)
        self.run = run
        width = HALF / (run.room + 1)
        self.old = Strip(self.figure, LEFT, OLD, run.room, width)
        self.grown = Strip(self.figure, LEFT, NEW, run.room + 1, width)
        self.buffer = Strip(self.figure, RIGHT, NEW, run.room, width)
        self.refused = Rectangle(
            (RIGHT + run.room * width, NEW), width - 1, SLOT, fill=False, edgecolor=CAT, linewidth=1.6,
            linestyle=(0, (2, 1.5)), transform=IdentityTransform(),
        )  # fmt: skip
        self.figure.add_artist(self.refused)
        top = HEIGHT - 22
        self._label(LEFT, top, "torch.cat: new tensors for every token", size=12, color=CAT)
        self._label(RIGHT, top, f"Preallocated: one buffer of {run.room} slots", size=12, color=BUFFER)
        self._label(LEFT, OLD + SLOT + 13, "old tensors, freed after the copy", color=style.MUTED)
        self._label(LEFT, NEW + SLOT + 13, "new tensors", color=style.MUTED)
        self._label(RIGHT, NEW + SLOT + 13, "the buffer", color=style.MUTED)
        self.cat_note = self._label(LEFT, NEW - 16, size=9.5)
        self.buffer_note = self._label(RIGHT, NEW - 16, size=9.5)
        self._key(RIGHT, OLD + SLOT / 2)
        self.written = self._plot(LEFT + 62, lambda f: (f.cat.written, f.buffer.written))
        self.alive = self._plot(RIGHT + 62, lambda f: (f.cat.peak, f.buffer.held))

    def update(self, frame: Frame) -> None:
        """Show one step: move every artist, then draw."""
        run, t, used = self.run, frame.step, frame.buffer.tokens
        new = min(1, t)
        self.old.show(["gone"] * (t - 1))
        self.grown.show(["copied"] * (t - 1) + ["new"] * new)
        fresh = 0 if frame.refused else new
        self.buffer.show(["held"] * (used - fresh) + ["new"] * fresh + ["free"] * (run.room - used))
        self.refused.set_visible(bool(frame.refused))
        self.cat_note.set_text(_address(frame.cat.moved, t))
        self.buffer_note.set_text(
            "refused, and unchanged" if frame.refused else _address(frame.buffer.moved, t)
        )
        ends = ("torch.cat", "buffer"), ("torch.cat peak", "buffer reserved")
        for plot, pick, names in zip((self.written, self.alive), (_written, _alive), ends):
            self._show_plot(plot, frame, pick, names)
        self.written["title"].set_text(run.title(frame))
        self.alive["title"].set_text(run.peak_title(frame))
        self.figure.canvas.draw()

    def labels(self) -> list[Label]:
        """Return every text that is shown."""
        return [a for a in self.figure.artists if isinstance(a, Label) and a.get_text()]

    def _label(self, x: float, y: float, text: str = "", **look) -> Label:
        label = Label(**look)
        label.set_animated(False)
        label.set_text(text)
        label.place(x, y)
        self.figure.add_artist(label)
        return label

    def _key(self, x: float, y: float) -> None:
        """Draw the colour key, where the right half has no old tensors."""
        for face, edge, hatch, words in (
            (FRESH, style.INK, "", "new"), (COPIED, CAT, "", "copied again"),
            (HELD, style.MUTED, "", "held, not moved"), (FREE, style.HAIRLINE, "", "reserved"),
            (GONE, STRIPES, "////", "freed"),
        ):  # fmt: skip
            swatch = Rectangle((x, y - 6), 16, 12, facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0.8,
                               transform=IdentityTransform())  # fmt: skip
            swatch.set_hatch_linewidth(0.8)
            self.figure.add_artist(swatch)
            label = self._label(x + 21, y, words, size=9)
            renderer = self.figure.canvas.get_renderer()
            x += (
                37
                + renderer.get_text_width_height_descent(words, label.get_fontproperties(), ismath=False)[0]
            )

    # Plots --------------------------------------------------------------------------------------

    def _plot(self, left: int, pick) -> dict:
        """Make one plot over the tokens: two lines so far, two pale ones ahead, two ends."""
        width, bottom, height = 270, 52, 150
        with matplotlib.rc_context(style.RC):
            axes = self.figure.add_axes([left / WIDTH, bottom / HEIGHT, width / WIDTH, height / HEIGHT])
        frames = self.run.frames
        most = max(max(pick(f)) for f in frames)
        axes.set(xlim=(0, self.run.last_step + 0.5), ylim=(0, most * 1.08))
        ticks = [y for y in MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(0, most) if 0 <= y <= most * 1.08]
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        axes.yaxis.set_major_formatter(FixedFormatter([style.format_bytes(y) if y else "0" for y in ticks]))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("tokens appended", labelpad=2, fontsize=9.5)
        axes.tick_params(length=3, pad=3)
        looks = ({"color": CAT}, {"color": BUFFER, "linestyle": (0, (4, 1.6))})
        for i, look in enumerate(looks):
            axes.plot(
                [f.step for f in frames], [pick(f)[i] for f in frames], alpha=0.22, linewidth=1.2, **look
            )
        lines = [axes.plot([], [], linewidth=2, **look)[0] for look in looks]
        dots = [
            axes.plot([], [], marker, color=look["color"], markersize=6)[0]
            for marker, look in zip("os", looks)
        ]
        title = self._label(left - 46, bottom + height + 20, size=10.5)
        ends = [self._label(0, 0, size=9.5, color=look["color"]) for look in looks]
        return {
            "axes": axes,
            "lines": lines,
            "dots": dots,
            "title": title,
            "ends": ends,
            "right": left + width,
        }

    def _show_plot(self, plot: dict, frame: Frame, pick, names) -> None:
        so_far = self.run.frames[: frame.step + 1]
        heights = []
        for i, (line, dot) in enumerate(zip(plot["lines"], plot["dots"])):
            values = [pick(f)[i] for f in so_far]
            line.set_data([f.step for f in so_far], values)
            dot.set_data([frame.step], [values[-1]])
            heights.append(plot["axes"].transData.transform((0, values[-1]))[1])
        low, high = sorted(heights)
        if high - low < 30:  # two lines of words each: keep them apart
            middle = max((low + high) / 2, 52 + 22)
            low, high = middle - 15, middle + 15
        upper = 0 if heights[0] >= heights[1] else 1
        for i, label in enumerate(plot["ends"]):
            label.set_text(f"{names[i]}: {style.format_bytes(pick(frame)[i])}" if frame.step else "")
            label.place(plot["right"] + 6, high if i == upper else low)


def _written(frame: Frame) -> tuple[int, int]:
    return frame.cat.written, frame.buffer.written


def _alive(frame: Frame) -> tuple[int, int]:
    return frame.cat.peak, frame.buffer.held


def _address(moved: bool, t: int) -> str:
    if t < 2:
        return "made in the first update" if t else "made in the first update, to come"
    return "at another address than before" if moved else "at the same address as before"

"""The picture of smaller caches: bytes held against perplexity, and what is lost along the text.

One figure, its artists made once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from kvlib.lab import style
from kvlib.lab.smaller_run import FULL, QUANTISED, WINDOW, Choice, smoothed
from kvlib.perplexity import Perplexity

WIDTH, HEIGHT = 1032, 400
MOST_LABELS = 24
POINT, CLEAR = 7, 13  # pixels from the middle of a marker to its own name, and to any other
PLACES = [  # of a label, in points from its marker, the nearest first
    (x * side, y, "left" if side > 0 else "right")
    for x, y in (
        (8, 0), (7, 9), (7, -9), (10, 18), (10, -18), (10, 30), (10, -30), (10, 44), (10, 60), (10, 80),
    )
    for side in (1, -1)
]
NEAR = 10  # of these places: farther off, a small label would seem to be another point's
COLORS = {FULL: style.INK, QUANTISED: "#6D4AA3", WINDOW: "#A02C3A", "sinks": "#7A5A00"}
MARKERS = {FULL: "o", QUANTISED: "s", WINDOW: "^", "sinks": "D"}
NAMES = {FULL: "full", QUANTISED: "quantised", WINDOW: "window alone", "sinks": "window with sinks"}


class SmallerPicture:
    """The figure; `update(choice, found)` redraws it, `image()` returns what it shows."""

    def __init__(self):
        self.figure = style.new_figure(WIDTH, HEIGHT, layout=None)
        with style.matplotlib.rc_context(style.RC):
            self.left = self.figure.add_axes([0.075, 0.2, 0.37, 0.6])
            self.right = self.figure.add_axes([0.56, 0.2, 0.42, 0.6])
            self.left.set(
                xlabel="cache held at the end of the text, MB (10⁶ bytes)", xscale="log", yscale="log"
            )
            self.left.set_ylabel("perplexity of the text")
            self.right.set(xlabel="position in the text, tokens")
            self.right.set_ylabel("extra loss against the full cache, nats")
            for axis in (self.left.xaxis, self.left.yaxis):
                axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_locator(NullLocator())
            self.right.yaxis.set_major_locator(MaxNLocator(5))
            self.points = {
                family: self.left.plot([], [], linestyle="", marker=MARKERS[family], markersize=7,
                                       color=COLORS[family], fillstyle="none", markeredgewidth=1.6)[0]
                for family in COLORS
            }  # fmt: skip
            (self.chosen,) = self.left.plot([], [], linestyle="", markersize=12, zorder=5)
            self.chosen_name = self.left.annotate(
                "", (1, 1), (9, 8), textcoords="offset points", va="center", zorder=6
            )
            (self.held,) = self.left.plot([], [], linestyle=style.FLOOR_LINE, linewidth=1.2, zorder=1)
            self.held_name = self.left.text(0, 0, "", fontsize=8.5, va="top")
            self.labels = [
                self.left.annotate("", (1, 1), (7, 0), textcoords="offset points", fontsize=8, va="center")
                for _ in range(MOST_LABELS)
            ]
            self.others = [
                self.right.plot([], [], linewidth=1, alpha=0.45, color=style.MUTED)[0] for _ in range(8)
            ]
            (self.line,) = self.right.plot([], [], linewidth=2.4, zorder=4)
            self.level = self.right.axhline(0, color=style.INK, linewidth=1.2)
            self.zero = self.right.text(
                0.995, 0, "0: the full cache", ha="right", va="top", fontsize=9,
                transform=self.right.get_yaxis_transform(),
            )  # fmt: skip
            (self.leaves,) = self.right.plot([], [], linestyle=style.WEIGHTS_LINE, color=style.MUTED)
            self.leaves_name = self.right.text(0, 0, "", fontsize=9, color=style.MUTED, va="top")
            self.title = self.figure.text(0.012, 0.93, "", fontsize=12)
            self._key()

    def _key(self) -> None:
        """Name the markers, from left to right along the lower edge."""
        x = 0.075
        for family, name in NAMES.items():
            self.figure.text(x, 0.03, {"o": "○", "s": "□", "^": "△", "D": "◇"}[MARKERS[family]],
                             color=COLORS[family], fontsize=12)  # fmt: skip
            self.figure.text(x + 0.02, 0.034, name, color=COLORS[family], fontsize=9.5)
            x += 0.038 + 0.0085 * len(name)

    def update(self, choice: Choice, found: Mapping[Choice, Perplexity], nbytes: int, title: str) -> None:
        """Show one choice among all that were measured; `nbytes` is what it holds."""
        color, full = COLORS[choice.family], found.get(Choice())
        for family, artist in self.points.items():
            here = [f for c, f in found.items() if c.family == family]
            artist.set_data([f.cache_bytes / 1e6 for f in here], [f.value for f in here])
        self._limits([f.cache_bytes / 1e6 for f in found.values()] + [nbytes / 1e6],
                     [f.value for f in found.values()])  # fmt: skip
        mine = found.get(choice)
        at = ([mine.cache_bytes / 1e6], [mine.value]) if mine else ([], [])
        self.chosen.set_data(*at)
        self.chosen.set(color=color, marker=MARKERS[choice.family])
        self.held.set_data([nbytes / 1e6] * 2, self.left.get_ylim())
        self.held.set_color(color)
        left = nbytes > np.prod(self.left.get_xlim()) ** 0.5 * 1e6  # on the side with room
        self.held_name.set(x=nbytes / 1e6, y=self.left.get_ylim()[1], color=color,
                           text=f" bytes held by {'the choice' if mine else choice.name()} ",
                           ha="right" if left else "left")  # fmt: skip
        self._take_places(found, nbytes)
        self._name(choice, mine, color)
        self._label_others(choice, found)
        self._losses(choice, found, full, mine, color)
        self.title.set_text(title)
        self.figure.canvas.draw()

    def _limits(self, sizes: list[float], perplexities: list[float]) -> None:
        self.left.set_xlim(min(sizes) / 1.5, max(sizes) * 1.5)
        low, high = min(perplexities, default=10), max(perplexities, default=20)
        self.left.set_ylim(low / 1.15, max(high, 1.4 * low) * 1.2)

    def _name(self, choice: Choice, mine: Perplexity | None, color: str) -> None:
        """Write the choice at its point; one that is not measured yet is named at its upright line."""
        self.chosen_name.set_text("")
        if mine:
            self.chosen_name.xy = mine.cache_bytes / 1e6, mine.value
            self.chosen_name.set(text=choice.name(), color=color, fontweight="bold")
            self._place(self.chosen_name, always=True)

    def _label_others(self, choice: Choice, found: Mapping[Choice, Perplexity]) -> None:
        """Write small at each other point what it is, where there is room for it."""
        others = [other for other in found if other != choice]
        for artist in self.labels:
            artist.set_text("")
        for artist, other in zip(self.labels, others):
            artist.xy = found[other].cache_bytes / 1e6, found[other].value
            artist.set(text=_short(other), color=COLORS[other.family])
            self._place(artist, always=False)

    def _take_places(self, found: Mapping[Choice, Perplexity], nbytes: int) -> None:
        """Note what labels must keep off: the points, the upright line and its name."""
        at = self.left.transData.transform
        self._points = [at((was.cache_bytes / 1e6, was.value)) for was in found.values()]
        x, (bottom, top) = at((nbytes / 1e6, 1))[0], self.left.bbox.intervaly
        self._taken = [Bbox.from_extents(x - 1, bottom, x + 1, top), self._extent(self.held_name)]

    def _place(self, label, always: bool) -> None:
        """Move a label to the first place near its point that is free; else, unless `always`, drop it."""
        best, own = None, self.left.transData.transform(label.xy)
        room = [(x, y, POINT if np.allclose((x, y), own) else CLEAR) for x, y in self._points]
        taken = self._taken + [Bbox.from_extents(x - r, y - r, x + r, y + r) for x, y, r in room]
        for x, y, side in PLACES if always else PLACES[:NEAR]:
            x *= 1.5 if always else 1  # the chosen point is larger
            label.set(position=(x, y), ha=side)
            box = self._extent(label)
            outside = not _within(self.left.bbox, box)
            hidden = sum(box.overlaps(other) for other in taken) + 100 * outside
            if best is None or hidden < best[0]:
                best = hidden, x, y, side, box
            if not hidden:
                break
        hidden, x, y, side, box = best
        if hidden and not always:
            label.set_text("")
            return
        label.set(position=(x, y), ha=side)
        self._taken.append(box)

    def _extent(self, label) -> Bbox:
        return Bbox(label.get_window_extent(self.figure.canvas.get_renderer()).get_points())

    def _losses(
        self, choice: Choice, found, full: Perplexity | None, mine: Perplexity | None, color: str
    ) -> None:
        """Draw every choice's smoothed extra loss against the full cache, the selected one heavy."""
        curves = []
        if full is not None:
            others = [f for c, f in found.items() if c not in (choice, Choice())]
            curves = [smoothed(f.nll - full.nll) for f in others[-len(self.others) :]]
        for line, curve in zip(self.others, curves + [[]] * len(self.others)):
            line.set_data(range(len(curve)), curve)
        mine = smoothed(mine.nll - full.nll) if mine and full else np.zeros(0)
        self.line.set_data(range(len(mine)), mine)
        self.line.set_color(color)
        length = max([len(f.nll) for f in found.values()], default=1)
        most = max([float(np.max(c)) for c in [*curves, mine] if len(c)], default=0.0)
        least = min([float(np.min(c)) for c in [*curves, mine] if len(c)], default=0.0)
        span = max(most - min(least, 0.0), 0.1)
        self.right.set(xlim=(0, length), ylim=(min(least, 0.0) - 0.13 * span, most + 0.15 * span))
        self.zero.set_y(min(least, 0.0) - 0.02 * span)
        self.leaves.set_data([], [])
        self.leaves_name.set_text("")
        if choice.window and choice.window < length:
            bottom, top = self.right.get_ylim()
            self.leaves.set_data([choice.window] * 2, (bottom, top))
            right = choice.window < 0.6 * length
            self.leaves_name.set(text=" the first rows leave " if not choice.sinks else " rows leave ",
                                 x=choice.window, y=top, ha="left" if right else "right")  # fmt: skip

    def image(self):
        """Return the pixels as an RGB image."""
        return style.image_of(self.figure)


def _within(outer: Bbox, box: Bbox) -> bool:
    """Say whether a box lies inside another, or sticks out to the right or above by a little."""
    return box.x0 >= outer.x0 and box.y0 >= outer.y0 and box.x1 <= outer.x1 + 60 and box.y1 <= outer.y1 + 8


def _short(choice: Choice) -> str:
    """Return a choice in very few characters: int4, 128 or 128 + 4."""
    if choice.kind == WINDOW:
        return f"{choice.window} + {choice.sinks}" if choice.sinks else f"{choice.window}"
    return f"int{choice.bits}" if choice.kind == QUANTISED else "full"

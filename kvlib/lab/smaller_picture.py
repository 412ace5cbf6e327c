"""The picture of smaller caches: bytes held against perplexity, and what is lost along the text.

One figure, its artists made once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kvlib.lab import style
from kvlib.lab.smaller_run import FULL, QUANTISED, WINDOW, Choice, smoothed
from kvlib.perplexity import Perplexity

WIDTH, HEIGHT = 1032, 400
MOST_LABELS = 24
LABEL_HEIGHT = 11  # pixels
COLORS = {FULL: style.INK, QUANTISED: "#6D4AA3", WINDOW: "#A02C3A", "sinks": "#7A5A00"}
MARKERS = {FULL: "o", QUANTISED: "s", WINDOW: "^", "sinks": "D"}
NAMES = {FULL: "full", QUANTISED: "quantised", WINDOW: "window alone", "sinks": "window with sinks"}


class SmallerPicture:
    """Hold the figure; `update(choice, found)` redraws it, `image()` returns what it shows."""

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
            self.right.set_ylabel("loss above the full cache's, nats")
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
            self.chosen_name = self.left.annotate("", (1, 1), (9, 8), textcoords="offset points", zorder=6)
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
            self.figure.text(x + 0.016, 0.034, name, color=COLORS[family], fontsize=9.5)
            x += 0.034 + 0.0085 * len(name)

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
                           text=" bytes held by the choice ", ha="right" if left else "left")  # fmt: skip
        self._name(choice, mine, nbytes, color)
        self._label_others(choice, found)
        self._losses(choice, found, full, mine, color)
        self.title.set_text(title)
        self.figure.canvas.draw()

    def _limits(self, sizes: list[float], perplexities: list[float]) -> None:
        self.left.set_xlim(min(sizes) / 1.5, max(sizes) * 1.5)
        low, high = min(perplexities, default=10), max(perplexities, default=20)
        self.left.set_ylim(low / 1.15, max(high, 1.4 * low) * 1.2)

    def _name(self, choice: Choice, mine: Perplexity | None, nbytes: int, color: str) -> None:
        """Write the choice beside its point, on the side with room."""
        low, high = self.left.get_xlim()
        right = np.log(nbytes / 1e6 / low) < 0.55 * np.log(high / low)
        height = mine.value if mine else self.left.get_ylim()[0] * 1.05
        self.chosen_name.xy = (nbytes / 1e6, height)
        self.chosen_name.set_position((10 if right else -10, 8))
        self.chosen_name.set(
            text=choice.name(),
            ha="left" if right else "right", color=color, fontweight="bold" if mine else "normal",
        )  # fmt: skip

    def _label_others(self, choice: Choice, found: Mapping[Choice, Perplexity]) -> None:
        """Write small at each other point what it is; none where it would cover one or the choice."""
        taken = [self.left.transData.transform(self.chosen_name.xy)] if choice in found else []
        placed, name = {}, self.chosen_name.get_window_extent(self.figure.canvas.get_renderer())
        for other, was in found.items():
            at = self.left.transData.transform((was.cache_bytes / 1e6, was.value))
            ends = ((at[0] + right, at[1] + up) for right in (0, 40) for up in (-5, 5))
            free = not any(name.contains(*end) for end in ends)
            if other != choice and free and all(_apart(at, place) for place in taken):
                taken.append(at)
                placed[other] = was.cache_bytes / 1e6, was.value
        for artist in self.labels:
            artist.set_text("")
        for artist, (other, at) in zip(self.labels, placed.items()):
            artist.xy = at
            artist.set(text=_short(other), color=COLORS[other.family])

    def _losses(
        self, choice: Choice, found, full: Perplexity | None, mine: Perplexity | None, color: str
    ) -> None:
        """Draw the smoothed loss above the full cache's of every choice, the selected one heavy."""
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


def _apart(one, other) -> bool:
    """Say whether a small label at each of two places, in pixels, would leave the other to be read."""
    return abs(one[1] - other[1]) >= LABEL_HEIGHT or abs(one[0] - other[0]) >= 5 * LABEL_HEIGHT


def _short(choice: Choice) -> str:
    """Return a choice in very few characters: int4, 128 or 128 + 4."""
    if choice.kind == WINDOW:
        return f"{choice.window} + {choice.sinks}" if choice.sinks else f"{choice.window}"
    return f"int{choice.bits}" if choice.kind == QUANTISED else "full"

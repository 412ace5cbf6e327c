"""The picture of a softmax over tiles: scores and maximum, what is kept of them, the answer so far.

One figure, its artists made once. The two panes on the left share their keys; the pane on the
right lays the answer so far beside the exact one.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from kvlib.lab import style
from kvlib.lab.online_softmax_steps import PARTS, Frame, OnlineSoftmax
from kvlib.lab.online_softmax_words import number

WIDTH, HEIGHT = 1032, 480
FUTURE, KEPT, NEW, BAND, HIGH = "#D3D1C8", "#6A8CA6", "#C98A0B", "#F6E9CB", "#A02C3A"
PART_COLOURS = ("#6A8CA6", "#8FAE8B")  # neighbours differ
EXACT = style.INK
MOST_KEYS, MOST_DIMS, MOST_SHARES = 64, 8, 24
_ORDINALS = {2: "nd", 3: "rd"}


class OnlineSoftmaxPicture:
    """The figure; `update(softmax, frame)` redraws it, `image()` returns what it shows."""

    def __init__(self):
        self.figure = style.new_figure(WIDTH, HEIGHT, layout=None)
        with style.matplotlib.rc_context(style.RC):
            self.scores = self.figure.add_axes([0.062, 0.585, 0.578, 0.325])
            self.kept = self.figure.add_axes([0.062, 0.17, 0.578, 0.285])
            self.answer = self.figure.add_axes([0.715, 0.42, 0.275, 0.49])
        self.notes = [[self._text(x, 0.275 - 0.056 * i, size=9.5) for x in (0.715, 0.79)] for i in range(4)]
        self.titles = {
            axes: self._text(axes.get_position().x0, axes.get_position().y1 + 0.032, size=11)
            for axes in (self.scores, self.kept, self.answer)
        }
        self._keys: OnlineSoftmax | None = None
        for axes in self.titles:
            axes.tick_params(length=3, pad=3)

    def update(self, it: OnlineSoftmax, frame: Frame) -> None:
        """Show one step: new artists for another softmax, moved ones for another step."""
        if self._keys is not it:
            self._lay_out(it)
        self._show_scores(it, frame)
        self._show_kept(it, frame)
        self._show_answer(it, frame)
        notes = self._notes(it, frame)
        for i, labels in enumerate(self.notes):
            for label, text in zip(labels, notes[i] if i < len(notes) else ("", "")):
                label.set_text(text)
        self.figure.canvas.draw()

    def image(self):
        """Return the pixels as an RGB image."""
        return style.image_of(self.figure)

    def _text(self, x: float, y: float, size: float):
        return self.figure.text(x, y, "", fontsize=size, color=style.INK, parse_math=False, va="center")

    # Once for a softmax ---------------------------------------------------------------------------

    def _lay_out(self, it: OnlineSoftmax) -> None:
        self._keys, T = it, it.num_keys
        shown = it.scores[np.isfinite(it.scores)]
        low, high = (shown.min(), shown.max()) if len(shown) else (0.0, 1.0)
        self.floor = low - 0.18 * max(high - low, 1e-3 * max(abs(low), abs(high), 1e-3))
        top = high + (high - self.floor) * 0.16
        for axes in (self.scores, self.kept):
            axes.clear()
            axes.set(xlim=(-0.6, T - 0.4))
            axes.tick_params(length=3, pad=3)
        self.scores.set_ylim(self.floor, top)
        self.scores.set_xticks([])
        self.kept.set_ylim(0, 1.25)
        self.kept.set_yticks([0, 0.5, 1])
        stride = max(1, math.ceil(T / 40))
        ticks = list(range(0, T, stride))
        self.kept.set_xticks(ticks, [_shortened(it.words[i]) for i in ticks], rotation=90, fontsize=8)
        self.kept.tick_params(axis="x", length=0)
        edges = [start - 0.5 for start in it.starts[1:]]
        for axes in (self.scores, self.kept):
            bottom, height = axes.get_ylim()
            lines = [[(x, bottom), (x, height)] for x in edges]
            axes.add_collection(LineCollection(lines, colors=style.HAIRLINE, linewidths=0.8, zorder=0))
        self.band = [axes.add_patch(Rectangle((0, 0), 0, 0, color=BAND, zorder=-1)) for axes in
                     (self.scores, self.kept)]  # fmt: skip
        heights = np.where(np.isfinite(it.scores), it.scores - self.floor, 0)
        self.bars = self.scores.bar(range(T), heights, bottom=self.floor, width=0.78, color=FUTURE)
        self.rest = self.kept.bar(range(T), np.zeros(T), width=0.78, color=KEPT)
        self.highs = self.scores.add_collection(LineCollection([], colors=HIGH, linewidths=1.8, zorder=4))
        self.old = self.scores.add_collection(
            LineCollection([], colors=HIGH, linewidths=1.4, linestyles=[(0, (3, 2))], zorder=4)
        )
        self.part_names = [
            self.kept.text(0, 1.22, "", ha="center", va="top", fontsize=9, color=style.INK, parse_math=False)
            for _ in range(min(len(it.starts), MOST_SHARES))
        ]
        self._lay_out_answer(it)

    def _lay_out_answer(self, it: OnlineSoftmax) -> None:
        axes, D = self.answer, min(it.values.shape[1], MOST_DIMS)
        axes.clear()
        axes.tick_params(length=3, pad=3)
        outs = np.array([it.frame(step).out[:D] for step in range(it.last_step + 1)])
        most = np.abs(outs).max() or 1.0
        low, high = min(outs.min(), -0.08 * most), max(outs.max(), 0.08 * most)
        axes.set(xlim=(-0.6, D - 0.4), ylim=(1.08 * low, 1.08 * high))
        axes.set_xticks(range(D), [str(i) for i in range(D)])
        axes.set_xlabel(
            "component of the output" + (f", first {D}" if it.values.shape[1] > D else ""), labelpad=2
        )
        axes.axhline(0, color=style.MUTED, linewidth=0.8)
        self.now = axes.bar(range(D), np.zeros(D), width=0.62, color=NEW)
        self.truth = axes.hlines(it.exact[:D], np.arange(D) - 0.42, np.arange(D) + 0.42, color=EXACT)
        self.truth.set(linewidth=2.2, zorder=5)
        self.titles[axes].set_text("Answer so far (bars), exact (lines)")

    # At each step ---------------------------------------------------------------------------------

    def _colours(self, it: OnlineSoftmax, frame: Frame) -> list[str]:
        colours = []
        for i in range(it.num_keys):
            part = i // it.tile
            if frame.merged:
                colours.append(PART_COLOURS[part % 2])
            elif frame.step and frame.start <= i < frame.end:
                colours.append(NEW)
            elif i < frame.end:
                colours.append(PART_COLOURS[part % 2] if it.mode == PARTS else KEPT)
            else:
                colours.append(FUTURE)
        return colours

    def _show_scores(self, it: OnlineSoftmax, frame: Frame) -> None:
        for bar, colour in zip(self.bars, self._colours(it, frame)):
            bar.set_color(colour)
        lines, old = [], []
        if it.mode == PARTS:
            for start, high in zip(it.starts, frame.highs):
                if np.isfinite(high):
                    lines.append([(start - 0.5, high), (min(start + it.tile, it.num_keys) - 0.5, high)])
            title = "Scores; each part has a maximum of its own (line)"
        else:
            if np.isfinite(frame.high):
                lines.append([(-0.5, frame.high), (frame.end - 0.5, frame.high)])
            if np.isfinite(frame.old_high) and frame.old_high < frame.high:
                old.append([(-0.5, frame.old_high), (frame.start - 0.5, frame.old_high)])
            title = "Scores, and the maximum so far (solid line; dashed: before this tile)"
        self.highs.set_segments(lines)
        self.old.set_segments(old)
        self.titles[self.scores].set_text(title)
        for band, axes in zip(self.band, (self.scores, self.kept)):
            bottom, top = axes.get_ylim()
            band.set_bounds(frame.start - 0.5, bottom, frame.end - frame.start, top - bottom)
            band.set_visible(frame.step > 0 and not frame.merged)

    def _show_kept(self, it: OnlineSoftmax, frame: Frame) -> None:
        colours = self._colours(it, frame)
        for bar, weight, colour in zip(self.rest, frame.weights, colours):
            bar.set_height(weight)
            bar.set_color(colour)
        title = "Weight of each key so far: exp(score − maximum)"
        if it.mode == PARTS:
            title = "Weight of each key in its part: exp(score − the part's maximum)"
        if frame.merged:
            title = "Weight of each key in the whole: exp(score − log-sum of all)"
        every = self._name_parts(it, frame)
        if any(label.get_text() for label in self.part_names):
            which = "each part" if every == 1 else f"every {every}{_ORDINALS.get(every, 'th')} part"
            what = f"{'share' if frame.merged else 'log-sum'} of {which}"
            title = f"{title.partition(':')[0]}; above: {what}"
        self.titles[self.kept].set_text(title)

    def _name_parts(self, it: OnlineSoftmax, frame: Frame) -> int:
        """Write the parts' shares or log-sums above them, or every n-th of them; return n."""
        for label in self.part_names:
            label.set_text("")
        if it.mode != PARTS or len(it.starts) > MOST_SHARES:
            return 1
        short = len(it.starts) > 10
        texts = [f"{share:.0%}" for share in frame.shares] if frame.merged else [
            f"{x:.1f}".replace("-", "−") if short and np.isfinite(x) else number(x) for x in frame.log_sums
        ]  # fmt: skip
        key = self.kept.get_position().width * WIDTH / it.num_keys  # pixels
        need = (8.3 * max(map(len, texts), default=0) + 4) / key  # keys that a label covers
        every, last = max(1, math.ceil(need / it.tile)), -math.inf
        for i in range(0, len(texts), every):
            middle = (it.starts[i] + min(it.starts[i] + it.tile, it.num_keys) - 1) / 2
            if middle - last >= need:
                self.part_names[i].set(x=middle, text=texts[i])
                last = middle
        return every

    def _show_answer(self, it: OnlineSoftmax, frame: Frame) -> None:
        for bar, height in zip(self.now, frame.out):
            bar.set_height(height)
        title = "Answer so far (bars), exact (lines)"
        if it.mode == PARTS:
            own = "Merged answer" if frame.merged else "This part alone" if frame.step else "Answer"
            title = f"{own} (bars), exact (lines)"
        self.titles[self.answer].set_text(title)

    def _notes(self, it: OnlineSoftmax, frame: Frame) -> list[tuple[str, str]]:
        """Return names and numbers for the lower right corner."""
        error = "error", _error(it, frame)
        if frame.merged:
            return [
                ("log-sum", f"{number(it.log_sum)} of all"),
                ("shares", f"sum to {sum(frame.shares):.3g}"),
                error,
            ]
        if it.mode == PARTS:
            if not frame.step:
                return [error]
            log_sum = "log-sum", number(frame.log_sums[-1])
            return [("maximum", number(frame.high)), ("sum", number(frame.total)), log_sum, error]
        change = f"{number(frame.old_high)} → {number(frame.high)}" if frame.step else number(frame.high)
        times = [("rescale", f"× {number(frame.rescale)}")] if frame.step else []
        return [("maximum", change), *times, ("sum", number(frame.total)), error]


def _error(it: OnlineSoftmax, frame: Frame) -> str:
    error = it.error(frame)
    return "0" if error == 0 else "rounding" if error < 1e-12 else number(error)


def _shortened(word: str, limit: int = 9) -> str:
    word = word.strip() or repr(word)
    return word if len(word) <= limit else word[: limit - 1] + "…"

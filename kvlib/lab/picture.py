"""The live lab's picture: memory on the left, the time of one decode step on the right.

One figure, its artists made once and moved on each update.
"""

from __future__ import annotations

import numpy as np
from PIL.Image import Image

from kvlib.lab import style, words
from kvlib.lab.curves import CONTEXTS, View
from kvlib.lab.panel_picture import PanePicture
from kvlib.lab.panes import Bar, Pane
from kvlib.lab.recorded_lines import RecordedLines, recorded_times

WIDTH, HEIGHT = 1032, 440
GAP = "#DDDBD3"  # the part of a measured step that its floor does not explain


class LabPicture(PanePicture):
    """Hold the figure; `update(view)` redraws it, `png()` returns what it shows."""

    def __init__(self):
        super().__init__(WIDTH, HEIGHT)
        with style.matplotlib.rc_context(style.RC):
            self.memory = Pane(self.figure, left=76, bottom=118, width=282, height=262)
            self.time = Pane(self.figure, left=608, bottom=118, width=316, height=262)
            self.memory.name_axis("KV cache", x=10)
            self.time.name_axis("one decode step", x=534)
            self.memory_bar = Bar(self.memory, left=76, bottom=22, width=436, height=17)
            self.time_bar = Bar(self.time, left=608, bottom=22, width=412, height=17)
            self.panes = (self.memory, self.time)
            for pane, left in ((self.memory, 10), (self.time, WIDTH // 2 + 10)):
                pane.head_at(left)  # so that long titles stay in their half
            self._add_lines()

    def _add_lines(self) -> None:
        self.limit = self.memory._line(color=style.MEMORY, linewidth=1.4)
        self.chosen = self.memory._line(linestyle="", markersize=10, zorder=5)
        self.points = {
            kind: self.time._line(color=style.COLORS[kind], marker=style.MARKERS[kind], zorder=3)
            for kind in style.KINDS
        }
        for curve in self.time.curves.values():
            curve.set_linestyle(style.FLOOR_LINE)
        self.range = self.time._line(color=style.MUTED, linewidth=5, alpha=0.45, zorder=2.8)
        self.guess = self.time._line(
            color=style.GUESS, marker="D", markersize=8, fillstyle="none", markeredgewidth=2,
            zorder=6,
        )  # fmt: skip
        self.guess_label = self.time.text(0, 0, color=style.GUESS, halo=True)
        self.truth_label = self.time.text(0, 0, halo=True)
        for label in (self.guess_label, self.truth_label):
            label.set_zorder(8)
        self.overlays = [self.time._line(marker="P", markersize=5, linewidth=1.2, zorder=4) for _ in range(3)]
        self.recorded = RecordedLines(self.time)

    def update(self, view: View) -> None:
        """Show the view: move every artist, then draw."""
        moved = self._update_memory(view)
        moved = self._update_time(view) or moved
        self.draw(moved)

    def halves(self) -> list[Image]:
        """Return memory and time as two images, which a narrow window puts on each other."""
        whole = self.image()
        return [whole.crop((left, 0, left + WIDTH // 2, HEIGHT)) for left in (0, WIDTH // 2)]

    # Left ---------------------------------------------------------------------------------------

    def _update_memory(self, view: View) -> bool:
        pane, setting, kind = self.memory, view.setting, view.setting.kind
        weights, cache = setting.weight_bytes(), setting.cache_bytes()
        curves = {k: view.cache_curve(k) for k in style.KINDS}
        heaviest = max(setting.weight_bytes(k) for k in style.KINDS)
        lightest = min(setting.weight_bytes(k) for k in style.KINDS)
        moved = pane.set_limits(
            min(curves["MQA"][0], lightest),
            max(curves["MHA"][-1], heaviest, view.memory),
            style.format_bytes,
        )
        for k, line in pane.curves.items():
            line.set_data(CONTEXTS, curves[k])
            line.set(linewidth=3.4 if k == kind else 1.3, zorder=4 if k == kind else 2)
        ends = pane.axes.get_xlim()
        pane.level.set_data(ends, [weights, weights])
        self.limit.set_data(ends, [view.memory, view.memory])
        self.chosen.set_data([setting.context], [cache])
        self.chosen.set(marker=style.MARKERS[kind], color=style.COLORS[kind])
        pane.mark_context(setting.context)
        pane.title.set_text(words.memory_title(view))
        pane.note.set_text(words.shape_line(view))
        pane.label_right(
            [(curves[k][-1], _heads(setting, k), style.TEXT_COLORS[k], k == kind) for k in style.KINDS]
            + [
                (weights, f"weights {style.format_bytes(weights)}", style.MUTED, False),
                (view.memory, f"memory {style.format_bytes(view.memory)}", style.MEMORY, False),
            ]
        )
        share = view.total_bytes / view.memory
        percent = f"{share:.0%} of" if share < 10 else f"{share:,.0f} ×"
        percent = "under 1% of" if share < 0.01 else percent
        self.memory_bar.show(
            [(weights, style.WEIGHTS), (cache, style.COLORS[kind])],
            [
                (f"■ weights {style.format_bytes(weights)}", style.MUTED),
                (f"■ cache {style.format_bytes(cache)}", style.TEXT_COLORS[kind]),
                (f"□ {percent} {style.format_bytes(view.memory)}", style.MEMORY),
            ],
            (view.memory, style.MEMORY),
        )
        return moved

    # Right --------------------------------------------------------------------------------------

    def _update_time(self, view: View) -> bool:
        pane, setting, kind = self.time, view.setting, view.setting.kind
        floors = {k: view.floor_curve(k) for k in style.KINDS}
        measured = {k: view.measured_curve(k) for k in style.KINDS}
        floor, timing = view.floor, view.timing
        moved = pane.set_limits(*_time_limits(view, floors, measured), style.format_time)
        for k in style.KINDS:
            chosen = k == kind
            pane.curves[k].set_data(CONTEXTS if floors[k] else [], floors[k])
            pane.curves[k].set(
                linewidth=2.4 if chosen else 1.2, zorder=2.5 if chosen else 2,
                linestyle=style.FLOOR_LINE_HEAVY if chosen else style.FLOOR_LINE,
            )  # fmt: skip
            self.points[k].set_data(*measured[k])
            self.points[k].set(
                linewidth=2.6 if chosen else 1, markersize=8 if chosen else 5,
                zorder=4 if chosen else 3,
            )  # fmt: skip
        for line, overlay in zip(self.overlays, _padded(view.overlays), strict=True):
            points = sorted(overlay.seconds.items()) if overlay else []
            line.set_data([c for c, _ in points], [s for _, s in points])
            if overlay:
                line.set_color(overlay.color)
        self.recorded.update(view)
        level = [floor.weights_s] * 2 if floor else []
        pane.level.set_data(pane.axes.get_xlim() if floor else [], level)
        spans = ([setting.context] * 2, [timing.low, timing.high]) if timing else ([], [])
        self.range.set_data(*spans)
        pane.mark_context(setting.context)
        pane.title.set_text(words.time_title(view))
        pane.note.set_text(words.device_line(view))
        self._label_time(view, floors, floor)
        self._mark_guess(view, self.recorded.place_label(view, self._clear))
        self._show_parts(view, floor, timing)
        return moved

    def _label_time(self, view: View, floors, floor) -> None:
        setting = view.setting
        if floor is None:
            self.time.label_right([])
            return
        labels = [
            (floors[k][-1], f"{k} {setting.kv_heads(k)}", style.TEXT_COLORS[k], k == setting.kind)
            for k in style.KINDS
        ]
        labels.append((floor.weights_s, "weights alone", style.MUTED, False))
        for overlay in view.overlays[: len(self.overlays)]:
            if overlay.seconds:
                last = overlay.seconds[max(overlay.seconds)]
                labels.append((last, words.begun(overlay.label, 12), overlay.color, False))
        self.time.label_right(labels)

    def _mark_guess(self, view: View, taken: list[float]) -> None:
        """Put the guess at its context, and name guess and truth beside it, off heights taken."""
        self.guess.set_data([], [])
        self.guess_label.set_text("")
        self.truth_label.set_text("")
        if view.guess_shown is None:
            return
        pane, (about, seconds) = self.time, view.guess_shown
        self.guess.set_data([about.context], [seconds])
        shown = [(self.guess_label, seconds, "your guess")]
        truth = view.measured.get(about.point())
        if truth and view.setting.kind == about.kind:
            shown.append((self.truth_label, truth.seconds, f"{about.kind} measured"))
            self.truth_label.set_color(style.TEXT_COLORS[about.kind])
        _, bottom, _, height = pane.box
        right = about.context < 4096  # the side with room
        wanted = [pane.pixel_y(seconds) for _, seconds, _ in shown]
        x = pane.pixel_x(about.context) + (12 if right else -12)
        said = [f"{what} {style.format_time(seconds)}" for _, seconds, what in shown]
        placed: list[float] = []
        for words_of, y in zip(said, wanted, strict=True):
            wide = 7 * len(words_of)
            span = (x - 4, x + wide) if right else (x - wide, x + 4)
            limits = (bottom + 10, bottom + height - 10)
            placed.append(self._clear(y, span, limits, [*taken, *placed]))
        for (text, *_), words_of, y in zip(shown, said, placed, strict=True):
            text.set_text(words_of)
            text.place(x, y, "left" if right else "right")

    def _clear(self, wanted: float, span, limits, taken) -> float:
        """Return the height nearest the wanted one at which a label covers no line and no label."""
        low, high = limits
        heights = [low + 2 * i for i in range(int((high - low) / 2) + 1)]
        free = [y for y in heights if all(abs(y - other) >= GUESS_GAP for other in taken)]
        over = []  # the heights of every line over the label's width
        lines = [*self.time.curves.values(), *self.points.values(), *self.overlays, self.guess]
        for line in [*lines, *self.recorded.lines, self.time.level]:
            pixels = self.time.axes.transData.transform(line.get_xydata())
            if len(pixels):
                along = np.linspace(*span, 25)
                over += list(np.interp(along, *pixels.T, left=np.nan, right=np.nan))
        over = np.array([y for y in over if y == y])
        return min(free, key=lambda y: (np.sum(abs(over - y) < GUESS_GAP / 2), abs(y - wanted)))

    def _show_parts(self, view: View, floor, timing) -> None:
        kind = view.setting.kind
        if floor is None:
            self.time_bar.show([], [])
            return
        parts = [(floor.weights_s, style.WEIGHTS), (floor.cache_s, style.COLORS[kind])]
        told = [
            (f"■ weights {style.format_time(floor.weights_s)}", style.MUTED),
            (f"■ cache {style.format_time(floor.cache_s)}", style.TEXT_COLORS[kind]),
        ]
        reading = floor.weights_s + floor.cache_s
        if timing:
            parts.append((max(0.0, timing.seconds - reading), GAP))
            told.append((f"□ measured {style.format_time(timing.seconds)}", style.INK))
            frame = (timing.seconds, style.INK)
        else:
            words_for = "arithmetic" if floor.bound_by == "arithmetic" else "floor"
            told.append((f"□ {words_for} {style.format_time(floor.seconds)}", style.FLOOR))
            frame = (floor.seconds, style.FLOOR)
        self.time_bar.show(parts, told, frame)


GUESS_GAP = 18


def _time_limits(view: View, floors, measured) -> tuple[float, float]:
    """Return the least and the largest time to show, with a little room."""
    times = [value for curve in floors.values() for value in curve]
    times += [value for _, curve in measured.values() for value in curve]
    times += [value for overlay in view.overlays for value in overlay.seconds.values()]
    times += recorded_times(view)
    times += [view.guess_shown[1]] if view.guess_shown else []
    times += [view.floor.weights_s] if view.floor else []
    if not times:
        return 1e-3, 1.0
    return min(times) * 0.8, max(times) * 1.2


def _heads(setting, kind: str) -> str:
    heads = setting.kv_heads(kind)
    return f"{kind} {heads} KV {'head' if heads == 1 else 'heads'}"


def _padded(overlays) -> list:
    return [*overlays[:3], *[None] * (3 - len(overlays[:3]))]

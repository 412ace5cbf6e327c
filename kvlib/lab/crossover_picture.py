"""The crossover panel's picture: a map of what dominates, and the lines that cross."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patheffects import withStroke

from kvlib.lab import crossover_step as step
from kvlib.lab import style
from kvlib.lab.layout import decade_ticks, round_down, round_up, spread
from kvlib.lab.panel_picture import PanelPicture

WIDTH, HEIGHT = 1032, 430
BATCHES = tuple(2**power for power in range(11))  # 1 to 1,024
CONTEXTS = tuple(2**power for power in range(7, 18))  # 128 to 131,072
WEIGHTS_TINT, ARITHMETIC_TINT, ARITHMETIC = "#D3D5DA", "#EFD9A0", "#8A5A00"
TINTS = {"MHA": "#B5D3E7", "GQA": "#AFDCCB", "MQA": "#F3C9AB"}
_BATCH_EDGES = np.geomspace(BATCHES[0] / 1.3, BATCHES[-1] * 1.3, 81)
_CONTEXT_EDGES = np.geomspace(CONTEXTS[0] / 1.3, CONTEXTS[-1] * 1.3, 81)
_BATCH_GRID = np.sqrt(_BATCH_EDGES[1:] * _BATCH_EDGES[:-1])
_CONTEXT_GRID = np.sqrt(_CONTEXT_EDGES[1:] * _CONTEXT_EDGES[:-1]).round().astype(int).tolist()


class CrossoverPicture(PanelPicture):
    """One figure, its artists made once; `update(...)` moves them, `png()` gives the pixels."""

    def __init__(self):
        super().__init__(WIDTH, HEIGHT)
        with style.matplotlib.rc_context(style.RC):
            self.map = self.figure.add_axes([0.074, 0.145, 0.375, 0.68])
            self.lines = self.figure.add_axes([0.553, 0.145, 0.33, 0.68])
            self._make_axes()
            self._make_artists()

    def _make_axes(self) -> None:
        for axes in (self.map, self.lines):
            axes.set(xscale="log", yscale="log", xlim=(_BATCH_EDGES[0], _BATCH_EDGES[-1]))
            axes.set_xticks(BATCHES, [str(b) if b < 1000 else "1k" for b in BATCHES])
            axes.minorticks_off()
            axes.set_xlabel("batch, sequences", labelpad=3)
            axes.tick_params(length=3, pad=3)
        self.map.set_ylim(_CONTEXT_EDGES[0], _CONTEXT_EDGES[-1])
        shown = CONTEXTS[::2]
        self.map.set_yticks(shown, [style.format_tokens(c) for c in shown])
        self.map.minorticks_off()
        self.map.set_ylabel("context of each sequence, tokens", labelpad=3)
        self.lines.set_ylabel("one decode step, at the least", labelpad=3)

    def _make_artists(self) -> None:
        place = {"fontsize": 12, "parse_math": False}
        self.map_title = self.figure.text(0.074, 0.925, "", **place)
        self.lines_title = self.figure.text(0.553, 0.925, "", **place)
        place = {"fontsize": 9, "color": style.MUTED, "parse_math": False}
        self.map_note = self.figure.text(0.074, 0.868, "", **place)
        self.lines_note = self.figure.text(0.553, 0.868, "", **place)
        empty = np.zeros((len(_CONTEXT_GRID), len(_BATCH_GRID)))
        self.mesh = self.map.pcolormesh(_BATCH_EDGES, _CONTEXT_EDGES, empty, vmin=0, vmax=2)
        self.edges = [
            self.map.plot([], [], color=style.INK, linewidth=1.1, linestyle=line)[0]
            for line in ("-", (0, (4, 2)))
        ]
        self.regions = [
            self.map.text(1, 128, "", ha="center", va="center", fontsize=10, color=style.INK)
            for _ in step.PARTS
        ]
        (self.row,) = self.map.plot([], [], color=style.INK, linewidth=0.7, alpha=0.6)
        (self.here,) = self.map.plot(
            [], [], "o", color=style.INK, markersize=11, fillstyle="none", markeredgewidth=2.4
        )
        self.curves = {
            name: self.lines.plot([], [], **look)[0]
            for name, look in {
                "weights": {"color": style.WEIGHTS, "linestyle": style.WEIGHTS_LINE, "linewidth": 2},
                "cache": {"linewidth": 2},
                "arithmetic": {"color": ARITHMETIC, "linestyle": (0, (6, 2, 1, 2)), "linewidth": 2},
                "floor": {"color": style.FLOOR, "linestyle": style.FLOOR_LINE, "linewidth": 3.2},
            }.items()
        }
        (self.column,) = self.lines.plot([], [], color=style.INK, linewidth=0.7, alpha=0.6, zorder=0)
        (self.chosen,) = self.lines.plot(
            [], [], "o", color=style.FLOOR, markersize=11, fillstyle="none", markeredgewidth=2.4
        )
        (self.measured,) = self.lines.plot([], [], "o", color=style.INK, markersize=8, zorder=5)
        self.measured_label = self.lines.annotate(
            "", (1, 1), (0, 9), textcoords="offset points", ha="center", va="bottom",
            path_effects=[withStroke(linewidth=3, foreground=style.CARD)], zorder=6,
        )  # fmt: skip
        self.gutter = [
            (
                self.figure.text(0, 0, "", fontsize=9.5, va="center", parse_math=False),
                self.lines.plot([], [], linewidth=0.8, clip_on=False, transform=None)[0],
            )
            for _ in self.curves
        ]

    def update(self, case: step.Case, context: int, batch: int, timing=None, dtype: str = "") -> None:
        """Show this case; `timing` is a measured step of the selected point, or None."""
        kind = step.kind_of(case.preset)
        self._update_map(case, context, batch, kind)
        self._update_lines(case, context, batch, kind, timing)
        self.map_note.set_text(f"{case.preset.name}, {kind}, {dtype}")
        where = "rates measured here" if case.machine.measured else "published rates"
        name = case.machine.name
        self.lines_note.set_text(f"{name if len(name) < 34 else name[:32] + '…'}: {where}")
        self.figure.canvas.draw()

    # Left ---------------------------------------------------------------------------------------

    def _update_map(self, case: step.Case, context: int, batch: int, kind: str) -> None:
        grid = case.dominants(_CONTEXT_GRID, _BATCH_GRID)
        self.mesh.set_cmap(ListedColormap([WEIGHTS_TINT, TINTS[kind], ARITHMETIC_TINT]))
        self.mesh.set_array(grid)
        points = [(case.cache_batch(c), case.arithmetic_batch(c), c) for c in _CONTEXT_GRID]
        cache = [(b, c) for b, a, c in points if a is None or b < a]
        arithmetic = [(a, c) for _, a, c in points if a is not None]
        for line, found in zip(self.edges, (cache, arithmetic)):
            line.set_data([b for b, _ in found], [c for _, c in found])
        for index, (text, name) in enumerate(zip(self.regions, step.PARTS)):
            place = _middle(grid == index)
            narrow = place is None or place[1] > 0.84 * len(_BATCH_GRID)  # at the right end, or small
            text.set(text="" if place is None else name, ha="center", rotation=0, color=style.INK)
            rows = np.flatnonzero((grid == index)[:, -1])
            if narrow and len(rows):  # named beside the map, upright
                row = min(max(int(rows.mean()), 11), len(_CONTEXT_GRID) - 12)
                color = {"arithmetic": ARITHMETIC, "cache": style.TEXT_COLORS[kind]}.get(name, style.INK)
                text.set(text=name, ha="left", rotation=90, color=color)
                text.set_position((_BATCH_EDGES[-1] * 1.06, _CONTEXT_GRID[row]))
            elif place is not None:
                text.set_position((_BATCH_GRID[place[1]], _CONTEXT_GRID[place[0]]))
        self.row.set_data(self.map.get_xlim(), [context, context])
        self.here.set_data([batch], [context])
        self.map_title.set_text(step.map_title(case, context, batch))

    # Right --------------------------------------------------------------------------------------

    def _update_lines(self, case: step.Case, context: int, batch: int, kind: str, timing) -> None:
        floors = [case.floor(context, b) for b in BATCHES]
        values = {
            "weights": [f.weights_s for f in floors],
            "cache": [f.cache_s for f in floors],
            "arithmetic": [f.compute_s for f in floors],
            "floor": [f.seconds for f in floors],
        }
        for name, curve in self.curves.items():
            curve.set_data(BATCHES, values[name])
        self.curves["cache"].set_color(style.COLORS[kind])
        top = max(values["floor"])
        low = max(min(min(v) for v in values.values()), top / 1e6)  # six decades are enough
        if timing is not None:
            top = max(top, timing.seconds)
        low, top = round_down(low), round_up(top)
        self.lines.set_ylim(low * 0.93, top * 1.07)
        ticks = decade_ticks(low, top)
        self.lines.set_yticks(ticks, [style.format_time(t) for t in ticks])
        self.lines.minorticks_off()
        self.column.set_data([batch, batch], self.lines.get_ylim())
        self.chosen.set_data([batch], [case.floor(context, batch).seconds])
        self.measured.set_data(([batch], [timing.seconds]) if timing else ([], []))
        self.measured_label.xy = (batch, timing.seconds if timing else top)
        self.measured_label.set_text(f"measured {style.format_time(timing.seconds)}" if timing else "")
        self.measured_label.set_ha("left" if batch < 8 else "right" if batch > 64 else "center")
        self.lines_title.set_text(step.lines_title(case, context))
        colors = {"cache": style.TEXT_COLORS[kind], "weights": style.MUTED}
        self._label({n: v[-1] for n, v in values.items()}, colors)

    def _label(self, ends: dict[str, float], colors: dict[str, str]) -> None:
        """Write each line's name beside its right end, none over another."""
        words = {
            "weights": "read weights", "cache": "read cache", "arithmetic": "arithmetic",
            "floor": "the floor",
        }  # fmt: skip
        right, bottom = self.lines.transAxes.transform((1, 0))
        _, top = self.lines.transAxes.transform((1, 1))
        pixel = [self.lines.transData.transform((BATCHES[-1], end))[1] for end in ends.values()]
        placed = spread(pixel, 17, bottom + 4, top + 4)
        for (text, leader), name, own, y in zip(self.gutter, ends, pixel, placed):
            color = colors.get(name, self.curves[name].get_color())
            text.set(text=words[name], color=color, x=(right + 13) / WIDTH, y=y / HEIGHT)
            text.set_fontweight("bold" if name == "floor" else "normal")
            leader.set(data=([right + 1, right + 5, right + 10], [own, own, y]), color=color)


def _middle(inside: np.ndarray) -> tuple[int, int] | None:
    """Return the cell of a region farthest from its border, or None for a region too small."""
    if inside.mean() < 0.015:
        return None
    padded = np.pad(inside, 1, mode="constant")
    left, depth = padded, np.zeros(padded.shape, int)
    while left.any():
        depth += left
        left = left & np.roll(left, 1, 0) & np.roll(left, -1, 0) & np.roll(left, 1, 1) & np.roll(left, -1, 1)
    deepest = np.argwhere(depth == depth.max())
    row, column = deepest[len(deepest) // 2]
    return int(row) - 1, int(column) - 1

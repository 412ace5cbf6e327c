"""A recording in the right-hand plot: dotted lines with hollow markers, and where they come from."""

from __future__ import annotations

from collections.abc import Callable

from kvlib.lab import style
from kvlib.lab.curves import CONTEXTS, View
from kvlib.lab.panes import Pane
from kvlib.lab.words import shortened

DOTTED = (0, (1, 1.6))
NAME_LENGTHS = range(26, 8, -2)  # characters of a device's name: as many as fit into the plot
LABEL_GAP = 8  # pixels between the plot's left edge and the label


class RecordedLines:
    """Draw a recorded curve a kind, the selected kind's floor on that device, and one label."""

    def __init__(self, pane: Pane):
        self.pane = pane
        self.curves = {
            kind: pane._line(
                color=style.COLORS[kind], marker=style.MARKERS[kind], fillstyle="none",
                linestyle=DOTTED, zorder=3.5,
            )
            for kind in style.KINDS
        }  # fmt: skip
        self.floor = pane._line(linestyle=style.FLOOR_LINE, linewidth=0.8, alpha=0.8, zorder=1.9)
        self.label = pane.text(0, 0, size=9, halo=True)
        self.label.set_zorder(7)

    @property
    def lines(self) -> list:
        """Return every line, for labels to keep clear of."""
        return [*self.curves.values(), self.floor]

    def update(self, view: View) -> None:
        """Move the lines to the view's recording, or away where it has none."""
        kind, heads = view.setting.kind, view.setting.kv_heads
        for k, line in self.curves.items():
            points = view.recorded.curve(k, heads(k)) if view.recorded else ()
            line.set_data([p.context for p in points], [p.seconds for p in points])
            chosen = k == kind
            line.set(linewidth=2 if chosen else 1.1, markersize=8 if chosen else 5)
        shown = view.recorded is not None and len(self.curves[kind].get_xdata()) > 0
        self.floor.set_data(CONTEXTS if shown else [], recorded_floors(view, kind) if shown else [])
        self.floor.set_color(style.COLORS[kind])
        self.label.set_text("")

    def place_label(self, view: View, clear: Callable) -> list[float]:
        """Name the device and the day where no line is; return the label's height, if there is one.

        `clear(wanted, span, limits, taken)` finds the height.
        """
        it, kind = view.recorded, view.setting.kind
        if it is None:
            return []
        filled = [k for k in (kind, *style.KINDS) if len(self.curves[k].get_xdata())]
        if not filled:  # another number of KV heads alone
            return []
        left, bottom, width, height = self.pane.box
        for length in NAME_LENGTHS:
            self.label.set_text(f"○ recorded on {shortened(it.device, length)}, {it.date}")
            wide = self.label.get_window_extent().width
            if wide <= width:
                break
        x = left + LABEL_GAP
        wanted = self.pane.pixel_y(self.curves[filled[0]].get_ydata()[0]) + 14
        y = clear(wanted, (x, x + wide), (bottom + 10, bottom + height - 10), [])
        self.label.set_color(style.TEXT_COLORS[filled[0]])
        self.label.place(x, y)
        return [y]


def recorded_floors(view: View, kind: str) -> list[float]:
    """Return the floor on the recording's device at each of CONTEXTS; empty without a recording."""
    if view.recorded is None:
        return []
    heads = view.setting.kv_heads(kind)
    return [view.recorded.floor(heads, context) for context in CONTEXTS]


def recorded_times(view: View) -> list[float]:
    """Return every time that these lines may show, for the plot's limits; the same for every kind."""
    if view.recorded is None:
        return []
    times = [time for kind in style.KINDS for time in recorded_floors(view, kind)]
    for kind in style.KINDS:
        times += [p.seconds for p in view.recorded.curve(kind, view.setting.kv_heads(kind))]
    return times

"""The memory panel's picture: what fills the device, and below it the two curves behind that.

One figure, its artists made once and moved on each update.
"""

from __future__ import annotations

from matplotlib.patches import Polygon, Rectangle

from kvlib.lab import memory_words as words
from kvlib.lab import style
from kvlib.lab.curves import CONTEXTS
from kvlib.lab.layout import spread
from kvlib.lab.memory_view import STAIRS, MemorySetting, attention_kind
from kvlib.lab.panel_picture import PanePicture
from kvlib.lab.panes import Pane

WIDTH, HEIGHT = 1032, 494
LEFT, BAR_WIDTH, BAR_BOTTOM, BAR_HEIGHT = 24, 984, 404, 36
COLUMNS = (0, 230, 660)  # where the words under the bar begin
MOST_BLOCKS = 160  # requests drawn apart in the bar
NARROWEST_BLOCK = 4  # pixels
MLA = "#5B4B8A"
MISSING = "#E9D3D3"  # the part of the bar that the device does not have


class MemoryPicture(PanePicture):
    """The figure; `update(setting)` redraws it, `png()` returns what it shows."""

    def __init__(self):
        super().__init__(WIDTH, HEIGHT)
        with style.matplotlib.rc_context(style.RC):
            self.cache = Pane(self.figure, left=76, bottom=48, width=304, height=266)
            self.fits = Pane(self.figure, left=600, bottom=48, width=316, height=266)
            self.cache.name_axis("memory", x=10)
            self.fits.name_axis("requests that fit", x=536)
            self.panes = (self.cache, self.fits)
            self._add_bar()
            self._add_lines()

    def _add_bar(self) -> None:
        self.bar = self.figure.add_axes(
            [LEFT / WIDTH, BAR_BOTTOM / HEIGHT, BAR_WIDTH / WIDTH, BAR_HEIGHT / HEIGHT]
        )
        self.bar.set_axis_off()
        self.bar.set(xlim=(0, 1), ylim=(0, 1))
        self.beyond = Rectangle((0, 0), 0, 1, facecolor=MISSING, linewidth=0)
        self.weights = Rectangle((0, 0.1), 0, 0.8, facecolor=style.WEIGHTS, linewidth=0)
        self.filled = Rectangle((0, 0.1), 0, 0.8, linewidth=0)
        self.blocks = self.bar.vlines([], 0.1, 0.9, colors=style.CARD, linewidth=1)
        self.outline = Rectangle((0, 0), 0, 1, fill=False, linewidth=2, edgecolor=style.MEMORY, clip_on=False)
        parts = [self.beyond, self.weights, self.filled, self.blocks, self.outline]
        for z, part in enumerate(parts):
            part.set(animated=True, zorder=1 + z / 10)
            if part is not self.blocks:
                self.bar.add_patch(part)
        pane = self.cache
        self.title = pane.text(LEFT, HEIGHT - 18, size=13)
        self.note = pane.text(LEFT, HEIGHT - 38, size=9.5, color=style.MUTED)
        self.parts = [pane.text(LEFT + x, BAR_BOTTOM - 13) for x in COLUMNS]
        pane.moving += parts

    def _add_lines(self) -> None:
        cache, fits = self.cache, self.fits
        self.all, self.one = cache.curves["MHA"], cache.curves["GQA"]
        self.unwindowed = cache.curves["MQA"]
        self.one.set(linewidth=1.3)
        self.all.set(linewidth=3, zorder=4)
        self.unwindowed.set(linewidth=1.2, linestyle=(0, (1, 1.5)))
        self.limit = cache._line(color=style.MEMORY, linewidth=1.4)
        self.chosen = cache._line(linestyle="", marker="o", markersize=9, zorder=5)
        self.stairs = fits.curves["MHA"]
        self.stairs.set(linewidth=2, color=style.INK, drawstyle="steps-post")
        self.area = Polygon([(1, 1), (1, 1), (1, 1)], facecolor=style.INK, alpha=0.09, linewidth=0)
        self.area.set(animated=True, zorder=0.2)
        fits.axes.add_patch(self.area)
        fits.moving.append(self.area)
        self.asked = fits._line(linestyle="", markersize=9, zorder=5, clip_on=False)
        self.possible = fits._line(
            linestyle="", marker="D", markersize=7, color=style.INK, fillstyle="none", zorder=4
        )
        self.asked_label = fits.text(0, 0, halo=True)
        self.possible_label = fits.text(0, 0, halo=True)
        for label in (self.asked_label, self.possible_label):
            label.set_zorder(8)

    def update(self, setting: MemorySetting) -> None:
        """Show the setting: move every artist, then draw."""
        kind = attention_kind(setting.preset)
        color = style.COLORS.get(kind, MLA)
        text_color = style.TEXT_COLORS.get(kind, MLA)
        self._update_bar(setting, color, text_color)
        moved = self._update_cache(setting, color, text_color)
        moved = self._update_fits(setting, color, text_color) or moved
        self.draw(moved)

    # The bar ------------------------------------------------------------------------------------

    def _update_bar(self, setting: MemorySetting, color: str, text_color: str) -> None:
        scale = max(setting.total, setting.memory)
        weights, cache = setting.weights / scale, setting.cache / scale
        memory = setting.memory / scale
        self.weights.set_bounds(0, 0.1, weights, 0.8)
        self.filled.set_bounds(weights, 0.1, cache, 0.8)
        self.filled.set_facecolor(color)
        self.outline.set_bounds(0, 0, memory, 1)
        self.beyond.set_bounds(memory, 0, 1 - memory, 1)
        each = cache / setting.requests
        apart = setting.requests <= MOST_BLOCKS and each * BAR_WIDTH >= NARROWEST_BLOCK
        edges = [weights + i * each for i in range(1 if weights else 0, setting.requests)]
        edges = [weights, *edges] if apart else [weights]
        self.blocks.set_segments([[(x, 0.1), (x, 0.9)] for x in edges])
        self.title.set_text(words.main_title(setting))
        self.title.set_color(style.INK if setting.free >= 0 else style.MEMORY)
        self.note.set_text(words.setting_line(setting))
        size = style.format_bytes
        many = f"{setting.requests:,} × {size(setting.one_request())} = " if setting.requests > 1 else ""
        memory_words = f"{setting.device.name} {size(setting.memory)}"
        balance = f"free {size(setting.free)}" if setting.free >= 0 else f"missing {size(-setting.free)}"
        told = [
            (f"■ weights {size(setting.weights)}", style.MUTED),
            (f"■ cache {many}{size(setting.cache)}", text_color),
            (f"□ {memory_words}, {balance}", style.MEMORY),
        ]
        for label, (text, look) in zip(self.parts, told, strict=True):
            label.set(text=text, color=look)

    # Left ---------------------------------------------------------------------------------------

    def _update_cache(self, setting: MemorySetting, color: str, text_color: str) -> bool:
        pane, several = self.cache, setting.requests > 1
        one, everyone = setting.cache_curve(), setting.cache_curve(setting.requests)
        windowed = setting.preset.window is not None
        whole = setting.without_window().cache_curve(setting.requests) if windowed else everyone
        weights, memory = setting.weights, setting.memory
        moved = pane.set_limits(
            min(one[0], weights, memory), 1.2 * max(whole[-1], weights, memory), style.format_bytes
        )
        self.all.set_data(STAIRS, everyone)
        self.one.set_data(STAIRS if several else [], one if several else [])
        self.unwindowed.set_data(STAIRS if windowed else [], whole if windowed else [])
        for line in (self.all, self.one, self.unwindowed, self.chosen):
            line.set_color(color)
        ends = pane.axes.get_xlim()
        pane.level.set_data(ends, [weights] * 2)
        self.limit.set_data(ends, [memory] * 2)
        self.chosen.set_data([setting.context], [setting.cache])
        pane.mark_context(setting.context)
        pane.title.set_text(words.cache_title(setting))
        pane.note.set_text(words.shape_line(setting))
        labels = [(everyone[-1], words.requests(setting.requests), text_color, True)]
        if several:
            labels.append((one[-1], "1 request", text_color, False))
        if windowed:
            labels.append((whole[-1], "without windows", text_color, False))
        labels.append((weights, f"weights {style.format_bytes(weights)}", style.MUTED, False))
        labels.append((memory, f"memory {style.format_bytes(memory)}", style.MEMORY, False))
        pane.label_right(labels)
        return moved

    # Right --------------------------------------------------------------------------------------

    def _update_fits(self, setting: MemorySetting, color: str, text_color: str) -> bool:
        pane = self.fits
        contexts, counts = setting.fitting_curve()
        possible = setting.fitting()
        moved = pane.set_limits(1, 1.5 * max([*counts, setting.requests, 10]), lambda count: f"{count:,.0f}")
        self.stairs.set_data(contexts, counts)
        self.area.set_xy(_under(contexts, counts, pane.axes.get_ylim()[0]))
        pane.mark_context(setting.context)
        fits = setting.free >= 0
        self.asked.set_data([setting.context], [setting.requests])
        self.asked.set(color=color if fits else style.MEMORY, marker="o" if fits else "X")
        self.possible.set_data([setting.context] if possible else [], [possible] if possible else [])
        pane.title.set_text(words.fitting_title(setting))
        pane.note.set_text("a setting below the line fits, one above it does not")
        self._label_fits(setting, possible, text_color if fits else style.MEMORY)
        return moved

    def _label_fits(self, setting: MemorySetting, possible: int, color: str) -> None:
        pane, fits = self.fits, setting.free >= 0
        verdict = "fits" if setting.requests == 1 else "fit"
        if not fits:
            verdict = "does not fit" if setting.requests == 1 else "do not fit"
        shown = [(self.asked_label, setting.requests, f"{setting.requests:,} {verdict}", color)]
        self.possible_label.set_text("")
        if possible and possible != setting.requests:
            shown.append((self.possible_label, possible, f"at most {possible:,}", style.INK))
        _, bottom, _, height = pane.box
        wanted = [pane.pixel_y(count) for _, count, *_ in shown]
        placed = spread(wanted, 18, bottom + 10, bottom + height - 10)
        right = setting.context <= 4096  # the side with room
        x = pane.pixel_x(setting.context) + (12 if right else -12)
        for (label, _, text, look), y in zip(shown, placed, strict=True):
            label.set(text=text, color=look)
            label.place(x, y, "left" if right else "right")


def _under(contexts: list[int], counts: list[int], low: float) -> list[tuple[float, float]]:
    """Return the outline of what lies under the stairs; a mere point where there are none."""
    if not contexts:
        return [(CONTEXTS[0], low)] * 3
    corners = [(contexts[0], low)]
    for context, following, count in zip(contexts, contexts[1:], counts, strict=False):
        corners += [(context, count), (following, count)]
    return [*corners, (contexts[-1], counts[-1]), (contexts[-1], low)]

"""The picture of head sharing: query heads above, KV heads below, a line from reader to read.

One figure, its artists made once; squares and lines are collections that take any number of heads.
"""

from __future__ import annotations

from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Rectangle

from kvlib.lab import style
from kvlib.lab.panel_picture import PanelPicture
from kvlib.lab.sharing_view import TILE, Sharing

WIDTH, HEIGHT = 1032, 372
LEFT, RIGHT = 112, 1012  # of the rows of heads, in pixels
QUERY_Y, KV_Y = 262, 142  # the middles of both rows
LARGEST = 44  # pixels of a square
NUMBERED = 15  # pixels a square must have to carry its number


class SharingPicture(PanelPicture):
    """The figure; `update(sharing)` redraws it, `png()` returns what it shows."""

    def __init__(self):
        super().__init__(WIDTH, HEIGHT)
        with style.matplotlib.rc_context(style.RC):
            self.axes = self.figure.add_axes([0, 0, 1, 1])
            self.axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
            self.axes.set_axis_off()
            self.links = self.axes.add_collection(LineCollection([], zorder=1))
            self.queries = self.axes.add_collection(PolyCollection([], zorder=2))
            self.kv = self.axes.add_collection(PolyCollection([], zorder=2))
            self.title = self._text(20, 342, size=12)
            self.note = self._text(20, 318, size=9.5, color=style.MUTED)
            self._text(20, QUERY_Y, "query heads")
            self._text(20, KV_Y, "KV heads")
            self._text(20, KV_Y - 18, "kept in cache", size=9, color=style.MUTED)
            self.rule = self._text(0, 0, size=10.5, ha="center", weight="bold")
            self.shapes = self._text(20, 84, size=10.5)
            self.cost = self._text(20, 54, size=10)
            self.filled = self.axes.add_patch(Rectangle((20, 22), 0, 14))
            self.whole = self.axes.add_patch(
                Rectangle((20, 22), RIGHT - 20, 14, fill=False, edgecolor=style.MUTED, linewidth=1)
            )
        self._numbers: list = []

    def _text(self, x: float, y: float, words: str = "", *, ha="left", **look):
        return self.axes.text(x, y, words, ha=ha, va="center", parse_math=False, zorder=5, **look)

    def update(self, it: Sharing) -> None:
        """Show which head reads which: move every artist, then draw."""
        color, text_color = style.COLORS[it.kind], style.TEXT_COLORS[it.kind]
        pale = _mixed(color, 0.22)
        readers, own = set(it.readers), it.read_by(it.head)
        pitch = (RIGHT - LEFT) / it.num_heads
        size = min(0.8 * pitch, LARGEST)
        queries = [LEFT + (h + 0.5) * pitch for h in range(it.num_heads)]
        g = it.group_size
        keys = [sum(queries[n * g : (n + 1) * g]) / g for n in range(it.num_kv_heads)]
        wide = min(size * (1 + 0.35 * (g > 1)), 1.5 * LARGEST)
        self.queries.set_verts([_square(x, QUERY_Y, size, size) for x in queries])
        self.queries.set_facecolors([text_color if h in readers else pale for h in range(it.num_heads)])
        self.queries.set(
            edgecolors=[style.INK if h == it.head else color for h in range(it.num_heads)],
            linewidths=[2.6 if h == it.head else 0.8 for h in range(it.num_heads)],
        )
        self.kv.set_verts([_square(x, KV_Y, wide, size) for x in keys])
        self.kv.set_facecolors([text_color if n == own else pale for n in range(it.num_kv_heads)])
        self.kv.set(
            edgecolors=[style.INK if n == own else color for n in range(it.num_kv_heads)],
            linewidths=[2.6 if n == own else 0.8 for n in range(it.num_kv_heads)],
        )
        self._link(it, queries, keys, size, color)
        self._number(it, queries, keys, size, readers, own)
        self.title.set_text(it.title())
        self.note.set_text(
            f"{it.preset.name}, head dimension {it.preset.head_dim}, "
            f"{it.preset.num_layers} layers, each with these heads"
        )
        self.rule.set_text(it.rule())
        self.rule.set_color(style.MEMORY if it.order == TILE and it.misled else text_color)
        self.rule.set_position((min(max(queries[it.head], 90), WIDTH - 90), QUERY_Y + size / 2 + 12))
        self.shapes.set_text(it.shapes())
        self.cost.set_text(it.cost())
        self.filled.set_width((RIGHT - 20) * it.num_kv_heads / it.num_heads)
        self.filled.set_facecolor(color)
        self.figure.canvas.draw()

    def _link(self, it: Sharing, queries, keys, size: float, color: str) -> None:
        segments, colors, widths = [], [], []
        for h, x in enumerate(queries):
            n = it.read_by(h)
            segments.append([(x, QUERY_Y - size / 2), (keys[n], KV_Y + size / 2)])
            wrong = n != h // it.group_size
            mine = h == it.head
            strong = style.MEMORY if wrong else color
            colors.append(strong if mine or h in it.readers else _mixed(strong, 0.45))
            widths.append(3.2 if mine else 1.4)
        self.links.set_segments(segments)
        self.links.set(colors=colors, linewidths=widths, linestyles=[
            style.FLOOR_LINE if it.read_by(h) != h // it.group_size else "solid"
            for h in range(it.num_heads)
        ])  # fmt: skip

    def _number(self, it: Sharing, queries, keys, size: float, readers, own: int) -> None:
        """Write numbers into the squares, or beneath the first of each group where they are small."""
        wanted = []
        for h, x in enumerate(queries):
            if size >= NUMBERED:
                wanted.append((x, QUERY_Y, str(h), "white" if h in readers else style.INK))
        for n, x in enumerate(keys):
            if size >= NUMBERED:
                wanted.append((x, KV_Y, str(n), "white" if n == own else style.INK))
            elif n == own:
                wanted.append((x, KV_Y - size / 2 - 11, str(n), style.INK))
        while len(self._numbers) < len(wanted):
            self._numbers.append(self._text(0, 0, ha="center"))
        font = 9.5 if size >= 22 else 8
        for text, (x, y, words, color) in zip(self._numbers, wanted, strict=False):
            text.set(text=words, color=color, position=(x, y), fontsize=font)
        for text in self._numbers[len(wanted) :]:
            text.set_text("")


def _square(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    w, h = width / 2, height / 2
    return [(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)]


def _mixed(color: str, share: float) -> str:
    """Return a colour on the card with this share of its strength."""
    parts = [(int(color[i : i + 2], 16), int(style.CARD[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in parts)

"""Labels beside points: each where it covers the fewest markers, labels and lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.patheffects import withStroke

from kvlib.lab import style

_GAP = 9  # pixels from a point to its label


def label_points(axes, labels: Sequence[tuple[str, float, float, str]], avoid: Sequence = ()) -> list:
    """Write labels (text, x, y, colour) beside their points, none over another; return the texts.

    Set the limits of the axes and draw its lines first. `avoid`: texts to keep clear of.
    """
    figure = axes.figure
    figure.draw_without_rendering()
    frame = axes.get_window_extent()
    spots = axes.transData.transform([(x, y) for _, x, y, _ in labels])
    blocked = [(x - 8, y - 8, x + 8, y + 8) for x, y in spots]
    blocked += [tuple(text.get_window_extent().extents) for text in avoid]
    drawn = np.concatenate([np.zeros((0, 2)), *(_along(axes, line) for line in axes.lines)])
    texts = []
    for (words, x, y, colour), (px, py) in zip(labels, spots):
        text = axes.annotate(
            words, (x, y), (0, 0), textcoords="offset pixels", color=colour, fontsize=9, zorder=2.5,
            path_effects=[withStroke(linewidth=3, foreground=style.CARD)], parse_math=False,
        )  # fmt: skip
        box = text.get_window_extent()
        best = min(
            (_cost((px + dx, py + dy), box, blocked, drawn, frame) + 0.2 * rank, dx, dy)
            for rank, (dx, dy) in enumerate(_offsets(box.width, box.height))
        )
        text.set_position(best[1:])
        blocked.append((px + best[1], py + best[2], px + best[1] + box.width, py + best[2] + box.height))
        texts.append(text)
    return texts


def _offsets(width: float, height: float) -> list[tuple[float, float]]:
    """Return places for a label's lower left corner: right, left, under, over; near, then far."""
    return [
        (dx, dy)
        for far in (1, 15, 29)  # 1: two labels, over and under, do not touch
        for dx, dy in (
            (_GAP, -height - far), (-width - _GAP, far), (_GAP, far), (-width - _GAP, -height - far),
            (_GAP + far, -height / 2), (-width - _GAP - far, -height / 2),
            (-width / 2, _GAP + far), (-width / 2, -height - _GAP - far),
        )
    ]  # fmt: skip


def _along(axes, line) -> np.ndarray:
    points = axes.transData.transform(np.column_stack(line.get_data()))
    steps = np.linspace(0, 1, 60)[:, None]
    pieces = [a + (b - a) * steps for a, b in zip(points, points[1:])]
    return np.concatenate([np.zeros((0, 2)), *pieces])


def _cost(corner, box, blocked, drawn, frame) -> float:
    x, y = corner
    right, top = x + box.width, y + box.height
    over = sum(
        max(0.0, min(right, r) - max(x, a)) * max(0.0, min(top, t) - max(y, b)) for a, b, r, t in blocked
    )
    out = (
        max(0.0, frame.x0 - x)
        + max(0.0, right - frame.x1)
        + max(0.0, frame.y0 - y)
        + max(0.0, top - frame.y1)
    )
    inside = (drawn[:, 0] > x) & (drawn[:, 0] < right) & (drawn[:, 1] > y) & (drawn[:, 1] < top)
    return over + 50 * out + 0.5 * int(inside.sum())

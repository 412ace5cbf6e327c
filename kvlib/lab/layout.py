"""Places for labels: rows and gutters in pixels, spread so that no two overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near the wanted ones, in their order, at least `gap` apart, in [low, high].

    The positions move as little as least squares allows (isotonic regression). Raises ValueError
    where they cannot fit.
    """
    if gap * (len(wanted) - 1) > high - low:
        raise ValueError(f"{len(wanted)} labels {gap} apart do not fit between {low} and {high}.")
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[list[float]] = []  # each: sum, count
    for rank, index in enumerate(order):
        blocks.append([wanted[index] - rank * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    flat = [total / count for total, count in blocks for _ in range(int(count))]
    top = high - gap * (len(wanted) - 1)
    placed = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        placed[index] = min(max(flat[rank], low), top) + rank * gap
    return placed


def decade_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round values (1, or 1 and 3, times powers of ten) from low to high, `most` at most."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    fine = [m * 10.0**p for p in range(first, last + 1) for m in (1, 3)]
    fine = [value for value in fine if low * 0.999 <= value <= high * 1.001]
    if len(fine) <= most:
        return fine
    decades = [10.0**p for p in range(first, last + 1) if low * 0.999 <= 10.0**p <= high * 1.001]
    return decades[:: math.ceil(len(decades) / most)]


def round_down(value: float) -> float:
    """Return the largest of 1, 3, 10, 30 ... that is not above the value."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * (3 if value >= 3 * power else 1)


def round_up(value: float) -> float:
    """Return the smallest of 1, 3, 10, 30 ... that is not below the value."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * (1 if value <= power else 3 if value <= 3 * power else 10)

"""What a softmax over tiles holds after each tile, as plain arrays: no widgets, nothing drawn.

One query, T keys. In tiles, step n has taken the first n tiles; step 0 none. In parts, step n has
attended to part n by itself, and the step after the last part merges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

TILES, PARTS = "tiles", "parts"
ORDERS = ("as in the text", "rising", "falling")
NOTHING = -np.inf
LARGEST_SCORE = 1e6  # far beyond it, a log-sum rounds away all but the maximum
LARGEST_VALUE = 1e100


@dataclass(frozen=True)
class Frame:
    """One step: keys start .. end - 1 are new; what is kept after them.

    `weights` (T,) are exp(score - high) in the units of this step, 0 where nothing was seen yet.
    `out` (D,) is divided by `total`: the answer so far. `log_sums` and `shares` are those of the
    parts done so far; shares are there once they are merged.
    """

    step: int
    start: int
    end: int
    old_high: float
    high: float
    rescale: float
    total: float
    weights: np.ndarray
    out: np.ndarray
    log_sums: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    shares: tuple[float, ...] = field(default=())

    @property
    def merged(self) -> bool:
        return bool(self.shares)


class OnlineSoftmax:
    """One query's scores and the values, cut into tiles of `tile` keys, 4 or all where None.

    `scores` (T,), at most 1e6 in size, or -inf where masked; `values` (T, D), at most 1e100 in size;
    `words` name the keys. `order` puts the keys in another order, which changes the steps and not the
    answer. Raises ValueError for what does not fit together.
    """

    def __init__(
        self, words: Sequence[str], scores, values, tile: int | None = None, mode: str = TILES,
        order: str = ORDERS[0],
    ):  # fmt: skip
        scores, values = (np.asarray(x, dtype=np.float64) for x in (scores, values))
        if scores.ndim != 1 or values.ndim != 2 or len(scores) != len(values) or 0 in values.shape:
            raise ValueError(
                f"scores {scores.shape} and values {values.shape} must be (T,) and (T, D), one row a key."
            )
        if len(words) != len(scores):
            raise ValueError(f"{len(words)} words for {len(scores)} keys: give one each.")
        if np.isnan(scores).any() or np.isposinf(scores).any() or not np.isfinite(values).all():
            raise ValueError("scores must be finite, or -inf where masked, and values finite.")
        if np.abs(scores[np.isfinite(scores)]).max(initial=0) > LARGEST_SCORE:
            raise ValueError(f"scores must be at most {LARGEST_SCORE:,.0f} in size, or -inf where masked.")
        if np.abs(values).max() > LARGEST_VALUE:
            raise ValueError(f"values must be at most {LARGEST_VALUE:g} in size.")
        tile = min(4, len(scores)) if tile is None else tile
        if not _is_whole(tile) or not 1 <= tile <= len(scores):
            raise ValueError(
                f"tile {tile!r} must be a whole number, at least 1 and at most the {len(scores)} keys."
            )
        if mode not in (TILES, PARTS) or order not in ORDERS:
            raise ValueError(f"mode is {TILES!r} or {PARTS!r}, order one of {', '.join(ORDERS)}.")
        place = np.arange(len(scores))
        if order != ORDERS[0]:
            place = np.argsort(scores, kind="stable")[:: 1 if order == "rising" else -1]
        self.words = [str(words[i]) for i in place]
        self.places = place.tolist()  # where each key stood in the text
        self.scores, self.values = scores[place], values[place]
        self.tile, self.mode, self.order = int(tile), mode, order
        self.starts = list(range(0, len(scores), self.tile))
        self.exact, self.log_sum = _whole(self.scores, self.values)

    @property
    def num_keys(self) -> int:
        return len(self.scores)

    @property
    def last_step(self) -> int:
        """Return the number of the last step: the last tile, or the merge."""
        return len(self.starts) + (self.mode == PARTS)

    def frame(self, step: int) -> Frame:
        """Return a step. Raises ValueError for one that does not exist."""
        if not _is_whole(step) or not 0 <= step <= self.last_step:
            raise ValueError(f"step {step!r} is not one of 0 to {self.last_step}.")
        return self._in_parts(step) if self.mode == PARTS else self._in_tiles(step)

    def error(self, frame: Frame) -> float:
        """Return how far the answer of a step is from the exact one, in its largest number."""
        return float(np.abs(frame.out - self.exact).max())

    def _in_tiles(self, step: int) -> Frame:
        size = self.values.shape[1]
        high, total, out, weights = NOTHING, 0.0, np.zeros(size), np.zeros(self.num_keys)
        start = end = 0
        old_high, rescale = high, 0.0
        for start in self.starts[:step]:
            end = min(start + self.tile, self.num_keys)
            scores, values = self.scores[start:end], self.values[start:end]
            old_high, high = high, max(high, float(scores.max()))
            base = high if np.isfinite(high) else 0.0
            rescale = float(np.exp(old_high - base))
            weights *= rescale
            weights[start:end] = np.exp(scores - base)
            total = total * rescale + float(weights[start:end].sum())
            out = out * rescale + weights[start:end] @ values
        return Frame(step, start, end, old_high, high, rescale, total, weights, out / (total or 1.0))

    def _in_parts(self, step: int) -> Frame:
        done = self.starts[: min(step, len(self.starts))]
        weights, outs, log_sums, highs = np.zeros(self.num_keys), [], [], []
        start = end = 0
        high, total, out = NOTHING, 0.0, np.zeros(self.values.shape[1])
        for start in done:
            end = min(start + self.tile, self.num_keys)
            scores, values = self.scores[start:end], self.values[start:end]
            high = float(scores.max())
            base = high if np.isfinite(high) else 0.0
            weights[start:end] = np.exp(scores - base)
            total = float(weights[start:end].sum())
            out = weights[start:end] @ values / (total or 1.0)
            outs.append(out)
            highs.append(high)
            log_sums.append(base + float(np.log(total)) if total else NOTHING)
        shares = ()
        if step > len(self.starts):
            base = self.log_sum if np.isfinite(self.log_sum) else 0.0
            shares = tuple(np.exp(np.array(log_sums) - base).tolist())
            out = np.array(shares) @ np.array(outs)
            weights = np.exp(self.scores - base)
            start, end, total, high = 0, self.num_keys, float(weights.sum()), base
        kept = tuple(log_sums), tuple(highs), shares
        return Frame(step, start, end, NOTHING, high, 0.0, total, weights, out, *kept)


def _is_whole(x) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _whole(scores: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the softmax over all scores times the values, and the log of its sum."""
    high = scores.max()
    if not np.isfinite(high):
        return np.zeros(values.shape[1]), NOTHING
    exps = np.exp(scores - high)
    return exps @ values / exps.sum(), float(high + np.log(exps.sum()))

"""What the panel of smaller caches measures: a text's loss with a cache, chunk by chunk.

Knows no widgets. `reading` is a generator that does one chunk between two yields, so that a click on
Stop gets through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from kvlib.caches import Cache, KVCache, QuantizedKVCache, SlidingWindowKVCache

FULL, QUANTISED, WINDOW = "full", "quantised", "window"


@dataclass(frozen=True)
class Choice:
    """Name one cache: the full one, or its bits, or its window and sinks; the others are None."""

    kind: str = FULL
    bits: int | None = None
    window: int | None = None
    sinks: int | None = None

    def cache(self) -> Cache:
        """Return a new cache of this kind for one layer."""
        if self.kind == QUANTISED:
            return QuantizedKVCache(self.bits)
        if self.kind == WINDOW:
            return SlidingWindowKVCache(self.window, sinks=self.sinks)
        return KVCache()

    @property
    def family(self) -> str:
        """Return which curve or marker it belongs to."""
        return "sinks" if self.sinks else self.kind

    def name(self) -> str:
        """Return it in a few words."""
        if self.kind == QUANTISED:
            return f"int{self.bits}"
        if self.kind == WINDOW:
            return f"window {self.window}" + (f" + {self.sinks} sinks" if self.sinks > 1 else
                                              " + 1 sink" if self.sinks else "")  # fmt: skip
        return "full cache"


class Found(NamedTuple):
    """Hold what was measured: the loss of each predicted token in nats, and bytes held at the end."""

    nll: np.ndarray
    nbytes: int

    @property
    def perplexity(self) -> float:
        """Return exp of the mean loss."""
        return float(np.exp(self.nll.mean()))


def reading(
    model, tokens: Sequence[int], cache: Callable[[], Cache], chunk_size: int
) -> Iterator[float | Found]:
    """Read a text in chunks: yield the share done after each, and last of all what was `Found`.

    Every token but the first is predicted from those before it, with one cache a layer.
    """
    text = torch.tensor([list(tokens)], device=model.device)
    caches, losses, last = model.make_caches(cache), [], text.shape[1] - 1
    for start in range(0, last, chunk_size):
        now = text[:, start : min(start + chunk_size, last)]
        logits = model(now, caches)[0].float()  # (t, V)
        wanted = text[0, start + 1 : start + 1 + now.shape[1]]
        losses.append(F.cross_entropy(logits, wanted, reduction="none").cpu())
        yield min(1.0, (start + now.shape[1]) / last)
    yield Found(torch.cat(losses).double().numpy(), sum(c.nbytes for c in caches))


def bytes_held(model, length: int, choice: Choice, chunk_size: int) -> int:
    """Return the bytes all layers hold after `length` tokens, by filling one layer's cache with zeros."""
    config, cache = model.config, choice.cache()
    for start in range(0, length, chunk_size):
        rows = 1, config.num_kv_heads, min(chunk_size, length - start), config.head_dim
        zeros = torch.zeros(rows, device=model.device, dtype=model.dtype)
        cache.update(zeros, zeros)
    return config.num_layers * cache.nbytes


def smoothed(values: np.ndarray, width: int = 64) -> np.ndarray:
    """Return the mean of the last `width` values at each place (of fewer at the start)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - width)
    return (total[end] - total[start]) / (end - start)

"""What the panel of smaller caches measures: a text's loss with a cache, chunk by chunk.

Knows no widgets. `reading` is a generator that does one chunk between two yields, so that a click on
Stop gets through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kvlib.caches import Cache, KVCache, QuantizedKVCache, SlidingWindowKVCache
from kvlib.perplexity import Perplexity

FULL, QUANTISED, WINDOW = "full", "quantised", "window"
BITS, WINDOWS, SINKS = (8, 4), (32, 64, 128, 256), (0, 1, 4, 16)  # what there are buttons for


@dataclass(frozen=True)
class Choice:
    """One cache: the full one, or its bits, or its window and sinks; the others are None."""

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


def checked(choice: Choice) -> Choice:
    """Return the choice if there are buttons for it, or raise ValueError."""
    kinds = FULL, QUANTISED, WINDOW
    if not isinstance(choice, Choice) or choice.kind not in kinds:
        raise ValueError(f"choice is a Choice of one of the kinds {', '.join(kinds)}, not {choice!r}")
    for name, value, offered in (
        ("bits", choice.bits, BITS),
        ("window", choice.window, WINDOWS),
        ("sinks", choice.sinks, SINKS),
    ):
        if value is not None and value not in offered:
            raise ValueError(
                f"the panel has buttons for {name} {', '.join(map(str, offered))}, not for {value!r}; "
                "choose one of these, or put what you measured in `found`"
            )
    return choice


def drawable(found: Perplexity) -> bool:
    """Say whether a logarithmic axis has a place for it."""
    return 0 < found.value < math.inf


def dropped(choice: Choice, found: Perplexity) -> str:
    """Say that it is not kept."""
    return f"The perplexity with {choice.name()} is {found.value:g}, which no picture can show: dropped."


def reading(
    model, tokens: Sequence[int], cache: Callable[[], Cache], chunk_size: int
) -> Iterator[float | Perplexity]:
    """Do as `kvlib.perplexity.perplexity`: yield the share done after each chunk, last what it returns."""
    text = torch.tensor([list(tokens)], device=model.device)
    read, wanted = text[:, :-1].split(chunk_size, dim=1), text[0, 1:].split(chunk_size)
    caches, nll = model.make_caches(cache), []
    for chunk, targets in zip(read, wanted, strict=True):
        nll.append(F.cross_entropy(model(chunk, caches)[0].float(), targets, reduction="none").cpu())
        yield min(1.0, len(nll) * chunk_size / (len(text[0]) - 1))
    yield Perplexity(torch.cat(nll), sum(c.nbytes for c in caches), caches[0].seq_len)


def bytes_held(model, length: int, choice: Choice, chunk_size: int) -> int:
    """Return the bytes all layers hold after `length` tokens, by filling one layer's cache with zeros."""
    config, cache = model.config, choice.cache()
    for start in range(0, length, chunk_size):
        rows = 1, config.num_kv_heads, min(chunk_size, length - start), config.head_dim
        zeros = torch.zeros(rows, device=model.device, dtype=model.dtype)
        cache.update(zeros, zeros)
    return config.num_layers * cache.nbytes


def smoothed(values: Tensor, width: int = 64) -> np.ndarray:
    """Return the mean of the last `width` values at each place (of fewer at the start)."""
    total = np.concatenate([[0.0], np.cumsum(values.double().numpy())])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - width)
    return (total[end] - total[start]) / (end - start)

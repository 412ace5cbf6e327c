"""What every cache promises.

One cache object serves one layer of one model; a model holds a list of them. Rows are
laid out (B, KV, T, D): batch, key/value heads, tokens, head dimension. A cache knows
nothing of queries, of rotary positions, or of the other layers.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Shape, dtype and device of a cache's rows; fixed by the first update."""

    batch_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, k: Tensor) -> Rows:
        """Read the description off keys of shape (B, KV, t, D)."""
        return cls(k.shape[0], k.shape[1], k.shape[3], k.dtype, k.device)


class Cache(ABC):
    """Keys and values of one layer.

    Three numbers are kept apart, each a Python int that is never read off tensor contents:

    - `seq_len`, the logical length: tokens appended so far, the index of the next one;
    - `stored_len`, the rows held (fewer than `seq_len` once a window drops rows);
    - the rotary position of a token, which belongs to the model: its index in the sequence
      less the padding in front of it.

    Two things a cache says of itself, for those who run a model on it:

    - `keys`: "rotated", or "unrotated" where it is given keys from before RoPE and the model
      rotates them by their position in the cache. Such a cache has `sinks` and `window` as well;
    - `takes_padding`: whether the rows of a batch may begin with padding.
    """

    keys = "rotated"
    takes_padding = True

    def __init__(self) -> None:
        self._rows: Rows | None = None
        self._seq_len = 0

    @abstractmethod
    def update(self, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        """Append new rows and return the keys and values the new queries may attend to.

        Shapes: `k_new`, `v_new` (B, KV, t, D) -> two tensors (B, KV, T, D) that end with the
        new rows. The new rows come first into the cache, then to the caller: a token attends
        to itself. Raises ValueError, with nothing changed, for rows that do not fit.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget every token; buffers may stay."""

    @abstractmethod
    def crop(self, length: int) -> None:
        """Keep the first `length` tokens. Raises ValueError for a negative or longer length.

        Also where a window has let go rows that later queries need; never for the length before
        the last update.
        """

    def savepoint(self) -> Callable[[], None]:
        """Return a function that takes back what follows: any number of updates, also a broken one.

        It is called at most once, and holds as little as it can until then. Here: a new cache becomes new
        again, free to take rows of another shape, and any other is cropped, which is exact where rows stay
        as they came. A cache that changes or drops rows overrides this.
        """
        length = self.seq_len
        new = dict(vars(self)) if length == 0 and getattr(self, "_rows", self) is None else None

        def restore() -> None:
            if new is not None:
                self.reset()
                vars(self).clear()
                vars(self).update(new)
            elif self.seq_len > length:
                self.crop(length)

        return restore

    @abstractmethod
    def fork(self) -> Self:
        """Return a copy that is independent in meaning and shares storage where it can."""

    @property
    def seq_len(self) -> int:
        """Tokens appended so far, which is the index of the next one."""
        return self._seq_len

    @property
    def stored_len(self) -> int:
        """Rows held for each sequence and head."""
        return self._seq_len

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory really held for keys and values."""

    def positions(self, length: int) -> int:
        """Say how many rotary positions the model needs for a text of `length` tokens."""
        return length

    def visible(self, num_new: int, num_keys: int, device: torch.device) -> Tensor | None:
        """Say which returned keys each of the new queries sees, where causal order is not all.

        Returns a bool tensor (num_new, num_keys), or None for plain causal order. A sliding
        window overrides this with its band.
        """
        return None

    def _checked(self, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new rows without gradient, or raise ValueError before anything changes."""
        for name, x in (("k_new", k_new), ("v_new", v_new)):
            if not isinstance(x, Tensor):
                raise ValueError(f"{name} must be a tensor, not {type(x).__name__}")
            if x.dim() != 4 or 0 in x.shape:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}; a cache takes (batch, kv heads, "
                    "new tokens, head dim), each at least 1"
                )
            if not x.dtype.is_floating_point:
                raise ValueError(f"{name} has dtype {x.dtype}; keys and values are floating point")
        if k_new.shape != v_new.shape:
            raise ValueError(f"k_new {tuple(k_new.shape)} and v_new {tuple(v_new.shape)} differ in shape")
        if Rows.of(k_new) != Rows.of(v_new):
            raise ValueError(
                f"k_new ({k_new.dtype}, {k_new.device}) and v_new ({v_new.dtype}, {v_new.device}) "
                "differ in dtype or device"
            )
        if self._rows is not None and (new := Rows.of(k_new)) != self._rows:
            field, was, got = next((f, a, b) for f, a, b in zip(Rows._fields, self._rows, new) if a != b)
            raise ValueError(
                f"this cache holds rows with {field} {was}, the new ones have {got}; "
                "make a new cache for them"
            )
        return k_new.detach(), v_new.detach()

    def _checked_length(self, length: int) -> int:
        """Return a length to crop to, or raise ValueError."""
        if isinstance(length, bool) or not isinstance(length, int):
            raise ValueError(f"crop takes a whole number of tokens, not {length!r}")
        if not 0 <= length <= self.seq_len:
            raise ValueError(f"cannot crop to {length}: the cache holds {self.seq_len} tokens")
        return length


def stored(method):
    """Let a method make tensors to keep: without gradient, and writable whatever the mode of the caller.

    A tensor made under `torch.inference_mode` cannot be written outside of it, so none of these is kept.
    """

    @functools.wraps(method)
    def run(*args, **options):
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return method(*args, **options)
        with torch.no_grad():
            return method(*args, **options)

    return run


def own(x: Tensor) -> Tensor:
    """Copy rows out of whatever larger tensor they are a view of."""
    return x.clone(memory_format=torch.contiguous_format)


def empty_rows(like: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Make unwritten keys and values (B, KV, num_rows, D), of the shape, dtype and device of `like`."""
    shape = *like.shape[:2], num_rows, like.shape[3]
    return tuple(torch.empty(shape, dtype=like.dtype, device=like.device) for _ in range(2))


def keeps_unrotated(cache) -> bool:
    """Say whether a cache, or whatever stands for one, is given keys from before RoPE."""
    keys = getattr(cache, "keys", None)
    return isinstance(keys, str) and keys == "unrotated"


def positions_needed(caches, length: int) -> int:
    """Return how many rotary positions a text of `length` tokens takes with these caches."""
    needed = [c.positions(length) if hasattr(c, "positions") else length for c in caches or ()]
    return max(needed, default=length)

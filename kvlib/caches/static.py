"""The preallocated cache: one buffer for `max_seq_len` tokens, written in place."""

from __future__ import annotations

import copy
from typing import Self

from torch import Tensor

from kvlib.caches.contract import Cache, Rows, empty_rows, stored
from kvlib.checks import check_whole
from kvlib.pages import ask_for_large_pages


class StaticKVCache(Cache):
    """A fixed buffer: each new row is written into its slot, nothing is copied, nothing moves.

    The buffer, (B, KV, max_seq_len, D) for keys and the same for values, is made at the first
    update and keeps its address for the cache's whole life. Slots that were never written are
    never read: what `update` returns is a view of the used length. Since the buffer stays,
    `reset` keeps its shape too; rows of another shape need another cache.
    """

    def __init__(self, max_seq_len: int) -> None:
        check_whole("max_seq_len", max_seq_len)
        super().__init__()
        self.max_seq_len = max_seq_len
        self._k: Tensor | None = None  # (B, KV, max_seq_len, D)
        self._v: Tensor | None = None

    @classmethod
    def from_buffers(cls, k: Tensor, v: Tensor, seq_len: int) -> StaticKVCache:
        """Use buffers (B, KV, max_seq_len, D) made elsewhere, whose first `seq_len` tokens are written.

        The cache writes into them in place. Raises ValueError for buffers that do not fit each other.
        """
        cache = cls(k.shape[2] if isinstance(k, Tensor) and k.dim() == 4 else 1)
        k, v = cache._checked(k, v)
        if k.is_inference() or v.is_inference():
            raise ValueError(
                "a buffer was made under torch.inference_mode and cannot be written outside of it; make it "
                "outside, or give a clone"
            )
        if isinstance(seq_len, bool) or not isinstance(seq_len, int):
            raise ValueError(f"seq_len must be a whole number, not {seq_len!r}")
        if not 0 <= seq_len <= cache.max_seq_len:
            raise ValueError(f"buffers of {cache.max_seq_len} tokens cannot hold {seq_len}")
        cache._k, cache._v, cache._rows, cache._seq_len = k, v, Rows.of(k), seq_len
        return cache

    @stored
    def update(self, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        """Append `k_new`, `v_new` (B, KV, t, D); return views of the used rows, (B, KV, T, D).

        Raises ValueError when the rows would pass `max_seq_len`: a slice written past the end
        of a tensor is a silent no-op in PyTorch, so the cache has to say it.
        """
        k_new, v_new = self._checked(k_new, v_new)
        start, end = self._seq_len, self._seq_len + k_new.shape[2]
        if end > self.max_seq_len:
            raise ValueError(
                f"{end} tokens do not fit a cache of max_seq_len {self.max_seq_len} "
                f"({start} held, {end - start} new); make a longer one"
            )
        if self._rows is None:
            self._allocate(k_new)
        self._k[:, :, start:end] = k_new
        self._v[:, :, start:end] = v_new
        used = self._k[:, :, :end], self._v[:, :, :end]
        self._rows = Rows.of(k_new)
        self._seq_len = end  # last, so that an interrupt counts no rows
        return used

    def reset(self) -> None:
        """Forget every token; the buffer stays where it is."""
        self._seq_len = 0

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens; the slots after them are free to be written again."""
        self._seq_len = self._checked_length(length)

    @stored
    def fork(self) -> Self:
        """Return a copy with a buffer of its own; only the used rows are copied."""
        other = copy.copy(self)
        if self._k is not None:
            other._allocate(self._k)
            other._k[:, :, : self._seq_len] = self._k[:, :, : self._seq_len]
            other._v[:, :, : self._seq_len] = self._v[:, :, : self._seq_len]
        return other

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers, used or not: the reservation is the cost."""
        return 0 if self._k is None else self._k.nbytes + self._v.nbytes

    @property
    def buffers(self) -> tuple[Tensor, Tensor] | None:
        """Both buffers whole, (B, KV, max_seq_len, D), for code that writes at fixed addresses.

        None before the first update. Rows after `seq_len` mean nothing until they are written and
        `advance` has counted them.
        """
        return None if self._rows is None else (self._k, self._v)

    def advance(self, num_new: int) -> None:
        """Count `num_new` rows that were written straight into the buffers, after the used ones.

        Raises ValueError, with nothing changed, where there is no buffer or no room for so many.
        """
        if isinstance(num_new, bool) or not isinstance(num_new, int) or num_new < 1:
            raise ValueError(f"advance counts a whole number of new rows, not {num_new!r}")
        if self._rows is None or self._seq_len + num_new > self.max_seq_len:
            raise ValueError(
                f"{num_new} rows cannot have been written after the first {self._seq_len}: the buffer has "
                f"room for {0 if self._rows is None else self.max_seq_len}"
            )
        self._seq_len += num_new

    def _allocate(self, like: Tensor) -> None:
        self._k, self._v = map(ask_for_large_pages, empty_rows(like, self.max_seq_len))

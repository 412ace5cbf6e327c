"""The minimal cache: append with `torch.cat`."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor

from kvlib.caches.contract import Cache, Rows, own, stored


class KVCache(Cache):
    """Rows appended by concatenation: right, short, and a full copy for every token.

    `torch.cat` makes a new tensor, so old and new are alive at once and T tokens copy
    Theta(T^2) bytes. `StaticKVCache` mends that. Storage is never written again once made,
    which is why a fork can share it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kv: tuple[Tensor, Tensor] | None = None  # each (B, KV, T, D)

    @stored
    def update(self, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        """Append `k_new`, `v_new` (B, KV, t, D); return all rows so far, (B, KV, T, D)."""
        k_new, v_new = self._checked(k_new, v_new)
        if self._kv is None:
            kv = own(k_new), own(v_new)
        else:
            k, v = self._kv
            kv = torch.cat([k, k_new], dim=2), torch.cat([v, v_new], dim=2)
        self._set(kv)
        return kv

    def reset(self) -> None:
        """Forget every token and free the memory; the next rows may have another shape."""
        self._kv, self._rows, self._seq_len = None, None, 0

    @stored
    def crop(self, length: int) -> None:
        """Keep the first `length` tokens, in memory of their own."""
        if self._checked_length(length) == 0:
            self.reset()
        elif length < self.seq_len:
            k, v = self._kv
            self._set((own(k[:, :, :length]), own(v[:, :, :length])))

    def fork(self) -> Self:
        """Return an independent cache; the rows so far are shared, as no one writes to them."""
        return copy.copy(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the two tensors held."""
        return 0 if self._kv is None else sum(x.nbytes for x in self._kv)

    def _set(self, kv: tuple[Tensor, Tensor]) -> None:
        self._kv, self._rows, self._seq_len = kv, Rows.of(kv[0]), kv[0].shape[2]

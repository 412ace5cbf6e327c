"""What a quantised cache must do, counted and bounded without any of kvlib."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Scheme(NamedTuple):
    """Say how a cache quantises: bits a code, tokens a group, rows kept as they came."""

    bits: int
    group: int
    recent: int

    def quantized_len(self, seq_len: int) -> int:
        """Count the tokens that are codes after `seq_len` were appended and none taken back."""
        groups = 0
        while (groups + 1) * self.group <= seq_len - self.recent:
            groups += 1
        return groups * self.group

    def nbytes(self, shape: tuple[int, int, int], seq_len: int, dtype: torch.dtype) -> tuple[int, int, int]:
        """Count the bytes of codes, of scales and zeros, and of recent rows, for (B, KV, D)."""
        batch_size, num_kv_heads, head_dim = shape
        heads, old = batch_size * num_kv_heads, self.quantized_len(seq_len)
        codes = 2 * heads * old * head_dim * self.bits // 8
        scales = heads * (old // self.group * head_dim + old)  # of keys, of values
        recent = 2 * heads * (seq_len - old) * head_dim
        return codes, 2 * scales * dtype.itemsize, recent * dtype.itemsize

    def bounds(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest error allowed on rows k, v (B, KV, T, D), as float64 of their shape.

        Half a step where rows are codes: the step is the range of a channel over its group for keys, of
        a token over its channels for values, over 2**bits - 1. On top of it a few roundings.
        """
        old = self.quantized_len(k.shape[2])
        bounds = []
        for x, dim in ((k, -2), (v, -1)):
            x, bound, info = x.double(), torch.zeros_like(x, dtype=torch.float64), torch.finfo(x.dtype)
            for start in range(0, old, self.group):
                part = x[:, :, start : start + self.group]
                low, high = part.amin(dim, keepdim=True), part.amax(dim, keepdim=True)
                size = torch.maximum(low.abs(), high.abs())
                step = (high - low) / (2**self.bits - 1) * (1 + info.eps) + info.tiny * info.eps
                bound[:, :, start : start + self.group] = step / 2 + 6 * info.eps * size
            bounds.append(bound)
        return tuple(bounds)

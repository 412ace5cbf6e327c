"""The latent cache of MLA: one row a token for all heads, and the values inside the keys."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from kvlib.caches.contract import Cache, Rows, stored


class LatentKVCache(Cache):
    """For each token its latent vector and the one rotary key that all heads share.

    A row is the latent followed by the rotary key: 512 + 64 numbers in DeepSeek-V2 and V3.
    The whole row is the key, its latent part is the value too, so nothing is kept twice: no factor
    2. The rotary key comes already rotated by its position. Kept by concatenation, as in `KVCache`.
    See `kvlib.latent_attention` for what attends to such rows. Source: DeepSeek-V2, 2024.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: Tensor | None = None  # (B, 1, T, latent + rope)
        self._latent_dim: int | None = None

    @stored
    def update(self, latent_new: Tensor, rope_new: Tensor) -> tuple[Tensor, Tensor]:
        """Append `latent_new` (B, 1, t, latent) and `rope_new` (B, 1, t, rope); return all rows.

        The two arguments are what is new of a token, as with every cache; only their widths may
        differ. Returns keys (B, 1, T, latent + rope) and values (B, 1, T, latent), views of the
        same memory. Raises ValueError, with nothing changed, for parts that do not fit.
        """
        latent_new, rope_new = self._checked_parts(latent_new, rope_new)
        held = torch.cat([latent_new, rope_new], dim=3)
        if self._held is not None:
            held = torch.cat([self._held, held], dim=2)
        shown = self._views(held, latent_new.shape[3])
        self._set(held, latent_new.shape[3])
        return shown

    def reset(self) -> None:
        """Forget every token and free the memory; the next rows may have another shape."""
        self._held, self._latent_dim, self._rows, self._seq_len = None, None, None, 0

    @stored
    def crop(self, length: int) -> None:
        """Keep the first `length` tokens, in memory of their own."""
        if self._checked_length(length) == 0:
            self.reset()
        elif length < self.seq_len:
            self._set(self._held[:, :, :length].clone(), self._latent_dim)

    def fork(self) -> Self:
        """Return an independent cache; the rows so far are shared, as no one writes to them."""
        other = type(self)()
        if self._held is not None:
            other._set(self._held, self._latent_dim)
        return other

    @property
    def nbytes(self) -> int:
        """Bytes of the one tensor held."""
        return 0 if self._held is None else self._held.nbytes

    def _views(self, held: Tensor, latent_dim: int) -> tuple[Tensor, Tensor]:
        """Return the rows as keys, and their latent part as values."""
        return held, held[..., :latent_dim]

    def _set(self, held: Tensor, latent_dim: int) -> None:
        self._held, self._latent_dim = held, latent_dim
        self._rows, self._seq_len = Rows.of(held), held.shape[2]

    def _checked_parts(self, latent_new: Tensor, rope_new: Tensor) -> tuple[Tensor, Tensor]:
        """Return both parts without gradient, or raise ValueError before anything changes."""
        for name, x in (("latent_new", latent_new), ("rope_new", rope_new)):
            if not isinstance(x, Tensor):
                raise ValueError(f"{name} must be a tensor, not {type(x).__name__}")
            if x.dim() != 4 or 0 in x.shape or x.shape[1] != 1:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}; a latent cache takes (batch, 1, new tokens, "
                    "numbers), as one row serves all heads"
                )
            if not x.dtype.is_floating_point:
                raise ValueError(f"{name} has dtype {x.dtype}; cached rows are floating point")
        if latent_new.shape[:3] != rope_new.shape[:3]:
            raise ValueError(
                f"latent_new {tuple(latent_new.shape)} and rope_new {tuple(rope_new.shape)} must be "
                "the same tokens of the same batch"
            )
        if (latent_new.dtype, latent_new.device) != (rope_new.dtype, rope_new.device):
            raise ValueError(
                f"latent_new ({latent_new.dtype}, {latent_new.device}) and rope_new "
                f"({rope_new.dtype}, {rope_new.device}) differ in dtype or device"
            )
        if self._held is not None:
            parts = latent_new.shape[3], rope_new.shape[3]
            kept = self._latent_dim, self._held.shape[3] - self._latent_dim
            new = latent_new.shape[0], parts, latent_new.dtype, latent_new.device
            was = self._held.shape[0], kept, self._held.dtype, self._held.device
            names = "batch size", "latent and rotary widths", "dtype", "device"
            for name, a, b in zip(names, was, new, strict=True):
                if a != b:
                    raise ValueError(
                        f"this cache holds rows with {name} {a}, the new ones have {b}; make a new "
                        "cache for them"
                    )
        return latent_new.detach(), rope_new.detach()

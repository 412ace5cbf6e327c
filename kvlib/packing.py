"""Small codes in bytes: two codes of 4 bits share one.

A byte is the smallest thing a tensor can hold, so codes of 4 bits save memory only when they are
packed. Axis -2 holds the tokens of one group: the first half of them goes into the low four
bits, the second half into the high four. Every head_dim fits, and each half is one run of memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = (8, 4)


def check_bits(bits: int) -> int:
    """Return `bits` where it is 8 or 4, or raise ValueError."""
    if isinstance(bits, bool) or not isinstance(bits, int) or bits not in BITS:
        raise ValueError(f"bits must be 8 or 4, not {bits!r}")
    return bits


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes 0 .. 2**bits - 1, uint8 (..., g, D), into bytes, uint8 (..., g * bits / 8, D).

    Raises ValueError for 4 bits and an odd g: each code needs a partner.
    """
    if codes.dtype != torch.uint8 or codes.dim() < 2:
        raise ValueError(f"codes are uint8 of shape (..., tokens, D), not {codes.dtype} {tuple(codes.shape)}")
    if check_bits(bits) == 8:
        return codes
    if codes.shape[-2] % 2:
        raise ValueError(f"{codes.shape[-2]} tokens cannot be packed two a byte; take an even number")
    low, high = codes.chunk(2, dim=-2)
    return low | high << 4


def unpack_into(out: Tensor, packed: Tensor, bits: int) -> Tensor:
    """Write the codes of `packed`, uint8 (..., g * bits / 8, D), to `out` (..., g, D), of any dtype."""
    if check_bits(bits) == 8:
        return out.copy_(packed)
    half = packed.shape[-2]
    out[..., :half, :].copy_(packed & 15)
    out[..., half:, :].copy_(packed >> 4)
    return out

"""Numbers as small codes: x is close to zero + code * scale.

Asymmetric, after KIVI (Liu et al. 2024): the numbers that share a scale are spread over the codes
from their smallest, `zero`, to their largest. What shares a scale decides everything: the
step is the range over 2**bits - 1, and one large number makes it coarse for all its neighbours.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kvlib.packing import check_bits, pack, unpack_into


class Quantized(NamedTuple):
    """Codes, packed in bytes, and the scale and zero that they are read with.

    For numbers (..., g, D): `codes` uint8 (..., g * bits / 8, D); `scale` and `zero`, in the dtype of
    the numbers, (..., 1, D) where g tokens share a scale, (..., g, 1) where D channels do.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor


def quantize(x: Tensor, bits: int, dim: int, usable: Tensor | None = None) -> Quantized:
    """Replace numbers x (..., g, D) by codes; those along `dim`, -2 or -1, share scale and zero.

    `scale` and `zero` are kept in x's own dtype: `zero`, one of the numbers, is then exact and nothing
    overflows that x could hold. `scale` is rounded up, never down, so the largest number has a code.
    Numbers alike have scale 0 and come back exactly. `usable`, bool and broadcast to x, is
    False where a number must not count, such as a NaN; its code means nothing. Source: KIVI, section 3.
    """
    levels = 2 ** check_bits(bits) - 1
    work = x if x.dtype in (torch.float32, torch.float64) else x.float()
    low, high = work, work
    if usable is not None:
        low, high = work.masked_fill(~usable, math.inf), work.masked_fill(~usable, -math.inf)
    low, high = low.amin(dim, keepdim=True), high.amax(dim, keepdim=True)
    none = low > high  # not one usable number
    low, high = low.masked_fill(none, 0), high.masked_fill(none, 0)
    scale = ((high - low) / levels).to(x.dtype)
    above = torch.nextafter(scale, torch.full_like(scale, math.inf))
    scale = torch.where(scale.to(work.dtype) * levels < high - low, above, scale)
    step = scale.to(work.dtype).masked_fill(scale == 0, 1)
    codes = ((work - low) / step).round_().clamp_(0, levels).nan_to_num_(0).to(torch.uint8)
    return Quantized(pack(codes, bits), scale, low.to(x.dtype))


def dequantize_into(out: Tensor, quantized: Quantized, bits: int) -> Tensor:
    """Write zero + code * scale to `out` (..., g, D), with no temporary of its size."""
    codes, scale, zero = quantized
    unpack_into(out, codes, bits)
    if scale.shape[-1] == 1 and out.element_size() > 2:
        return out.mul_(scale).add_(zero)  # twice as fast as one step where channels share a scale
    torch.addcmul(zero, out, scale, out=out)  # 16-bit rows round once, at the end
    if out.element_size() > 2:
        return out
    largest = torch.finfo(out.dtype).max
    return out.clamp_(-largest, largest)  # the scale was rounded up, past what 16 bits hold; NaN stays


def error_bound(quantized: Quantized, bits: int) -> Tensor:
    """Return the largest error of each number, broadcast to (..., g, D): scale / 2, and rounding.

    Rounding is that of the dtype: 2 eps (|zero| + (2**bits - 1) scale), and its smallest number.
    """
    info = torch.finfo(quantized.scale.dtype)
    scale, zero = (x if x.element_size() > 2 else x.float() for x in quantized[1:])
    rounding = 2 * info.eps * (zero.abs() + (2**bits - 1) * scale) + info.smallest_normal * info.eps
    return scale / 2 + rounding

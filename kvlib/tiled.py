"""Attention over tiles of the keys: no score matrix, the same numbers.

A softmax can be taken piece by piece, if three things are kept for each query: the largest score so
far, the sum of the exponentials below it, and the output, not yet divided. Each new tile rescales
them. What runs here is a loop in Python: it shows what fused kernels do inside, and uses as little
memory as they do, but not as little time.

Shapes as in `kvlib.attention`: q (B, H, t, D), k and v (B, KV, T, D), H = KV * group_size. Sums are
kept in float32, or in float64 for float64. A row that sees no key has the output 0. A score of -inf
is a key that is not seen, whether a mask made it or a product too large for the numbers: a row that
overflows to -inf throughout is 0 too, as in PyTorch's fused attention, where the formula is 0 / 0.
One that overflows to +inf is NaN, as in the formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kvlib.attention import _check_mask, _group_size
from kvlib.checks import check_whole

TILE = 128  # keys, and queries, that are looked at together
NOTHING = float("-inf")  # the log of an empty sum


def tiled_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, tile: int = TILE
) -> Tensor:
    """Attend as `reference_attention` does, with scores of `tile` queries and keys at a time.

    Shapes: q (B, H, t, D), k and v (B, KV, T, D), `mask` bool, broadcast to (B, H, t, T), causal
    where None -> (B, H, t, D). Tiles that no query sees are not read; to find them, a given mask is
    looked at. Raises ValueError as `reference_attention` does, and for a tile below 1. Source:
    Milakov and Gimelshein 2018 (running maximum and sum); Rabe and Staats 2021 (the output rescaled with
    them); Dao et al. 2022 (FlashAttention).
    """
    _group_size(q, k, v)
    _check_mask(mask, q, k)
    check_whole("tile", tile)
    out, _ = _attend(q, k, v, mask, k.shape[2] - q.shape[2], tile)
    return out.to(q.dtype)


def attend_part(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, tile: int = TILE
) -> tuple[Tensor, Tensor]:
    """Attend to a part of the keys; return the part's output and the log of its softmax's sum.

    Shapes: q (B, H, t, D), k and v (B, KV, n, D), any n from 0 on -> out (B, H, t, D), log_sum
    (B, H, t), natural logarithm. Without a mask every query sees the whole part: a part does not
    know where in the text it stands. No key seen: out 0, log_sum -inf. Neither is rounded to 16
    bits, and log_sum is float64 where the device has it: it is the largest score plus the log of the
    sum, and next to a large score float32 has no digits left for that log. Raises ValueError as
    `tiled_attention` does.
    """
    _check_part(q, k, v)
    _check_mask(mask, q, k)
    check_whole("tile", tile)
    return _attend(q, k, v, mask, None, tile)


def merge_parts(outs: Sequence[Tensor], log_sums: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Merge parts of the keys into what attending to all of them gives, (out, log_sum).

    Shapes: S parts, each out (B, H, t, D) and log_sum (B, H, t), as `attend_part` returns them; the
    result has the same form, so that it can be merged on, in any order. A part counts by its share,
    exp(its log_sum) over the sum of all these; one with -inf counts nothing, whatever its out holds.
    Raises ValueError for no parts and for shapes that differ. Source: Rabe and Staats 2021; Dao et
    al. 2023 (Flash-Decoding).
    """
    outs, log_sums = list(outs), list(log_sums)
    _check_parts(outs, log_sums)
    outs, log_sums = torch.stack(outs), torch.stack(log_sums)
    outs = outs.masked_fill(log_sums[..., None] == NOTHING, 0)
    high = log_sums.amax(dim=0)
    share = (log_sums - _finite(high)).exp()  # (S, B, H, t), of the largest part's
    total = share.sum(dim=0)
    share = share / total.masked_fill(total == 0, 1)  # by a rounded log_sum they would not sum to 1
    return (share[..., None].to(outs.dtype) * outs).sum(dim=0), high + total.log()


def split_attention(
    q: Tensor, k: Tensor, v: Tensor, num_splits: int, mask: Tensor | None = None, *, tile: int = TILE
) -> Tensor:
    """Attend to the keys in `num_splits` parts that need nothing of each other, and merge them.

    Shapes and meaning as in `tiled_attention`. The parts come one after the other here; a kernel
    gives each to a core of its own. More parts than keys leave some empty. Raises ValueError as
    `tiled_attention` does, and for num_splits below 1.
    """
    _group_size(q, k, v)
    _check_mask(mask, q, k)
    check_whole("tile", tile)
    check_whole("num_splits", num_splits)
    num_keys = k.shape[2]
    if mask is not None:
        mask = mask.expand(*mask.shape[:-1], num_keys)
    bounds = [num_keys * i // num_splits for i in range(num_splits + 1)]
    parts = []
    for start, end in zip(bounds, bounds[1:]):
        seen = None if mask is None else mask[..., start:end]
        offset = num_keys - q.shape[2] - start
        parts.append(_attend(q, k[:, :, start:end], v[:, :, start:end], seen, offset, tile))
    return merge_parts(*zip(*parts))[0].to(q.dtype)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, offset: int | None, tile: int
) -> tuple[Tensor, Tensor]:
    """Return (out, log_sum); without a mask query i sees the keys up to offset + i, all for None."""
    batch_size, num_heads, num_new, _ = q.shape
    num_kv_heads, num_keys = k.shape[1:3]
    q = q.unflatten(1, (num_kv_heads, -1))  # (B, KV, G, t, D), as h = kv * G + g
    if mask is not None:
        mask = mask.expand(batch_size, num_heads, num_new, num_keys).unflatten(1, (num_kv_heads, -1))
    done = []
    for start in range(0, num_new, tile):
        rows = slice(start, start + tile)
        seen = None if mask is None else mask[..., rows, :]
        first = None if offset is None else offset + start
        done.append(_attend_rows(q[..., rows, :], k, v, seen, first, tile))
    out, log_sum = (torch.cat(tiles, dim=3) for tiles in zip(*done))
    return out.flatten(1, 2), log_sum.flatten(1, 2)


def _attend_rows(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, offset: int | None, tile: int
) -> tuple[Tensor, Tensor]:
    """Walk over the keys with one tile of queries, (B, KV, G, r, D) -> (same, (B, KV, G, r))."""
    group = q.shape[2:4]  # G, r
    wide = torch.promote_types(q.dtype, torch.float32)
    q = (q.to(wide) / math.sqrt(q.shape[4])).flatten(2, 3)  # a KV head serves its whole group at once
    end = k.shape[2]
    if mask is None and offset is not None:
        end = min(end, max(0, offset + group[1]))  # after it not even the last query sees a key
    out = torch.zeros_like(q)  # (B, KV, G r, D), not yet divided by total
    total = q.new_zeros(*q.shape[:3], 1)  # sum of exp(score - high)
    high = torch.full_like(total, NOTHING)  # largest score so far
    for start in range(0, end, tile):
        now = slice(start, min(start + tile, end))
        seen = _seen(mask, offset, now, group[1], q.device)
        if mask is not None and not seen.any():
            continue
        scores = q @ k[:, :, now].to(wide).transpose(2, 3)  # (B, KV, G r, n)
        if seen is not None:
            scores.unflatten(2, group).masked_fill_(~seen, NOTHING)
        out, total, high = _absorb(out, total, high, scores, v[:, :, now].to(wide))
    out = out / total.masked_fill(total == 0, 1)
    if q.device.type != "mps":  # it has no float64
        high, total = high.double(), total.double()
    log_sum = high + total.log()
    return out.unflatten(2, group), log_sum.squeeze(3).unflatten(2, group)


def _absorb(
    out: Tensor, total: Tensor, high: Tensor, scores: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Take one more tile into the running output, sum and maximum: the online softmax.

    Shapes: out (..., r, D), total and high (..., r, 1), scores (..., r, n), values (..., n, D).
    """
    new_high = torch.maximum(high, scores.amax(dim=-1, keepdim=True))
    base = _finite(new_high)
    rescale = (high - base).exp()  # 0 for the first tile that is seen
    weights = (scores - base).exp()
    total = total * rescale + weights.sum(dim=-1, keepdim=True)
    return out * rescale + weights @ values, total, new_high


def _finite(x: Tensor) -> Tensor:
    """Return x with 0 for -inf, so that -inf - x stays -inf where nothing is seen."""
    return x.masked_fill(x == NOTHING, 0)


def _seen(mask, offset: int | None, keys: slice, num_rows: int, device) -> Tensor | None:
    """Return who sees whom in one tile, bool (..., r, n); None where all see all."""
    if mask is not None:
        return mask[..., keys]
    if offset is None or keys.stop <= offset + 1:
        return None
    last = offset + torch.arange(num_rows, device=device)
    return torch.arange(keys.start, keys.stop, device=device) <= last[:, None]


def _check_part(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ValueError as `_group_size` does, but take a part shorter than the queries, or empty."""
    if q.dim() == k.dim() == 4 and k.shape == v.shape and k.shape[2] < q.shape[2]:
        size = *k.shape[:2], q.shape[2], k.shape[3]
        k, v = (x.new_zeros(()).expand(size) for x in (k, v))
    _group_size(q, k, v)


def _check_parts(outs: list[Tensor], log_sums: list[Tensor]) -> None:
    """Raise ValueError unless there are parts, and all of one shape, dtype and device."""
    if not outs or len(outs) != len(log_sums):
        raise ValueError(
            f"{len(outs)} outputs and {len(log_sums)} log_sums cannot be merged; give one of each "
            "for every part, and at least one part"
        )
    for out, log_sum in zip(outs, log_sums):
        if out.shape != outs[0].shape or log_sum.shape != out.shape[:-1]:
            raise ValueError(
                f"a part has out {tuple(out.shape)} and log_sum {tuple(log_sum.shape)}; all outs must "
                f"be {tuple(outs[0].shape)}, all log_sums {tuple(outs[0].shape[:-1])}"
            )
        if out.dtype != outs[0].dtype or not out.device == outs[0].device == log_sum.device:
            raise ValueError(
                f"a part is {out.dtype} on {out.device}, the first {outs[0].dtype} on "
                f"{outs[0].device}; all parts must share dtype and device"
            )

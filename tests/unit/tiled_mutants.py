"""Wrong versions of kvlib.tiled: one real mistake each, as the attributes to put in its place."""

from __future__ import annotations

import math

import torch

from kvlib import tiled

_attend, _attend_rows, _absorb = tiled._attend, tiled._attend_rows, tiled._absorb


def _absorbing(rescales_out=True, rescales_total=True, least=None, keeps_high=False):
    def absorb(out, total, high, scores, values):
        if least is not None:
            high = high.clamp_min(least)
        new_high = torch.maximum(high, scores.amax(dim=-1, keepdim=True))
        if keeps_high:
            new_high = torch.where(high == tiled.NOTHING, new_high, high)
        base = tiled._finite(new_high)
        rescale, weights = (high - base).exp(), (scores - base).exp()
        total = total * (rescale if rescales_total else 1) + weights.sum(dim=-1, keepdim=True)
        return out * (rescale if rescales_out else 1) + weights @ values, total, new_high

    return {"_absorb": absorb}


def _rows(change):
    """Change (out, log_sum) of a tile of queries."""
    return {"_attend_rows": lambda *args: change(*_attend_rows(*args))}


def _given(change):
    """Change what the walk over the tiles is given: q, k, v, mask, offset, tile."""
    return {"_attend": lambda *args: _attend(*change(*args))}


def _merging(weigh):
    """Merge with other weights: weigh(log_sums) -> (S, B, H, t)."""

    def merge(outs, log_sums):
        outs, log_sums = torch.stack(list(outs)), torch.stack(list(log_sums))
        share = weigh(log_sums).to(outs.dtype)
        return (share[..., None] * outs).sum(dim=0), log_sums.logsumexp(dim=0)

    return {"merge_parts": merge}


def _by_formula(q, k, v, mask, offset, tile):
    """Make the whole score matrix."""
    if mask is None:
        first = k.shape[2] - 1 if offset is None else offset
        mask = torch.arange(k.shape[2]) <= first + torch.arange(q.shape[2])[:, None]
    size = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(size, dim=1), v.repeat_interleave(size, dim=1)
    scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(~mask, tiled.NOTHING)
    return scores.softmax(dim=-1).nan_to_num(0) @ v, scores.logsumexp(dim=-1)


def _share_of_the_largest(outs, log_sums):
    out, _ = tiled_merge(outs, log_sums)
    return out, torch.stack(list(log_sums)).amax(dim=0)


def _in_place(q, k, v, mask, offset, tile):
    q.div_(2), q.mul_(1 + 1e-9)
    return _attend(2 * q, k, v, mask, offset, tile)


tiled_merge = tiled.merge_parts

MUTANTS = {
    "the output is not rescaled on a new maximum": _absorbing(rescales_out=False),
    "the sum is not rescaled on a new maximum": _absorbing(rescales_total=False),
    "the maximum starts at 0": _absorbing(least=0.0),
    "the maximum stays that of the first tile": _absorbing(keeps_high=True),
    "no maximum is subtracted": {
        "_absorb": lambda out, total, high, scores, values: _absorb(
            out, total, torch.zeros_like(high), scores.clamp_max(0), values
        )
    },
    "logarithm of base 2": _rows(lambda out, log_sum: (out, log_sum / math.log(2))),
    "the log_sum is the maximum alone": _rows(lambda out, log_sum: (out, log_sum.round())),
    "an empty part weighs 1": _rows(
        lambda out, log_sum: (out, log_sum.masked_fill(log_sum.isneginf(), 0))
    ),
    "a row without keys is 0 / 0": _rows(
        lambda out, log_sum: (out.masked_fill(log_sum.isneginf()[..., None], math.nan), log_sum)
    ),
    "merged by averaging": _merging(lambda x: torch.full_like(x, 1 / len(x))),
    "merged by averaging what is not empty": _merging(
        lambda x: x.isfinite().double() / x.isfinite().sum(dim=0).clamp_min(1)
    ),
    "merged by base 2": _merging(lambda x: (x * math.log(2)).softmax(dim=0).nan_to_num(0)),
    "merged without a check for nothing": _merging(lambda x: x.softmax(dim=0)),
    "shares by the rounded log_sum of all": _merging(
        lambda x: (x - x.logsumexp(dim=0).nan_to_num(neginf=0)).exp()
    ),
    "log_sums in float32": _rows(lambda out, log_sum: (out, log_sum.float().to(log_sum.dtype))),
    "a merge returns the largest log_sum": {"merge_parts": _share_of_the_largest},
    "the mask is aligned at the top left": _given(
        lambda q, k, v, mask, offset, tile: (q, k, v, mask, offset and 0, tile)
    ),
    "a query does not see itself": _given(
        lambda q, k, v, mask, offset, tile: (q, k, v, mask, offset and offset - 1, tile)
    ),
    "nothing is masked": _given(lambda q, k, v, mask, offset, tile: (q, k, v, None, None, tile)),
    "a rest that fills no tile is left out": _given(
        lambda q, k, v, mask, offset, tile: (
            q, *(x[:, :, : max(1, x.shape[2] // tile) * tile] for x in (k, v)), mask, offset, tile
        ) if mask is None else (q, k, v, mask, offset, tile)
    ),
    "query heads take turns at the KV heads": _given(
        lambda q, k, v, *rest: (
            q.unflatten(1, (-1, k.shape[1])).transpose(1, 2).flatten(1, 2), k, v, *rest
        )
    ),
    "scores are not scaled": _given(lambda q, *rest: (q * math.sqrt(q.shape[3]), *rest)),
    "the whole score matrix is made": {"_attend": _by_formula},
    "the queries are changed in place": {"_attend": _in_place},
    "parts are rounded to the queries' type": {
        "_attend": lambda q, *rest: tuple(x.to(q.dtype) for x in _attend(q, *rest))
    },
}  # fmt: skip

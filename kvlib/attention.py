"""Attention over cached keys and values.

Shapes, everywhere: q (B, H, t, D) for t new queries; k and v (B, KV, T, D) for all T keys
that end with the new ones. H = KV * group_size, and query head h reads KV head
h // group_size. Nothing here knows where keys come from or what a position is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kvlib.caches.rollback import unchanged_on_failure

SPLIT_KEYS = 1024  # a part of the keys that a core reads alone is at least this long


def causal_mask(num_new: int, num_keys: int, device: torch.device | str = "cpu") -> Tensor:
    """Return who may see whom, bool (num_new, num_keys), aligned at the bottom right.

    The new queries are the last `num_new` of `num_keys` tokens: query i sees keys
    0 .. num_keys - num_new + i, itself included. Raises ValueError for more queries than keys.
    """
    if not 1 <= num_new <= num_keys:
        raise ValueError(f"{num_new} new tokens cannot be the last of {num_keys}")
    return torch.ones(num_new, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_new)


def reference_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend by the formula, softmax(q k^T / sqrt(D)) v, with K and V repeated to H heads.

    Shapes: q (B, H, t, D), k and v (B, KV, T, D), `mask` bool, broadcast to (B, H, t, T), causal
    where None -> (B, H, t, D). The repeat copies K and V group_size times: it shows what is
    computed, not how to compute it. Of 16-bit numbers the scores are float32, as in PyTorch's fused
    kernels: a sum of D products can exceed 65,504. Source: Vaswani et al. 2017; Ainslie et al. 2023
    for groups.
    """
    group_size = _group_size(q, k, v)
    _check_mask(mask, q, k)
    k = k.repeat_interleave(group_size, dim=1)  # (B, KV, T, D) -> (B, H, T, D)
    v = v.repeat_interleave(group_size, dim=1)
    if mask is None:
        mask = causal_mask(q.shape[2], k.shape[2], q.device)
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q, k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])  # (B, H, t, T)
    scores = scores.masked_fill(~mask, float("-inf"))
    out = scores.softmax(dim=-1) @ v  # (B, H, t, T) @ (B, H, T, D) -> (B, H, t, D)
    return out.to(dtype)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend with every K and V row read where it lies, none repeated for its group.

    Shapes and meaning as in `reference_attention`; `mask` is bool and broadcasts to
    (B, 1, t, T). One query per sequence folds its group into the query axis, so that a KV head is
    read once for all the query heads that share it; several queries go one group member at a time.
    """
    group_size = _group_size(q, k, v)
    _check_mask(mask, q, k)
    if mask is not None and mask.dim() < 2:
        mask = mask.view(1, -1)
    batch_size, num_heads, num_new, head_dim = q.shape
    num_kv_heads, num_keys = k.shape[1], k.shape[2]
    if num_new == 1:
        folded = q.reshape(batch_size, num_kv_heads, group_size, head_dim)  # h = kv * G + g
        splits = _num_splits(k) if mask is None else 1
        if splits > 1:
            out = _split_attention(folded, k, v, splits)
        else:
            out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask)  # (B, KV, G, D)
        return out.reshape(batch_size, num_heads, 1, head_dim)
    whole = mask is None and num_new == num_keys
    if mask is None and not whole:
        mask = causal_mask(num_new, num_keys, q.device)
    members = q.view(batch_size, num_kv_heads, group_size, num_new, head_dim).unbind(2)
    outs = [
        F.scaled_dot_product_attention(member, k, v, attn_mask=mask, is_causal=whole)
        for member in members  # each (B, KV, t, D)
    ]
    return torch.stack(outs, dim=2).view(q.shape)  # (B, KV, G, t, D) -> (B, H, t, D)


def _split_attention(q: Tensor, k: Tensor, v: Tensor, num_splits: int) -> Tensor:
    """Attend to the keys in `num_splits` parts side by side, and merge: exact but for rounding.

    Shapes: q (B, KV, G, D), k and v (B, KV, T, D) -> (B, KV, G, D), with every query seeing every key.
    Each part returns its output and the log of its softmax's sum; a part's share of the whole is
    the softmax of these logs. Source: Dao et al. 2023 (flash-decoding).
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # also returns the log-sum
    heads, (num_keys, head_dim) = k.shape[0] * k.shape[1], k.shape[2:]
    queries = q.reshape(1, heads, -1, head_dim)
    k, v = k.view(heads, num_keys, head_dim), v.view(heads, num_keys, head_dim)
    size = num_keys // num_splits
    rest = num_splits * size  # up to num_splits - 1 keys after it make a part of their own
    parts = [
        x[:, :rest].unflatten(1, (num_splits, size)).transpose(0, 1) for x in (k, v)
    ]  # each a view, (S, B KV, size, D)
    out, log_sum = flash(queries.expand(num_splits, -1, -1, -1), *parts)
    if rest < num_keys:
        last, last_sum = flash(queries, k[None, :, rest:], v[None, :, rest:])
        out, log_sum = torch.cat([out, last]), torch.cat([log_sum, last_sum])
    share = log_sum.softmax(dim=0)[..., None]  # (S, B KV, G, 1), float32 where the rows have 16 bits
    return (out * share).sum(dim=0).to(q.dtype).view(q.shape)


def _num_splits(k: Tensor) -> int:
    """Say in how many parts to read the keys, so that every core of a CPU has enough to do.

    A GPU's kernels split by themselves; short contexts, and keys that are no plain buffer, are
    read whole.
    """
    batch_size, num_kv_heads, num_keys, _ = k.shape
    if k.device.type != "cpu" or num_keys < 2 * SPLIT_KEYS:
        return 1
    if batch_size > 1 and k.stride(0) != num_kv_heads * k.stride(1):
        return 1
    wanted = -(-2 * torch.get_num_threads() // (batch_size * num_kv_heads))  # two parts a core
    return min(max(2, wanted), num_keys // SPLIT_KEYS)


def attention_with_kv_cache(
    q: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    cache,
    valid: Tensor | None = None,
    *,
    attend: Callable[..., Tensor] | None = None,
) -> tuple[Tensor, object]:
    """Append the new keys and values to the cache, then attend to all of it.

    Shapes: q (B, H, t, D), `k_new` and `v_new` (B, KV, t, D) -> output (B, H, t, D) and the same
    cache, which now holds t tokens more. `cache` is anything with `update`. `valid`, bool (B, all
    tokens so far, the new ones included), is False at padding. `attend(q, k, v, mask)` does the
    attending, by default `grouped_attention`. Raises ValueError, before the cache changes, where
    the queries or `valid` do not fit the new keys. Where attending fails, the cache is as it was.
    """
    _group_size(q, k_new, v_new)
    if q.shape[2] != k_new.shape[2]:
        raise ValueError(f"{q.shape[2]} queries came with {k_new.shape[2]} keys; one each is needed")
    if valid is not None:
        _check_valid(valid, q, getattr(cache, "seq_len", None))
        if not getattr(cache, "takes_padding", True):
            raise ValueError("this cache keeps the first rows as sinks; none of them may be padding")
    with unchanged_on_failure([cache]):
        k, v = cache.update(k_new, v_new)  # first append, then attend: a token sees itself
        num_new, num_keys = q.shape[2], k.shape[2]
        visible = getattr(cache, "visible", None)
        mask = visible(num_new, num_keys, q.device) if visible else None
        if valid is not None:
            mask = padded_mask(mask, valid[:, valid.shape[1] - num_keys :], num_new)
        return (attend or grouped_attention)(q, k, v, mask), cache


def padded_mask(mask: Tensor | None, valid: Tensor, num_new: int) -> Tensor:
    """Join a mask (t, T), causal where None, with `valid` (B, T) -> bool (B, 1, t, T).

    A query keeps sight of its own key even where that is padding: a row without any key
    would give 0 / 0, and its NaN would spread through the next layer's values.
    """
    num_keys = valid.shape[1]
    if mask is None:
        mask = causal_mask(num_new, num_keys, valid.device)
    keys = torch.arange(num_keys, device=valid.device)
    own = keys == keys[num_keys - num_new :, None]  # (t, T), True where a query meets its own key
    return (mask & valid[:, None, :] | own)[:, None]


def _check_valid(valid: Tensor, q: Tensor, seq_len: int | None) -> None:
    """Raise ValueError unless `valid` is bool (B, seq_len + t), for t queries after seq_len."""
    if valid.dtype != torch.bool or valid.dim() != 2 or valid.shape[0] != q.shape[0]:
        raise ValueError(
            f"valid is {valid.dtype} of shape {tuple(valid.shape)}; it must be bool, one row for "
            f"each of {q.shape[0]} sequences"
        )
    if seq_len is not None and valid.shape[1] != seq_len + q.shape[2]:
        raise ValueError(
            f"valid covers {valid.shape[1]} tokens; the cache holds {seq_len} and "
            f"{q.shape[2]} are new"
        )


def _check_mask(mask: Tensor | None, q: Tensor, k: Tensor) -> None:
    """Raise ValueError unless `mask` is None, or bool and broadcasts to (B, H, t, T)."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask must be a bool tensor, True where a query sees a key, not {kind}")
    wanted = (*q.shape[:3], k.shape[2])
    if mask.dim() > 4 or any(a not in (1, b) for a, b in zip(mask.shape[::-1], wanted[::-1])):
        raise ValueError(f"mask {tuple(mask.shape)} does not broadcast to {wanted}, (B, H, t, T)")


def _group_size(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Return H // KV, or raise ValueError where q, k and v do not belong together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or 0 in x.shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be (B, heads, tokens, D)")
    if k.shape != v.shape:
        raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} differ in shape")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} differ in batch size or head dimension"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads cannot share {k.shape[1]} KV heads evenly; "
            "num_heads must be a multiple of num_kv_heads"
        )
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        raise ValueError(
            f"q, k, v must share dtype and device, not {q.dtype}, {k.dtype}, {v.dtype} on "
            f"{q.device}, {k.device}, {v.device}"
        )
    if q.shape[2] > k.shape[2]:
        raise ValueError(f"{q.shape[2]} queries but only {k.shape[2]} keys: append before attending")
    return q.shape[1] // k.shape[1]

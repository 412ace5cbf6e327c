"""The C functions as functions of tensors."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kvlib.attention import _check_mask, _group_size, grouped_attention
from kvlib.native.build import library

LANES, MOST_QUERIES, MOST_DIM = 16, 64, 256  # as in vectors.h and attention.h
ROWS_AT_ONCE = 1, 2, 4, 8, 16


def native_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend as `grouped_attention`; one query a sequence, on a CPU in float32, by one C function.

    Every K and V row is read once and meets all query heads of its group while it is in the processor's
    cache; only a block's scores are ever kept. Threads share the keys, and their parts are merged by
    the maximum and the sum of each part's softmax. What it is not made for, such as a mask, several new
    tokens or half precision, goes to `grouped_attention`. Source: Dao et al. 2023 (flash-decoding).
    """
    group_size = _group_size(q, k, v)
    _check_mask(mask, q, k)
    if mask is not None or q.shape[2] != 1 or not attends(q.device, q.dtype, group_size, q.shape[3]):
        return grouped_attention(q, k, v, mask)
    k, v = (x if x.stride()[2:] == (x.shape[3], 1) else x.contiguous() for x in (k, v))
    q = q.contiguous()
    out = torch.empty_like(q)
    heads = q.shape[0] * k.shape[1]
    failed = library().kvlib_attend(
        address(q), _heads(k), _heads(v), address(out), ctypes.c_int64(heads), group_size,
        ctypes.c_int64(k.shape[2]), q.shape[3], torch.get_num_threads(),
    )  # fmt: skip
    if failed:
        raise MemoryError("there is no memory for the partial results of the attention")
    return out


def attends(device: torch.device, dtype: torch.dtype, group_size: int, head_dim: int) -> bool:
    """Say whether the C attention is made for such queries."""
    return (
        device.type == "cpu" and dtype == torch.float32
        and group_size <= MOST_QUERIES and head_dim % LANES == 0 and head_dim <= MOST_DIM
    )  # fmt: skip


def read_rows(weight: Tensor, x: Tensor, rows_at_once: int) -> Tensor:
    """Multiply a weight (out, in) by x (in,), with 1, 2, 4, 8 or 16 rows read at once -> (out,).

    The same numbers come out each time; what changes is how many places of the memory are on their way
    to a core at once. Float32 on a CPU; raises ValueError for anything else.
    """
    if rows_at_once not in ROWS_AT_ONCE:
        raise ValueError(f"rows_at_once is one of {ROWS_AT_ONCE}, not {rows_at_once!r}")
    for name, t, dims in (("weight", weight, 2), ("x", x, 1)):
        if t.dim() != dims or t.dtype != torch.float32 or t.device.type != "cpu":
            raise ValueError(
                f"{name} must be float32 with {dims} dimension{'s' * (dims > 1)} on a CPU, not "
                f"{t.dtype} of shape {tuple(t.shape)} on {t.device}"
            )
    if weight.shape[1] != x.shape[0] or x.shape[0] % LANES or 0 in weight.shape:
        raise ValueError(
            f"weight {tuple(weight.shape)} and x {tuple(x.shape)} must agree on the inputs, a "
            f"multiple of {LANES}"
        )
    weight, x = weight.contiguous(), x.contiguous()
    out = torch.empty(weight.shape[0])
    library().kvlib_product(
        address(weight), ctypes.c_int64(weight.shape[0]), weight.shape[1], address(x), address(out),
        rows_at_once, torch.get_num_threads(),
    )  # fmt: skip
    return out


def address(x: Tensor) -> ctypes.c_void_p:
    """Return where a tensor's first element lies."""
    return ctypes.c_void_p(x.data_ptr())


def _heads(x: Tensor) -> ctypes.Array:
    """Return where each head's rows begin, for x (B, KV, T, D) with rows that follow each other."""
    begin, (batch_step, head_step) = x.data_ptr(), x.stride()[:2]
    size = x.element_size()
    places = [
        begin + (b * batch_step + h * head_step) * size
        for b in range(x.shape[0])
        for h in range(x.shape[1])
    ]
    return (ctypes.c_void_p * len(places))(*places)

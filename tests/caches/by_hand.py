"""The logits a model must give, by hand: no cache, and attention as a loop over queries and keys."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.caches.kinds import Kind
from tests.caches.reference import attend_by_loop


def logits_without_cache(kind: Kind, model, tokens: Tensor) -> Tensor:
    """Return the logits (B, T, V) of a whole pass, in which a query sees what `kind` lets it see."""
    if kind.window is None:
        return model(tokens)
    heads = model.config.num_heads, model.config.num_kv_heads, model.config.num_kv_heads
    x = F.embedding(tokens, model.embedding)  # (B, T, C)
    for layer in model.layers:
        qkv = layer.attention.qkv(layer.attention_norm(x)).unflatten(2, (sum(heads), -1))
        q, k, v = qkv.transpose(1, 2).split(heads, dim=1)
        if kind.unrotated:
            out = attend_by_distance(q, k, v, kind.window, kind.sinks, model.config.rope_theta)
        else:
            place = torch.arange(q.shape[2], dtype=torch.float32)
            q, k = (turned(y, place, model.config.rope_theta) for y in (q, k))
            out = attend_by_loop(q, k, v, kind.window, kind.sinks)
        x = x + layer.attention.out(out.to(x.dtype).transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.mlp_norm(x))
    return model.norm(x) @ model.embedding.T


def attend_by_distance(q: Tensor, k: Tensor, v: Tensor, window: int, sinks: int, theta: float) -> Tensor:
    """Attend as StreamingLLM does, in float64, one query, head and key at a time.

    Shapes: q (B, H, T, D), k and v (B, KV, T, D), from before RoPE -> (B, H, T, D) in float64. Query
    i meets key j turned by their distance: i - j in the window, and at most sinks + window - 1 - j
    for a sink.
    """
    q, k, v = (x.double() for x in (q, k, v))
    out, group_size = torch.zeros_like(q), q.shape[1] // k.shape[1]
    for i in range(q.shape[2]):
        distance = {j: i - j for j in range(i + 1) if i - j < window}
        distance |= {j: min(i - j, sinks + window - 1 - j) for j in range(min(sinks, i + 1))}
        places = torch.tensor(list(distance.values()), dtype=torch.float64)
        for h in range(q.shape[1]):
            keys, values = (x[:, h // group_size, list(distance)] for x in (k, v))  # (B, n, D)
            query = turned(q[:, h, i, None].expand_as(keys), places, theta)
            weights = ((query * keys).sum(-1) / math.sqrt(q.shape[3])).softmax(-1)  # (B, n)
            out[:, h, i] = (weights[:, :, None] * values).sum(1)
    return out


def turned(x: Tensor, places: Tensor, theta: float) -> Tensor:
    """Turn each pair (x_i, x_{i + D/2}) of x (..., t, D) by place * theta^(-2i/D), as complex numbers."""
    half = x.shape[-1] // 2
    frequency = 1.0 / theta ** (torch.arange(0, 2 * half, 2, dtype=torch.float32) / (2 * half))
    angle = torch.outer(places, frequency.to(places.dtype))
    turn = torch.complex(angle.cos().to(x.dtype), angle.sin().to(x.dtype))
    pairs = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1)

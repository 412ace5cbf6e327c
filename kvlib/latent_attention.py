"""Multi-head latent attention (MLA): one small row a token, and two ways to attend to it.

Comments give shapes: B batch, t new tokens, T keys, H heads, C hidden size, N the numbers of a head
without position, R the rotary ones, V the numbers of a value, L the latent's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvlib.attention import causal_mask
from kvlib.checks import check_whole
from kvlib.rotary import rotate


@dataclass(frozen=True)
class LatentShape:
    """Sizes of latent attention; the defaults are DeepSeek-V3's."""

    hidden_size: int = 7168
    num_heads: int = 128
    nope_dim: int = 128  # numbers of a head's query and key that carry no position
    rope_dim: int = 64  # numbers that do; this part of the key is one for all heads
    value_dim: int = 128
    latent_dim: int = 512

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_whole(name, value)
        if self.rope_dim % 2:
            raise ValueError(f"rope_dim {self.rope_dim} is odd; rotary positions turn pairs")

    @property
    def row_dim(self) -> int:
        """Numbers that the cache holds of one token: latent + rope."""
        return self.latent_dim + self.rope_dim

    @property
    def expanded_dim(self) -> int:
        """Numbers that keys and values of all heads would take for one token."""
        return self.num_heads * (self.nope_dim + self.rope_dim + self.value_dim)

    def flops(self, num_keys: int, *, absorbed: bool, num_new: int = 1) -> int:
        """Count the operations of `num_new` queries' attention to `num_keys` rows; a multiply-add is 2.

        From the projected queries to the heads' outputs: what both ways share is left out. Expanding
        turns every row into keys and values, once for all queries; absorbing turns each query and
        output, and leaves the rows alone, but each of them is longer to read.
        """
        turned = self.num_heads * self.latent_dim * (self.nope_dim + self.value_dim)
        if absorbed:
            per_key = self.num_heads * (self.row_dim + self.latent_dim)
            return 2 * num_new * (turned + num_keys * per_key)
        return 2 * num_keys * (turned + num_new * self.expanded_dim)


class LatentAttention(nn.Module):
    """Project to latent rows, append them to a `LatentKVCache`, attend, project back.

    The latent is c = norm(x W_D). Head i's key is (c W_UK_i, r), its value c W_UV_i; the rotary key
    r = rotated(x W_R) is shared. Weights are random until someone fills them. Queries come straight
    from x, without the low-rank detour of the large models, which changes nothing that is cached.
    Source: DeepSeek-V2, 2024, section 2.1.
    """

    def __init__(self, shape: LatentShape, *, norm_eps: float = 1e-6, **options) -> None:
        super().__init__()
        self.shape = shape
        heads = shape.num_heads
        self.query = _weight(heads * (shape.nope_dim + shape.rope_dim), shape.hidden_size, **options)
        self.down = _weight(shape.row_dim, shape.hidden_size, **options)  # W_D over W_R
        self.up_keys = _weight(heads, shape.nope_dim, shape.latent_dim, **options)  # W_UK
        self.up_values = _weight(heads, shape.value_dim, shape.latent_dim, **options)  # W_UV
        self.out = _weight(shape.hidden_size, heads * shape.value_dim, **options)
        self.norm = nn.Parameter(torch.ones(shape.latent_dim, **options))
        self.norm_eps = norm_eps
        self.requires_grad_(False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], cache=None, *, absorbed: bool = True) -> Tensor:
        """Attend causally from new tokens x (B, t, C) to all rows so far -> (B, t, C).

        `turn` is the rotary (cos, sin) of the new positions, each (t, R); `cache` a `LatentKVCache`,
        or None to attend to the new tokens alone. `absorbed` chooses the way, never the result.
        """
        if x.dim() != 3 or x.shape[2] != self.shape.hidden_size or 0 in x.shape:
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be (B, t, {self.shape.hidden_size})")
        latent, rope = self.rows(x, turn)
        nope_queries, rope_queries = self.queries(x, turn)
        if cache is None:
            keys, values = torch.cat([latent, rope], dim=3), latent
        else:
            keys, values = cache.update(latent, rope)  # (B, 1, T, L + R), (B, 1, T, L)
        attend = self.attend_absorbed if absorbed else self.attend_expanded
        out = attend(nope_queries, rope_queries, keys, values)  # (B, H, t, V)
        return F.linear(out.transpose(1, 2).flatten(2), self.out)

    def rows(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return what is cached of x (B, t, C): latents (B, 1, t, L), rotary keys (B, 1, t, R)."""
        row = F.linear(x, self.down)[:, None]  # (B, 1, t, L + R)
        latent, rope = row.split([self.shape.latent_dim, self.shape.rope_dim], dim=3)
        latent = F.rms_norm(latent, self.norm.shape, self.norm, self.norm_eps)
        return latent, rotate(rope, turn)

    def queries(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the heads' queries of x (B, t, C): (B, H, t, N), and rotated (B, H, t, R)."""
        parts = self.shape.nope_dim, self.shape.rope_dim
        q = F.linear(x, self.query).unflatten(2, (self.shape.num_heads, sum(parts))).transpose(1, 2)
        nope, rope = q.split(parts, dim=3)
        return nope, rotate(rope, turn)

    def attend_expanded(self, nope_queries, rope_queries, keys, values) -> Tensor:
        """Turn every row into the keys and values of all heads, then attend as MHA -> (B, H, t, V)."""
        rope = keys[..., self.shape.latent_dim :].expand(-1, self.shape.num_heads, -1, -1)
        keys = torch.cat([self._up(values, self.up_keys), rope], dim=3)  # (B, H, T, N + R)
        values = self._up(values, self.up_values)  # (B, H, T, V)
        queries = torch.cat([nope_queries, rope_queries], dim=3)
        return attend(queries, keys, values, self._scale)

    def attend_absorbed(self, nope_queries, rope_queries, keys, values) -> Tensor:
        """Carry the queries into the latent space, attend as MQA, carry the result out.

        q (W_UK c) = (q W_UK) c: the keys' up-projection moves over to the query, and the values'
        to after the weighted sum. No row is ever expanded. -> (B, H, t, V)
        """
        queries = torch.cat([nope_queries @ self.up_keys, rope_queries], dim=3)  # (B, H, t, L + R)
        latent = attend(queries, keys, values, self._scale)  # (B, H, t, L)
        return latent @ self.up_values.transpose(1, 2)

    @staticmethod
    def _up(latent: Tensor, weight: Tensor) -> Tensor:
        """Multiply latents (B, 1, T, L) by each head's weight (H, N, L) -> (B, H, T, N)."""
        heads = F.linear(latent[:, 0], weight.flatten(0, 1))  # (B, T, H N)
        return heads.unflatten(2, weight.shape[:2]).transpose(1, 2)

    @property
    def _scale(self) -> float:
        """One over the root of a head's own width, whichever way is taken."""
        return 1 / math.sqrt(self.shape.nope_dim + self.shape.rope_dim)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attend causally: q (B, H, t, K), k (B, KV, T, K), v (B, KV, T, V) -> (B, H, t, V), KV 1 or H.

    `scale` is given, as in latent space a query is wider than the head that it came from. With one
    KV head the heads become rows of one product, so that no key or value is repeated. Scores of 16-bit
    numbers are float32: a sum of K products can exceed 65,504.
    """
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q, k, v))
    heads, num_new, num_keys = q.shape[1], q.shape[2], k.shape[2]
    mask = causal_mask(num_new, num_keys, q.device)
    if k.shape[1] == 1:
        q = q.flatten(1, 2)[:, None]  # (B, 1, H t, K)
        mask = mask.repeat(heads, 1)
    scores = (q @ k.transpose(2, 3) * scale).masked_fill(~mask, float("-inf"))
    return (scores.softmax(dim=-1) @ v).to(dtype).reshape(len(v), heads, num_new, -1)


def _weight(*size: int, **options) -> nn.Parameter:
    """Return random weights that keep the size of what they multiply."""
    return nn.Parameter(nn.init.normal_(torch.empty(size, **options), std=size[-1] ** -0.5))

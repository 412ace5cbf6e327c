"""One decode step on fixed addresses: what `torch.compile` and CUDA graphs are given to run.

The step of `kvlib.model` asks the caches for their rows, in Python, layer by layer. Here it is a function
of tensors alone: the buffers of static caches, a place to write to, and the keys that count. Comments
give shapes: B batch, T keys, H query heads, KV key/value heads, D head dimension, C hidden size,
M intermediate size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kvlib.model import Layer, Model
from kvlib.rotary import rotate

ROWS_AT_ONCE = 8  # of a weight, so that its reading is that many streams of addresses


class LayerWeights(NamedTuple):
    """The six weights of a layer, as `kvlib.model` lays them out."""

    attention_norm: Tensor  # (C,)
    qkv: Tensor  # ((H + 2 KV) D, C)
    out: Tensor  # (C, H D)
    mlp_norm: Tensor  # (C,)
    gate_up: Tensor  # (2 M, C)
    down: Tensor  # (C, M)

    @classmethod
    def of(cls, layer: Layer) -> LayerWeights:
        """Look up the weights of a layer; nothing is copied."""
        return cls(
            layer.attention_norm.weight, layer.attention.qkv.weight, layer.attention.out.weight,
            layer.mlp_norm.weight, layer.mlp.gate_up.weight, layer.mlp.down.weight,
        )  # fmt: skip


def layer_step(
    x: Tensor,
    weights: LayerWeights,
    k: Tensor,
    v: Tensor,
    turn: tuple[Tensor, Tensor],
    eps: float,
    place: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Run one layer for one new token of each sequence, writing its key and value in place.

    Shapes: x (B, C) -> (B, C); k and v (B, KV, T, D), views of a cache's buffers; `turn` (1, D) each.
    Without `place` the new row is the last of T and every key counts. With `place`, int64 (1,), the row
    is written there and `mask`, bool (1, 1, 1, T), says which keys count: then no shape depends on
    how many tokens there are.
    """
    batch_size, num_kv_heads, _, head_dim = k.shape
    num_heads = weights.out.shape[1] // head_dim
    qkv = product(F.rms_norm(x, x.shape[-1:], weights.attention_norm, eps), weights.qkv)
    qkv = qkv.view(batch_size, num_heads + 2 * num_kv_heads, 1, head_dim)
    turned = rotate(qkv[:, : num_heads + num_kv_heads], turn)
    k_new, v_new = turned[:, num_heads:], qkv[:, num_heads + num_kv_heads :]  # (B, KV, 1, D)
    if place is None:
        k[:, :, -1:] = k_new
        v[:, :, -1:] = v_new
    else:
        k.index_copy_(2, place, k_new)
        v.index_copy_(2, place, v_new)
    q = turned[:, :num_heads].reshape(batch_size, num_kv_heads, -1, head_dim)  # (B, KV, G, D)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    x = x + product(attended.reshape(batch_size, -1), weights.out)
    gate_up = product(F.rms_norm(x, x.shape[-1:], weights.mlp_norm, eps), weights.gate_up)
    gate, up = gate_up.chunk(2, dim=-1)  # each (B, M)
    return x + product(F.silu(gate) * up, weights.down)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply x (B, in) by a weight (out, in) -> (B, out).

    For one row on a CPU it is written so that the compiler's loop goes through eight distant rows of
    the weight at once; one after the other they would come slower from memory.
    """
    if x.shape[0] > 1 or x.device.type != "cpu" or weight.shape[0] % ROWS_AT_ONCE:
        return F.linear(x, weight)
    parts = weight.view(ROWS_AT_ONCE, -1, weight.shape[1]).unbind()  # each (out / 8, in)
    return torch.cat([(part * x).sum(dim=-1) for part in parts]).view(1, -1)


class FixedShapeStep:
    """Run a whole step in which neither an address nor a shape changes from token to token.

    The token and its position are tensors, written anew before each step; attention goes over the first
    `num_keys` slots of the buffers and masks those after the position. This is what a CUDA graph can
    record once and play for every token.

    A masked slot is still multiplied, by 0, and 0 times NaN is NaN. So the slots after the position must
    hold numbers: `set` writes zeros there, the first time and whenever anything else than this step
    wrote to the buffers or moved the position (a crop, a reset, an eager step).
    """

    def __init__(self, model: Model, buffers: list[tuple[Tensor, Tensor]], table: tuple[Tensor, Tensor]):
        batch_size = buffers[0][0].shape[0]
        self.model, self.buffers, self.table = model, buffers, table
        self.weights = [LayerWeights.of(layer) for layer in model.layers]
        self.tokens = torch.zeros(batch_size, dtype=torch.int64, device=model.device)
        self.place = torch.zeros(1, dtype=torch.int64, device=model.device)
        self.slots = torch.arange(buffers[0][0].shape[2], device=model.device)
        self._next, self._seen = None, []

    @torch.no_grad()
    def set(self, tokens: Tensor, position: int) -> None:
        """Write the tokens (B, 1) of the next step and where they go."""
        if position != self._next or self._versions() != self._seen:
            for buffer in (x for pair in self.buffers for x in pair):
                buffer[:, :, position:] = 0
        self.tokens.copy_(tokens[:, 0])
        self.place.fill_(position)
        self._next, self._seen = position + 1, self._versions()

    def _versions(self) -> list[int]:
        """Return how often each buffer was written to, as PyTorch counts it."""
        return [x._version for pair in self.buffers for x in pair]

    @torch.no_grad()
    def run(self, num_keys: int) -> Tensor:
        """Run the step over the first `num_keys` slots; return the logits (B, V)."""
        turn = tuple(part.index_select(0, self.place) for part in self.table)  # each (1, D)
        mask = (self.slots[:num_keys] <= self.place)[None, None, None]  # (1, 1, 1, T)
        x = F.embedding(self.tokens, self.model.embedding)  # (B, C)
        eps = self.model.config.norm_eps
        for weights, (k, v) in zip(self.weights, self.buffers, strict=True):
            x = layer_step(x, weights, k[:, :, :num_keys], v[:, :, :num_keys], turn, eps, self.place, mask)
        self._seen = self._versions()
        return self.model._logits(x)

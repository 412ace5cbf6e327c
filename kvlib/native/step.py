"""One whole decode step in C: the addresses are looked up once, then each token is one call."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kvlib.caches import StaticKVCache
from kvlib.model import Model
from kvlib.native.build import library
from kvlib.native.calls import LANES, address, attends


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("layers", "heads", "kv_heads", "dim", "hidden", "mlp")),
        ("vocab", ctypes.c_int64),
        ("eps", ctypes.c_float),
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("attention_norm", "qkv", "out", "mlp_norm", "gate_up", "down", "k", "v")
        ),
        ("k_step", ctypes.c_int64),
        ("v_step", ctypes.c_int64),
    ]


def misfit(model: Model, batch_size: int) -> str | None:
    """Return why the C step cannot run a model, in one sentence, or None if it can."""
    config = model.config
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"The C step computes in float32 on a CPU, and the model is {model.dtype} on {model.device}."
    if batch_size != 1:
        return f"The C step decodes one sequence, and the batch has {batch_size}."
    sizes = config.head_dim, config.hidden_size, config.intermediate_size
    if any(size % LANES for size in sizes):
        return f"The C step needs sizes that are multiples of {LANES}, and the model has {sizes}."
    if not attends(model.device, model.dtype, config.group_size, config.head_dim):
        return "The C attention takes at most 64 query heads a KV head and a head dimension of 256."
    if not all(weight.is_contiguous() for weight in model.parameters()):
        return "The C step needs every weight to lie in one piece."
    return None


class NativeStep:
    """Decode one token of one sequence by a single C call, over static caches that hold a prompt.

    It knows addresses only: whoever calls it keeps weights and buffers alive and where they are.
    """

    def __init__(self, model: Model, caches: list[StaticKVCache]) -> None:
        config = model.config
        self.model, self.config = model, config
        self._shape = _Shape(
            config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim,
            config.hidden_size, config.intermediate_size, config.vocab_size, config.norm_eps,
        )  # fmt: skip
        self._layers = (_Layer * config.num_layers)(
            *(_layer(layer, *cache.buffers) for layer, cache in zip(model.layers, caches, strict=True))
        )
        head = model.embedding if config.tie_embeddings else model.head.weight
        self._tables = [address(x) for x in (model.embedding, model.norm.weight, head)]

    def __call__(self, token: int, position: int, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Run `token` at `position`, whose rotation is `turn` (1, D) each; return logits (1, V)."""
        logits = torch.empty(1, self.config.vocab_size)
        failed = library().kvlib_step(
            ctypes.byref(self._shape), self._layers, *self._tables, *(address(x) for x in turn),
            ctypes.c_int64(token), ctypes.c_int64(position), address(logits), torch.get_num_threads(),
        )  # fmt: skip
        if failed:
            raise MemoryError("there is no memory for one decode step")
        return logits


def _layer(layer, k: Tensor, v: Tensor) -> _Layer:
    weights = (
        layer.attention_norm.weight, layer.attention.qkv.weight, layer.attention.out.weight,
        layer.mlp_norm.weight, layer.mlp.gate_up.weight, layer.mlp.down.weight, k, v,
    )  # fmt: skip
    return _Layer(*(x.data_ptr() for x in weights), k.stride(1), v.stride(1))

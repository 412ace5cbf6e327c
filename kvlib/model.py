"""A Llama-style decoder: RMSNorm, rotary positions, grouped attention, SwiGLU.

The model knows nothing of text, of sampling, or of how a cache keeps its rows. It is given
one cache a layer, asks the first how many tokens it holds, and runs the new tokens from there.
Comments give shapes: B batch, t new tokens, T keys, H query heads, KV key/value heads,
D head dimension, C hidden size, M intermediate size, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvlib.attention import attention_with_kv_cache, grouped_attention, padded_mask
from kvlib.caches.contract import keeps_unrotated, positions_needed
from kvlib.caches.rollback import unchanged_on_failure
from kvlib.checks import check_number, check_whole
from kvlib.rotary import attend_by_place, check_scaling, rotary_tables, rotate


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder, field for field what a Llama config.json says."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    max_seq_len: int = 2048
    rope_scaling: dict | None = None  # Llama 3.1's, by wavelength; None for plain rotation

    def __post_init__(self) -> None:
        for name in (
            "num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_size",
            "intermediate_size", "vocab_size", "max_seq_len",
        ):  # fmt: skip
            check_whole(name, getattr(self, name))
        for name in ("rope_theta", "norm_eps"):
            check_number(name, getattr(self, name))
        if not isinstance(self.tie_embeddings, bool):
            raise ValueError(f"tie_embeddings must be True or False, not {self.tie_embeddings!r:.60}")
        if self.rope_scaling is not None:
            check_scaling(self.rope_scaling)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary positions turn pairs")

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head, H // KV."""
        return self.num_heads // self.num_kv_heads


def project(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows x (..., in) by a weight (out, in) -> (..., out).

    A single row, as in decode, goes through the matrix-vector product: on a CPU it reads the weight
    at the speed of memory, where the matrix-matrix product often does not.
    """
    if x.numel() == weight.shape[1]:
        return torch.mv(weight, x.reshape(-1)).view(*x.shape[:-1], -1)
    return F.linear(x, weight)


class Projection(nn.Module):
    """Multiply by a learned weight (out, in), without bias."""

    def __init__(self, in_features: int, out_features: int, **options) -> None:
        super().__init__()
        weight = torch.empty(out_features, in_features, **options)
        self.weight = nn.Parameter(nn.init.normal_(weight, std=in_features**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        return project(x, self.weight)


class RMSNorm(nn.Module):
    """Scale each vector to unit root mean square, then by a learned gain."""

    def __init__(self, size: int, eps: float, **options) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, **options))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Project to queries, keys and values, rotate, append to the cache, attend, project back.

    `turn` is the rotation of the new tokens. For a cache of unrotated keys it is the table of all
    places: such keys are turned when they are read, by where they lie in the cache.
    """

    def __init__(self, config: ModelConfig, **options) -> None:
        super().__init__()
        self.heads = config.num_heads, config.num_kv_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        width = config.num_heads * config.head_dim
        self.qkv = Projection(config.hidden_size, sum(self.heads) * config.head_dim, **options)
        self.out = Projection(width, config.hidden_size, **options)
        self.attend: Callable[..., Tensor] | None = None  # another way than grouped_attention

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], cache, valid: Tensor | None):
        attend = self.attend or grouped_attention
        batch_size, num_new, _ = x.shape
        qkv = self.qkv(x).view(batch_size, num_new, sum(self.heads), self.head_dim)
        qkv = qkv.transpose(1, 2)  # (B, H + 2 KV, t, D)
        num_turned = self.heads[0] + self.heads[1]
        if by_place := keeps_unrotated(cache):
            attend = partial(
                attend_by_place, table=turn, sinks=cache.sinks, window=cache.window, attend=attend
            )
        turned = qkv[:, :num_turned] if by_place else rotate(qkv[:, :num_turned], turn)
        q, k = turned.split(self.heads[:2], dim=1)
        v = qkv[:, num_turned:]
        if cache is None:
            mask = None if valid is None else padded_mask(None, valid, num_new)
            out = attend(q, k, v, mask)
        else:
            out, _ = attention_with_kv_cache(q, k, v, cache, valid, attend=attend)
        return self.out(out.transpose(1, 2).reshape(batch_size, num_new, -1))  # -> (B, t, C)


class MLP(nn.Module):
    """SwiGLU: silu(x W_gate) * (x W_up), projected back. Source: Shazeer 2020."""

    def __init__(self, config: ModelConfig, **options) -> None:
        super().__init__()
        self.gate_up = Projection(config.hidden_size, 2 * config.intermediate_size, **options)
        self.down = Projection(config.intermediate_size, config.hidden_size, **options)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # each (B, t, M)
        return self.down(F.silu(gate) * up)


class Layer(nn.Module):
    """One decoder layer: attention, then the MLP, each added to what came in."""

    def __init__(self, config: ModelConfig, **options) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps, **options)
        self.attention = Attention(config, **options)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, **options)
        self.mlp = MLP(config, **options)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], cache, valid: Tensor | None):
        x = x + self.attention(self.attention_norm(x), turn, cache, valid)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """Map tokens to next-token logits, with one cache a layer or with none.

    Weights are random (seed them with `torch.manual_seed`) until a checkpoint fills them;
    see `kvlib.weights`.
    """

    def __init__(self, config: ModelConfig, *, device=None, dtype: torch.dtype | None = None):
        super().__init__()
        options = {"device": device, "dtype": dtype}
        self.config = config
        self.embedding = nn.Parameter(
            nn.init.normal_(
                torch.empty(config.vocab_size, config.hidden_size, **options),
                std=config.hidden_size**-0.5,
            )
        )
        self.layers = nn.ModuleList(Layer(config, **options) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, **options)
        if not config.tie_embeddings:
            self.head = Projection(config.hidden_size, config.vocab_size, **options)
        self._turns: tuple[Tensor, Tensor] | None = None  # rotary tables, grown as needed
        self._places: tuple[Tensor, Tensor] | None = None  # the same for places in a cache, exact
        self.requires_grad_(False)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of weights and cache."""
        return self.embedding.dtype

    def make_caches(self, factory: Callable[[], object]) -> list:
        """Return one new cache for every layer: a key of layer 1 is not a key of layer 12.

        Raises ValueError for a factory that cannot be called without arguments.
        """
        _check_factory(factory)
        return [factory() for _ in self.layers]

    @contextmanager
    def attending(self, attend: Callable[..., Tensor] | None) -> Iterator[None]:
        """Let every layer attend with `attend(q, k, v, mask)` inside the `with` block.

        It is called as `grouped_attention` is, with queries and keys already rotated; None is
        `grouped_attention` itself. Afterwards all is as before, whatever happened inside.
        """
        before = [layer.attention.attend for layer in self.layers]
        try:
            for layer in self.layers:
                layer.attention.attend = attend
            yield
        finally:
            for layer, was in zip(self.layers, before, strict=True):
                layer.attention.attend = was

    def forward(
        self,
        tokens: Tensor,
        caches: Sequence | None = None,
        *,
        left_padding: Sequence[int] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Run new tokens after those that the caches hold; the caches grow by t.

        Shapes: `tokens` (B, t) int64 -> logits (B, t, V), or (B, 1, V) with `last_only`.
        `left_padding` gives, for each sequence of a batch of unequal lengths, how many padding
        tokens stand before its first: they are not attended to and take no position.
        Raises ValueError for input that does not fit, and for padding before a window with sinks.
        Whatever fails, also an interrupt, leaves the caches as long as they were.
        """
        start = self._checked_start(tokens, caches, left_padding)
        end = start + tokens.shape[1]
        with unchanged_on_failure(caches):
            turns, valid = self._turns_of_layers(start, end, caches, left_padding)
            x = F.embedding(tokens, self.embedding)  # (B, t, C)
            for i, layer in enumerate(self.layers):
                x = layer(x, turns[i], caches[i] if caches is not None else None, valid)
            return self._logits(x[:, -1:] if last_only else x)

    def _logits(self, x: Tensor) -> Tensor:
        return self._head(self.norm(x))

    def _head(self, x: Tensor) -> Tensor:
        """Map normed rows (B, t, C) to logits (B, t, V)."""
        if self.config.tie_embeddings:
            return project(x, self.embedding)  # (B, t, C) @ (C, V)
        return self.head(x)

    def _checked_start(self, tokens: Tensor, caches, left_padding) -> int:
        """Return how many tokens the caches hold; raise ValueError for what does not fit."""
        if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.dtype != torch.int64:
            raise ValueError("tokens must be an int64 tensor of shape (batch, new tokens)")
        if tokens.numel() == 0:
            raise ValueError(f"tokens {tuple(tokens.shape)} is empty; give at least one token")
        if tokens.device != self.device:
            raise ValueError(f"tokens are on {tokens.device}, the model is on {self.device}")
        if tokens.device.type == "cpu" and not 0 <= int(tokens.min()) <= int(tokens.max()) < (
            self.config.vocab_size
        ):  # fmt: skip  # elsewhere the look would cost a synchronisation each step
            raise ValueError(f"a token is outside the vocabulary of {self.config.vocab_size}")
        start = 0
        if caches is not None:
            if not isinstance(caches, Sequence) or not all(hasattr(c, "seq_len") for c in caches):
                raise ValueError(
                    "caches must be a list of caches, one for each layer; see Model.make_caches"
                )
            if len(caches) != len(self.layers):
                raise ValueError(
                    f"{len(caches)} caches for {len(self.layers)} layers; each layer needs its own"
                )
            if len({id(cache) for cache in caches}) != len(caches):
                raise ValueError("one cache object stands in two layers; each layer needs its own")
            lengths = {cache.seq_len for cache in caches}
            if len(lengths) > 1:
                raise ValueError(f"the layers' caches disagree on the length: {sorted(lengths)}")
            start = lengths.pop()
        end = start + tokens.shape[1]
        needed = positions_needed(caches, end)
        if needed > self.config.max_seq_len:
            raise ValueError(
                f"{needed} tokens are more than the {self.config.max_seq_len} positions of this model"
            )
        if left_padding is not None:
            if not isinstance(left_padding, Sequence):
                raise ValueError(f"left_padding is a list, one number a sequence, not {left_padding!r}")
            if len(left_padding) != tokens.shape[0]:
                raise ValueError(f"{len(left_padding)} paddings for {tokens.shape[0]} sequences")
            if not all(isinstance(n, int) and not isinstance(n, bool) for n in left_padding):
                raise ValueError(f"left_padding {left_padding!r} must hold whole numbers")
            if min(left_padding) < 0:
                raise ValueError(f"left_padding {list(left_padding)} is negative")
            if any(left_padding) and not all(getattr(c, "takes_padding", True) for c in caches or ()):
                raise ValueError(
                    "a window's sinks are the first rows of a batch, and here some of these are padding; "
                    "run texts of unequal lengths one by one, or with a cache without sinks"
                )
        return start

    def _turns_of_layers(self, start: int, end: int, caches, left_padding) -> tuple[list, Tensor | None]:
        """Return what each layer's `Attention` turns by, and which keys are not padding."""
        by_place = [keeps_unrotated(cache) for cache in caches or [None] * len(self.layers)]
        if all(by_place):  # the text may be longer than any table of positions
            turn, valid = None, self._valid(end, left_padding)
        else:
            turn, valid = self._positions(start, end, left_padding)
        turns = [turn] * len(by_place)
        for i, cache in enumerate(caches or ()):
            if by_place[i]:
                turns[i] = self._places_to(min(end, cache.sinks + cache.window + end - start))
        return turns, valid

    def _positions(self, start: int, end: int, left_padding) -> tuple[tuple, Tensor | None]:
        """Return the rotary (cos, sin) of the new tokens, and which keys are not padding."""
        cos, sin = self._turns_to(end)
        valid = self._valid(end, left_padding)
        if valid is None:
            return (cos[start:end], sin[start:end]), None  # each (t, D)
        position = (valid.cumsum(dim=1)[:, start:] - 1).clamp_min(0)  # (B, t)
        return (cos[position][:, None], sin[position][:, None]), valid  # (B, 1, t, D)

    def _valid(self, end: int, left_padding) -> Tensor | None:
        """Return which of the first `end` tokens are not padding, bool (B, end); None where all are."""
        if left_padding is None or not any(left_padding):
            return None
        padding = torch.tensor(left_padding, device=self.device)[:, None]  # (B, 1)
        return torch.arange(end, device=self.device) >= padding

    def _turns_to(self, length: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin for positions 0 .. at least `length` - 1, each (T, D)."""
        if not self._fits(self._turns, length):
            size = min(self.config.max_seq_len, max(256, 1 << (length - 1).bit_length()))
            with torch.inference_mode(False):  # they serve callers of every mode
                self._turns = rotary_tables(self.config, size, self.device, self.dtype)
        return self._turns

    def _places_to(self, length: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin for places 0 .. at least `length` - 1 in a cache of unrotated keys."""
        if not self._fits(self._places, length):
            size = max(256, 1 << (length - 1).bit_length())  # a chunk's end may stand past max_seq_len
            with torch.inference_mode(False):  # they serve callers of every mode
                self._places = rotary_tables(self.config, size, self.device, self.dtype, exact=True)
        return self._places

    def _fits(self, table: tuple[Tensor, Tensor] | None, length: int) -> bool:
        """Say whether a table is there, long enough, and of the weights' device and dtype."""
        return table is not None and len(table[0]) >= length and (
            table[0].device == self.device and table[0].dtype == self.dtype
        )  # fmt: skip


def _check_factory(factory) -> None:
    """Raise ValueError where a class or function of caches is none, or needs to be given something."""
    if not callable(factory):
        raise ValueError(f"caches are made by a class such as KVCache, or by a function, not by {factory!r}")
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # written in C: nothing is known of it
        return
    rest = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [p for p in parameters if p.default is p.empty and p.kind not in rest]
    if needed:
        name = getattr(factory, "__name__", "cache")
        given = ", ".join(f"{p.name}=..." if p.kind is p.KEYWORD_ONLY else p.name for p in needed)
        raise ValueError(f"{name} cannot be made without {given}; give a factory: lambda: {name}({given})")

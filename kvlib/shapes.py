"""The shape of a model, and the bytes and operations that follow from it.

Nothing here allocates anything or looks at this machine. Named shapes are in `kvlib.memory`.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True)
class Experts:
    """Experts in place of the MLP: a token uses `active` of `count`, and all `shared` ones."""

    count: int
    active: int
    intermediate_size: int
    shared: int = 0
    dense_layers: int = 0  # the first layers, which keep a plain MLP


@dataclass(frozen=True)
class ModelPreset:
    """The shape of a model: what the bytes of its cache and its weights follow from.

    Windowed models: layers hold min(tokens, `window`), except one in every `full_every`, which
    holds all (None: no layer does). Latent models (MLA): each layer holds `latent_dim` numbers a
    token, without a factor 2.
    """

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    tie_embeddings: bool = False
    window: int | None = None
    full_every: int | None = None
    latent_dim: int | None = None
    query_rank: int | None = None  # MLA: queries pass through this many numbers
    rope_dim: int = 0  # MLA: the part of latent vector and query that carries positions
    gated_mlp: bool = True  # three matrices (SwiGLU); two without the gate
    experts: Experts | None = None
    learned_positions: int = 0  # rows of a position table, where there is no RoPE

    def __post_init__(self):
        for field in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_size"):
            whole(field, getattr(self, field), 1)
        for field in ("intermediate_size", "vocab_size"):
            whole(field, getattr(self, field), 1)
        for field in ("window", "full_every", "latent_dim", "query_rank"):
            if getattr(self, field) is not None:
                whole(field, getattr(self, field), 1)
        for field in ("rope_dim", "learned_positions"):
            whole(field, getattr(self, field), 0)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads "
                f"({self.num_kv_heads}): each KV head serves a whole group of query heads."
            )

    # Shape -------------------------------------------------------------------------------------

    @property
    def group_size(self) -> int:
        """Return how many query heads share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_head_choices(self) -> tuple[int, ...]:
        """Return every possible number of KV heads, MQA (1) to MHA; empty for a latent cache."""
        if self.latent_dim is not None:
            return ()
        return tuple(n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0)

    @property
    def windowed_layers(self) -> int:
        """Return how many layers hold no more than `window` tokens."""
        if self.window is None:
            return 0
        return self.num_layers - (self.num_layers // self.full_every if self.full_every else 0)

    def with_kv_heads(self, num_kv_heads: int) -> ModelPreset:
        """Return this shape with other KV heads; its K and V projections shrink or grow too."""
        self._refuse_latent()
        num_kv_heads = whole("num_kv_heads", num_kv_heads, 1)
        return replace(self, num_kv_heads=num_kv_heads)

    # Cache -------------------------------------------------------------------------------------

    def bytes_per_token(self, bytes_per_element=2) -> int:
        """Return the bytes one token adds to the cache over all layers, before any window."""
        return exact_bytes(self.num_layers * self._numbers_per_token(None), bytes_per_element)

    def cache_bytes(self, seq_len, batch_size=1, bytes_per_element=2, num_kv_heads=None) -> int:
        """Return the bytes of the cache at `seq_len` tokens; knows windows and latent vectors.

        `num_kv_heads` asks about the same shape with other KV heads (a latent cache has none:
        ValueError).
        """
        held = self._tokens_held(seq_len, batch_size)
        return exact_bytes(held * self._numbers_per_token(num_kv_heads), bytes_per_element)

    def _tokens_held(self, seq_len: int, batch_size: int) -> int:
        """Count tokens over all layers and sequences, in windowed layers up to the window."""
        seq_len = whole("seq_len", seq_len, 0)
        batch_size = whole("batch_size", batch_size, 1)
        held = (self.num_layers - self.windowed_layers) * seq_len
        if self.window is not None:
            held += self.windowed_layers * min(seq_len, self.window)
        return held * batch_size

    def _numbers_per_token(self, num_kv_heads: int | None) -> int:
        """Count the numbers one layer keeps of one token."""
        if num_kv_heads is not None and num_kv_heads != self.num_kv_heads:
            return self.with_kv_heads(num_kv_heads)._numbers_per_token(None)
        if self.latent_dim is not None:
            if num_kv_heads is not None:
                self._refuse_latent()
            return self.latent_dim
        return 2 * self.num_kv_heads * self.head_dim

    def _refuse_latent(self):
        if self.latent_dim is not None:
            raise ValueError(
                f"{self.name} caches one latent vector per token for all heads: it has no KV heads "
                "to change. Leave num_kv_heads out."
            )

    # Weights -----------------------------------------------------------------------------------

    @property
    def num_params(self) -> int:
        """Return the number of weights, without biases (under 0.1 percent)."""
        return self._params(every_expert=True)

    @property
    def num_active_params(self) -> int:
        """Return the weights one token uses: all, or with experts the chosen and shared ones."""
        return self._params(every_expert=False)

    def weight_bytes(self, bytes_per_element=2) -> int:
        """Return the bytes of all weights."""
        return exact_bytes(self.num_params, bytes_per_element)

    def step_weight_bytes(self, bytes_per_element=2) -> int:
        """Return the weight bytes one decode step must read at the least.

        An input embedding table is looked up, not read whole, unless it is the output head as well
        (tied). With experts it counts those of one token: tokens that choose others read more.
        """
        looked_up = 0 if self.tie_embeddings else self.vocab_size * self.hidden_size
        looked_up += self.learned_positions * self.hidden_size
        return exact_bytes(self.num_active_params - looked_up, bytes_per_element)

    def step_flops(self, seq_len, batch_size=1) -> int:
        """Return the floating point operations of one decode step; a multiply-add is 2.

        Every weight a token uses, once for each sequence, and for each query head q k^T and p v
        over the tokens its layer holds (with absorbed projections for a latent cache). Norms and
        softmax are left out.
        """
        weights = self.step_weight_bytes(1) - self._norms
        if self.latent_dim is None:
            per_token = 2 * self.num_heads * self.head_dim
        else:
            per_token = self.num_heads * (2 * self.latent_dim - self.rope_dim)
        return 2 * (batch_size * weights + self._tokens_held(seq_len, batch_size) * per_token)

    def _params(self, every_expert: bool) -> int:
        hidden, queries = self.hidden_size, self.num_heads * self.head_dim
        if self.latent_dim is None:
            attention = 2 * hidden * queries + 2 * hidden * self.num_kv_heads * self.head_dim
        else:
            rank = self.query_rank or hidden
            attention = (hidden * rank if self.query_rank else 0) + hidden * queries
            attention += rank * (queries + self.num_heads * self.rope_dim)
            attention += hidden * self.latent_dim + (self.latent_dim - self.rope_dim) * 2 * queries
        matrices = 3 if self.gated_mlp else 2
        dense = matrices * hidden * self.intermediate_size
        mlps = self.num_layers * dense
        if self.experts is not None:
            experts = self.experts
            used = experts.shared + (experts.count if every_expert else experts.active)
            sparse = matrices * hidden * experts.intermediate_size * used + hidden * experts.count
            mlps = experts.dense_layers * dense
            mlps += (self.num_layers - experts.dense_layers) * sparse
        tables = (1 if self.tie_embeddings else 2) * self.vocab_size + self.learned_positions
        return self.num_layers * attention + mlps + self._norms + tables * hidden

    @property
    def _norms(self) -> int:
        return (2 * self.num_layers + 1) * self.hidden_size

    # Model -------------------------------------------------------------------------------------

    def why_not_llama(self) -> str | None:
        """Return in one sentence why kvlib.model cannot build this shape, or None if it can."""
        if self.latent_dim is not None:
            return f"{self.name} caches a latent vector (MLA), which kvlib.model does not build."
        if self.experts is not None:
            return (
                f"{self.name} routes each token to a few experts, which kvlib.model does not build."
            )
        if self.window is not None:
            return (
                f"{self.name} has layers with a sliding window, which kvlib.model does not mix in."
            )
        if not self.gated_mlp or self.learned_positions:
            return f"{self.name} lacks RoPE or a gated MLP, which kvlib.model always builds."
        return None

    def config(self, **changes):
        """Return the `kvlib.model.ModelConfig` of this shape; `changes` replace its other fields.

        Raises ValueError when the model is not of the Llama layout.
        """
        from kvlib.model import ModelConfig

        reason = self.why_not_llama()
        if reason is not None:
            raise ValueError(f"{reason} Use this preset for arithmetic only.")
        shape = dict(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            tie_embeddings=self.tie_embeddings,
        )
        return ModelConfig(**{**shape, **changes})


@dataclass(frozen=True)
class DevicePreset:
    """An accelerator: memory as its driver reports it, and the rates that it can reach.

    `memory_bytes` is what everything computes with; `datasheet_bytes` is the number that it is sold
    under (None: not an accelerator of the lists). `bandwidth` is in bytes a second, `flops` are dense
    bf16 operations a second (None: not listed).
    """

    name: str
    memory_bytes: int
    bandwidth: float
    flops: float | None = None
    datasheet_bytes: int | None = None


def whole(name: str, value, least: int) -> int:
    """Return `value` as an int, or raise a ValueError that names it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, and {value!r} is not one.") from None
    if whole < least:
        raise ValueError(f"{name} must be {least} or more, and it is {whole}.")
    return whole


def exact_bytes(elements: int, bytes_per_element) -> int:
    """Return elements x bytes_per_element exactly; ValueError if that is not whole."""
    try:
        if isinstance(bytes_per_element, bool) or not math.isfinite(bytes_per_element):
            raise TypeError
        size = Fraction(bytes_per_element)
    except TypeError:
        raise ValueError(
            f"bytes_per_element must be a number such as 2 or 0.5, not {bytes_per_element!r}."
        ) from None
    if size <= 0:
        raise ValueError(f"bytes_per_element must be above 0, and it is {bytes_per_element}.")
    total = elements * size
    if total.denominator != 1:
        raise ValueError(
            f"{elements} elements of {bytes_per_element} bytes are not a whole number of bytes: "
            "choose a shape that fills its last byte, or another element size."
        )
    return int(total)

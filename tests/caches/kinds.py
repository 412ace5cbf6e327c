"""The cache kinds that the suite holds to the contract: one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvlib import (
    KVCache,
    Model,
    QuantizedKVCache,
    SlidingWindowKVCache,
    StaticKVCache,
    attention_with_kv_cache,
)
from kvlib.caches import Cache
from kvlib.caches.latent import LatentKVCache
from tests.caches.latent_pairs import of_pairs
from tests.caches.quantized_scheme import Scheme


def held_tensors(thing) -> list[torch.Tensor]:
    """Find every tensor an object holds, in its attributes, lists, tuples and dicts."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, dict):
        parts = thing.values()
    elif isinstance(thing, (list, tuple)):
        parts = thing
    elif type(thing).__module__.startswith(("kvlib", "tests")):
        parts = vars(thing).values() if hasattr(thing, "__dict__") else ()
    else:
        parts = ()
    return [tensor for part in parts for tensor in held_tensors(part)]


@dataclass(frozen=True)
class Kind:
    """Name a cache, how to make one, and what it declares about itself.

    - `make(room)` returns an empty cache for at least `room` tokens;
    - `limited`: it refuses more than `room` tokens; `fixed`: its buffer never moves;
    - `window`: it returns only the last window - 1 rows in front of the new ones, and the first
      `sinks` in front of these; `unrotated`: a model gives it keys from before RoPE;
    - `row_bound`: largest error of a row, as a share of the largest entry ever given to it; each crop
      may add another as large;
    - `output_bound`: largest error of attention or logits on standard normal rows;
    - `scheme`: how it quantises, where it does;
    - `held`: the tensors that make up one cache, for its bytes and its bits;
    - `attend` and `model` are what runs on the cache; only mutants change them.
    """

    name: str
    make: Callable[[int], Cache]
    limited: bool = False
    fixed: bool = False
    window: int | None = None
    sinks: int = 0
    unrotated: bool = False
    row_bound: float = 0.0
    output_bound: float = 0.0
    scheme: Scheme | None = None
    held: Callable[[Cache], list[torch.Tensor]] = held_tensors
    attend: Callable = attention_with_kv_cache
    model: type[Model] = Model

    def crops(self, seq_len: int) -> list[int]:
        """List the lengths a cache of `seq_len` tokens can be cropped to, whatever came before."""
        if self.window is None:
            return list(range(seq_len + 1))
        return [*range(min(self.sinks, seq_len - 1) + 1), seq_len] if seq_len else [0]

    def storage_bytes(self, cache: Cache) -> int:
        """Count the bytes of every storage the cache holds, each once."""
        storages = [x.untyped_storage() for x in self.held(cache)]
        return sum({s.data_ptr(): s.nbytes() for s in storages}.values())

    def state(self, cache: Cache) -> tuple:
        """Return everything there is to know about a cache, bit for bit."""
        numbers = cache.seq_len, cache.stored_len, cache.nbytes
        tensors = self.held(cache)
        return numbers, [(x.dtype, tuple(x.shape), bits(x)) for x in tensors]


def bits(x: torch.Tensor) -> bytes:
    """Return the bytes of a tensor, so that NaN equals NaN and -0 differs from 0."""
    return x.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def quantized(bits: int, group: int, recent: int, output_bound: float) -> Kind:
    """Name a quantised cache of small groups, so that a dozen tokens make several.

    Half a step is at most 1 / (2**bits - 1) of the largest entry: the range is up to twice it. What
    this does to attention and logits is measured, at most half the bound; `laws_quantized` is sharper.
    """

    def make(room):
        return QuantizedKVCache(bits, group=group, recent=recent)

    return Kind(
        f"QuantizedKVCache({bits})", make, row_bound=1.001 / (2**bits - 1), output_bound=output_bound,
        scheme=Scheme(bits, group, recent),
    )  # fmt: skip


def windowed(window: int, sinks: int = 0, keys: str = "rotated") -> Kind:
    """Name a small window, so that a dozen tokens fill its buffer several times."""

    def make(room):
        return SlidingWindowKVCache(window, sinks=sinks, keys=keys)

    name = f"SlidingWindowKVCache({window}, sinks={sinks}, {keys})"
    return Kind(name, make, window=window, sinks=sinks, unrotated=keys == "unrotated")


LATENT_OF_PAIRS = of_pairs(LatentKVCache)
KINDS = (
    Kind("KVCache", lambda room: KVCache()),
    Kind("StaticKVCache", StaticKVCache, limited=True, fixed=True),
    Kind("LatentKVCache", lambda room: LATENT_OF_PAIRS()),
    quantized(8, group=3, recent=1, output_bound=0.1),
    quantized(4, group=4, recent=2, output_bound=1.5),
    windowed(3),
    windowed(2, sinks=2),
    windowed(3, sinks=1, keys="unrotated"),
)

"""One real decode step of a preset's shape, measured on random weights and random K and V.

It knows no checkpoint and no text. Weights and caches are views into two flat pools, allocated once
for a device and filled by tiling a small random block, so that a new shape costs little before it
can be timed. A step at seq_len attends to seq_len tokens: the cache holds seq_len - 1, and the step
appends one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvlib import timing
from kvlib.caches import StaticKVCache
from kvlib.devices import (
    device_name,
    free_memory,
    is_out_of_memory,
    resolve,
    return_unused_memory,
    supported_dtypes,
)
from kvlib.memory import ModelPreset
from kvlib.model import Model, rotary_tables
from kvlib.pages import ask_for_large_pages
from kvlib.timing import Floor, Timing

CPU_LIMIT = 2_200_000_000  # bytes: with Python, torch and a notebook the whole stays under 4 GB


class DoesNotFit(MemoryError):
    """A step needs more (`needed`) than it may use (`limit`), both in bytes."""

    def __init__(self, sentence: str, needed: int, limit: int):
        super().__init__(sentence)
        self.needed, self.limit = needed, limit


class DecodeStep:
    """Decode steps of one preset, measured with any number of KV heads, on one device in one dtype.

    `memory_limit` is in bytes; by default 60 percent of what is free on a CPU and no more than
    2.2 GB, and 85 percent on CUDA. All DecodeSteps of a device share its pools.
    """

    def __init__(self, preset: ModelPreset, *, device, dtype, memory_limit: int | None = None):
        self.preset, self.device, self.dtype = preset, resolve(device), dtype
        if dtype not in supported_dtypes(self.device):
            names = ", ".join(map(str, supported_dtypes(self.device)))
            raise ValueError(f"{self.device} runs models in {names}; {dtype} is none of them.")
        if memory_limit is not None and memory_limit < 0:
            raise ValueError(f"memory_limit must be 0 or more bytes, and it is {memory_limit}.")
        self._memory_limit = memory_limit
        self._shapes: dict[int, ModelPreset] = {}

    @staticmethod
    def measurable(preset: ModelPreset) -> str | None:
        """Return why no step of this preset can be measured, in one sentence, or None if it can."""
        return preset.why_not_llama()

    # Bytes and operations -----------------------------------------------------------------------

    def needs(self, num_kv_heads: int, seq_len: int, batch_size: int = 1) -> int:
        """Return the bytes a step would allocate: weights, cache, and rotary tables."""
        weights, cache, tables = self._sizes(num_kv_heads, seq_len, batch_size)
        return (weights + cache + tables) * self.dtype.itemsize

    @property
    def limit_bytes(self) -> int:
        """Return the bytes it may allocate, what is held already counted as free."""
        if self._memory_limit is not None:
            return self._memory_limit
        free = free_memory(self.device) + _pools_of(self.device).nbytes
        if self.device.type == "cuda":
            return int(0.85 * free)
        return min(int(0.6 * free), CPU_LIMIT if self.device.type == "cpu" else free)

    def fits(self, num_kv_heads: int, seq_len: int, batch_size: int = 1) -> bool:
        """Tell whether a step of this shape may be allocated; allocates nothing."""
        return self.needs(num_kv_heads, seq_len, batch_size) <= self.limit_bytes

    def bytes(self, num_kv_heads: int, seq_len: int, batch_size: int = 1) -> int:
        """Return the bytes one step must read: weights once, and every sequence's cache."""
        return sum(self._bytes_read(num_kv_heads, seq_len, batch_size))

    def flops(self, num_kv_heads: int, seq_len: int, batch_size: int = 1) -> int:
        """Return the floating point operations of one step; a multiply-add is 2."""
        return self._shape(num_kv_heads).step_flops(seq_len, batch_size)

    def floor(self, num_kv_heads: int, seq_len: int, batch_size: int = 1) -> Floor:
        """Return the least time of a step on this device, from its measured rates."""
        weights, cache = self._bytes_read(num_kv_heads, seq_len, batch_size)
        return timing.decode_step_floor(
            weight_bytes=weights,
            cache_bytes=cache,
            flops=self.flops(num_kv_heads, seq_len, batch_size),
            bandwidth=timing.read_bandwidth(self.device),
            flop_rate=timing.flop_rate(self.device, self.dtype),
        )

    def _shape(self, num_kv_heads: int) -> ModelPreset:
        if self.preset.latent_dim is not None and num_kv_heads == self.preset.num_kv_heads:
            return self.preset
        if num_kv_heads not in self._shapes:
            self._shapes[num_kv_heads] = self.preset.with_kv_heads(num_kv_heads)
        return self._shapes[num_kv_heads]

    def _bytes_read(self, num_kv_heads: int, seq_len: int, batch_size: int) -> tuple[int, int]:
        shape, size = self._shape(num_kv_heads), self.dtype.itemsize
        return shape.step_weight_bytes(size), shape.cache_bytes(seq_len, batch_size, size)

    def _sizes(self, num_kv_heads: int, seq_len: int, batch_size: int) -> tuple[int, int, int]:
        """Count the elements of weights, cache and rotary tables."""
        shape = self._shape(num_kv_heads)
        cache = shape.cache_bytes(seq_len, batch_size, 1)  # checks both counts
        return shape.num_params, cache, 2 * _table_length(seq_len) * shape.head_dim

    # Measuring ----------------------------------------------------------------------------------

    def run(
        self, num_kv_heads: int, seq_len: int, batch_size: int = 1, *, budget_s: float = 0.5,
        attend: Callable[..., Tensor] | None = None,
    ) -> Timing:  # fmt: skip
        """Time decode steps of this shape for about `budget_s` seconds, the first one not counted.

        `attend(q, k, v, mask)` takes `grouped_attention`'s place; its mask is None in these steps.
        Raises ValueError for a shape that cannot be, and DoesNotFit before anything is allocated.
        Where the device refuses memory all the same, DoesNotFit too, with everything given back.
        """
        reason = self.measurable(self.preset)
        if reason is not None:
            raise ValueError(f"{reason} Its floor can be drawn, not its time.")
        if seq_len == 0:
            raise ValueError(
                "A step attends to at least one token, the new one: seq_len cannot be 0."
            )
        needed, limit = self.needs(num_kv_heads, seq_len, batch_size), self.limit_bytes
        if needed > limit:
            self._refuse(num_kv_heads, seq_len, batch_size, needed, limit)
        shape = self._shape(num_kv_heads)
        sizes = self._sizes(num_kv_heads, seq_len, batch_size)
        pools = _pools_of(self.device)
        with pools.lock:
            try:
                pools.reserve(*sizes, self.dtype, limit)
                found = self._time(pools, shape, seq_len, batch_size, budget_s, attend)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failed = True
            else:
                failed = False
            if failed:  # outside the handler: its traceback would keep the tensors alive
                pools.release()
                self._refuse(num_kv_heads, seq_len, batch_size, needed, free_memory(self.device))
        if attend is None:  # another one may have read less than it should
            read = self.bytes(num_kv_heads, seq_len, batch_size)
            timing.saw_reading(self.device, read, min(found.samples))
        return found

    def release(self) -> None:
        """Give the pools of this device back."""
        pools = _pools_of(self.device)
        with pools.lock:
            pools.release()

    @torch.no_grad()
    def _time(
        self, pools, shape: ModelPreset, seq_len: int, batch_size: int, budget_s, attend
    ) -> Timing:
        model = pools.model(shape, seq_len)
        caches = pools.caches(shape, seq_len, batch_size)
        tokens = torch.arange(batch_size, device=self.device)[:, None] % shape.vocab_size  # (B, 1)

        def step():
            model(tokens, caches, last_only=True)
            for cache in caches:
                cache.crop(seq_len - 1)

        with model.attending(attend):
            return timing.measure(step, device=self.device, repeats=50, budget_s=budget_s)

    def _refuse(self, num_kv_heads, seq_len, batch_size, needed: int, limit: int):
        free = free_memory(self.device)
        raise DoesNotFit(
            f"{self.preset.name} with {num_kv_heads} KV head{'s' * (num_kv_heads > 1)}, "
            f"{seq_len:,} tokens and batch {batch_size} would need {needed / 1e9:.2f} GB; "
            f"{limit / 1e9:.2f} GB may be used and {free / 1e9:.2f} GB are free on "
            f"{device_name(self.device)}. Choose fewer tokens, a smaller batch or fewer KV heads.",
            needed,
            limit,
        )


class _Pools:
    """What one device has allocated for steps: flat weights, a flat cache, rotary tables."""

    def __init__(self, device: torch.device):
        self.device, self.lock = device, threading.RLock()
        self.release()

    def release(self) -> None:
        """Drop everything, models that look into the pools included."""
        self.weights = self.cache = None
        self._tables: tuple[Tensor, Tensor] | None = None
        self._models: dict[ModelPreset, Model] = {}
        self._tables_of: tuple = ()
        return_unused_memory(self.device)

    @property
    def nbytes(self) -> int:
        """Count the bytes held."""
        held = [self.weights, self.cache, *(self._tables or ())]
        return sum(pool.nbytes for pool in held if pool is not None)

    def reserve(
        self, weights: int, cache: int, tables: int, dtype: torch.dtype, limit: int
    ) -> None:
        """Make both pools large enough; keep those that are, while all fits the limit."""
        if self.weights is not None and self.weights.dtype != dtype:
            self.release()
        held_weights = 0 if self.weights is None else self.weights.numel()
        held_cache = 0 if self.cache is None else self.cache.numel()
        held_tables = 0 if self._tables is None else 2 * self._tables[0].numel()
        keep = max(weights, held_weights) + max(cache, held_cache) + max(tables, held_tables)
        if keep * dtype.itemsize > limit:  # an older, larger pool leaves no room
            self._models = {}
            if held_weights > weights:
                self.weights, held_weights = None, 0
            if held_cache > cache:
                self.cache, held_cache = None, 0
            if held_tables > tables:
                self._tables = None
        if held_weights < weights:
            self._models, self.weights = {}, None  # the old one goes before the new one comes
        if held_cache < cache:
            self.cache = None
        if None in (self.weights, self.cache):
            return_unused_memory(self.device)
        if self.weights is None:
            self.weights = _random(weights, 0.02, dtype, self.device)
        if self.cache is None:
            self.cache = _random(cache, 1.0, dtype, self.device)

    def model(self, shape: ModelPreset, seq_len: int) -> Model:
        """Return a model whose matrices are views of the pool; every norm has gain one."""
        if shape not in self._models:
            with _NoInit():
                config = shape.config(max_seq_len=2**30)
                model = Model(config, device="meta", dtype=self.weights.dtype)
            views, start = {}, shape.hidden_size
            gain = self.weights[:start].fill_(1.0)
            for name, empty in model.state_dict().items():
                if name.endswith("norm.weight"):
                    views[name] = gain
                    continue
                views[name] = self.weights[start : start + empty.numel()].view(empty.shape)
                start += empty.numel()
            model.load_state_dict(views, assign=True)
            self._models[shape] = model.requires_grad_(False)
        model = self._models[shape]
        self._fit_tables(model, seq_len)
        return model

    def _fit_tables(self, model: Model, seq_len: int) -> None:
        """Let all models share one rotary table, the only other thing of size that they hold."""
        kind = (model.config.head_dim, model.config.rope_theta, model.dtype)
        length = _table_length(seq_len)
        if self._tables is None or self._tables_of != kind or len(self._tables[0]) < length:
            self._tables = None
            for other in self._models.values():
                other._turns = None
            self._tables = rotary_tables(model.config, length, self.device, model.dtype)
            self._tables_of = kind
        model._turns = self._tables

    def caches(self, shape: ModelPreset, seq_len: int, batch_size: int) -> list[StaticKVCache]:
        """Return one cache a layer, views of the pool that hold seq_len - 1 tokens of seq_len."""
        buffer = (batch_size, shape.num_kv_heads, seq_len, shape.head_dim)  # (B, KV, T, D)
        used = 2 * shape.num_layers * batch_size * shape.num_kv_heads * seq_len * shape.head_dim
        layers = self.cache[:used].view(shape.num_layers, 2, *buffer)
        return [StaticKVCache.from_buffers(kv[0], kv[1], seq_len - 1) for kv in layers]


class _NoInit(TorchFunctionMode):
    """Leave new tensors unfilled: torch loads a second's worth of code to draw on meta."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.init.normal_:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


_all_pools: dict[torch.device, _Pools] = {}


def _pools_of(device: torch.device) -> _Pools:
    return _all_pools.setdefault(device, _Pools(device))


def _table_length(seq_len: int) -> int:
    """Return the rows of the rotary tables a model makes for this many tokens."""
    return max(256, 1 << (seq_len - 1).bit_length())


def _random(count: int, scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `count` elements: a small random block over and over, every page written."""
    pool = ask_for_large_pages(torch.empty(count, dtype=dtype, device=device))
    seeded = torch.Generator().manual_seed(0)  # the caller's random state is left alone
    block = torch.randn(min(count, 2**20 - 3), generator=seeded).mul_(scale).to(device, dtype)
    whole = count // block.numel() * block.numel()
    pool[:whole].view(-1, block.numel()).copy_(block)
    pool[whole:] = block[: count - whole]
    return pool

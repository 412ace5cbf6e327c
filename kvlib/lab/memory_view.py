"""What the memory panel shows, as plain numbers: no widgets, no figure, nothing allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvlib.lab.curves import CONTEXTS
from kvlib.memory import DevicePreset, ModelPreset

MOST_REQUESTS = 4096
BITS = (32, 16, 8, 4)
STAIRS = tuple(
    sorted({round(CONTEXTS[0] * 2 ** (i / 16)) for i in range(16 * (len(CONTEXTS) - 1) + 1)})
)  # contexts at which the curve of requests is computed


@dataclass(frozen=True)
class MemorySetting:
    """The state of every control; only `device.name` and `device.memory_bytes` are used."""

    preset: ModelPreset
    device: DevicePreset
    context: int
    requests: int
    weight_bits: int = 16
    cache_bits: int = 16

    @property
    def memory(self) -> int:
        """Return the bytes of the device."""
        return self.device.memory_bytes

    @property
    def weights(self) -> int:
        """Return the bytes of all weights."""
        return _whole_bytes(self.preset.weight_bytes(self.weight_bits))

    def one_request(self, context: int | None = None) -> int:
        """Return the bytes of one request's cache, at the selected context or another."""
        return _whole_bytes(self.preset.cache_bytes(context or self.context, 1, self.cache_bits))

    @property
    def cache(self) -> int:
        """Return the bytes of the cache of all requests."""
        return self.requests * self.one_request()

    @property
    def total(self) -> int:
        """Return weights and cache together."""
        return self.weights + self.cache

    @property
    def free(self) -> int:
        """Return what stays free on the device; negative by what is missing."""
        return self.memory - self.total

    @property
    def room(self) -> int:
        """Return what the weights leave for the cache; negative where they do not fit."""
        return self.memory - self.weights

    def fitting(self, context: int | None = None) -> int:
        """Return how many requests of a context fit beside the weights, 0 where none does."""
        return max(0, self.room // self.one_request(context))

    def longest(self, requests: int | None = None) -> int | None:
        """Return the longest context that so many requests can have; None: any number.

        That is so where every layer has a window.
        """
        share = self.room // (requests or self.requests)
        low, high = 0, 1
        while self.one_request(high) <= share:
            low, high = high, 2 * high
            if high > 2**60:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            if self.one_request(middle) <= share:
                low = middle
            else:
                high = middle
        return low

    def cache_curve(self, requests: int = 1) -> list[int]:
        """Return the cache of so many requests at every context of STAIRS."""
        return [requests * self.one_request(context) for context in STAIRS]

    def fitting_curve(self) -> tuple[list[int], list[int]]:
        """Return contexts and how many requests fit, only where at least one does."""
        fits = [(context, self.fitting(context)) for context in STAIRS]
        fits = [(context, count) for context, count in fits if count]
        return [context for context, _ in fits], [count for _, count in fits]

    def without_window(self) -> MemorySetting:
        """Return this setting for the same model with every layer keeping all tokens."""
        return replace(self, preset=replace(self.preset, window=None, full_every=None))


def _whole_bytes(bits: int) -> int:
    """Return the bytes that hold so many bits, a last half byte rounded up."""
    return -(-bits // 8)


def attention_kind(preset: ModelPreset) -> str:
    """Return MHA, GQA, MQA or MLA: how a model shares its keys and values."""
    if preset.latent_dim is not None:
        return "MLA"
    if preset.num_kv_heads == preset.num_heads:
        return "MHA"
    return "MQA" if preset.num_kv_heads == 1 else "GQA"

"""The caches, one a file; every one keeps the promises of `contract.Cache`."""

from kvlib.caches.concat import KVCache
from kvlib.caches.contract import Cache
from kvlib.caches.latent import LatentKVCache
from kvlib.caches.quantized import QuantizedKVCache
from kvlib.caches.static import StaticKVCache
from kvlib.caches.window import SlidingWindowKVCache

__all__ = [
    "Cache",
    "KVCache",
    "LatentKVCache",
    "QuantizedKVCache",
    "SlidingWindowKVCache",
    "StaticKVCache",
]

"""The caches, one a file; every one keeps the promises of `contract.Cache`."""

from kvlib.caches.concat import KVCache
from kvlib.caches.contract import Cache
from kvlib.caches.quantized import QuantizedKVCache
from kvlib.caches.static import StaticKVCache

__all__ = ["Cache", "KVCache", "QuantizedKVCache", "StaticKVCache"]

"""Key-value caches for language models: the shared implementations behind the lessons."""

from kvlib.attention import (
    attention_with_kv_cache,
    causal_mask,
    grouped_attention,
    reference_attention,
)
from kvlib.caches import (
    Cache,
    KVCache,
    LatentKVCache,
    QuantizedKVCache,
    SlidingWindowKVCache,
    StaticKVCache,
)
from kvlib.generation import generate, stream
from kvlib.memory import DEVICES, MODELS, kv_cache_bytes
from kvlib.model import Model, ModelConfig
from kvlib.weights import load_checkpoint, load_smollm2

__all__ = [
    "DEVICES",
    "MODELS",
    "Cache",
    "KVCache",
    "LatentKVCache",
    "Model",
    "ModelConfig",
    "QuantizedKVCache",
    "SlidingWindowKVCache",
    "StaticKVCache",
    "attention_with_kv_cache",
    "causal_mask",
    "generate",
    "grouped_attention",
    "kv_cache_bytes",
    "load_checkpoint",
    "load_smollm2",
    "reference_attention",
    "stream",
]

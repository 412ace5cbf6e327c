"""Byte arithmetic of the KV cache, and the shapes of well known models and accelerators.

GB is 1e9 bytes, GiB is 2**30. Nothing here allocates anything or looks at this machine: what a
device really has is asked in `kvlib.devices`, what it really reads a second in `kvlib.timing`.
"""

from __future__ import annotations

from kvlib.shapes import DevicePreset, Experts, ModelPreset, exact_bytes, whole

__all__ = ["DEVICES", "GB", "MODELS", "DevicePreset", "GiB", "ModelPreset", "kv_cache_bytes"]

GB = 10**9
GiB = 2**30


def kv_cache_bytes(
    *, num_layers, num_kv_heads, head_dim, seq_len, batch_size=1, bytes_per_element=2
) -> int:
    """Return the bytes of a plain KV cache: 2 x L x KV x D x tokens x batch x bytes per element.

    The 2 is K and V. `bytes_per_element` may be a fraction (0.5 for 4 bits), the result may not.
    Raises ValueError for anything that is not a whole number in range.
    """
    elements = (
        2
        * whole("num_layers", num_layers, 1)
        * whole("num_kv_heads", num_kv_heads, 1)
        * whole("head_dim", head_dim, 1)
        * whole("seq_len", seq_len, 0)
        * whole("batch_size", batch_size, 1)
    )
    return exact_bytes(elements, bytes_per_element)


# Sources: each model's published config.json and, for MoE and MLA, its paper.
# Variants that keep a window are not these: Mistral 7B is v0.3 (v0.1 alone has a window, of 4,096), and
# Phi-3-mini is the 128k variant (the 4k variant has a window of 2,047 in every layer).
# name, layers, query heads, KV heads, head_dim, hidden, intermediate, vocabulary
_LLAMA_LIKE = [
    ("Llama 2 7B", 32, 32, 32, 128, 4096, 11008, 32000),
    ("Llama 2 13B", 40, 40, 40, 128, 5120, 13824, 32000),
    ("Llama 2 70B", 80, 64, 8, 128, 8192, 28672, 32000),
    ("Llama 3.1 8B", 32, 32, 8, 128, 4096, 14336, 128256),
    ("Llama 3.1 70B", 80, 64, 8, 128, 8192, 28672, 128256),
    ("Llama 3.1 405B", 126, 128, 8, 128, 16384, 53248, 128256),
    ("Mistral 7B", 32, 32, 8, 128, 4096, 14336, 32768),
    ("Qwen2.5 7B", 28, 28, 4, 128, 3584, 18944, 152064),
    ("Qwen2.5 72B", 80, 64, 8, 128, 8192, 29568, 152064),
    ("Qwen3 8B", 36, 32, 8, 128, 4096, 12288, 151936),
    ("Qwen3 32B", 64, 64, 8, 128, 5120, 25600, 151936),
    ("Phi-3-mini", 32, 32, 32, 96, 3072, 8192, 32064),
]
_TIED = [
    ("SmolLM2 135M", 30, 9, 3, 64, 576, 1536, 49152),
    ("SmolLM2 360M", 32, 15, 5, 64, 960, 2560, 49152),
    ("SmolLM2 1.7B", 24, 32, 32, 64, 2048, 8192, 49152),
]
_OTHERS = [
    ModelPreset("Mixtral 8x7B", 32, 32, 8, 128, 4096, 14336, 32000, experts=Experts(8, 2, 14336)),
    ModelPreset(
        "Gemma 2 9B", 42, 16, 8, 256, 3584, 14336, 256000, True, window=4096, full_every=2
    ),
    ModelPreset(
        "Gemma 3 27B", 62, 32, 16, 128, 5376, 21504, 262208, True, window=1024, full_every=6
    ),
    ModelPreset("Falcon 7B", 32, 71, 1, 64, 4544, 18176, 65024, True, gated_mlp=False),
    ModelPreset("Falcon 40B", 60, 128, 8, 64, 8192, 32768, 65024, True, gated_mlp=False),
    ModelPreset(
        "GPT-2", 12, 12, 12, 64, 768, 3072, 50257, True, gated_mlp=False, learned_positions=1024
    ),
    ModelPreset(
        "DeepSeek V3", 61, 128, 128, 128, 7168, 18432, 129280,
        latent_dim=576, query_rank=1536, rope_dim=64,
        experts=Experts(256, 8, 2048, shared=1, dense_layers=3),
    ),
]  # fmt: skip

MODELS: dict[str, ModelPreset] = {
    preset.name: preset
    for preset in [
        *(ModelPreset(*row, tie_embeddings=True) for row in _TIED),
        *(ModelPreset(*row) for row in _LLAMA_LIKE),
        *_OTHERS,
    ]
}

# name, GB on the data sheet, MiB that the driver reports (nvidia-smi, rocm-smi), GB/s, dense bf16
# TFLOP/s. A data sheet's GB of memory is nearly a GiB; L4 and A10G report less, as error correction is
# on. Many tables print the sparse TFLOP/s, twice as high, as if they were dense. A B200's data sheet
# says 8,000 GB/s; the boards run their memory at 7,670.
_DEVICES = [
    ("T4", 16, 15_360, 320, None),
    ("L4", 24, 23_034, 300, None),
    ("A10G", 24, 23_034, 600, None),
    ("RTX 3090", 24, 24_576, 936, None),
    ("RTX 4090", 24, 24_564, 1008, 165),
    ("RTX 5090", 32, 32_607, 1792, 209.5),
    ("A100 40GB", 40, 40_960, 1555, 312),
    ("A100 80GB", 80, 81_920, 2039, 312),
    ("H100 SXM", 80, 81_559, 3350, 989),
    ("H200", 141, 143_771, 4800, 989),
    ("B200", 192, 183_359, 7670, 2250),
    ("MI300X", 192, 196_592, 5300, 1307),
]

DEVICES: dict[str, DevicePreset] = {
    name: DevicePreset(
        name, reported * 2**20, rate * 1e9, None if flops is None else flops * 1e12, sold * GB
    )
    for name, sold, reported, rate, flops in _DEVICES
}

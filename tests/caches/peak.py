"""Print the most memory a process held, in bytes above its model's: `peak.py CACHE PROMPT CHUNK`.

A model of many layers and few weights prefills a prompt and decodes over the end of a group, when every
layer of a quantised cache turns rows into codes. Run by test_peak.py, in a process of its own.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

from kvlib import KVCache, Model, ModelConfig, QuantizedKVCache, StaticKVCache
from kvlib.generation import prefill

CACHES = {
    "plain": KVCache,
    "int8": lambda: QuantizedKVCache(8),
    "int4": lambda: QuantizedKVCache(4),
}
CONFIG = ModelConfig(
    num_layers=24, num_heads=4, num_kv_heads=4, head_dim=64, hidden_size=64, intermediate_size=64,
    vocab_size=64, max_seq_len=1 << 15,
)  # fmt: skip


DECODED = 34  # tokens: a group of 32 and two more


def peak_bytes() -> int:
    """Return the most this process ever had in memory.

    On Linux `ru_maxrss` begins at what the parent had when it started this process; VmHWM is this one's own.
    """
    if sys.platform != "linux":
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])


def main(name: str, prompt: int, chunk: int) -> None:
    model = Model(CONFIG, dtype=torch.bfloat16)
    text(model, StaticKVCache(max_seq_len=80).fork, 40, 40)
    model._turns_to(prompt + DECODED)
    before = peak_bytes()
    text(model, CACHES[name], prompt, chunk)
    print(peak_bytes() - before)


def text(model: Model, cache, prompt: int, chunk: int) -> list:
    """Prefill a prompt in chunks and decode past the next time that rows become codes."""
    tokens = torch.arange(prompt + DECODED)[None] % CONFIG.vocab_size
    caches = model.make_caches(cache)
    prefill(model, tokens[:, :prompt], caches, chunk_size=chunk)
    for i in range(prompt, prompt + DECODED):
        prefill(model, tokens[:, i : i + 1], caches)
    return caches


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

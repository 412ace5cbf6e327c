"""A cache that promises to be smaller holds less at every moment, also in the middle of a step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvlib import KVCache, Model, ModelConfig, QuantizedKVCache
from kvlib.allocations import Allocations
from tests.caches import peak

pytest.importorskip("resource", reason="Windows does not say what a process held at most")
ROOT = Path(__file__).parents[2]
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}


def process_peak(*arguments) -> int:
    """Return what the most memory of a fresh process was above that of its model, in bytes.

    glibc keeps freed memory for later, more or less of it by chance; here large blocks go back at once.
    """
    command = [sys.executable, "-m", "tests.caches.peak", *map(str, arguments)]
    environment = os.environ | RETURNED
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
def test_a_process_with_quantised_caches_stays_below_one_with_plain_caches():
    """Prefill in chunks and decode, 24 layers in bfloat16; 4,064 tokens end a group."""
    peaks = {name: process_peak(name, 4064, 1024) for name in peak.CACHES}
    assert peaks["int8"] < 0.9 * peaks["plain"] and peaks["int4"] < 0.9 * peaks["plain"], peaks


def live_peak(cache, prompt: int, chunk: int) -> int:
    """Return the most bytes that all tensors made for a text held at one moment."""
    model = Model(ModelConfig(8, 2, 2, 16, 16, 16, 64), dtype=torch.bfloat16)
    model._turns_to(prompt + peak.DECODED)
    with Allocations() as seen:
        peak.text(model, cache, prompt, chunk)
    return seen.peak


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("prompt", "chunk"), [(320, 320), (320, 64), (1000, 100)])
def test_the_tensors_alive_at_any_moment_are_fewer_bytes(bits, prompt, chunk, monkeypatch):
    """What is held, and of one layer the rows and what is made of them; never all layers twice."""
    monkeypatch.setattr("kvlib.caches.quantized.AT_ONCE", 2**10)
    plain = live_peak(KVCache, prompt, chunk)
    quantized = live_peak(lambda: QuantizedKVCache(bits), prompt, chunk)
    assert quantized < plain

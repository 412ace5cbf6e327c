"""On the real model a window alone loses the text, a window with sinks does not; neither remembers.

What lesson 09 shows, repeated on less text. Without the model these tests are skipped.
"""

from __future__ import annotations

import pytest
import torch

from kvlib import KVCache, QuantizedKVCache, SlidingWindowKVCache
from kvlib.perplexity import perplexity, sample_text


@pytest.mark.slow
def test_four_sinks_bring_back_what_a_window_alone_loses(smollm2):
    model, tokenizer = smollm2
    tokens = tokenizer.encode(sample_text())[:641]
    loss = {}
    for name, make in {
        "full": KVCache,
        "window": lambda: SlidingWindowKVCache(128),
        "sinks": lambda: SlidingWindowKVCache(124, sinks=4),
        "sinks, unrotated": lambda: SlidingWindowKVCache(124, sinks=4, keys="unrotated"),
    }.items():
        loss[name] = perplexity(model, tokens, cache=make, chunk_size=128).nll.double()
    assert torch.allclose(loss["window"][:128], loss["full"][:128], rtol=0, atol=1e-3)  # nothing left yet
    mean = {name: each.mean().item() for name, each in loss.items()}
    lost = mean["window"] - mean["full"]
    assert lost > 0.3, mean
    for name in ("sinks", "sinks, unrotated"):
        assert mean[name] - mean["full"] < 0.4 * lost, mean


def test_sinks_bring_back_nothing_that_left(smollm2):
    model, tokenizer = smollm2
    start = tokenizer.encode("The ship was called the Meridian and it sailed in spring.\n\n")
    end, name = tokenizer.encode("\n\nThe ship was called the"), tokenizer.encode(" Meridian")
    text = torch.tensor([start + tokenizer.encode(sample_text())[:200] + end + name])
    chance = {}
    for kind, make in {
        "full": KVCache,
        "int4": lambda: QuantizedKVCache(4, recent=0),
        "sinks": lambda: SlidingWindowKVCache(128, sinks=4),
    }.items():
        caches = model.make_caches(make)
        logits = torch.cat([model(part, caches) for part in text.split(64, dim=1)], dim=1)[0]
        before = logits[-len(name) - 1 : -1].log_softmax(dim=-1)
        chance[kind] = before[range(len(name)), name].sum().exp().item()
    assert chance["full"] > 0.3 and chance["int4"] > 0.3 and chance["sinks"] < 0.001, chance

"""Perplexity on the real model is exp of transformers' own loss; small caches stay close to it."""

from __future__ import annotations

import math

import pytest
import torch

from kvlib import QuantizedKVCache, StaticKVCache
from kvlib.perplexity import perplexity, sample_text


@pytest.fixture(scope="module")
def tokens(smollm2) -> list[int]:
    _, tokenizer = smollm2
    tokens = tokenizer.encode(sample_text())
    assert 6000 <= len(tokens) <= 9000
    return tokens[:300]


@pytest.fixture(scope="module")
def loss(theirs, tokens) -> float:
    """Transformers' mean nll of tokens 1 .. 299."""
    text = torch.tensor([tokens])
    return theirs(text, labels=text).loss.item()


@pytest.mark.parametrize(("cache", "chunk_size"), [(None, 64), (StaticKVCache, 64), (StaticKVCache, 7)])
def test_the_mean_nll_is_transformers_loss(smollm2, tokens, loss, cache, chunk_size):
    got = perplexity(smollm2[0], tokens, cache=cache, chunk_size=chunk_size)
    assert math.isclose(got.nll.mean().item(), loss, rel_tol=1e-5)
    assert math.isclose(got.value, math.exp(loss), rel_tol=1e-4)


@pytest.mark.parametrize(("bits", "share"), [(8, 0.005), (4, 0.15)])
def test_a_quantised_cache_is_close(smollm2, tokens, loss, bits, share):
    got = perplexity(smollm2[0], tokens, cache=lambda: QuantizedKVCache(bits), chunk_size=16)
    assert abs(got.value / math.exp(loss) - 1) <= share, f"{got.value} after {math.exp(loss)}"

"""Perplexity: of every split the same as of one pass, and of bad input nothing at all."""

from __future__ import annotations

import hashlib
import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kvlib import (
    KVCache,
    Model,
    ModelConfig,
    QuantizedKVCache,
    SlidingWindowKVCache,
    StaticKVCache,
)
from kvlib.allocations import Allocations
from kvlib.perplexity import perplexity, sample_text

ROOT = Path(__file__).resolve().parents[2]
TEXT_SHA256 = "f80a4fa41586431471f054e81d07d77cde1cf00da259432a3a0bd499feaa8938"
LENGTH = 23


def made(tied: bool = True, dtype=torch.float64) -> Model:
    config = ModelConfig(
        num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, hidden_size=16, intermediate_size=24,
        vocab_size=31, tie_embeddings=tied, max_seq_len=40,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model(config, dtype=dtype)


@pytest.fixture
def tokens() -> list[int]:
    return torch.randint(31, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cache", [None, KVCache, StaticKVCache, lambda: StaticKVCache(40)])
@pytest.mark.parametrize("chunk_size", [1, 5, 22, 32])
def test_an_exact_cache_gives_what_a_pass_without_one_gives(tied, cache, chunk_size, tokens):
    model = made(tied)
    logits = model(torch.tensor([tokens]))[0, :-1]  # (T - 1, V)
    logs = logits - logits.exp().sum(dim=-1, keepdim=True).log()
    want = torch.tensor([-logs[i, token] for i, token in enumerate(tokens[1:])], dtype=torch.float64)
    got = perplexity(model, tokens, cache=cache, chunk_size=chunk_size)
    assert got.nll.shape == (LENGTH - 1,) and got.nll.dtype == torch.float64
    assert torch.allclose(got.nll, want, rtol=1e-11, atol=1e-11)
    assert math.isclose(got.value, math.exp(want.mean().item()), rel_tol=1e-11)
    assert len(got.nll) == LENGTH - 1
    held = {None: 0, KVCache: LENGTH - 1, StaticKVCache: LENGTH - 1}.get(cache, 40)
    assert got.cache_bytes == held * 2 * 2 * 2 * 4 * 8  # layers, keys and values, heads, D, bytes
    assert got.cached_tokens == (LENGTH - 1 if cache else 0)


def test_a_text_all_alike_to_the_model_has_the_perplexity_of_its_vocabulary(tokens):
    model = made()
    model.embedding.zero_()
    assert math.isclose(perplexity(model, tokens).value, 31, rel_tol=1e-12)


@pytest.mark.parametrize("cache", [None, KVCache])
def test_no_more_than_a_chunk_of_logits_is_ever_made(cache, tokens):
    with Allocations() as seen:
        perplexity(made(), tokens, cache=cache, chunk_size=4)
    logits = [one.shape for one in seen.made if one.shape[-1:] == (31,)]
    assert {math.prod(shape[:-1]) for shape in logits} <= {1, 2, 4}, logits
    assert len(logits) >= 6


def test_a_large_chunk_flatters_an_approximate_cache(tokens):
    model = made(dtype=torch.float32)

    def off(chunk_size):
        got = perplexity(
            model, tokens, cache=lambda: QuantizedKVCache(4, group=2, recent=0), chunk_size=chunk_size
        )
        return (got.nll - perplexity(model, tokens).nll).abs().max().item()

    assert off(1) > 1e-3
    assert off(22) < 1e-5, "one chunk is one pass, every row in it exact"


def test_the_model_is_left_as_it_was(tokens):
    model = made()
    perplexity(model, tokens, cache=None)
    with pytest.raises(RuntimeError):
        perplexity(model, tokens, cache=lambda: Broken())
    assert not model.norm._forward_hooks
    assert model(torch.tensor([tokens])).shape == (1, LENGTH, 31)


class Broken(KVCache):
    def update(self, k_new, v_new):
        raise RuntimeError("broken on purpose")


BAD = {
    "no tokens": ([], {}),
    "one token": ([3], {}),
    "a string": ("text", {}),
    "None": (None, {}),
    "a token past the vocabulary": ([1, 31], {}),
    "a negative token": ([1, -1], {}),
    "floats": ([1.0, 2.0], {}),
    "a float tensor": (torch.ones(4), {}),
    "two texts": (torch.ones(2, 4, dtype=torch.int64), {}),
    "lists of lists": ([[1, 2], [3, 4]], {}),
    "more than the positions": ([1] * 42, {}),
    "the positions and one": ([1] * 42, {"cache": None}),
    "chunk_size 0": ([1, 2], {"chunk_size": 0}),
    "chunk_size True": ([1, 2], {"chunk_size": True}),
    "chunk_size 1.5": ([1, 2], {"chunk_size": 1.5}),
    "a list of caches": ([1, 2], {"cache": [KVCache(), KVCache()]}),
    "a cache for a class": ([1, 2], {"cache": KVCache()}),
    "a factory of something else": ([1, 2], {"cache": dict}),
    "a class that needs arguments": ([1, 2], {"cache": SlidingWindowKVCache}),
    "a float array": (np.ones(4), {}),
    "a bool array": (np.ones(4, dtype=bool), {}),
    "a bool tensor": (torch.ones(4, dtype=torch.bool), {}),
    "a complex tensor": (torch.ones(4, dtype=torch.complex64), {}),
    "an array of strings": (np.array(["a", "b"]), {}),
    "an array of two texts": (np.ones((2, 4), dtype=int), {}),
    "an array of one number": (np.array(3), {}),
    "an array past the vocabulary": (np.array([1, 31]), {}),
    "a window too long, rotated": ([1] * 42, {"cache": lambda: SlidingWindowKVCache(4)}),
    "an unrotated window that is never full": (
        [1] * 42,
        {"cache": lambda: SlidingWindowKVCache(41, keys="unrotated")},
    ),
    "a cache too short": ([1] * 9, {"cache": lambda: StaticKVCache(7)}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_computed(name, monkeypatch):
    model = made()
    monkeypatch.setattr(Model, "forward", lambda *args, **options: pytest.fail("the model ran"))
    tokens, options = BAD[name]
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+ \w+"):
        perplexity(model, tokens, **options)


def test_a_full_cache_is_not_taken_for_a_new_one():
    full = KVCache()
    full.update(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    with pytest.raises(ValueError, match="must be new"):
        perplexity(made(), [1, 2], cache=full.fork)


def test_a_tensor_or_array_of_one_text_is_taken(tokens):
    model = made()
    want = perplexity(model, tokens).nll
    tensors = torch.tensor(tokens), torch.tensor([tokens]), torch.tensor(tokens, dtype=torch.int32)
    arrays = np.array(tokens), np.array([tokens]), np.array(tokens, dtype=np.uint8)
    for given in (*tensors, *arrays):
        assert torch.equal(perplexity(model, given).nll, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", [None, KVCache])
def test_the_loss_of_16_bit_logits_is_taken_in_float32(dtype, cache, tokens):
    model = made(dtype=dtype)
    logits = model(torch.tensor([tokens]))[0, :-1]
    assert logits.dtype == dtype
    want = -logits.float().log_softmax(-1)[range(LENGTH - 1), tokens[1:]]
    got = perplexity(model, tokens, cache=cache).nll
    assert got.dtype == torch.float32
    assert torch.allclose(got, want, rtol=0, atol=1e-5)


def test_an_unrotated_window_reads_past_the_models_positions():
    model = made()
    text = torch.randint(31, (61,), generator=torch.Generator().manual_seed(2)).tolist()
    window = lambda: SlidingWindowKVCache(6, sinks=2, keys="unrotated")  # noqa: E731
    got = perplexity(model, text, cache=window, chunk_size=4)
    assert len(got.nll) == 60 > model.config.max_seq_len and got.cached_tokens == 60
    start = perplexity(model, text[:31], cache=window, chunk_size=4)
    assert torch.allclose(got.nll[:30], start.nll, rtol=1e-11, atol=1e-11)


def test_the_text_is_the_one_that_was_made():
    text = sample_text()
    assert hashlib.sha256(text.encode()).hexdigest() == TEXT_SHA256
    script = runpy.run_path(str(ROOT / "assets" / "perplexity_text.py"))
    if sys.version_info[:3] == script["VERSION"]:
        assert script["text"]() == text
    licence = (ROOT / "assets" / "perplexity_text.LICENSE.txt").read_text("utf-8")
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in licence

"""What is reported of a smaller cache is what it holds and gives back, and not what it claims."""

from __future__ import annotations

import pytest
import torch

from kvlib import KVCache, Model, ModelConfig, QuantizedKVCache, SlidingWindowKVCache, StaticKVCache, generate
from kvlib.approximation import approximation, storage_bytes
from kvlib.perplexity import perplexity

TOKENS = torch.randint(31, (40,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture
def model() -> Model:
    config = ModelConfig(
        num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, hidden_size=16, intermediate_size=24,
        vocab_size=31, max_seq_len=64,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model(config)


@pytest.mark.parametrize("cache", [KVCache, lambda: StaticKVCache(39)])
def test_an_exact_cache_has_no_error(model, cache):
    got = approximation(model, TOKENS[:-1], cache, chunk_size=3)
    assert got.key_error == got.value_error == got.key_error_share == got.value_error_share == 0
    assert got.perplexity.value == perplexity(model, TOKENS[:-1], cache=cache, chunk_size=3).value
    rows = 38 if cache is KVCache else 39
    assert got.held_bytes == got.claimed_bytes == rows * 2 * 2 * 2 * 4 * 4


def test_fewer_bits_take_fewer_bytes_and_err_more(model):
    def of(bits, **options):
        return approximation(model, TOKENS, lambda: QuantizedKVCache(bits, group=8, recent=2, **options))

    int8, int4 = of(8), of(4)
    for got in (int8, int4):
        assert got.held_bytes == got.claimed_bytes
        assert got.perplexity.cached_tokens == 39
    assert int8.held_bytes - int4.held_bytes == 32 * 2 * 2 * 2 * 4 // 2  # 32 rows, half a byte a number
    for name in ("key_error", "value_error", "key_error_share", "value_error_share"):
        assert 10 < getattr(int4, name) / getattr(int8, name) < 30, name  # 255 / 15 = 17 steps
    want = perplexity(model, TOKENS, cache=lambda: QuantizedKVCache(4, group=8, recent=2), chunk_size=16)
    assert int4.perplexity.value == want.value, "watching the rows changed what was read"


def test_bytes_are_found_wherever_they_hide():
    class Hides(KVCache):
        def update(self, k_new, v_new):
            self.hidden = {"deep": [(torch.zeros(100),)]}
            return super().update(k_new, v_new)

    cache = Hides()
    k, _ = cache.update(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4))
    assert cache.nbytes == 64 and storage_bytes(cache) == 464
    assert storage_bytes([cache, k, k[:, :, :1]]) == 464, "shared memory counts once"
    cache.crop(1)
    cache.view = torch.zeros(1000)[:1]
    assert storage_bytes(cache) == 432 + 4000, "what a slice keeps alive counts whole"
    cache.itself = cache
    assert storage_bytes(cache) == 4432


def test_a_cache_that_lets_rows_go_is_refused(model):
    with pytest.raises(ValueError, match="let rows go"):
        approximation(model, TOKENS, lambda: SlidingWindowKVCache(4), chunk_size=3)


def test_generate_takes_a_quantised_cache(model):
    prompts = [TOKENS[:9], TOKENS[9:13]]
    want = generate(model, prompts, 8, cache=None)
    assert generate(model, prompts, 8, cache=lambda: QuantizedKVCache(4)) == want, "all rows are recent"
    made = model.make_caches(lambda: QuantizedKVCache(4, group=4, recent=1))
    assert len(generate(model, prompts[0], 8, cache=made, chunk_size=2)) == 8
    assert {one.seq_len for one in made} == {16} and {one.quantized_len for one in made} == {12}

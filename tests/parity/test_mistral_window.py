"""Small random Mistrals with a sliding window, run here with `SlidingWindowKVCache`.

transformers' `sliding_window` counts the current token, as `window` does here: query i sees keys
i - sliding_window + 1 to i, and its cache keeps sliding_window - 1 rows.
"""

from __future__ import annotations

import pytest
import torch

from kvlib import KVCache, SlidingWindowKVCache, generate, load_checkpoint
from tests.parity.norms import keep_float64
from tests.parity.test_random_llamas import VOCAB, assert_same, disagreement, random_tokens, write_tokenizer

transformers = pytest.importorskip("transformers")

WINDOW = 5
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
SHAPES = {  # query heads, KV heads, dtype
    "MHA": (4, 4, torch.float32),
    "GQA 9 over 3": (9, 3, torch.float32),
    "GQA 9 over 3, float64": (9, 3, torch.float64),
    "MQA, float64": (4, 1, torch.float64),
}


def random_mistral(heads: int, kv_heads: int, dtype: torch.dtype):
    """Return (config as a dict, transformers' model of it), every weight random, norms included."""
    torch.manual_seed(11)
    config = dict(
        vocab_size=VOCAB, hidden_size=36, intermediate_size=44, num_hidden_layers=3,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=8,
        max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**config, sliding_window=WINDOW))
    for name, weight in model.to(dtype).eval().requires_grad_(False).named_parameters():
        if weight.dim() == 1:
            weight.uniform_(0.5, 1.5)
        else:
            weight.normal_(std=1.0 if "embed" in name else 1.5 * weight.shape[1] ** -0.5)
    return config, model


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, quiet):
    """(this library's model, transformers' Mistral) on the same weights; only the window differs
    from a Llama, and that is the cache's affair here.
    """
    folder = tmp_path_factory.mktemp("mistral")
    with quiet():
        config, theirs = random_mistral(*SHAPES[request.param])
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).to(theirs.dtype)
        llama.load_state_dict(theirs.state_dict())
        llama.save_pretrained(folder)
    write_tokenizer(folder)
    ours, _ = load_checkpoint(folder, dtype=theirs.dtype)
    return ours, theirs


@pytest.fixture(autouse=True)
def exact_norm_in_float64(monkeypatch):
    """Keep transformers' RMSNorm in float64 where the model is."""
    from transformers.models.mistral.modeling_mistral import MistralRMSNorm

    keep_float64(monkeypatch, MistralRMSNorm)


def windows() -> SlidingWindowKVCache:
    return SlidingWindowKVCache(WINDOW)


def test_a_prompt_of_several_windows_equals_transformers(pair):
    ours, theirs = pair
    tokens = random_tokens(2, 6 * WINDOW + 3)
    want = theirs(tokens).logits
    got = ours(tokens, ours.make_caches(windows))
    assert_same(got, want, TOLERANCE[ours.dtype])
    assert disagreement(ours(tokens), want) > 0.01, "without the window the logits are others"
    for wrong in (WINDOW - 1, WINDOW + 1):
        caches = ours.make_caches(lambda wrong=wrong: SlidingWindowKVCache(wrong))
        assert disagreement(ours(tokens, caches), want) > 0.01, "the current token counts"


@pytest.mark.parametrize("split", [[1] * 33, [9, 1, 1, 22], [20, 4, 4, 5], [32, 1]], ids=str)
def test_any_chunking_equals_transformers_whole_pass(pair, split):
    ours, theirs = pair
    tokens = random_tokens(2, 33)
    caches = ours.make_caches(windows)
    parts = [ours(part, caches) for part in tokens.split(split, dim=1)]
    assert_same(torch.cat(parts, dim=1), theirs(tokens).logits, TOLERANCE[ours.dtype])


def test_decode_steps_equal_transformers_cached_decode(pair):
    ours, theirs = pair
    tokens = random_tokens(2, 30)
    caches, past = ours.make_caches(windows), transformers.DynamicCache(config=theirs.config)
    for part in tokens.split([17] + [1] * 13, dim=1):
        assert_same(ours(part, caches), theirs(part, cache=past).logits, TOLERANCE[ours.dtype])
        assert caches[0].seq_len == past.get_seq_length()
    for cache, layer in zip(caches, past.layers, strict=True):
        assert layer.keys.shape[2] == WINDOW - 1
        keys, values = cache.fork().update(layer.keys[:, :, -1:], layer.values[:, :, -1:])
        for mine, other in ((keys[:, :, :-1], layer.keys), (values[:, :, :-1], layer.values)):
            assert (mine - other).abs().max() <= TOLERANCE[ours.dtype] * other.abs().max()


def test_generated_tokens_equal_transformers(pair, quiet):
    ours, theirs = pair
    prompt = random_tokens(1, 13)
    with quiet():
        made = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False
        )
    want = made[0, 13:].tolist()
    assert generate(ours, prompt[0].tolist(), 20, cache=windows) == want
    assert generate(ours, prompt[0].tolist(), 20, cache=windows, chunk_size=3) == want
    assert generate(ours, prompt[0].tolist(), 20, cache=KVCache) != want

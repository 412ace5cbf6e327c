"""Small random Llamas of every head layout, saved by transformers and loaded here.

The weights are large enough for attention to be far from uniform. Tolerances are relative to the
largest logit of the reference: a few dozen float32 roundings, or float64 ones. transformers rounds
RMSNorm to float32 in a float64 model too, so for float64 its formula is put in without the cast.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvlib import KVCache, StaticKVCache, generate, load_checkpoint
from tests.parity.norms import keep_float64

transformers = pytest.importorskip("transformers")

VOCAB = 61
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
SCALED_TOLERANCE = 5e-6  # llama3's formula in another order: rotary angles are float32 in any model
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Shape:
    """One layout; fields as in transformers' LlamaConfig."""

    heads: int
    kv_heads: int
    head_dim: int = 8
    hidden: int = 24
    tied: bool = True
    dtype: torch.dtype = torch.float32
    rope: dict | None = None


SHAPES = {
    "MHA": Shape(4, 4),
    "GQA 4 over 2, untied": Shape(4, 2, tied=False),
    "GQA 9 over 3": Shape(9, 3, head_dim=4, hidden=36),
    "GQA 9 over 3, float64": Shape(9, 3, hidden=36, dtype=torch.float64),
    "MQA, untied, float64": Shape(4, 1, tied=False, dtype=torch.float64),
    "MQA, wide heads": Shape(3, 1, head_dim=16),
    "narrow heads": Shape(6, 2, head_dim=2, hidden=48),
    "one head": Shape(1, 1, tied=False),
    "theta 100000": Shape(4, 2, rope={"rope_type": "default", "rope_theta": 100000.0}),
    "llama3 scaling": Shape(4, 2, rope=LLAMA3),
    "llama3 scaling, float64": Shape(4, 4, head_dim=16, dtype=torch.float64, rope=LLAMA3),
}


def write_tokenizer(folder: Path) -> None:
    """Write the smallest tokenizer.json: one word a token, t0 to t60."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))


def random_llama(shape: Shape):
    """Return transformers' model of this shape, every weight random, norms included."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=shape.hidden, intermediate_size=44, num_hidden_layers=3,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim, tie_word_embeddings=shape.tied, max_position_embeddings=256,
        rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        rope_parameters=shape.rope or {"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(shape.dtype).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.uniform_(0.5, 1.5)
        else:
            weight.normal_(std=1.0 if "embed" in name else 1.5 * weight.shape[1] ** -0.5)
    return model


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, quiet):
    """(this library's model, transformers' model) on the same weights."""
    shape = SHAPES[request.param]
    folder = tmp_path_factory.mktemp("llama")
    with quiet():
        theirs = random_llama(shape)
        theirs.save_pretrained(folder)
    write_tokenizer(folder)
    ours, tokenizer = load_checkpoint(folder, dtype=shape.dtype)
    assert tokenizer.encode("t3 t60") == [3, 60]
    assert ours.dtype == theirs.dtype == shape.dtype
    return ours, theirs


@pytest.fixture(autouse=True)
def exact_norm_in_float64(monkeypatch):
    """Keep transformers' RMSNorm in float64 where the model is."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    keep_float64(monkeypatch, LlamaRMSNorm)


def random_tokens(batch_size: int, length: int) -> Tensor:
    return torch.randint(0, VOCAB, (batch_size, length), generator=torch.Generator().manual_seed(3))


def disagreement(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the reference's largest logit."""
    assert ours.shape == theirs.shape and torch.isfinite(ours).all()
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert disagreement(ours, theirs) <= tolerance


def tolerance_of(model) -> float:
    tolerance = TOLERANCE[model.dtype]
    return max(tolerance, SCALED_TOLERANCE) if model.config.rope_scaling else tolerance


def cache_kinds(length: int) -> dict:
    return {"concat": KVCache, "static": lambda: StaticKVCache(max_seq_len=length)}


def test_logits_equal_transformers(pair):
    ours, theirs = pair
    tokens = random_tokens(3, 120)  # llama3's slowed wavelengths are 8 to 32 tokens and more
    assert_same(ours(tokens), theirs(tokens).logits, tolerance_of(ours))


@pytest.mark.parametrize("kind", ["concat", "static"])
@pytest.mark.parametrize("split", [[1] * 14, [9, 1, 1, 3], [5, 4, 5]], ids=str)
def test_cached_logits_equal_transformers_whole_pass(pair, kind, split):
    ours, theirs = pair
    tokens = random_tokens(2, 14)
    caches = ours.make_caches(cache_kinds(14)[kind])
    parts = [ours(part, caches) for part in tokens.split(split, dim=1)]
    assert_same(torch.cat(parts, dim=1), theirs(tokens).logits, tolerance_of(ours))


def test_cached_logits_equal_transformers_cached_decode(pair):
    ours, theirs = pair
    tokens = random_tokens(2, 12)
    caches, past = ours.make_caches(KVCache), transformers.DynamicCache(config=theirs.config)
    for part in tokens.split([7, 1, 1, 1, 1, 1], dim=1):
        assert_same(ours(part, caches), theirs(part, cache=past).logits, tolerance_of(ours))
        assert caches[0].seq_len == past.get_seq_length()
    for cache, layer in zip(caches, past.layers, strict=True):
        keys, values = cache.fork().update(layer.keys[:, :, -1:], layer.values[:, :, -1:])
        scale = layer.keys.abs().max(), layer.values.abs().max()
        assert (keys[:, :, :-1] - layer.keys).abs().max() <= tolerance_of(ours) * scale[0]
        assert (values[:, :, :-1] - layer.values).abs().max() <= tolerance_of(ours) * scale[1]


@pytest.mark.parametrize("cache", [None, KVCache, StaticKVCache])
def test_generated_tokens_equal_transformers(pair, cache, quiet):
    ours, theirs = pair
    prompt = random_tokens(1, 9)
    with quiet():
        made = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
        )
    assert generate(ours, prompt[0].tolist(), 12, cache=cache) == made[0, 9:].tolist()


@pytest.mark.parametrize("kind", [None, "concat", "static"])
def test_a_left_padded_batch_equals_transformers(pair, kind):
    """The real tokens' logits; what stands on padding is nobody's business."""
    ours, theirs = pair
    padding, length, new = [0, 4, 9], 10, 3
    tokens = random_tokens(3, length + new)
    index = torch.arange(length + new)
    real = index >= torch.tensor(padding)[:, None]  # (B, T)
    reference = theirs(
        tokens, attention_mask=real.long(),
        position_ids=(index - torch.tensor(padding)[:, None]).clamp_min(0),
    ).logits  # fmt: skip
    if kind is None:
        logits = ours(tokens, left_padding=padding)
    else:
        caches = ours.make_caches(cache_kinds(length + new)[kind])
        parts = tokens.split([length] + [1] * new, dim=1)
        logits = torch.cat([ours(part, caches, left_padding=padding) for part in parts], dim=1)
    assert_same(logits[real], reference[real], tolerance_of(ours))


def test_a_batch_of_unequal_prompts_generates_as_transformers_does(pair, quiet):
    ours, theirs = pair
    tokens = random_tokens(3, 10)
    padding = [0, 4, 9]
    real = (torch.arange(10) >= torch.tensor(padding)[:, None]).long()
    with quiet():
        made = theirs.generate(tokens, attention_mask=real, max_new_tokens=6, do_sample=False)
    prompts = [row[pad:].tolist() for row, pad in zip(tokens, padding, strict=True)]
    assert generate(ours, prompts, 6) == made[:, 10:].tolist()


# Wrong loaders: each must fail the comparison above, by far.


def wrong_theta(model):
    model.config = dataclasses.replace(model.config, rope_theta=model.config.rope_theta * 2)


def no_scaling(model):
    model.config = dataclasses.replace(model.config, rope_scaling=None)


def wrong_eps(model):
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = 1e-2


def gate_and_up_swapped(model):
    weight = model.layers[0].mlp.gate_up.weight
    weight.copy_(weight.roll(weight.shape[0] // 2, dims=0))


def query_heads_in_another_order(model):
    weight, width = model.layers[0].attention.qkv.weight, model.config.head_dim
    weight[: 2 * width] = weight[: 2 * width].roll(width, dims=0)


def interleaved_pairs(model):
    """What queries and keys are when a llama.cpp file's row order is left as it is."""
    config = model.config
    weight, heads = model.layers[0].attention.qkv.weight, config.num_heads + config.num_kv_heads
    turned = weight[: heads * config.head_dim]
    pairs = turned.view(heads, 2, config.head_dim // 2, -1).transpose(1, 2)
    weight[: heads * config.head_dim] = pairs.reshape(turned.shape)


MUTANTS = {
    wrong_theta: "MHA",
    no_scaling: "llama3 scaling",
    wrong_eps: "MHA",
    gate_and_up_swapped: "MHA",
    query_heads_in_another_order: "GQA 9 over 3",
    interleaved_pairs: "MHA",
}


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_wrong_loader_is_noticed(mutate, tmp_path, quiet):
    with quiet():
        theirs = random_llama(SHAPES[MUTANTS[mutate]])
        theirs.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    ours, _ = load_checkpoint(tmp_path)
    tokens = random_tokens(3, 120)
    assert_same(ours(tokens), theirs(tokens).logits, tolerance_of(ours))
    mutate(ours)
    ours._turns = None  # the tables of the right config are kept otherwise
    assert disagreement(ours(tokens), theirs(tokens).logits) > 100 * TOLERANCE[torch.float32]

"""The decoder against formulas written here, its positions, and the input it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlib import KVCache, Model, ModelConfig, SlidingWindowKVCache, StaticKVCache
from kvlib.decoding import decoder
from kvlib.model import MLP, RMSNorm, rotary_tables, rotate

CONFIG = dict(
    num_layers=3, num_heads=4, num_kv_heads=2, head_dim=6, hidden_size=20, intermediate_size=28,
    vocab_size=29, max_seq_len=48,
)  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip


def random_model(dtype=torch.float64, **changes) -> Model:
    torch.manual_seed(1)
    return Model(ModelConfig(**CONFIG | changes), dtype=dtype)


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model()


def random_tokens(batch_size: int, length: int) -> Tensor:
    return torch.randint(0, 29, (batch_size, length), generator=torch.Generator().manual_seed(5))


def lengths(caches) -> list[int]:
    return [cache.seq_len for cache in caches]


# Formulas


def angle(position: int, pair: int, theta: float, head_dim: int) -> float:
    return position * theta ** (-2 * pair / head_dim)


@pytest.mark.parametrize("theta, head_dim", [(10000.0, 8), (100000.0, 64), (500.0, 2)])
def test_rotation_turns_each_pair_by_its_angle(theta, head_dim):
    """Pair (x_i, x_{i + D/2}) of position p turns by p theta^(-2i/D), in float64 arithmetic."""
    config = ModelConfig(**CONFIG | dict(head_dim=head_dim, rope_theta=theta))
    positions, half = 200, head_dim // 2
    x = torch.randn(positions, head_dim, dtype=torch.float64)
    turned = rotate(x, rotary_tables(config, positions, "cpu", torch.float64))
    for p in (0, 1, 2, 17, 199):
        for i in range(half):
            a, (x1, x2) = angle(p, i, theta, head_dim), (x[p, i].item(), x[p, i + half].item())
            bound = 5e-7 * max(1, a)  # angles are float32: their error grows with the angle
            assert turned[p, i].item() == pytest.approx(
                x1 * math.cos(a) - x2 * math.sin(a), abs=bound
            )
            assert turned[p, i + half].item() == pytest.approx(
                x2 * math.cos(a) + x1 * math.sin(a), abs=bound
            )


def test_scaled_rotation_slows_long_wavelengths_only():
    """Llama 3.1: wavelengths under L/high stay, those over L/low turn factor times slower."""
    config = ModelConfig(**CONFIG | dict(head_dim=16, rope_theta=500.0, rope_scaling=LLAMA3))
    cos, sin = rotary_tables(config, 2, "cpu", torch.float64)
    kinds = set()
    for i in range(8):
        plain = angle(1, i, 500.0, 16)
        turns = 32 * plain / (2 * math.pi)  # of this pair in the original context
        if turns > 4:
            expected, kind = plain, "kept"
        elif turns < 1:
            expected, kind = plain / 8, "slowed"
        else:
            share = (turns - 1) / (4 - 1)
            expected, kind = (1 - share) * plain / 8 + share * plain, "between"
        kinds.add(kind)
        assert cos[1, i].item() == pytest.approx(math.cos(expected), abs=1e-6)
        assert sin[1, i + 8].item() == pytest.approx(math.sin(expected), abs=1e-6)
    assert kinds == {"kept", "between", "slowed"}


def test_scores_depend_on_the_distance_only():
    config = ModelConfig(**CONFIG | dict(head_dim=8))
    turn = rotary_tables(config, 40, "cpu", torch.float64)
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    q, k = rotate(q.expand(40, 8), turn), rotate(k.expand(40, 8), turn)
    assert (q[3] @ k[1]).item() == pytest.approx((q[38] @ k[36]).item(), abs=1e-5)
    assert abs((q[3] @ k[1] - q[3] @ k[2]).item()) > 1e-3


@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_rms_norm_is_its_formula(eps):
    norm = RMSNorm(20, eps, dtype=torch.float64).requires_grad_(False)
    norm.weight.uniform_(0.5, 2)
    x = torch.randn(2, 3, 20, dtype=torch.float64)
    for b in range(2):
        for t in range(3):
            row = x[b, t].tolist()
            scale = 1 / math.sqrt(sum(value * value for value in row) / 20 + eps)
            expected = [v * scale * g for v, g in zip(row, norm.weight.tolist(), strict=True)]
            assert norm(x)[b, t].tolist() == pytest.approx(expected, abs=1e-12)


def test_swiglu_is_its_formula():
    torch.manual_seed(0)
    mlp = MLP(ModelConfig(**CONFIG), dtype=torch.float64).requires_grad_(False)
    x = torch.randn(2, 3, 20, dtype=torch.float64)
    gate, up = mlp.gate_up.weight.t().split(28, dim=1)
    g = x @ gate
    expected = (g / (1 + torch.exp(-g)) * (x @ up)) @ mlp.down.weight.t()
    torch.testing.assert_close(mlp(x), expected, rtol=1e-12, atol=1e-12)


def test_the_head_is_the_embedding_where_tied():
    tied, untied = random_model(), random_model(tie_embeddings=False)
    assert not hasattr(tied, "head") and untied.head.weight.shape == (29, 20)
    tokens = random_tokens(1, 4)
    untied.load_state_dict(tied.state_dict() | {"head.weight": tied.embedding})
    torch.testing.assert_close(tied(tokens), untied(tokens), rtol=1e-12, atol=1e-12)


# Positions


@pytest.mark.parametrize("cache", [None, KVCache, lambda: StaticKVCache(max_seq_len=14)])
@pytest.mark.parametrize("split", [[14], [10, 1, 1, 1, 1], [3, 4, 7], [1] * 14], ids=str)
def test_left_padding_is_invisible(model, cache, split):
    """Each sequence of a padded batch has the logits it has alone, whatever the padding holds."""
    if cache is None and len(split) > 1:
        pytest.skip("without caches there is one pass only")
    padding, tokens = [0, 1, 6, 13], random_tokens(4, 14)
    for filling in (0, 28):
        padded = tokens.clone()
        for row, pad in enumerate(padding):
            padded[row, :pad] = filling
        caches = model.make_caches(cache) if cache else None
        parts = padded.split(split, dim=1)
        logits = torch.cat([model(part, caches, left_padding=padding) for part in parts], dim=1)
        assert torch.isfinite(logits).all()
        for row, pad in enumerate(padding):
            alone = model(tokens[row : row + 1, pad:])
            torch.testing.assert_close(logits[row, pad:], alone[0], rtol=1e-9, atol=1e-9)


def test_no_padding_is_padding_of_zero(model):
    tokens = random_tokens(2, 5)
    assert torch.equal(model(tokens, left_padding=[0, 0]), model(tokens))


def test_last_only_is_the_last_position(model):
    tokens = random_tokens(2, 5)
    last = model(tokens, last_only=True)
    assert last.shape == (2, 1, 29)
    torch.testing.assert_close(last, model(tokens)[:, -1:], rtol=1e-12, atol=1e-12)


def test_later_tokens_change_no_earlier_logits(model):
    tokens = random_tokens(1, 10)
    before = model(tokens)
    tokens[0, 7:] = 0
    torch.testing.assert_close(model(tokens)[:, :7], before[:, :7], rtol=1e-12, atol=1e-12)


def test_the_tables_grow_without_changing_what_was(model):
    """A long run between two short ones makes new rotary tables."""
    fresh = random_model(max_seq_len=2048)
    tokens = random_tokens(1, 9)
    before = fresh(tokens)
    fresh(random_tokens(1, 600), last_only=True)
    torch.testing.assert_close(fresh(tokens), before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "before, after", [(torch.float32, torch.float64), (torch.float64, torch.float32)]
)
def test_a_model_moved_to_another_precision_moves_its_tables(before, after):
    moved = random_model(before)
    moved(random_tokens(1, 3))
    moved = moved.to(after)  # with wider tables left behind, keys would be wider than values
    assert moved.dtype == after
    assert moved(random_tokens(1, 3)).dtype == after


# Building


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_builds_on_the_meta_device_and_holds_no_memory(tied):
    huge = ModelConfig(
        num_layers=2, num_heads=64, num_kv_heads=8, head_dim=128, hidden_size=8192,
        intermediate_size=28672, vocab_size=128256, tie_embeddings=tied, max_seq_len=131072,
    )  # fmt: skip
    model = Model(huge, device="meta", dtype=torch.bfloat16)
    assert model.device.type == "meta" and model.dtype == torch.bfloat16
    layer = 8192 * (64 + 2 * 8) * 128 + 64 * 128 * 8192 + 3 * 8192 * 28672 + 2 * 8192
    ends = 128256 * 8192 * (1 if tied else 2) + 8192
    assert sum(weight.numel() for weight in model.parameters()) == 2 * layer + ends


def test_weights_follow_the_seed_and_carry_no_gradient():
    first, second = random_model(), random_model()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b) and not a.requires_grad
    assert not first(random_tokens(1, 3)).requires_grad


def test_every_layer_gets_a_cache_of_its_own(model):
    caches = model.make_caches(KVCache)
    assert len(caches) == len({id(cache) for cache in caches}) == 3


@pytest.mark.parametrize("name", [
    "num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_size", "intermediate_size",
    "vocab_size", "max_seq_len",
])  # fmt: skip
@pytest.mark.parametrize("value", [0, -1, 2.0, "2", None, True])
def test_a_config_of_no_whole_numbers_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        ModelConfig(**CONFIG | {name: value})


@pytest.mark.parametrize("changes, words", [
    (dict(num_heads=4, num_kv_heads=3), "4 is not a multiple of num_kv_heads 3"),
    (dict(num_heads=2, num_kv_heads=4), "2 is not a multiple of num_kv_heads 4"),
    (dict(head_dim=5), "head_dim 5 is odd"),
])  # fmt: skip
def test_an_impossible_config_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        ModelConfig(**CONFIG | changes)


def test_group_size_counts_query_heads_to_a_kv_head():
    assert ModelConfig(**CONFIG | dict(num_heads=9, num_kv_heads=3)).group_size == 3


# Bad input

BAD_TOKENS = {
    "a list": [[1, 2]],
    "one dimension": torch.tensor([1, 2]),
    "three dimensions": torch.ones(1, 1, 2, dtype=torch.int64),
    "int32": torch.ones(1, 2, dtype=torch.int32),
    "floats": torch.ones(1, 2),
    "bools": torch.ones(1, 2, dtype=torch.bool),
    "no token": torch.ones(1, 0, dtype=torch.int64),
    "no sequence": torch.ones(0, 3, dtype=torch.int64),
    "a negative token": torch.tensor([[1, -1]]),
    "a token outside the vocabulary": torch.tensor([[1, 29]]),
    "more than the positions": torch.ones(1, 49, dtype=torch.int64),
    "another device": torch.ones(1, 2, dtype=torch.int64, device="meta"),
}


@pytest.mark.parametrize("tokens", BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_bad_tokens_are_refused_and_the_caches_untouched(model, tokens):
    caches = model.make_caches(KVCache)
    model(random_tokens(1, 3), caches)
    for given in (None, caches):
        with pytest.raises(ValueError):
            model(tokens, given)
    assert lengths(caches) == [3, 3, 3]


def test_positions_end_where_the_config_says(model):
    caches = model.make_caches(KVCache)
    model(random_tokens(1, 47), caches)
    model(random_tokens(1, 1), caches)
    with pytest.raises(ValueError, match="49 tokens are more than the 48 positions"):
        model(random_tokens(1, 1), caches)
    assert lengths(caches) == [48, 48, 48]


def wrong_caches(model: Model, kind: str) -> list:
    caches = model.make_caches(KVCache)
    model(random_tokens(2, 3), caches)
    if kind == "too few":
        caches.pop()
    elif kind == "too many":
        caches.append(KVCache())
    elif kind == "one object twice":
        caches[2] = caches[0]
    elif kind == "disagreeing lengths":
        caches[1].crop(2)
    elif kind == "another precision":
        for i in range(3):
            caches[i] = KVCache()
            caches[i].update(*[torch.zeros(2, 2, 3, 6, dtype=torch.float32)] * 2)
    elif kind == "another number of heads":
        for i in range(3):
            caches[i] = KVCache()
            caches[i].update(*[torch.zeros(2, 4, 3, 6, dtype=torch.float64)] * 2)
    elif kind == "later layer of another shape":
        caches[2] = KVCache()
        caches[2].update(*[torch.zeros(2, 2, 3, 8, dtype=torch.float64)] * 2)
    elif kind == "later layer without room":
        caches[2] = StaticKVCache(max_seq_len=4)
        caches[2].update(*[torch.zeros(2, 2, 3, 6, dtype=torch.float64)] * 2)
    return caches


@pytest.mark.parametrize("kind, words", [
    ("too few", "2 caches for 3 layers"),
    ("too many", "4 caches for 3 layers"),
    ("one object twice", "one cache object stands in two layers"),
    ("disagreeing lengths", "disagree on the length"),
    ("another precision", "dtype"),
    ("another number of heads", "num_kv_heads"),
    ("later layer of another shape", "head_dim"),
    ("later layer without room", "max_seq_len 4"),
])  # fmt: skip
def test_wrong_caches_are_refused_and_untouched(model, kind, words):
    """Also where only a later layer finds out: the layers before it give their new rows back."""
    caches = wrong_caches(model, kind)
    before = lengths(caches)
    with pytest.raises(ValueError, match=words):
        model(random_tokens(2, 2), caches)
    assert lengths(caches) == before


@pytest.mark.parametrize("caches", [KVCache, KVCache(), "abc", [1, 2, 3], {}, 3])
def test_what_is_no_list_of_caches_is_refused(model, caches):
    with pytest.raises(ValueError, match="list of caches, one for each layer"):
        model(random_tokens(2, 2), caches)


def test_another_batch_size_is_refused(model):
    caches = model.make_caches(KVCache)
    model(random_tokens(2, 3), caches)
    with pytest.raises(ValueError, match="batch_size 2"):
        model(random_tokens(3, 1), caches)
    assert lengths(caches) == [3, 3, 3]


@pytest.mark.parametrize("padding", [[1], [1, 2, 3], [0, -1], [0, 1.5], ["a", 1], [True, 0], 3])
def test_bad_padding_is_refused(model, padding):
    caches = model.make_caches(KVCache)
    with pytest.raises(ValueError, match="padding"):
        model(random_tokens(2, 4), caches, left_padding=padding)
    assert lengths(caches) == [0, 0, 0]


@pytest.mark.parametrize("factory", [KVCache, lambda: StaticKVCache(max_seq_len=20)])
@pytest.mark.parametrize("place", ["layers.0.mlp", "layers.1.attention.out", "layers.2", "norm"])
def test_whatever_fails_leaves_the_caches_as_they_were(model, factory, place):
    caches = model.make_caches(factory)
    tokens = random_tokens(1, 8)
    model(tokens[:, :5], caches)

    def pull(*_):
        raise KeyboardInterrupt

    handle = model.get_submodule(place).register_forward_hook(pull)
    try:
        with pytest.raises(KeyboardInterrupt):
            model(tokens[:, 5:], caches)
    finally:
        handle.remove()
    assert lengths(caches) == [5, 5, 5]
    torch.testing.assert_close(
        model(tokens[:, 5:], caches), model(tokens)[:, 5:], rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (SlidingWindowKVCache, "SlidingWindowKVCache cannot be made without window; give a factory"),
        (StaticKVCache, "StaticKVCache cannot be made without max_seq_len"),
        (lambda room: StaticKVCache(room), "cannot be made without room"),
        (StaticKVCache(3), "caches are made by a class"),
        (None, "caches are made by a class"),
    ],
)
def test_what_makes_no_cache_is_refused_with_a_sentence(factory, said):
    with pytest.raises(ValueError, match=said):
        random_model().make_caches(factory)


@pytest.mark.parametrize("how", ["eager", "native"])
@pytest.mark.parametrize("inside", [True, False])
def test_caches_and_decoders_serve_inside_and_outside_of_inference_mode(how, inside):
    model = Model(ModelConfig(2, 4, 2, 16, 48, 80, 77))
    tokens = torch.tensor([[1, 2, 3]])
    caches = model.make_caches(lambda: StaticKVCache(9))
    want = model(torch.tensor([[1, 2, 3, 4]]))[:, -1]
    for mode in (inside, not inside):
        with torch.inference_mode(mode):
            model(tokens, caches)
            step = decoder(model, caches, how)
        with torch.inference_mode(not mode):
            got = step(torch.tensor([[4]]))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            for cache in caches:
                cache.reset()


def test_buffers_that_cannot_be_written_later_are_refused():
    with torch.inference_mode():
        k, v = torch.zeros(2, 1, 2, 9, 16)
    with pytest.raises(ValueError, match="made under torch.inference_mode"):
        StaticKVCache.from_buffers(k, v, 0)


def test_rotations_made_under_inference_mode_serve_a_model_that_learns():
    model = random_model()
    tokens = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        model(tokens)
    model.requires_grad_(True)
    model(tokens).sum().backward()
    assert model.embedding.grad is not None

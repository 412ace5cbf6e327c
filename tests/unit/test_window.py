"""Sliding windows through the model and through generation, against passes without any cache."""

from __future__ import annotations

import math

import pytest
import torch

from kvlib import (
    KVCache,
    Model,
    ModelConfig,
    QuantizedKVCache,
    SlidingWindowKVCache,
    StaticKVCache,
    generate,
    grouped_attention,
)
from kvlib.caches.rollback import unchanged_on_failure
from kvlib.generation import prefill

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}
HEADS = {"MHA": (4, 4), "GQA 9 over 3": (9, 3), "MQA": (4, 1)}
WINDOWS = [(1, 0), (4, 0), (7, 0), (4, 2), (1, 3), (6, 1)]


def make_model(heads=(4, 2), dtype=torch.float64, max_seq_len=128) -> Model:
    torch.manual_seed(5)
    return Model(
        ModelConfig(
            num_layers=3, num_heads=heads[0], num_kv_heads=heads[1], head_dim=8, hidden_size=24,
            intermediate_size=32, vocab_size=31, max_seq_len=max_seq_len,
        ),
        dtype=dtype,
    )  # fmt: skip


def random_tokens(batch_size: int, length: int) -> torch.Tensor:
    return torch.randint(31, (batch_size, length), generator=torch.Generator().manual_seed(2))


def band(length: int, window: int, sinks: int) -> torch.Tensor:
    """Return who sees whom, bool (T, T), one pair of tokens at a time."""
    mask = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        for j in range(i + 1):
            mask[i, j] = i - j < window or j < sinks
    return mask


def banded(model: Model, tokens: torch.Tensor, window: int, sinks: int) -> torch.Tensor:
    """Return the logits of one pass without a cache, under the band."""
    mask = band(tokens.shape[1], window, sinks)
    with model.attending(lambda q, k, v, _: grouped_attention(q, k, v, mask)):
        return model(tokens)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(("window", "sinks"), WINDOWS)
def test_any_chunking_equals_one_pass_with_a_band(heads, dtype, window, sinks):
    model, tokens = make_model(heads, dtype), random_tokens(2, 40)
    want = banded(model, tokens, window, sinks)
    for split in ([40], [1] * 40, [25, 1, 1, 13], [3] * 13 + [1], [window] * (40 // window)):
        caches = model.make_caches(lambda: SlidingWindowKVCache(window, sinks=sinks))
        parts = [model(part, caches) for part in tokens[:, : sum(split)].split(split, dim=1)]
        got = torch.cat(parts, dim=1)
        assert error(got, want[:, : sum(split)]) <= TOLERANCE[dtype], split
        assert [cache.seq_len for cache in caches] == [sum(split)] * 3
        assert all(cache.stored_len <= sinks + window - 1 + split[-1] for cache in caches)


def test_fewer_tokens_than_the_window_are_plain_causal_order():
    model, tokens = make_model(), random_tokens(2, 12)
    for sinks in (0, 3):
        caches = model.make_caches(lambda sinks=sinks: SlidingWindowKVCache(12 - sinks, sinks=sinks))
        assert torch.equal(model(tokens, caches), model(tokens))


@pytest.mark.parametrize(("window", "sinks"), [(5, 0), (3, 2)])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_greedy_generation_equals_recomputing_with_a_band(window, sinks, chunk_size):
    model, text = make_model(), random_tokens(1, 11)[0].tolist()
    made = generate(
        model, text, 25, cache=lambda: SlidingWindowKVCache(window, sinks=sinks), chunk_size=chunk_size
    )
    for token in made:
        logits = banded(model, torch.tensor([text]), window, sinks)[0, -1]
        assert token == logits.argmax().item()
        text.append(token)
    assert made != generate(model, text[:11], 25, cache=KVCache)


# Keys from before RoPE


def turned(x: list[float], place: int, theta: float) -> list[float]:
    """Turn the pairs (x_i, x_{i + D/2}) of one vector by place * theta^(-2i/D)."""
    half, out = len(x) // 2, list(x)
    for i in range(half):
        frequency = 1 / torch.tensor(theta) ** torch.tensor(2 * i / len(x))  # float32, as in the model
        angle = place * frequency.item()
        a, b = x[i], x[i + half]
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def attend_by_distance(q, k, v, window: int, sinks: int, theta: float) -> torch.Tensor:
    """Attend literally, in lists of floats: q (H, T, D), k and v (KV, T, D), from before RoPE."""
    out, group_size = torch.zeros_like(q), q.shape[0] // k.shape[0]
    for h in range(q.shape[0]):
        keys, values = k[h // group_size].tolist(), v[h // group_size]
        for i, query in enumerate(q[h].tolist()):
            scores = {}
            for j in range(i + 1):
                if j < sinks or i - j < window:
                    distance = min(i - j, sinks + window - 1 - j) if j < sinks else i - j
                    pairs = zip(turned(query, distance, theta), keys[j], strict=True)
                    scores[j] = math.exp(sum(a * b for a, b in pairs) / math.sqrt(len(query)))
            total = sum(scores.values())
            out[h, i] = sum(weight / total * values[j] for j, weight in scores.items())
    return out


@pytest.mark.parametrize(("window", "sinks"), [(3, 0), (4, 2), (1, 3), (30, 2)])
@pytest.mark.parametrize("split", [[20], [1] * 20, [9, 1, 1, 9], [4] * 5], ids=str)
def test_unrotated_keys_are_turned_by_their_distance(window, sinks, split):
    """The first layer's attention, before its output projection, against the literal loop."""
    model, tokens = make_model((4, 2)), random_tokens(1, 20)
    attention, seen = model.layers[0].attention, []
    caches = model.make_caches(lambda: SlidingWindowKVCache(window, sinks=sinks, keys="unrotated"))
    hook = attention.out.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    for part in tokens.split(split, dim=1):
        model(part, caches)
    hook.remove()
    x = model.layers[0].attention_norm(model.embedding[tokens[0]])
    q, k, v = attention.qkv(x).view(20, 8, 8).transpose(0, 1).split([4, 2, 2])
    want = attend_by_distance(q, k, v, window, sinks, model.config.rope_theta)  # (H, T, D)
    assert error(torch.cat(seen), want.transpose(0, 1).reshape(20, 32)) < 1e-12


def test_without_sinks_keys_from_before_and_after_rope_mean_the_same():
    model, tokens = make_model(dtype=torch.float32), random_tokens(2, 40)
    rotated, unrotated = (
        model(tokens, model.make_caches(lambda keys=keys: SlidingWindowKVCache(6, keys=keys)))
        for keys in ("rotated", "unrotated")
    )
    assert error(unrotated, rotated) < 1e-4
    rotated, unrotated = (
        model(tokens, model.make_caches(lambda keys=keys: SlidingWindowKVCache(6, sinks=2, keys=keys)))
        for keys in ("rotated", "unrotated")
    )
    assert error(unrotated, rotated) > 1e-3, "with sinks they must not"


def test_unrotated_keys_take_a_text_past_the_models_positions():
    model, prompt = make_model(max_seq_len=16), random_tokens(1, 10)[0].tolist()
    same = make_model(max_seq_len=256)
    for window, sinks in ((10, 0), (7, 3)):
        cache = lambda w=window, s=sinks: SlidingWindowKVCache(w, sinks=s, keys="unrotated")  # noqa: E731
        made = generate(model, prompt, 60, cache=cache)
        assert len(made) == 60 and made == generate(same, prompt, 60, cache=cache)
        assert generate(model, prompt * 5, 3, cache=cache) == generate(same, prompt * 5, 3, cache=cache)
    for cache in (
        lambda: SlidingWindowKVCache(10),
        lambda: SlidingWindowKVCache(14, sinks=3, keys="unrotated"),  # wider than the positions
        KVCache,
    ):
        with pytest.raises(ValueError, match="69 positions; there are 16"):
            generate(model, prompt, 60, cache=cache)
        with pytest.raises(ValueError, match="more than the 16 positions"):
            model(random_tokens(1, 17), model.make_caches(cache))


def test_a_batch_of_unequal_lengths_needs_a_window_without_sinks():
    model, prompts = make_model(), [random_tokens(1, n)[0].tolist() for n in (3, 14, 9)]
    for keys in ("rotated", "unrotated"):
        cache = lambda keys=keys: SlidingWindowKVCache(4, keys=keys)  # noqa: E731
        alone = [generate(model, prompt, 12, cache=cache) for prompt in prompts]
        assert generate(model, prompts, 12, cache=cache, chunk_size=5) == alone
    with pytest.raises(ValueError, match="sinks"):
        generate(model, prompts, 12, cache=lambda: SlidingWindowKVCache(4, sinks=2))


# Room, and undoing


@pytest.mark.parametrize(
    "options",
    [{"window": 0}, {"window": True}, {"window": 2.0}, {"window": 4, "sinks": -1},
     {"window": 4, "sinks": None}, {"window": 4, "keys": "turned"}],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=r"must be"):
        SlidingWindowKVCache(**options)


def test_memory_is_that_of_the_window_not_of_the_text():
    cache, row = SlidingWindowKVCache(8, sinks=2), 2 * 3 * 4 * 4  # K and V, heads, numbers, bytes
    cache.update(torch.zeros(1, 3, 500, 4), torch.zeros(1, 3, 500, 4))
    assert cache.nbytes == 9 * row and (cache.seq_len, cache.stored_len) == (500, 9)
    cache.update(torch.zeros(1, 3, 1, 4), torch.zeros(1, 3, 1, 4))
    assert cache.nbytes == 10 * row and (cache.seq_len, cache.stored_len) == (501, 10)
    cache.update(torch.zeros(1, 3, 500, 4), torch.zeros(1, 3, 500, 4))
    assert cache.nbytes == 18 * row, "a long chunk leaves its last rows, and the rows to undo it"


def test_a_refused_crop_says_to_fork_before():
    cache = SlidingWindowKVCache(3)
    for _ in range(9):
        cache.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    with pytest.raises(ValueError, match="fork before"):
        cache.crop(7)
    cache.crop(8)
    assert cache.seq_len == 8


def test_an_interrupt_between_two_chunks_gives_the_same_objects_their_content_back(monkeypatch):
    model, tokens = make_model(), random_tokens(1, 60)
    caches = model.make_caches(lambda: SlidingWindowKVCache(4, sinks=1))
    model(tokens[:, :20], caches)
    twins, run, left = [cache.fork() for cache in caches], Model.forward, iter(range(5))

    def forward(self, *args, **options):
        if next(left) == 4:
            raise KeyboardInterrupt
        return run(self, *args, **options)

    monkeypatch.setattr(Model, "forward", forward)
    with pytest.raises(KeyboardInterrupt):
        prefill(model, tokens[:, 20:], caches, chunk_size=5)
    monkeypatch.undo()
    assert [cache.seq_len for cache in caches] == [20] * 3
    assert torch.equal(model(tokens[:, 20:], caches), model(tokens[:, 20:], twins))


def test_rows_that_were_quantised_come_back_as_they_were():
    rows = torch.randn(1, 1, 12, 4, generator=torch.Generator().manual_seed(0))
    cache = QuantizedKVCache(4, group=4, recent=0)
    cache.update(rows[:, :, :6], rows[:, :, :6])
    want = [x.clone() for x in cache.fork().update(rows[:, :, 6:7], rows[:, :, 6:7])]
    with pytest.raises(KeyboardInterrupt), unchanged_on_failure([cache]):
        cache.update(rows[:, :, 6:], rows[:, :, 6:])  # rounds rows 4 and 5 with what follows
        raise KeyboardInterrupt
    assert cache.seq_len == 6
    assert all(map(torch.equal, cache.update(rows[:, :, 6:7], rows[:, :, 6:7]), want))


def test_one_layer_that_cannot_be_restored_does_not_keep_the_others_from_it():
    class Stuck(KVCache):
        def crop(self, length):
            raise RuntimeError("stuck")

    caches, rows = [Stuck(), KVCache(), StaticKVCache(9)], torch.zeros(1, 1, 2, 1)
    for cache in caches:
        cache.update(rows, rows)
    with pytest.raises(KeyboardInterrupt) as caught, unchanged_on_failure(caches):
        for cache in caches:
            cache.update(rows, rows)
        raise KeyboardInterrupt
    assert [cache.seq_len for cache in caches] == [4, 2, 2]
    assert "stuck" in caught.value.__notes__[0]

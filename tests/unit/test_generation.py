"""From a prompt to tokens: lengths, stopping, sampling, batches, chunks, bad input, interrupts."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from kvlib import KVCache, Model, ModelConfig, SlidingWindowKVCache, StaticKVCache, generate, stream
from kvlib.generation import Step, choose, prefill

VOCAB = 31
LIMIT = 40  # positions of the model
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
CACHES = {"none": None, "concat": KVCache, "static": StaticKVCache}


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    config = ModelConfig(
        num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, hidden_size=24,
        intermediate_size=40, vocab_size=VOCAB, max_seq_len=LIMIT,
    )  # fmt: skip
    return Model(config, dtype=torch.float64)


def greedy(model: Model, prompt: list[int], num_new: int) -> list[int]:
    """The definition: the whole text through the model for every token."""
    text = list(prompt)
    for _ in range(num_new):
        text.append(model(torch.tensor([text]))[0, -1].argmax().item())
    return text[len(prompt) :]


def lengths(caches) -> list[int]:
    return [cache.seq_len for cache in caches]


@pytest.fixture
def computed(model):
    """Count the model's runs."""
    calls = []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(1))
    yield calls
    handle.remove()


@pytest.fixture
def interrupt(model):
    """Raise KeyboardInterrupt inside the last layer, at its n-th run from now: interrupt(n)."""
    handles = []

    def arm(nth: int, where=None) -> None:
        left = [nth]

        def pull(*_):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        place = model.layers[-1].mlp if where is None else where
        handles.append(place.register_forward_pre_hook(pull))

    yield arm
    for handle in handles:
        handle.remove()


# What is generated


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("prompt", [PROMPT, [7], PROMPT * 3], ids=["8", "1", "24"])
def test_greedy_tokens_are_those_of_the_full_recompute(model, cache, prompt):
    assert generate(model, prompt, 12, cache=cache) == greedy(model, prompt, 12)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array, torch.tensor])
def test_whole_numbers_of_any_kind_are_lengths(model, kind):
    assert generate(model, PROMPT, kind(5), chunk_size=kind(3)) == greedy(model, PROMPT, 5)


def test_a_tensor_is_a_prompt_too(model):
    expected = greedy(model, PROMPT, 5)
    assert generate(model, torch.tensor(PROMPT), 5) == expected
    assert generate(model, torch.tensor([PROMPT, PROMPT]), 5) == [expected, expected]
    assert generate(model, [PROMPT], 5) == [expected]


@pytest.mark.parametrize("factory", [KVCache, lambda: StaticKVCache(max_seq_len=30)])
@pytest.mark.parametrize("num_new", [1, 2, 9])
def test_caches_hold_all_but_the_last_token(model, factory, num_new):
    """p + n - 1 rows: the last token has been chosen but not run."""
    caches = model.make_caches(factory)
    assert len(generate(model, PROMPT, num_new, cache=caches)) == num_new
    assert lengths(caches) == [len(PROMPT) + num_new - 1] * 2


def test_a_cache_of_just_enough_room_is_enough(model):
    caches = model.make_caches(lambda: StaticKVCache(max_seq_len=len(PROMPT) + 4))
    assert generate(model, PROMPT, 5, cache=caches) == greedy(model, PROMPT, 5)


def test_the_model_is_used_to_its_last_position(model):
    assert len(generate(model, PROMPT, LIMIT - len(PROMPT) + 1)) == LIMIT - len(PROMPT) + 1


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
def test_a_stop_token_ends_the_text_and_is_kept(model, cache):
    whole = greedy(model, PROMPT, 12)
    stop = whole[4]
    until = whole[: whole.index(stop) + 1]
    assert generate(model, PROMPT, 12, cache=cache, stop_ids=(stop,)) == until
    steps = list(stream(model, PROMPT, 12, cache=cache, stop_ids={stop, VOCAB + 5}))
    assert [step.token for step in steps] == until


@pytest.mark.parametrize("kind", [
    torch.tensor, np.array, lambda ids: torch.tensor(ids, dtype=torch.int32), iter,
    lambda ids: [np.int64(i) for i in ids], lambda ids: [torch.tensor(i) for i in ids], frozenset,
])  # fmt: skip
def test_stop_ids_of_any_kind_stop(model, kind):
    whole = greedy(model, PROMPT, 12)
    until = whole[: whole.index(whole[4]) + 1]
    assert generate(model, PROMPT, 12, stop_ids=kind([whole[4], VOCAB + 5])) == until
    assert [s.token for s in stream(model, PROMPT, 12, stop_ids=kind([whole[4]]))] == until


@pytest.mark.parametrize("kind", [
    tuple, np.array, torch.tensor, lambda ids: [np.int32(i) for i in ids],
    lambda ids: [torch.tensor(i) for i in ids],
])  # fmt: skip
def test_token_ids_of_any_kind_are_a_prompt(model, kind):
    expected = greedy(model, PROMPT, 5)
    assert generate(model, kind(PROMPT), 5) == expected
    assert generate(model, [kind(PROMPT), kind(PROMPT[:4])], 5)[0] == expected


def test_each_sequence_of_a_batch_stops_on_its_own(model):
    prompts = [PROMPT, [7], [2, 2, 2]]
    whole = [greedy(model, prompt, 10) for prompt in prompts]
    stop = whole[0][3]
    until = [row[: row.index(stop) + 1] if stop in row else row for row in whole]
    assert len({len(row) for row in until}) > 1
    assert generate(model, prompts, 10, stop_ids=(stop,)) == until


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
def test_a_batch_of_unequal_prompts_is_each_prompt_alone(model, cache):
    prompts = [PROMPT, [7], PROMPT * 2, [0, 30, 0]]
    for chunk_size in (None, 3):
        together = generate(model, prompts, 9, cache=cache, chunk_size=chunk_size)
        assert together == [greedy(model, prompt, 9) for prompt in prompts]


@pytest.mark.parametrize("chunk_size", [*range(1, 11), 10**20])
def test_prefill_in_chunks_is_prefill(model, chunk_size):
    tokens = torch.tensor([PROMPT, PROMPT[::-1]])
    whole, parts = model.make_caches(KVCache), model.make_caches(KVCache)
    expected = prefill(model, tokens, whole)
    torch.testing.assert_close(
        prefill(model, tokens, parts, chunk_size=chunk_size), expected, rtol=1e-12, atol=1e-12
    )
    assert lengths(parts) == lengths(whole) == [8, 8]
    assert generate(model, PROMPT, 6, chunk_size=chunk_size) == greedy(model, PROMPT, 6)


@pytest.mark.parametrize("factory", [KVCache, lambda: StaticKVCache(max_seq_len=LIMIT)])
def test_going_on_with_a_cache_is_going_on_with_the_text(model, factory):
    """The next prompt starts with the token that was chosen last and not run."""
    caches = model.make_caches(factory)
    first = generate(model, PROMPT, 5, cache=caches)
    more = [first[-1], 8, 8, 2]
    second = generate(model, more, 6, cache=caches)
    assert second == greedy(model, PROMPT + first + more[1:], 6)
    assert lengths(caches) == [len(PROMPT) + 5 - 1 + len(more) + 6 - 1] * 2


# Sampling


def test_a_seed_means_the_same_text(model):
    def sample(seed, cache=StaticKVCache):
        return generate(model, PROMPT, 20, temperature=2.0, seed=seed, cache=cache)

    assert sample(5) == sample(5) == sample(5, KVCache) == sample(5, None)
    assert sample(5) != sample(6)
    assert sample(np.int64(5)) == sample(torch.tensor(5)) == sample(5)
    steps = stream(model, PROMPT, 20, temperature=2.0, seed=5)
    assert [step.token for step in steps] == sample(5)


def test_without_a_seed_the_global_state_decides(model):
    def sample():
        return generate(model, PROMPT, 20, temperature=2.0)

    torch.manual_seed(1)
    first, second = sample(), sample()
    torch.manual_seed(1)
    assert sample() == first != second


def test_a_seed_leaves_the_global_state_alone(model):
    before = torch.get_rng_state()
    generate(model, PROMPT, 5, temperature=1.0, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("temperature", [1e-6, 1e-300, 5e-324])
def test_a_vanishing_temperature_is_greedy(model, temperature):
    """Also the smallest float there is, over which any logit is infinite."""
    assert generate(model, PROMPT, 8, temperature=temperature) == greedy(model, PROMPT, 8)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_samples_follow_the_softmax_of_logits_over_temperature(temperature):
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -2.0], dtype=torch.float64)
    expected = (logits / temperature).softmax(-1)
    num_samples = 20_000
    generator = torch.Generator().manual_seed(11)
    drawn = choose(logits.expand(num_samples, -1), temperature, generator)
    assert drawn.shape == (num_samples, 1)
    assert chi_square(drawn, expected) < 20.5  # 5 degrees of freedom, one in a thousand
    assert chi_square(drawn, (logits / (temperature * 1.15)).softmax(-1)) > 20.5


def test_generated_samples_follow_the_models_softmax(model):
    """Through the whole door: 4,000 sequences of one batch, their first tokens."""
    logits = model(torch.tensor([PROMPT]))[0, -1]
    drawn = generate(model, [PROMPT] * 4000, 1, temperature=1.7, seed=2)
    assert chi_square(torch.tensor(drawn), (logits / 1.7).softmax(-1)) < 59.7  # 30 degrees


def chi_square(drawn: Tensor, expected: Tensor) -> float:
    counts = torch.bincount(drawn.flatten(), minlength=len(expected)).double()
    expected = expected * drawn.numel()
    return ((counts - expected) ** 2 / expected).sum().item()


# The stream


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
def test_the_stream_tells_token_time_and_rows_in_order(model, cache):
    steps = list(stream(model, PROMPT, 6, cache=cache))
    assert all(isinstance(step, Step) for step in steps)
    assert [step.token for step in steps] == greedy(model, PROMPT, 6)
    assert all(type(step.token) is int and type(step.cached_tokens) is int for step in steps)
    assert all(step.seconds > 0 and math.isfinite(step.seconds) for step in steps)
    rows = [0] * 6 if cache is None else list(range(8, 14))
    assert [step.cached_tokens for step in steps] == rows


def test_the_stream_computes_only_what_is_asked_for(model, computed):
    steps = stream(model, PROMPT, 6)
    assert len(computed) == 0
    next(steps)
    assert len(computed) == 1
    next(steps)
    assert len(computed) == 2
    steps.close()


@pytest.mark.parametrize("taken", [1, 3])
def test_a_stream_closed_early_leaves_caches_that_go_on(model, taken):
    caches = model.make_caches(KVCache)
    steps = stream(model, PROMPT, 10, cache=caches)
    tokens = [next(steps).token for _ in range(taken)]
    steps.close()
    assert lengths(caches) == [len(PROMPT) + taken - 1] * 2
    assert tokens + generate(model, tokens[-1:], 4, cache=caches) == greedy(
        model, PROMPT, taken + 4
    )


def test_the_stream_takes_one_prompt(model):
    with pytest.raises(ValueError, match="one prompt"):
        stream(model, [PROMPT, PROMPT], 3)


# Bad input

BAD = {
    "empty prompt": dict(prompt_ids=[]),
    "batch of nothing": dict(prompt_ids=[[]]),
    "one prompt of a batch empty": dict(prompt_ids=[[1], []]),
    "empty tensor": dict(prompt_ids=torch.zeros(0, dtype=torch.int64)),
    "text": dict(prompt_ids="hello"),
    "bytes": dict(prompt_ids=b"hello"),
    "list of texts": dict(prompt_ids=["hello"]),
    "no list": dict(prompt_ids=5),
    "None": dict(prompt_ids=None),
    "bool token": dict(prompt_ids=[1, True]),
    "float token": dict(prompt_ids=[1, 2.0]),
    "float tensor": dict(prompt_ids=torch.tensor([1.0, 2.0])),
    "text token": dict(prompt_ids=[1, "2"]),
    "None token": dict(prompt_ids=[1, None]),
    "nested too deep": dict(prompt_ids=[[[1]]]),
    "negative token": dict(prompt_ids=[1, -1]),
    "token outside the vocabulary": dict(prompt_ids=[1, VOCAB]),
    "token far outside, second prompt": dict(prompt_ids=[[1], [10**9]]),
    "no new tokens": dict(max_new_tokens=0),
    "negative new tokens": dict(max_new_tokens=-1),
    "half a new token": dict(max_new_tokens=1.5),
    "True new tokens": dict(max_new_tokens=True),
    "chunk_size 0": dict(chunk_size=0),
    "negative chunk_size": dict(chunk_size=-2),
    "float chunk_size": dict(chunk_size=2.0),
    "NaN temperature": dict(temperature=math.nan),
    "infinite temperature": dict(temperature=math.inf),
    "negative temperature": dict(temperature=-0.1),
    "text temperature": dict(temperature="hot"),
    "True temperature": dict(temperature=True),
    "text seed": dict(seed="a", temperature=1.0),
    "float seed": dict(seed=1.5),
    "one stop token, no list": dict(stop_ids=3),
    "text stop": dict(stop_ids="end"),
    "None stop": dict(stop_ids=None),
    "float stop": dict(stop_ids=[5.0]),
    "float tensor of stops": dict(stop_ids=torch.tensor([5.0])),
    "nested stops": dict(stop_ids=[[5]]),
    "nested tensor of stops": dict(stop_ids=torch.tensor([[5]])),
    "one stop token as a tensor, no list": dict(stop_ids=torch.tensor(5)),
    "negative stop": dict(stop_ids=[-1]),
    "text among stops": dict(stop_ids=[5, "6"]),
    "True stop": dict(stop_ids=[True]),
    "None among stops": dict(stop_ids=[None]),
    "dict of stops": dict(stop_ids={5: 1}),
    "set as a prompt": dict(prompt_ids={1, 2}),
    "array of floats": dict(prompt_ids=np.array([1.0])),
    "bool tensor": dict(prompt_ids=torch.tensor([True])),
    "tensor of three dimensions": dict(prompt_ids=torch.ones(1, 1, 1, dtype=torch.int64)),
    "temperature beyond all floats": dict(temperature=10**400),
    "complex temperature": dict(temperature=1j),
    "None temperature": dict(temperature=None),
    "list of temperatures": dict(temperature=[1.0]),
    "two seeds": dict(seed=torch.tensor([1, 2]), temperature=1.0),
    "seeds in a list": dict(seed=np.array([1]), temperature=1.0),
    "new tokens True of NumPy": dict(max_new_tokens=np.bool_(True)),
    "new tokens half of NumPy": dict(max_new_tokens=np.float64(2.0)),
    "chunk_size in a list": dict(chunk_size=torch.tensor([2])),
    "seed beyond 64 bits": dict(seed=2**64, temperature=1.0),
    "seed below 64 bits": dict(seed=-(2**63) - 1, temperature=1.0),
    "decode is no name": dict(decode=["eager"]),
    "new tokens beyond all": dict(max_new_tokens=10**30),
    "too long for the model": dict(prompt_ids=[1] * (LIMIT + 1), max_new_tokens=1),
    "too many new tokens": dict(max_new_tokens=LIMIT),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("held", [0, 4])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_bad_input_is_refused_before_anything_happens(model, computed, bad, held, mode):
    caches = model.make_caches(KVCache)
    if held:
        prefill(model, torch.tensor([PROMPT[:held]]), caches)
        computed.clear()
    arguments = dict(prompt_ids=PROMPT, max_new_tokens=3, cache=caches) | bad
    with mode(), pytest.raises(ValueError) as refused:
        generate(model, **arguments)
    with mode(), pytest.raises(ValueError):
        stream(model, **arguments)  # at the call, not at the first step
    assert len(str(refused.value)) > 15
    assert computed == [] and lengths(caches) == [held] * 2


def test_one_token_more_than_a_cache_holds_is_refused_before_anything_happens(model, computed):
    caches = model.make_caches(lambda: StaticKVCache(max_seq_len=10))
    with pytest.raises(ValueError, match="11 positions; there are 10"):
        generate(model, PROMPT, 4, cache=caches)
    assert computed == [] and lengths(caches) == [0, 0]
    assert len(generate(model, PROMPT, 3, cache=caches)) == 3
    computed.clear()
    with pytest.raises(ValueError, match="there are 10"):
        generate(model, [1], 1, cache=caches)
    assert computed == [] and lengths(caches) == [10, 10]


@pytest.mark.parametrize("wrong", ["too few", "too many", "one object twice", "unlike lengths"])
def test_caches_that_do_not_fit_the_model_are_refused(model, wrong):
    caches = model.make_caches(KVCache)
    if wrong == "too few":
        caches.pop()
    elif wrong == "too many":
        caches.append(KVCache())
    elif wrong == "one object twice":
        caches[1] = caches[0]
    else:
        caches[1].update(torch.zeros(1, 2, 3, 8).double(), torch.zeros(1, 2, 3, 8).double())
    before = lengths(caches)
    with pytest.raises(ValueError):
        generate(model, PROMPT, 3, cache=caches)
    assert lengths(caches) == before


@pytest.mark.parametrize("wrong", [KVCache(), 3, "KVCache", {}])
def test_a_cache_that_is_neither_class_nor_list_is_refused(model, computed, wrong):
    with pytest.raises(ValueError, match="cache is a class such as KVCache, or a list"):
        generate(model, PROMPT, 3, cache=wrong)
    assert computed == []


@pytest.mark.parametrize("cache", [dict, lambda: 3, lambda: KVCache, [None, None], [{}, {}]])
def test_what_is_no_cache_is_refused(model, computed, cache):
    with pytest.raises(ValueError, match="is no cache: one has update and seq_len"):
        generate(model, PROMPT, 3, cache=cache)
    assert computed == []


def needs(room, /, *rest, scheme, bits=8, **options):
    raise AssertionError("called")


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (SlidingWindowKVCache, "give a factory: lambda: SlidingWindowKVCache\\(window\\)$"),
        (needs, "give a factory: lambda: needs\\(room, scheme=...\\)$"),
        (functools.partial(needs, 3), "give a factory: lambda: cache\\(scheme=...\\)$"),
    ],
)
def test_a_class_that_needs_arguments_is_refused(model, computed, cache, words):
    with pytest.raises(ValueError, match=words):
        generate(model, PROMPT, 3, cache=cache)
    assert computed == []


@pytest.mark.parametrize(
    "cache",
    [
        lambda *rest, room=20, **options: StaticKVCache(room),
        functools.partial(StaticKVCache, 20),
        functools.partial(SlidingWindowKVCache, window=64),
        KVCache().fork,
    ],
)
def test_any_factory_without_arguments_is_taken(model, cache):
    assert generate(model, PROMPT, 3, cache=cache) == generate(model, PROMPT, 3)


@pytest.mark.parametrize("tokens", [[1, 2], None, torch.tensor(1), torch.tensor([1, 2])])
def test_prefill_takes_a_batch_of_tokens(model, tokens):
    with pytest.raises(ValueError, match="tokens must be"):
        prefill(model, tokens, model.make_caches(KVCache))


def test_prefill_needs_caches_to_fill(model):
    with pytest.raises(ValueError, match="prefill fills caches"):
        prefill(model, torch.tensor([PROMPT]), None, chunk_size=2)


def test_another_batch_size_than_the_caches_hold_is_refused(model):
    caches = model.make_caches(KVCache)
    generate(model, PROMPT, 2, cache=caches)
    with pytest.raises(ValueError, match="batch_size"):
        generate(model, [PROMPT, PROMPT], 2, cache=caches)
    assert lengths(caches) == [9, 9]


def test_unequal_prompts_behind_held_text_are_refused(model, computed):
    caches = model.make_caches(KVCache)
    generate(model, [PROMPT, PROMPT], 2, cache=caches)
    computed.clear()
    with pytest.raises(ValueError, match="equal lengths"):
        generate(model, [[1], [2, 3]], 2, cache=caches)
    assert computed == [] and lengths(caches) == [9, 9]


# Interrupts


@pytest.mark.parametrize("factory", [KVCache, lambda: StaticKVCache(max_seq_len=LIMIT)])
@pytest.mark.parametrize("where", ["layer", "norm"])
@pytest.mark.parametrize("held", [0, 3])
@pytest.mark.parametrize("chunk_size, nth", [(None, 1), (3, 2), (3, 3)])
def test_an_interrupted_prefill_can_be_tried_again(
    model, interrupt, factory, where, held, chunk_size, nth
):
    """Half a prompt in the caches would be run twice by the next try."""
    caches = model.make_caches(factory)
    before = PROMPT[:held]
    if held:
        prefill(model, torch.tensor([before]), caches)
    interrupt(nth, model.norm if where == "norm" else None)
    with pytest.raises(KeyboardInterrupt):
        generate(model, PROMPT, 4, cache=caches, chunk_size=chunk_size)
    assert lengths(caches) == [held] * 2
    again = generate(model, PROMPT, 4, cache=caches, chunk_size=chunk_size)
    assert again == greedy(model, before + PROMPT, 4)


@pytest.mark.parametrize("factory", [KVCache, lambda: StaticKVCache(max_seq_len=LIMIT)])
def test_an_interrupted_decode_step_leaves_what_the_steps_before_it_left(model, interrupt, factory):
    caches = model.make_caches(factory)
    steps = stream(model, PROMPT, 8, cache=caches)
    tokens = [next(steps).token for _ in range(3)]
    interrupt(1)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert lengths(caches) == [len(PROMPT) + 2] * 2
    assert tokens + generate(model, tokens[-1:], 4, cache=caches) == greedy(model, PROMPT, 7)


def test_nothing_generated_carries_a_gradient(model):
    caches = model.make_caches(KVCache)
    for weight in model.parameters():
        weight.requires_grad_(True)
    try:
        generate(model, PROMPT, 2, cache=caches)
        k, v = caches[0].fork().update(*[torch.zeros(1, 2, 1, 8).double()] * 2)
        assert not k.requires_grad and not v.requires_grad
    finally:
        model.requires_grad_(False)


BROKEN = {"NaN": math.nan, "+inf": math.inf, "nothing but -inf": -math.inf}


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0])
@pytest.mark.parametrize("value", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_logits_that_choose_nothing_are_refused(temperature, value, dtype):
    row = [value] * 3 if value == -math.inf else [0.0, value, 1.0]
    with pytest.raises(ValueError, match="the logits are NaN or infinite"):
        choose(torch.tensor([[0.0, 1.0, 2.0], row], dtype=dtype), temperature, None)


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0])
def test_a_token_that_is_ruled_out_is_never_chosen(temperature):
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]] * 50)
    assert choose(logits, temperature, None).unique().tolist() == [1]


@pytest.mark.parametrize("value", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("held", [0, 3])
@pytest.mark.parametrize(
    "factory", [KVCache, lambda: StaticKVCache(max_seq_len=LIMIT), lambda: SlidingWindowKVCache(4)]
)
def test_broken_logits_leave_the_caches_as_they_were(model, monkeypatch, value, held, factory):
    """Whether they come from the prompt or from a later step."""
    caches = model.make_caches(factory)
    if held:
        prefill(model, torch.tensor([PROMPT[:held]]), caches)
    with monkeypatch.context() as patch:
        patch.setattr(model, "_logits", lambda x: torch.full((*x.shape[:2], VOCAB), value))
        with pytest.raises(ValueError, match="NaN or infinite"):
            generate(model, PROMPT[held:], 3, cache=caches, chunk_size=2)
    assert lengths(caches) == [held] * 2
    fresh = model.make_caches(factory)
    if held:
        prefill(model, torch.tensor([PROMPT[:held]]), fresh)
    expected = generate(model, PROMPT[held:], 6, cache=fresh)
    steps = stream(model, PROMPT[held:], 9, cache=caches)
    tokens = [next(steps).token for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(model, "_logits", lambda x: torch.full((*x.shape[:2], VOCAB), value))
        with pytest.raises(ValueError, match="NaN or infinite"):
            next(steps)
    assert lengths(caches) == [len(PROMPT) + 2] * 2
    assert tokens + generate(model, tokens[-1:], 3, cache=caches) == expected


def test_cached_tokens_are_the_rows_held_not_the_tokens_seen(model):
    steps = stream(model, [1, 2, 3], 6, cache=lambda: SlidingWindowKVCache(3))
    assert [step.cached_tokens for step in steps] == [3, 3, 3, 3, 3, 3]

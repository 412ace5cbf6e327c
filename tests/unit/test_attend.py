"""Another attention in the place of kvlib's own: through the cache, the model, a measured step."""

import pytest
import torch

from kvlib import (
    KVCache,
    Model,
    attention_with_kv_cache,
    generate,
    grouped_attention,
    reference_attention,
    steps,
    timing,
)
from kvlib.memory import ModelPreset
from kvlib.steps import DecodeStep

TINY = ModelPreset("Tiny", 2, 4, 2, 8, 32, 48, 96, True)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model(TINY.config(max_seq_len=64), dtype=torch.float64)


@pytest.fixture
def step(monkeypatch, tmp_path):
    monkeypatch.setenv("KVLIB_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "_kept", {})
    monkeypatch.setattr(steps, "_all_pools", {})
    return DecodeStep(TINY, device="cpu", dtype=torch.float32)


class Spy:
    """Attend as `how` does, and keep what it was given."""

    def __init__(self, how=reference_attention):
        self.how, self.calls = how, []

    def __call__(self, q, k, v, mask=None):
        self.calls.append((q.shape, k.shape, mask))
        return self.how(q, k, v, mask)


def test_a_cache_is_attended_to_by_what_is_given():
    q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    spy = Spy()
    out, cache = attention_with_kv_cache(q, k, k, KVCache(), attend=spy)
    assert [call[:2] for call in spy.calls] == [(q.shape, k.shape)] and cache.seq_len == 3
    assert torch.equal(out, reference_attention(q, k, k))
    with pytest.raises(ValueError, match="cannot share"):
        attention_with_kv_cache(q[:, :3], k, k, cache, attend=spy)
    assert cache.seq_len == 3 and len(spy.calls) == 1


def test_every_layer_attends_with_it_inside_the_block_only(model):
    spy, prompt = Spy(), [1, 2, 3]
    plain = generate(model, prompt, 5)
    with model.attending(spy):
        assert generate(model, prompt, 5) == plain
    assert len(spy.calls) == 2 * 5  # two layers; the prompt, then four single tokens
    assert {call[0][2] for call in spy.calls} == {3, 1}
    assert [layer.attention.attend for layer in model.layers] == [None, None]
    generate(model, prompt, 5)
    assert len(spy.calls) == 10


def test_without_a_cache_too(model):
    spy, tokens = Spy(), torch.tensor([[1, 2, 3]])
    with model.attending(spy):
        got = model(tokens)
    assert len(spy.calls) == 2
    torch.testing.assert_close(got, model(tokens))


def test_a_failure_inside_leaves_model_and_caches_as_they_were(model):
    caches = model.make_caches(KVCache)
    model(torch.tensor([[1, 2]]), caches)
    with pytest.raises(ZeroDivisionError), model.attending(lambda q, k, v, mask: 1 / 0):
        model(torch.tensor([[3]]), caches)
    assert [cache.seq_len for cache in caches] == [2, 2]
    with model.attending(Spy()), model.attending(None):
        assert model.layers[0].attention.attend is None
    outer = Spy()
    with model.attending(outer):
        with model.attending(Spy()):
            pass
        assert model.layers[0].attention.attend is outer  # the inner block gives it back
    assert model.layers[0].attention.attend is None


def test_a_measured_step_runs_it_and_goes_back(step):
    spy = Spy(grouped_attention)
    step.run(2, 33, 3, budget_s=0, attend=spy)
    assert set(spy.calls) == {((3, 4, 1, 8), (3, 2, 33, 8), None)}
    before = len(spy.calls)
    step.run(2, 33, 3, budget_s=0)
    assert len(spy.calls) == before


def test_a_step_that_read_less_than_it_should_raises_no_rate(step, monkeypatch):
    monkeypatch.setattr(timing, "saw_reading", lambda *a: pytest.fail("took it for a real read"))
    step.run(2, 33, 1, budget_s=0, attend=lambda q, k, v, mask: q)


def test_a_step_whose_attention_fails_says_so_and_can_run_again(step):
    with pytest.raises(ZeroDivisionError):
        step.run(2, 33, 1, budget_s=0, attend=lambda q, k, v, mask: 1 / 0)
    assert step.run(2, 33, 1, budget_s=0).seconds > 0

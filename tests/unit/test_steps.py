"""A measured decode step: what it allocates, what it refuses, and that it is a real one."""

import pytest
import torch

from kvlib import Model, StaticKVCache, steps, timing
from kvlib.memory import MODELS, ModelPreset
from kvlib.steps import DecodeStep, DoesNotFit

TINY = ModelPreset("Tiny", 2, 4, 2, 8, 32, 48, 96, True)
UNTIED = ModelPreset("Untied", 2, 4, 2, 8, 32, 48, 96, False)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
    """Keep rates and pools apart from those of other tests."""
    monkeypatch.setenv("KVLIB_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "_kept", {})
    monkeypatch.setattr(steps, "_all_pools", {})


def step_of(preset=TINY, dtype=torch.float32, **options):
    return DecodeStep(preset, device="cpu", dtype=dtype, **options)


@pytest.mark.parametrize("preset", [TINY, UNTIED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_fresh_pools_hold_exactly_what_was_announced(preset, dtype):
    for heads, seq_len, batch in ((4, 700, 2), (1, 1, 1), (2, 256, 3)):
        step = step_of(preset, dtype)
        step.run(heads, seq_len, batch, budget_s=0)
        pools = steps._pools_of(CPU)
        assert pools.nbytes == step.needs(heads, seq_len, batch)
        assert pools.weights.nbytes == preset.with_kv_heads(heads).weight_bytes(dtype.itemsize)
        assert pools.cache.nbytes == preset.cache_bytes(seq_len, batch, dtype.itemsize, heads)
        step.release()
        assert pools.nbytes == 0


def test_models_of_every_head_count_are_views_of_one_pool(monkeypatch):
    built = []
    real = steps.Model
    monkeypatch.setattr(steps, "Model", lambda *a, **k: built.append(real(*a, **k)) or built[-1])
    step = step_of()
    for heads in (4, 2, 1, 2, 4):  # the largest first: the pools are filled once
        step.run(heads, 300, 1, budget_s=0)
    assert len(built) == 3
    pools = steps._pools_of(CPU)
    storages = {p.untyped_storage().data_ptr() for model in built for p in model.parameters()}
    assert storages == {pools.weights.untyped_storage().data_ptr()}
    assert {id(model._turns) for model in built} == {id(pools._tables)}
    assert (
        len(pools._tables[0]) == 512
    )  # exactly what the model itself would make, so it makes none
    for model in built:
        assert not any(p.requires_grad for p in model.parameters())
        weights = sum(p.numel() for name, p in model.named_parameters())
        assert weights == TINY.with_kv_heads(model.config.num_kv_heads).num_params


@pytest.mark.parametrize("heads, seq_len, batch", [(4, 9, 1), (2, 33, 3), (1, 2, 2), (2, 1, 1)])
def test_the_timed_step_is_a_real_one(monkeypatch, heads, seq_len, batch):
    """The step attends to seq_len tokens, goes back, and equals the model on ordinary caches."""
    seen = {}

    def spy(fn, **options):
        model, caches, tokens = (
            cell.cell_contents for cell in _cells(fn, "model", "caches", "tokens")
        )
        ordinary = [StaticKVCache(seq_len) for _ in caches]
        for mine, theirs in zip(ordinary, caches, strict=True):
            if seq_len > 1:
                mine.update(theirs._k[:, :, : seq_len - 1], theirs._v[:, :, : seq_len - 1])
        before = [c._k[:, :, : seq_len - 1].clone() for c in caches]
        expected = model(tokens, ordinary, last_only=True)
        fn()
        fn()
        for cache, old in zip(caches, before, strict=True):
            assert cache.seq_len == seq_len - 1 and cache.max_seq_len == seq_len
            torch.testing.assert_close(cache._k[:, :, : seq_len - 1], old, rtol=0, atol=0)
        logits = model(tokens, caches, last_only=True)
        torch.testing.assert_close(logits, expected, rtol=0, atol=0)
        assert logits.shape == (batch, 1, TINY.vocab_size) and logits.isfinite().all()
        assert logits.abs().max() > 0
        seen["done"] = True
        return timing.Timing.of([1.0], "test")

    monkeypatch.setattr(timing, "measure", spy)
    step_of(dtype=torch.float64).run(heads, seq_len, batch)
    assert seen


def _cells(fn, *names):
    return [fn.__closure__[fn.__code__.co_freevars.index(name)] for name in names]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_activations_stay_finite_in_every_type(monkeypatch, dtype):
    deep = ModelPreset("Deep", 12, 4, 2, 16, 64, 128, 300, True)

    def spy(fn, **options):
        model, caches, tokens = (
            cell.cell_contents for cell in _cells(fn, "model", "caches", "tokens")
        )
        assert model(tokens, caches).isfinite().all()
        return timing.Timing.of([1.0], "test")

    monkeypatch.setattr(timing, "measure", spy)
    step_of(deep, dtype).run(4, 2048, 1)


def test_what_does_not_fit_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(steps, "_random", lambda *a: pytest.fail("allocated"))
    step = step_of(memory_limit=100_000)
    needed = step.needs(4, 2**20, 8)
    assert not step.fits(4, 2**20, 8) and step.fits(1, 1, 1)
    with pytest.raises(DoesNotFit, match="Tiny with 4 KV heads, 1,048,576 tokens and batch 8") as e:
        step.run(4, 2**20, 8)
    assert isinstance(e.value, MemoryError)
    assert (e.value.needed, e.value.limit) == (needed, 100_000)
    assert f"{needed / 1e9:.2f} GB" in str(e.value) and "free on" in str(e.value)
    assert steps._pools_of(CPU).nbytes == 0


def test_the_default_limit_keeps_the_course_small(monkeypatch):
    monkeypatch.setattr(steps, "free_memory", lambda d: 100 * 10**9)
    assert step_of().limit_bytes == 2_200_000_000
    monkeypatch.setattr(steps, "free_memory", lambda d: 10**9)
    assert step_of().limit_bytes == 600_000_000
    step = step_of()
    step.run(4, 100, 1, budget_s=0)
    assert step.limit_bytes == int(0.6 * (10**9 + steps._pools_of(CPU).nbytes))
    step.device = torch.device("cuda", 0)  # arithmetic only
    monkeypatch.setattr(steps, "return_unused_memory", lambda d: None)
    assert step.limit_bytes == 850_000_000


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory"),
    ],
)
def test_a_device_that_refuses_after_all_gets_everything_back(monkeypatch, error):
    step = step_of()
    step.run(2, 64, 1, budget_s=0)

    def fail(*args):
        raise error

    monkeypatch.setattr(steps, "_random", fail)
    with pytest.raises(DoesNotFit, match="would need"):
        step.run(4, 4096, 4)
    assert steps._pools_of(CPU).nbytes == 0
    monkeypatch.undo()
    assert step.run(2, 64, 1, budget_s=0).seconds > 0  # and the next one runs


def test_other_errors_are_not_mistaken_for_memory(monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("something else")

    monkeypatch.setattr(timing, "measure", fail)
    with pytest.raises(RuntimeError, match="something else"):
        step_of().run(2, 64, 1)


def test_pools_grow_only_when_needed_and_stay_within_the_limit():
    step = step_of(memory_limit=10**9)
    step.run(4, 1024, 1, budget_s=0)
    pools = steps._pools_of(CPU)
    weights, cache = pools.weights.data_ptr(), pools.cache.data_ptr()
    step.run(1, 512, 2, budget_s=0)
    assert (pools.weights.data_ptr(), pools.cache.data_ptr()) == (weights, cache)

    tight = step_of(memory_limit=step.needs(4, 16, 1))  # an older, larger cache pool leaves no room
    tight.run(4, 16, 1, budget_s=0)
    assert pools.nbytes <= tight.limit_bytes


def test_steps_of_one_device_share_their_pools():
    one, other = step_of(memory_limit=10**9), step_of(UNTIED, torch.bfloat16, memory_limit=10**9)
    one.run(2, 64, 1, budget_s=0)
    other.run(2, 64, 1, budget_s=0)
    assert steps._pools_of(CPU).nbytes == other.needs(2, 64, 1)
    assert one.run(2, 64, 1, budget_s=0).seconds > 0


def test_global_random_state_is_left_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    step_of().run(2, 64, 1, budget_s=0)
    assert torch.equal(torch.rand(3), expected)


def test_more_work_takes_more_time():
    preset = ModelPreset("Small", 2, 8, 8, 64, 512, 1024, 1000, True)
    step = step_of(preset)
    long, short = (step.run(8, n, 1, budget_s=0.2) for n in (16_384, 16))
    assert min(long.samples) > 2 * min(short.samples)


@pytest.mark.parametrize(
    "name", ["DeepSeek V3", "Mixtral 8x7B", "Gemma 2 9B", "Falcon 7B", "GPT-2"]
)
def test_shapes_that_cannot_be_measured_say_so_and_keep_their_floor(monkeypatch, name):
    monkeypatch.setattr(timing, "read_bandwidth", lambda d: 1e9)
    monkeypatch.setattr(timing, "flop_rate", lambda d, t: 1e12)
    preset = MODELS[name]
    assert name in DecodeStep.measurable(preset)
    step = step_of(preset)
    heads = preset.num_kv_heads
    with pytest.raises(ValueError, match="floor can be drawn"):
        step.run(heads, 16, 1)
    floor = step.floor(heads, 5000, 2)
    read = preset.step_weight_bytes(4) + preset.cache_bytes(5000, 2, 4)
    assert step.bytes(heads, 5000, 2) == read
    assert floor.weights_s + floor.cache_s == pytest.approx(read / 1e9)
    assert floor.compute_s == preset.step_flops(5000, 2) / 1e12


def test_floor_of_a_measurable_shape(monkeypatch):
    monkeypatch.setattr(timing, "read_bandwidth", lambda d: 1e9)
    monkeypatch.setattr(timing, "flop_rate", lambda d, t: 1e10)
    smol = step_of(MODELS["SmolLM2 135M"])
    assert DecodeStep.measurable(MODELS["SmolLM2 135M"]) is None
    floors = [smol.floor(heads, 8192, 1) for heads in (9, 3, 1)]
    assert floors[0].cache_s == pytest.approx(3 * floors[1].cache_s)
    assert floors[1].cache_s == pytest.approx(3 * floors[2].cache_s)
    assert floors[0].seconds > floors[1].seconds > floors[2].seconds
    assert floors[0].bound_by == "bytes"


@pytest.mark.parametrize(
    "bad", [(3, 16, 1), (0, 16, 1), (2, 0, 1), (2, -1, 1), (2, 16, 0), (2, 1.5, 1)]
)
def test_bad_shapes(bad):
    with pytest.raises(ValueError):
        step_of().run(*bad)
    assert steps._pools_of(CPU).nbytes == 0


def test_bad_construction(monkeypatch):
    with pytest.raises(ValueError, match="none of them"):
        step_of(dtype=torch.int8)
    with pytest.raises(ValueError, match="memory_limit"):
        step_of(memory_limit=-1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="here are"):
        DecodeStep(TINY, device="cuda", dtype=torch.float32)


def test_a_preset_has_the_parameters_of_its_model():
    for name in ("SmolLM2 135M", "Llama 3.1 8B", "Qwen2.5 7B"):
        model = Model(MODELS[name].config(), device="meta", dtype=torch.float32)
        assert sum(p.numel() for p in model.parameters()) == MODELS[name].num_params

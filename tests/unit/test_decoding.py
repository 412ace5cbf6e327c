"""Ways of decoding: each gives what the model gives, or says why it cannot be had."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

from kvlib import KVCache, Model, ModelConfig, StaticKVCache, decoding, generate, native, stream
from kvlib.decoding import WAYS, Compiled, decoder, keys_of_graph, why_not
from kvlib.fixed_step import FixedShapeStep, product
from kvlib.generation import prefill

FAST = [how for how in WAYS[1:] if how != "graphed"]


def small_model(num_heads=4, num_kv_heads=2, seed=0) -> Model:
    torch.manual_seed(seed)
    return Model(ModelConfig(2, num_heads, num_kv_heads, 16, 48, 80, 77))


def filled(model: Model, prompt, room=24):
    caches = model.make_caches(lambda: StaticKVCache(room))
    prefill(model, torch.as_tensor(prompt), caches)
    return caches


@pytest.mark.parametrize("how", ["eager", *FAST])
def test_every_way_gives_the_logits_and_rows_of_the_model(how):
    model, prompt = small_model(), [[3, 1, 4, 1, 5]]
    caches, others = filled(model, prompt), filled(model, prompt)
    step = decoder(model, caches, how)
    for token in [9, 2, 6]:
        new = torch.tensor([[token]])
        torch.testing.assert_close(step(new), model(new, others)[:, -1], rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(caches, others, strict=True):
        assert ours.seq_len == theirs.seq_len == 8
        for a, b in zip(ours.update(*rows()), theirs.update(*rows()), strict=True):
            torch.testing.assert_close(a[:, :, :8], b[:, :, :8], rtol=1e-4, atol=1e-4)


def rows():
    return torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16)


@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (4, 1)])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("num_keys", [8, 16, 24, 64])
def test_the_step_of_fixed_shapes_is_that_of_the_model(heads, batch_size, num_keys):
    """What a CUDA graph records, run without one: slots behind the position must not count."""
    model = small_model(*heads)
    prompt = torch.arange(5).repeat(batch_size, 1) + torch.arange(batch_size)[:, None]
    caches, others = filled(model, prompt, 64), filled(model, prompt, 64)
    for cache in caches:
        for buffer in cache.buffers:
            buffer[:, :, 5:] = 1e3  # what an older text may have left there
    step = FixedShapeStep(model, [c.buffers for c in caches], model._turns_to(64))
    addresses = step.tokens.data_ptr(), step.place.data_ptr()
    for position in (5, 6, 7):
        new = torch.full((batch_size, 1), position + 30)
        step.set(new, position)
        got = step.run(num_keys)
        torch.testing.assert_close(got, model(new, others)[:, -1], rtol=1e-4, atol=1e-4)
    assert (step.tokens.data_ptr(), step.place.data_ptr()) == addresses
    for ours, theirs in zip(caches, others, strict=True):
        for a, b in zip(ours.buffers, theirs.buffers, strict=True):
            torch.testing.assert_close(a[:, :, :8], b[:, :, :8], rtol=1e-4, atol=1e-4)


NAN = float("nan")


def new_step(model, caches):
    return FixedShapeStep(model, [c.buffers for c in caches], model._turns_to(64))


def take(step, model, caches, others, token=9):
    """Decode one token with the step and with the model; both must give the same."""
    new, position = torch.tensor([[token]]), others[0].seq_len
    assert [c.seq_len for c in caches] == [position] * len(caches)
    step.set(new, position)
    got = step.run(64)
    for cache in caches:
        cache.advance(1)
    torch.testing.assert_close(got, model(new, others)[:, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("left", [NAN, float("inf")])
def test_whatever_lies_behind_the_position_is_not_multiplied(left):
    """0 x NaN is NaN: a masked slot must hold a number, whoever left something else there and when."""
    model = small_model()
    caches, others = (filled(model, [[3, 1, 4, 1, 5]], 64) for _ in range(2))
    for cache in caches:
        for buffer in cache.buffers:
            buffer[:, :, 5:] = left  # never written
    step = new_step(model, caches)
    take(step, model, caches, others), take(step, model, caches, others)
    bad = torch.full((1, 2, 3, 16), left)
    for some in (caches, others):  # broken rows, taken back
        for cache in some:
            cache.update(bad, bad)
            cache.crop(7)
    take(step, model, caches, others)
    for some in (caches, others):  # a shorter length than the step has seen
        for cache in some:
            cache.crop(3)
            cache.buffers[0][:, :, 4:] = left
    take(step, model, caches, others), take(step, model, caches, others)
    for some in (caches, others):  # another text in the same buffers, after a broken one
        for cache in some:
            cache.update(bad, bad)
            cache.reset()
        prefill(model, torch.tensor([[2, 7]]), some)
    take(step, model, caches, others), take(step, model, caches, others)


def test_a_step_that_follows_another_rewrites_nothing():
    """Zeros are written once, not for every token."""
    model = small_model()
    caches, others = (filled(model, [[3, 1, 4, 1, 5]], 64) for _ in range(2))
    step = new_step(model, caches)
    take(step, model, caches, others)
    for cache in caches:
        for buffer in cache.buffers:
            buffer.data[:, :, 40:] = 7.0  # through .data, so that the buffer's count of writes is not moved
    take(step, model, caches, others)
    assert all((x[:, :, 40:] == 7).all() for cache in caches for x in cache.buffers)


@pytest.mark.parametrize("how", FAST)
def test_the_other_ways_never_read_what_lies_behind_the_position(how):
    model = small_model()
    caches, others = (filled(model, [[3, 1, 4, 1, 5]], 64) for _ in range(2))
    step = decoder(model, caches, how)
    bad = torch.full((1, 2, 3, 16), NAN)
    for back in (5, 4, 0):
        for some in (caches, others):
            for cache in some:
                cache.update(bad, bad)
                cache.crop(back)
            if not back:
                prefill(model, torch.tensor([[2, 7]]), some)
        for token in (9, 2):
            new = torch.tensor([[token]])
            torch.testing.assert_close(step(new), model(new, others)[:, -1], rtol=1e-4, atol=1e-4)


def test_the_product_of_eight_rows_at_once_is_the_product():
    x, weight = torch.randn(1, 48), torch.randn(64, 48)
    torch.testing.assert_close(product(x, weight), x @ weight.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(product(x, weight[:63]), x @ weight[:63].T)
    x = torch.randn(3, 48)
    torch.testing.assert_close(product(x, weight), x @ weight.T)


@pytest.mark.parametrize("how", FAST)
def test_generation_gives_the_same_tokens_in_every_way(how):
    model, prompt = small_model(), [3, 1, 4]
    with warnings.catch_warnings():
        if why_not(model, how) is not None:
            warnings.simplefilter("ignore")
        got = generate(model, prompt, 9, decode=how)
        streamed = [step.token for step in stream(model, prompt, 9, decode=how)]
    assert got == streamed == generate(model, prompt, 9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(cache=KVCache), "StaticKVCache"),
        (dict(prompt=[[1, 2], [3]]), "one sequence|unequal"),
    ],
)
def test_what_cannot_be_had_falls_back_with_its_reason(options, said):
    model, options = small_model(), dict(options)
    prompt = options.pop("prompt", [1, 2])
    with pytest.warns(UserWarning, match=f"{said}.*eager"):
        got = generate(model, prompt, 5, decode="native", **options)
    assert got == generate(model, prompt, 5, **options)


def test_a_batch_of_unequal_lengths_is_not_decoded_without_its_mask():
    model = small_model()
    caches = filled(model, [[1, 2], [1, 3]])
    step = decoder(model, caches, "compiled", left_padding=[1, 0])
    assert step.how == "eager" and "unequal lengths" in step.reason


def test_reasons_are_sentences_and_none_where_it_goes():
    model = small_model()
    assert why_not(model, "eager") is None
    assert "CUDA" in why_not(model, "graphed")
    assert "float64" in why_not(small_model().double(), "native")
    assert "batch has 2" in why_not(model, "native", batch_size=2)
    assert "multiples of 16" in why_not(Model(ModelConfig(1, 2, 1, 8, 16, 16, 9)), "native")
    assert "no prompt" in why_not(model, "compiled", model.make_caches(lambda: StaticKVCache(9)))
    with model.attending(lambda q, k, v, mask: q):
        assert "Another attention" in why_not(model, "native")
    for how in WAYS:
        reason = why_not(model, how)
        assert reason is None or reason.endswith(".")


@pytest.mark.parametrize("how", ["fast", None, 1])
def test_a_way_that_does_not_exist_is_refused_before_anything(how):
    model = small_model()
    cache = model.make_caches(lambda: StaticKVCache(9))
    with pytest.raises(ValueError, match="decode is one of"):
        generate(model, [1, 2], 3, cache=cache, decode=how)
    assert cache[0].seq_len == 0


def test_a_compiler_that_fails_is_stepped_aside_from(monkeypatch):
    def broken(function, **options):
        def fails(*arguments):
            raise RuntimeError("no C++ compiler\nand a long story")

        return fails

    monkeypatch.setattr(decoding.torch, "compile", broken)
    model = small_model()
    with pytest.warns(UserWarning, match=r"torch.compile failed here \(no C\+\+ compiler\)"):
        got = generate(model, [1, 2, 3], 6, decode="compiled")
    assert got == generate(model, [1, 2, 3], 6)
    step = decoder(model, filled(model, [[1, 2]]), "compiled")
    assert isinstance(step, Compiled) and step.how == "compiled"
    step(torch.tensor([[3]]))
    assert step.how == "eager" and step.caches[0].seq_len == 3


COMPILED_STEP = """
import torch
from kvlib import Model, ModelConfig, StaticKVCache
from kvlib.decoding import decoder

torch.manual_seed(0)
model, new = Model(ModelConfig(2, 4, 2, 16, 48, 80, 77)), torch.tensor([[5]])
caches, others = model.make_caches(lambda: StaticKVCache(9)), model.make_caches(lambda: StaticKVCache(9))
with torch.no_grad():
    for some in (caches, others):
        model(torch.tensor([[1, 2, 3]]), some)
    step = decoder(model, caches, "compiled")
    off = (step(new) - model(new, others)[:, -1]).norm()
    assert step.how == "compiled" and off < 1e-4, (off, step.reason)
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="needs AVX512")
def test_what_was_compiled_for_a_wider_processor_is_not_taken(tmp_path):
    settings = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    for capability in ("avx512", "avx2"):
        settings["ATEN_CPU_CAPABILITY"] = capability
        subprocess.run([sys.executable, "-c", COMPILED_STEP], env=settings, check=True, timeout=120)


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (torch.tensor([[77]]), "vocabulary"),
        (torch.tensor([[-1]]), "vocabulary"),
        (torch.tensor([[1, 2]]), r"takes \(1, 1\)"),
        (torch.tensor([[1], [2]]), r"takes \(1, 1\)"),
        (torch.tensor([[1.0]]), "int64"),
        ([[1]], "int64"),
    ],
)
def test_tokens_that_do_not_fit_change_nothing(tokens, said):
    model = small_model()
    caches = filled(model, [[1, 2, 3]])
    before = [x.clone() for cache in caches for x in cache.buffers]
    with pytest.raises(ValueError, match=said):
        decoder(model, caches, "native")(tokens)
    assert all(cache.seq_len == 3 for cache in caches)
    after = [x for cache in caches for x in cache.buffers]
    assert all(torch.equal(a[:, :, :3], b[:, :, :3]) for a, b in zip(before, after, strict=True))


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_a_full_cache_and_a_changed_one_are_refused():
    model = small_model()
    caches = filled(model, [[1, 2, 3]], room=4)
    step = decoder(model, caches, "native")
    step(torch.tensor([[5]]))
    with pytest.raises(ValueError, match="max_seq_len 4"):
        step(torch.tensor([[5]]))
    assert caches[0].seq_len == 4
    caches[1].crop(3)
    with pytest.raises(ValueError, match="disagree"):
        step(torch.tensor([[5]]))
    caches[0].crop(3)
    for side in ("_k", "_v"):
        kept = getattr(caches[1], side)
        setattr(caches[1], side, kept.clone())
        with pytest.raises(ValueError, match="other buffers"):
            step(torch.tensor([[5]]))
        setattr(caches[1], side, kept)
    step(torch.tensor([[5]]))


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_a_decoder_goes_on_after_crop_and_reset():
    model = small_model()
    caches, others = filled(model, [[1, 2, 3]]), filled(model, [[1, 2, 3]])
    step = decoder(model, caches, "native")
    step(torch.tensor([[5]])), model(torch.tensor([[5]]), others)
    for some in (caches, others):
        for cache in some:
            cache.crop(2)
    new = torch.tensor([[7]])
    torch.testing.assert_close(step(new), model(new, others)[:, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("position", "keys"), [(1, 256), (255, 256), (256, 512), (511, 512), (512, 600)])
def test_a_graph_reads_the_slot_that_is_written(position, keys):
    assert keys_of_graph(position, 600) == keys
    assert keys_of_graph(position, 600) > position


def moved(model):
    model.layers[0].mlp.down.weight.data = model.layers[0].mlp.down.weight.data.clone()


def replaced(model):
    model.norm.weight = torch.nn.Parameter(torch.ones(48), requires_grad=False)


def loaded(model):
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize("change", [moved, replaced, loaded, Model.double, Model.bfloat16])
def test_weights_that_moved_need_a_new_decoder(change):
    model = small_model()
    caches = filled(model, [[1, 2, 3]])
    step = decoder(model, caches, "native")
    change(model)
    with pytest.raises(ValueError, match="weights have moved"):
        step(torch.tensor([[5]]))
    assert caches[0].seq_len == 3


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_an_attention_plugged_in_later_is_not_passed_over():
    model = small_model()
    step = decoder(model, filled(model, [[1, 2, 3]]), "native")
    with (
        model.attending(lambda q, k, v, mask: q),
        pytest.raises(ValueError, match="another attention"),
    ):
        step(torch.tensor([[5]]))
    model.layers[1].attention.attend = lambda q, k, v, mask: q  # in one layer only
    assert "Another attention" in why_not(model, "native")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: torch.zeros(1, 1, 9, 16), "not one of this model"),
        (lambda: torch.zeros(1, 2, 9, 8), "not one of this model"),
        (lambda: torch.zeros(1, 2, 9, 16, dtype=torch.float64), "float64"),
        (lambda: torch.zeros(1, 9, 2, 16).transpose(1, 2), "do not follow"),
        (lambda: torch.zeros(1, 2, 9, 32)[..., ::2], "do not follow"),
    ],
)
@pytest.mark.parametrize("layer", [0, 1])
def test_buffers_that_do_not_fit_the_model_are_not_written_to(other, said, layer):
    model = small_model()
    caches = filled(model, [[1, 2, 3]], room=9)
    caches[layer] = StaticKVCache.from_buffers(other(), other(), 3)
    step = decoder(model, caches, "native")
    assert step.how == "eager" and said in step.reason


def test_two_layers_on_one_buffer_are_noticed():
    model = small_model()
    caches = filled(model, [[1, 2, 3]])
    caches[1] = StaticKVCache.from_buffers(*caches[0].buffers, 3)
    assert "share one buffer" in why_not(model, "native", caches)


@pytest.mark.parametrize("caches", [None, [], [StaticKVCache(4)], "caches"])
def test_anything_but_a_cache_a_layer_is_refused(caches):
    with pytest.raises(ValueError, match="2 caches, one for each layer"):
        decoder(small_model(), caches, "native")


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_an_interrupt_while_rows_are_counted_leaves_all_layers_alike(monkeypatch):
    model = small_model()
    caches = filled(model, [[1, 2, 3]])
    step = decoder(model, caches, "native")
    monkeypatch.setattr(caches[1], "advance", interrupted, raising=True)
    with pytest.raises(KeyboardInterrupt):
        step(torch.tensor([[5]]))
    assert [cache.seq_len for cache in caches] == [3, 3]


def interrupted(num_new):
    raise KeyboardInterrupt


def test_without_a_cache_the_wish_is_answered():
    model = small_model()
    with pytest.warns(UserWarning, match="Without a cache"):
        assert generate(model, [1, 2], 4, cache=None, decode="native") == generate(model, [1, 2], 4)


def test_a_static_cache_counts_what_was_written_straight_into_it():
    cache = StaticKVCache(4)
    assert cache.buffers is None
    with pytest.raises(ValueError, match="has room for 0"):
        cache.advance(1)
    cache.update(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 2, 1))
    for wrong in (0, -1, 1.0, True, 3):
        with pytest.raises(ValueError):
            cache.advance(wrong)
    assert cache.seq_len == 2
    cache.buffers[0][:, :, 2] = 7.0
    cache.advance(1)
    assert cache.seq_len == cache.stored_len == 3
    k, _ = cache.update(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
    assert k.flatten().tolist() == [1, 1, 7, 1]

"""Attention in tiles and in parts: exact, refused where it must be, and its checks can fail."""

from functools import cache, partial
from unittest import mock

import pytest
import torch
from hypothesis.errors import HypothesisException

from kvlib import (
    KVCache,
    Model,
    StaticKVCache,
    attention_with_kv_cache,
    generate,
    grouped_attention,
    reference_attention,
    tiled,
)
from kvlib.memory import ModelPreset
from kvlib.tiled import attend_part, merge_parts, split_attention, tiled_attention
from tests.caches.kinds import Kind
from tests.caches.law import MUTANT_RIGOUR
from tests.caches.laws import LAWS
from tests.unit.tiled_checks import CHECKS, draw
from tests.unit.tiled_mutants import MUTANTS


@pytest.mark.parametrize("check", CHECKS)
def test_check(check):
    CHECKS[check].hold(None)


@cache
def rejection(check: str, mutant: str) -> bool:
    """Tell whether a check rejects a wrong version."""
    with mock.patch.multiple(tiled, **MUTANTS[mutant]):
        try:
            CHECKS[check].hold(None, MUTANT_RIGOUR)
        except (HypothesisException, NameError, ImportError):
            raise  # the suite's own fault
        except Exception:
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS)
def test_some_check_rejects_the_mutant(mutant):
    assert any(rejection(check, mutant) for check in CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_the_check_rejects_some_mutant(check):
    assert any(rejection(check, mutant) for mutant in reversed(MUTANTS))  # the rare ones first


# ---- In the place of kvlib's own attention


def attend_in_tiles(*args, **options):
    """Attend through a cache in tiles of two."""
    return attention_with_kv_cache(*args, attend=partial(tiled_attention, tile=2), **options)


def attend_in_parts(*args, **options):
    """Attend through a cache in three parts."""
    in_parts = lambda q, k, v, mask: split_attention(q, k, v, 3, mask, tile=2)  # noqa: E731
    return attention_with_kv_cache(*args, attend=in_parts, **options)


class TiledModel(Model):
    """A model whose layers attend in tiles of two."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        for layer in self.layers:
            layer.attention.attend = partial(tiled_attention, tile=2)


KINDS = (
    Kind("StaticKVCache in tiles", StaticKVCache, True, True, attend=attend_in_tiles, model=TiledModel),
    Kind("KVCache in parts", lambda room: KVCache(), attend=attend_in_parts),
)
PAIRS = [
    pytest.param(law, kind, id=f"{kind.name}-{law.name}")
    for kind, runs in zip(KINDS, ({"attend", "model"}, {"attend"}))
    for law in LAWS.values()
    if law.runs & runs
    and law.applies(kind)
    # literal numbers are compared without any rounding, which the logarithms of parts bring in
    and not (law.name.startswith("literal") and kind is KINDS[1])
]


@pytest.mark.parametrize(("law", "kind"), PAIRS)
def test_the_contract_holds_over_it(law, kind):
    law.hold(kind)


def test_a_model_writes_the_same_with_it():
    torch.manual_seed(0)
    preset = ModelPreset("Tiny", 2, 4, 2, 8, 32, 48, 96, True)
    model = Model(preset.config(max_seq_len=64), dtype=torch.float64)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]
    plain = generate(model, prompts, 9)
    for attend in (tiled_attention, lambda q, k, v, mask: split_attention(q, k, v, 4, mask)):
        with model.attending(attend):
            assert generate(model, prompts, 9) == plain
            assert generate(model, prompts, 9, cache=KVCache, chunk_size=2) == plain
            assert generate(model, prompts, 9, cache=None) == plain


# ---- What is refused


def whole(q, k, v, mask=None):
    return tiled_attention(q, k, v, mask, tile=2)


def in_parts(q, k, v, mask=None):
    return split_attention(q, k, v, 2, mask)


WRONG = [
    (lambda q, k, v: (q[:, :3], k, v), "3 query heads cannot share 2 KV heads"),
    (lambda q, k, v: (q[:, :1], k, v), "1 query heads cannot share 2 KV heads"),
    (lambda q, k, v: (q[:1], k, v), "batch size or head dimension"),
    (lambda q, k, v: (q[..., :2], k, v), "batch size or head dimension"),
    (lambda q, k, v: (q, k, v[:, :, 1:]), "differ in shape"),
    (lambda q, k, v: (q.float(), k, v), "share dtype and device"),
    (lambda q, k, v: (q, k, v.half()), "share dtype and device"),
    (lambda q, k, v: (q, k.to("meta"), v.to("meta")), "share dtype and device"),
    (lambda q, k, v: (q[0], k, v), "q has shape"),
    (lambda q, k, v: (q, k[0], v[0]), "k has shape"),
    (lambda q, k, v: (q[:, :, :0], k, v), "q has shape"),
    (lambda q, k, v: (q, k, v, torch.zeros(3, 8)), "mask must be a bool"),
    (lambda q, k, v: (q, k, v, torch.ones(3, 7, dtype=torch.bool)), "mask .3, 7. does not broadcast"),
    (lambda q, k, v: (q, k, v, [[True] * 8]), "mask must be a bool"),
]


@pytest.mark.parametrize("attend", [whole, in_parts, attend_part])
@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_does_not_belong_together_is_refused(attend, change, message):
    with pytest.raises(ValueError, match=message):
        attend(*change(*draw((4, 2), (3, 8))))


@pytest.mark.parametrize("attend", [whole, in_parts])
@pytest.mark.parametrize("kept", [0, 2])
def test_fewer_keys_than_queries_are_no_whole_but_may_be_a_part(attend, kept):
    q, k, v = draw((4, 2), (3, 8))
    with pytest.raises(ValueError, match="append before attending" if kept else "k has shape"):
        attend(q, k[:, :, :kept], v[:, :, :kept])
    assert attend_part(q, k[:, :, :kept], v[:, :, :kept])[0].shape == q.shape
    for change in (lambda x: x.repeat(1, 2, 1, 1)[:, :3], lambda x: x[:1], lambda x: x.float()):
        with pytest.raises(ValueError, match=".+"):
            attend_part(q, *(change(x[:, :, :kept]) for x in (k, v)))


@pytest.mark.parametrize("count", [0, -1, 1.5, None, "2", True])
def test_a_count_is_a_whole_number_from_one_on(count):
    q, k, v = draw((4, 2), (3, 8))
    for call in (
        lambda: tiled_attention(q, k, v, tile=count),
        lambda: attend_part(q, k, v, tile=count),
        lambda: split_attention(q, k, v, count),
        lambda: split_attention(q, k, v, 2, tile=count),
    ):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            call()


def test_parts_that_do_not_belong_together_are_refused():
    out, log_sum = attend_part(*draw((4, 2), (3, 8)))
    for outs, log_sums, message in [
        ([], [], "at least one part"),
        ([out], [], "one of each"),
        ([out, out[:1]], [log_sum, log_sum[:1]], "all outs must be"),
        ([out], [log_sum[..., None]], "all log_sums"),
        ([out, out.float()], [log_sum, log_sum], "share dtype"),
        ([out, out.to("meta")], [log_sum, log_sum.to("meta")], "share dtype and device"),
    ]:
        with pytest.raises(ValueError, match=message):
            merge_parts(outs, log_sums)


def test_one_part_is_the_whole():
    out, log_sum = attend_part(*draw((4, 2), (3, 8)))
    merged = merge_parts([out], [log_sum])
    assert torch.equal(merged[0], out) and torch.equal(merged[1], log_sum)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tile", [1, 2, 100])
def test_a_row_that_overflows_to_minus_infinity_throughout_is_zero_like_a_masked_one(dtype, tile):
    q, k, v = draw((4, 2), (1, 5), dtype)
    q, k = torch.ones_like(q), torch.full_like(k, -torch.finfo(dtype).max)
    assert scores_as_they_come(q, k).isneginf().all() and reference_attention(q, k, v).isnan().all()
    for mask in (None, torch.ones(1, 5, dtype=torch.bool), torch.tensor([[False] * 4 + [True]])):
        out, log_sum = attend_part(q, k, v, mask, tile=tile)
        assert (out == 0).all() and log_sum.isneginf().all()
        for got in (
            tiled_attention(q, k, v, mask, tile=tile),
            split_attention(q, k, v, 3, mask, tile=tile),
            grouped_attention(q, k, v, mask),  # PyTorch's fused attention
        ):
            assert (got == 0).all()
    k[:, :, 3] = 1  # one key that does not overflow: all others count nothing
    want = v[:, :, 3:4].repeat_interleave(2, dim=1)
    for got in (tiled_attention(q, k, v, tile=tile), split_attention(q, k, v, 3, tile=tile)):
        assert torch.equal(got, want) and torch.equal(got, reference_attention(q, k, v))


@pytest.mark.parametrize("tile", [1, 2, 100])
def test_a_row_that_overflows_to_infinity_is_nan_as_in_the_formula(tile):
    q, k, v = draw((4, 2), (1, 5), torch.float32)
    q, k[:, :, 2] = torch.ones_like(q), torch.finfo(torch.float32).max
    assert scores_as_they_come(q, k).isposinf().any() and reference_attention(q, k, v).isnan().all()
    for got in (tiled_attention(q, k, v, tile=tile), split_attention(q, k, v, 3, tile=tile)):
        assert got.isnan().all()


def scores_as_they_come(q, k):
    """Return all scores as the formula has them, in the type of the queries."""
    return q @ k.repeat_interleave(2, dim=1).transpose(2, 3) / q.shape[3] ** 0.5


def test_a_gradient_flows_as_through_the_formula():
    inputs = [x.requires_grad_() for x in draw((4, 2), (3, 8))]
    want = torch.autograd.grad(reference_attention(*inputs).square().sum(), inputs)
    got = torch.autograd.grad(tiled_attention(*inputs, tile=3).square().sum(), inputs)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)

"""Attention against a float64 loop, and what it copies, refuses and rounds."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvlib import (
    KVCache,
    attention_with_kv_cache,
    causal_mask,
    grouped_attention,
    native,
    reference_attention,
)
from kvlib.attention import padded_mask
from kvlib.latent_attention import attend as latent_attend
from kvlib.native import native_attention
from kvlib.tiled import split_attention, tiled_attention

HEADS = [(1, 1), (4, 4), (4, 2), (9, 3), (8, 1)]  # (query heads, KV heads)
LENGTHS = [(1, 1), (1, 7), (3, 3), (3, 8), (7, 8), (8, 8)]  # (new queries, all keys)


def draw(heads=(4, 2), lengths=(3, 8), batch_size=2, head_dim=4, dtype=torch.float32, seed=0):
    """Draw q (B, H, t, D) and k, v (B, KV, T, D) from the standard normal."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(heads[0], lengths[0]), (heads[1], lengths[1]), (heads[1], lengths[1])]
    return tuple(
        torch.randn(batch_size, n, length, head_dim, generator=generator).to(dtype)
        for n, length in sizes
    )


def loop(q, k, v, mask=None):
    """Attend in float64, query by query; `mask` (B, t, T) says who sees whom, None is causal."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.empty_like(q)
    group_size, offset = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).reshape(-1, 3).tolist():
        seen = torch.arange(k.shape[2]) <= offset + i if mask is None else mask[b, i]
        keys, values = k[b, h // group_size, seen], v[b, h // group_size, seen]
        scores = keys @ q[b, h, i] / math.sqrt(q.shape[3])
        weights = (scores - scores.max()).exp()
        out[b, h, i] = weights @ values / weights.sum()
    return out


@pytest.mark.parametrize(
    ("num_new", "num_keys", "want"),
    [
        (1, 1, [[1]]),
        (1, 3, [[1, 1, 1]]),
        (3, 3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (2, 4, [[1, 1, 1, 0], [1, 1, 1, 1]]),
    ],
)
def test_causal_mask_is_aligned_at_the_bottom_right(num_new, num_keys, want):
    mask = causal_mask(num_new, num_keys)
    assert mask.dtype == torch.bool
    assert mask.int().tolist() == want


def test_padded_mask_hides_padding_from_all_but_itself():
    valid = torch.tensor([[True, True, True], [False, False, True]])
    assert padded_mask(None, valid, 3).int().squeeze(1).tolist() == [
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    ]
    assert padded_mask(None, valid, 1).int().squeeze(1).tolist() == [[[1, 1, 1]], [[0, 0, 1]]]


def test_padded_mask_joins_a_band():
    band = torch.tensor([[True, True, False], [False, True, True]])  # a window of two
    valid = torch.tensor([[False, True, True]])
    assert padded_mask(band, valid, 2)[0, 0].int().tolist() == [[0, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize("attend", [reference_attention, grouped_attention])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("heads", HEADS)
def test_attention_equals_the_loop(attend, heads, lengths, dtype):
    q, k, v = draw(heads, lengths, dtype=dtype)
    got = attend(q, k, v)
    assert got.dtype == dtype and got.shape == q.shape
    bound = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(got.double(), loop(q, k, v), rtol=bound, atol=bound)


@pytest.mark.parametrize("attend", [reference_attention, grouped_attention])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("heads", HEADS)
def test_attention_with_a_mask_equals_the_loop(attend, heads, lengths):
    q, k, v = draw(heads, lengths, dtype=torch.float64)
    valid = torch.ones(2, lengths[1], dtype=torch.bool)
    valid[1, : lengths[1] - 1] = False  # all but the last token is padding
    mask = padded_mask(None, valid, lengths[0])
    got = attend(q, k, v, mask)
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got, loop(q, k, v, mask[:, 0]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attend", [reference_attention, grouped_attention])
def test_a_mask_is_taken_as_it_is_also_where_it_is_not_causal(attend):
    q, k, v = draw((4, 2), (5, 5), dtype=torch.float64)
    mask = torch.ones(2, 5, 5, dtype=torch.bool)  # everyone sees all, also what comes later
    got = attend(q, k, v, mask[:, None])
    torch.testing.assert_close(got, loop(q, k, v, mask), rtol=1e-12, atol=1e-12)


def test_one_query_over_a_long_context_keeps_to_its_mask():
    """A context long enough to be read in parts, half of it padding."""
    q, k, v = draw((4, 2), (1, 4096), dtype=torch.float64)
    mask = padded_mask(None, torch.arange(4096) >= torch.tensor([[0], [2048]]), 1)
    got = grouped_attention(q, k, v, mask)
    torch.testing.assert_close(got, loop(q, k, v, mask[:, 0]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [7, 9])
def test_valid_that_covers_other_tokens_is_refused_before_the_cache_changes(length):
    q, k, v = draw()
    cache = KVCache()
    cache.update(k[:, :, :5], v[:, :, :5])
    with pytest.raises(ValueError, match=f"valid covers {length} tokens; the cache holds 5 and 3"):
        attention_with_kv_cache(
            q, k[:, :, 5:], v[:, :, 5:], cache, torch.ones(2, length, dtype=torch.bool)
        )
    assert cache.seq_len == 5


@pytest.mark.parametrize("attend", [reference_attention, grouped_attention])
@pytest.mark.parametrize(
    "mask",
    [torch.zeros(3, 8), torch.ones(3, 8, dtype=torch.int64), torch.ones(3, 7, dtype=torch.bool),
     torch.ones(3, 3, 8, dtype=torch.bool), torch.ones(1, 2, 1, 3, 8, dtype=torch.bool), [[True] * 8]],
)  # fmt: skip
def test_a_mask_that_does_not_fit_is_refused(attend, mask):
    with pytest.raises(ValueError, match="mask"):
        attend(*draw(), mask)


@pytest.mark.parametrize("attend", [reference_attention, grouped_attention])
def test_attention_takes_any_strides(attend):
    q, k, v = draw((4, 2), (3, 8), dtype=torch.float64)
    want = loop(q, k, v)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]  # (B, t, H, D)
    torch.testing.assert_close(attend(*views), want, rtol=1e-12, atol=1e-12)
    buffers = [F.pad(x, (0, 0, 0, 5), value=float("nan"))[:, :, : x.shape[2]] for x in (k, v)]
    torch.testing.assert_close(attend(q, *buffers), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attend", [reference_attention, grouped_attention])
def test_attention_of_large_scores_stays_finite(attend):
    q, k, v = draw()
    got = attend(q * 1e4, k, v)
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got.double(), loop(q * 1e4, k, v), rtol=1e-4, atol=1e-4)


class LargestOutput(TorchDispatchMode):
    """Note the storage of every result, and the largest number of elements in a new one."""

    def __init__(self, *inputs):
        super().__init__()
        self.known = {x.untyped_storage().data_ptr() for x in inputs}
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.known:
                size = x.untyped_storage().nbytes() // x.element_size()
                self.elements = max(self.elements, size)
        return out


@pytest.mark.parametrize("num_new", [1, 2])
@pytest.mark.parametrize("heads", [(8, 2), (8, 1)])
def test_grouped_attention_copies_neither_keys_nor_values(heads, num_new):
    q, k, v = draw(heads, (num_new, 500), batch_size=1, head_dim=16)
    with LargestOutput(q, k, v) as grouped:
        grouped_attention(q, k, v)
    with LargestOutput(q, k, v) as reference:
        reference_attention(q, k, v)
    assert grouped.elements < 500 * 16  # nothing as large as the keys of one head
    assert reference.elements == 8 * 500 * 16  # the repeat, which the mode does see


@pytest.mark.parametrize("attend", [reference_attention, grouped_attention])
@pytest.mark.parametrize("lengths", [(1, 300), (64, 300), (256, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_precision_is_no_worse_than_three_times_plain_pytorch(attend, dtype, lengths):
    heads = 6, 2
    q, k, v = draw(heads, lengths, batch_size=1, head_dim=32, dtype=dtype)
    want = grouped_attention(q.double(), k.double(), v.double())  # proved by the tests above
    mask = causal_mask(*lengths)
    keys, values = (x.repeat_interleave(3, dim=1) for x in (k, v))
    scores = (q @ keys.transpose(2, 3) / math.sqrt(32)).masked_fill(~mask, float("-inf"))
    in_16_bits = scores.softmax(dim=-1) @ values
    got = attend(q, k, v)
    assert got.dtype == dtype
    error, allowed = ((x.double() - want).abs().max().item() for x in (got, in_16_bits))
    assert error <= 3 * allowed, f"{error:.1e} against {allowed:.1e} for plain PyTorch"


def plain(q, k, v):
    """Attend in the rows' own precision, queries scaled before the product, as one writes it in PyTorch."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = q / math.sqrt(q.shape[3]) @ k.transpose(2, 3)
    scores = scores.masked_fill(~causal_mask(q.shape[2], k.shape[2]), float("-inf"))
    return scores.softmax(dim=-1) @ v


def latent(q, k, v):
    """Attend as latent attention does, which takes as many KV heads as heads, or one."""
    if k.shape[1] > 1:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    return latent_attend(q, k, v, 1 / math.sqrt(q.shape[3]))


EVERY_WAY = {
    "reference": reference_attention,
    "grouped": grouped_attention,
    "native": native_attention if native.why_not() is None else grouped_attention,
    "tiled": partial(tiled_attention, tile=16),
    "in parts": partial(split_attention, num_splits=5),
    "latent": latent,
}


def two_keys(dtype, num_keys):
    """Draw queries of 40 over keys of 40 and 38: products of 102,400, more than float16 holds."""
    q, k = torch.full((1, 4, 1, 64), 40.0), torch.full((1, 1, num_keys, 64), 40.0)
    k[:, :, 1::2] = 38
    v = torch.randn(1, 1, num_keys, 64, generator=torch.Generator().manual_seed(0))
    return tuple(x.to(dtype) for x in (q, k, v))


def far_apart(dtype, num_keys):
    """Draw queries and keys whose scores go to hundreds, of both signs."""
    q, k, v = draw((4, 1), (1, num_keys), batch_size=1, head_dim=64)
    return tuple(x.to(dtype) for x in (12 * q, 12 * k, v))


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("rows", [two_keys, far_apart])
@pytest.mark.parametrize("num_keys", [2, 300, 2049])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_large_scores_are_no_worse_than_three_times_plain_pytorch(way, rows, num_keys, dtype):
    q, k, v = rows(dtype, num_keys)
    want = loop(q, k, v)
    got = EVERY_WAY[way](q, k, v)
    assert got.dtype == dtype and got.isfinite().all()
    error, allowed = ((x.double() - want).abs().max().item() for x in (got, plain(q, k, v)))
    unit = torch.finfo(dtype).eps * v.abs().max().item()  # also where plain PyTorch is exact by chance
    assert error <= 3 * allowed + unit, f"{error:.1e} against {allowed:.1e} for plain PyTorch"


@pytest.mark.parametrize("attend", [reference_attention, grouped_attention])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[:, :3], k, v), "3 query heads cannot share 2 KV heads"),
        (lambda q, k, v: (q[:, :1], k, v), "1 query heads cannot share 2 KV heads"),
        (lambda q, k, v: (q[:1], k, v), "batch size or head dimension"),
        (lambda q, k, v: (q[..., :2], k, v), "batch size or head dimension"),
        (lambda q, k, v: (q, k, v[:, :, 1:]), "differ in shape"),
        (lambda q, k, v: (q, k[:, :, :2], v[:, :, :2]), "append before attending"),
        (lambda q, k, v: (q.double(), k, v), "share dtype and device"),
        (lambda q, k, v: (q, k, v.half()), "share dtype and device"),
        (lambda q, k, v: (q, k.to("meta"), v.to("meta")), "share dtype and device"),
        (lambda q, k, v: (q[0], k, v), "q has shape"),
        (lambda q, k, v: (q, k[0], v[0]), "k has shape"),
        (lambda q, k, v: (q[:, :, :0], k, v), "q has shape"),
        (lambda q, k, v: (q, k[:, :, :0], v[:, :, :0]), "k has shape"),
    ],
)
def test_attention_refuses_what_does_not_belong_together(attend, change, message):
    with pytest.raises(ValueError, match=message):
        attend(*change(*draw()))


class Given:
    """The least a cache can be: something with `update`."""

    def __init__(self, k, v):
        self.kv = k, v

    def update(self, k_new, v_new):
        self.kv = tuple(
            torch.cat(pair, dim=2) for pair in zip(self.kv, (k_new, v_new), strict=True)
        )
        return self.kv


def test_attention_with_anything_that_has_update():
    q, k, v = draw(dtype=torch.float64)
    cache = Given(k[:, :, :5], v[:, :, :5])
    out, same = attention_with_kv_cache(q, k[:, :, 5:], v[:, :, 5:], cache)
    assert same is cache
    torch.testing.assert_close(out, loop(q, k, v), rtol=1e-12, atol=1e-12)


def test_attention_with_a_cache_that_says_what_is_visible():
    q, k, v = draw(dtype=torch.float64)
    window = causal_mask(3, 8) & ~causal_mask(3, 8).tril(8 - 3 - 2)  # a band of two keys
    cache = Given(k[:, :, :5], v[:, :, :5])
    cache.visible = lambda num_new, num_keys, device: window
    out, _ = attention_with_kv_cache(q, k[:, :, 5:], v[:, :, 5:], cache)
    want = loop(q, k, v, window.expand(2, 3, 8))
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)


def test_attention_with_padding_equals_the_loop():
    q, k, v = draw(dtype=torch.float64)
    valid = torch.arange(8) >= torch.tensor([[0], [6]])  # the first new query is padding too
    cache = Given(k[:, :, :5], v[:, :, :5])
    out, _ = attention_with_kv_cache(q, k[:, :, 5:], v[:, :, 5:], cache, valid)
    assert torch.isfinite(out).all()
    want = loop(q, k, v, padded_mask(None, valid, 3)[:, 0])
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)


def test_padding_is_matched_to_the_last_rows_of_a_cache_that_drops_some():
    q, k, v = draw(dtype=torch.float64)
    valid = torch.arange(8) >= torch.tensor([[0], [4]])
    cache = Given(k[:, :, 3:5], v[:, :, 3:5])  # five tokens so far, two of them still stored
    out, _ = attention_with_kv_cache(q, k[:, :, 5:], v[:, :, 5:], cache, valid)
    want = loop(q, k[:, :, 3:], v[:, :, 3:], padded_mask(None, valid[:, 3:], 3)[:, 0])
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_keys", [2048, 2049, 3075])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_long_context_read_in_parts_equals_the_loop(heads, num_keys, dtype, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    q, k, v = draw(heads, (1, num_keys), batch_size=2, dtype=dtype)
    k[:, :, 5] *= 40  # scores far apart: the parts must be weighed by their sums, not evenly
    want = loop(q, k, v)
    room = torch.full((2, 2, heads[1], num_keys + 9, 4), float("nan"), dtype=dtype)  # a static buffer
    room[0, :, :, :num_keys], room[1, :, :, :num_keys] = k, v
    for keys, values in [(k, v), room[:, :, :, :num_keys], (k[:1].expand(2, -1, -1, -1), v)]:
        if keys.stride(0) == 0:
            want = loop(q, keys, values)
        got = grouped_attention(q, keys, values)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)

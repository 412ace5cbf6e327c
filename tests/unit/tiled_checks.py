"""What attention in tiles and in parts promises: the checks, apart from the code they judge.

They are laws as tests/caches/law.py has them, so that the same functions judge kvlib.tiled and the
wrong versions of it.
"""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from kvlib import causal_mask, reference_attention, tiled
from kvlib.allocations import Allocations
from tests.caches.law import Law
from tests.caches.reference import HEADS, TOLERANCE, assert_close, attend_by_loop

CHECKS: dict[str, Law] = {}
DTYPES = st.sampled_from([torch.float32, torch.float64])
SEEDS = st.integers(0, 2**31)
lengths = st.tuples(st.integers(1, 6), st.integers(0, 9)).map(lambda n: (n[0], n[0] + n[1]))  # t, T


def check(**strategies):
    """Register a function of what is drawn as a check of kvlib.tiled."""

    def register(body):
        judge = lambda kind, **drawn: body(**drawn)  # noqa: E731
        CHECKS[body.__name__] = Law(body.__name__, judge, strategies, frozenset(), bool)
        return body

    return register


def draw(heads, length, dtype=torch.float64, seed=0, head_dim=4, batch_size=2):
    """Draw q (B, H, t, D) and k, v (B, KV, T, D) from the standard normal."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (heads[0], length[0]), (heads[1], length[1]), (heads[1], length[1])
    return tuple(
        torch.randn(batch_size, *size, head_dim, generator=generator, dtype=torch.float64).to(dtype)
        for size in sizes
    )


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Return all scores in float64, (B, H, t, T), unmasked."""
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return q.double() @ k.transpose(2, 3) / math.sqrt(q.shape[3])


def masked(q, k, v, mask) -> tuple[Tensor, Tensor]:
    """Return (out, log_sum) of the formula in float64; out 0 where a row sees nothing."""
    scores = scores_of(q, k).masked_fill(~mask, float("-inf"))
    v = v.double().repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    return scores.softmax(dim=-1).nan_to_num(0) @ v, scores.logsumexp(dim=-1)


def same(got: Tensor, want: Tensor, dtype, what: str) -> None:
    """Assert equality, -inf included, within the rounding of a dtype."""
    assert torch.equal(got.isneginf(), want.isneginf()), f"{what}: -inf in other places"
    got, want = (x.masked_fill(x.isneginf(), 0) for x in (got, want))
    assert_close(got, want, TOLERANCE[dtype], what)


# ---- Tiles


@check(
    heads=st.sampled_from(HEADS), length=lengths, tile=st.integers(1, 20), dtype=DTYPES, seed=SEEDS,
    head_dim=st.sampled_from([1, 2, 8]),
)  # fmt: skip
def any_tile_gives_the_loops_numbers(heads, length, tile, dtype, seed, head_dim):
    q, k, v = draw(heads, length, dtype, seed, head_dim)
    got = tiled.tiled_attention(q, k, v, tile=tile)
    assert got.dtype == dtype and got.shape == q.shape
    assert_close(got, attend_by_loop(q, k, v), TOLERANCE[dtype], f"tile {tile}")


def lengths_around_four():
    """Name the lengths that matter for a tile of 4: one, less, equal, a multiple, one more."""
    return [(1, 1), (1, 4), (3, 3), (4, 4), (4, 8), (5, 9), (1, 33), (16, 16), (2, 17)]


@check()
def lengths_around_a_tile_give_the_loops_numbers():
    for length in lengths_around_four():
        for tile in (1, 4, length[1], length[1] + 1, 1000):
            q, k, v = draw((4, 2), length)
            got = tiled.tiled_attention(q, k, v, tile=tile)
            assert_close(got, attend_by_loop(q, k, v), 1e-11, f"{length} in tiles of {tile}")


@check(tile=st.integers(1, 9), length=lengths, seed=SEEDS, shared=st.booleans(), dtype=DTYPES)
def any_mask_is_kept_and_a_row_without_keys_is_zero(tile, length, seed, shared, dtype):
    q, k, v = draw((4, 2), length, dtype, seed)
    generator = torch.Generator().manual_seed(seed)
    size = (2, 1) if shared else (2, 4)
    mask = torch.rand(*size, *length, generator=generator) < 0.4
    mask[0, 0, 0] = False  # a row that sees nothing
    want, want_sum = masked(q, k, v, mask)
    got = tiled.tiled_attention(q, k, v, mask, tile=tile)
    assert (got[0, 0, 0] == 0).all(), "a row that sees no key must give 0"
    same(got, want, dtype, "masked")
    out, log_sum = tiled.attend_part(q, k, v, mask, tile=tile)
    same(out, want, dtype, "masked part"), same(log_sum, want_sum, dtype, "its log_sum")
    for splits in (1, 2, length[1] + 3):
        same(tiled.split_attention(q, k, v, splits, mask, tile=tile), want, dtype, f"{splits} splits")


@check()
def masks_of_every_form_broadcast():
    q, k, v = draw((4, 2), (3, 7))
    for size in [(3, 7), (1, 7), (7,), (3, 1), (1, 1, 3, 7), (2, 1, 1, 7), (1, 4, 3, 7), (2, 4, 3, 1)]:
        mask = torch.rand(size, generator=torch.Generator().manual_seed(1)) < 0.6
        want, _ = masked(q, k, v, mask.expand(2, 4, 3, 7))
        for got in (
            tiled.tiled_attention(q, k, v, mask, tile=2),
            tiled.split_attention(q, k, v, 3, mask, tile=2),
            tiled.attend_part(q, k, v, mask, tile=2)[0],
        ):
            assert_close(got, want, 1e-11, f"mask {size}")


@check(tile=st.integers(1, 9), seed=SEEDS, dtype=DTYPES, size=st.sampled_from([1e2, 1e4, 1e6]))
def extreme_scores_stay_exact(tile, seed, dtype, size):
    """Of both signs, in every order, all equal, and far apart."""
    q, k, v = draw((2, 1), (1, 8), dtype, seed, batch_size=1)
    q = torch.full_like(q, 2 / q.shape[3] ** 0.5)  # a score is the mean of a key's numbers
    rise = torch.arange(8, dtype=dtype)
    for name, scores in {
        "all high": torch.full((8,), size), "all low": torch.full((8,), -size),
        "rising": rise * size, "falling": -rise * size, "close, high": size + rise,
        "close, low": -size - rise, "one high": torch.where(rise == 3, size, -size),
        "first high": torch.where(rise == 0, size, 0.0), "last high": torch.where(rise == 7, size, 0.0),
        "zeros": rise * 0,
    }.items():  # fmt: skip
        k = scores.to(dtype)[:, None].expand(1, 1, 8, 4) / 2
        want = attend_by_loop(q, k, v)
        bound = 4 * size * torch.finfo(dtype).eps + TOLERANCE[dtype]  # a score rounds at its size
        assert_close(tiled.tiled_attention(q, k, v, tile=tile), want, bound, name)
        assert_close(tiled.split_attention(q, k, v, tile, tile=3), want, bound, f"{name}, split")


@check()
def what_no_query_sees_is_not_read():
    """NaN behind the last key, in wholly masked tiles, in the future: never touched."""
    q, k, v = draw((4, 2), (4, 12))
    want = attend_by_loop(q, k, v)
    room = torch.full((2, 2, 2, 20, 4), float("nan"), dtype=torch.float64)
    room[0, :, :, :12], room[1, :, :, :12] = k, v
    k, v = room[0, :, :, :12], room[1, :, :, :12]
    for tile in (1, 4, 5, 50):
        assert_close(tiled.tiled_attention(q, k, v, tile=tile), want, 1e-11, "a view of a buffer")
    assert_close(tiled.split_attention(q, k, v, 5), want, 1e-11, "a view of a buffer")
    k[:, :, :4], v[:, :, :4] = float("nan"), float("nan")
    mask = causal_mask(4, 12)
    mask[:, :4] = False
    want, _ = masked(q, k.nan_to_num(0), v.nan_to_num(0), mask)
    assert_close(tiled.tiled_attention(q, k, v, mask, tile=4), want, 1e-11, "masked tiles")
    first = q[:, :, :1]  # of two tokens; the keys behind the second tile are its future
    seen = torch.tensor([[True] * 4 + [False] * 8])
    k, v = (x.flip(2) for x in (k, v))  # now the last four are NaN
    want, _ = masked(first, k.nan_to_num(0), v.nan_to_num(0), seen)
    assert_close(tiled.tiled_attention(first, k, v, seen, tile=4), want, 1e-11, "the future")
    rows = torch.cat([k[:, :, :4], k[:, :, 8:]], dim=2), torch.cat([v[:, :, :4], v[:, :, 8:]], dim=2)
    got = tiled.tiled_attention(torch.cat([q, q], dim=2), *rows, tile=4)[:, :, :4]
    assert torch.isfinite(got).all(), "a tile in the future of all its queries was read"


@check()
def sixteen_bits_are_summed_in_more():
    """Error at most three times plain PyTorch's in that precision, against float64."""
    for dtype in (torch.bfloat16, torch.float16):
        for length in ((1, 300), (64, 300), (128, 128)):
            q, k, v = draw((6, 2), length, dtype, head_dim=32, batch_size=1)
            want, _ = masked(q, k, v, causal_mask(*length))
            keys, values = (x.repeat_interleave(3, dim=1) for x in (k, v))
            scores = (q @ keys.transpose(2, 3) / math.sqrt(32)).masked_fill(
                ~causal_mask(*length), float("-inf")
            )
            allowed = 3 * (scores.softmax(dim=-1) @ values - want).abs().max().item()
            for got in (tiled.tiled_attention(q, k, v, tile=64), tiled.split_attention(q, k, v, 4)):
                assert got.dtype == dtype
                error = (got.double() - want).abs().max().item()
                assert error <= allowed, f"{dtype}: {error:.1e} is more than {allowed:.1e}"
            out, log_sum = tiled.attend_part(q, k, v)
            assert out.dtype == torch.float32, "a part must not be rounded"
            assert log_sum.dtype == torch.float64, "a log_sum must not be rounded"


@check()
def no_score_matrix_is_held():
    """Twice the tokens: twice the peak of the tiles, four times that of the formula."""
    peaks = {}
    for length in (64, 128, 256):
        q, k, v = draw((4, 2), (length, length), torch.float32, head_dim=8, batch_size=1)
        calls = {
            "tiled": lambda q=q, k=k, v=v: tiled.tiled_attention(q, k, v, tile=16),
            "split": lambda q=q, k=k, v=v: tiled.split_attention(q, k, v, 2, tile=16),
            "formula": lambda q=q, k=k, v=v: reference_attention(q, k, v),
        }
        for name, call in calls.items():
            with Allocations() as seen:
                call()
            peaks[name, length] = seen.peak
            largest = seen.largest.nbytes
            assert name == "formula" or largest <= 2 * q.nbytes, f"{name} made {seen.largest}"
    for name in ("tiled", "split"):
        growth = peaks[name, 256] / peaks[name, 128]
        assert growth < 2.2, f"{name}: the peak grows {growth:.1f} times with twice the tokens"
    assert peaks["formula", 256] / peaks["formula", 128] > 3.5


@check()
def inputs_are_left_alone():
    inputs = draw((4, 2), (3, 9))
    before = [x.clone() for x in inputs]
    tiled.tiled_attention(*inputs, tile=2)
    tiled.split_attention(*inputs, 2)
    tiled.merge_parts(*zip(tiled.attend_part(*inputs), tiled.attend_part(*inputs)))
    assert all(map(torch.equal, inputs, before)), "the caller's tensors were written to"


# ---- Parts

cuts = st.lists(st.integers(0, 9), min_size=0, max_size=4).map(lambda c: [0, *sorted(c), 9])


def parts_of(q, k, v, bounds, tile=3) -> list[tuple[Tensor, Tensor]]:
    """Attend to the keys between neighbouring bounds, each part for itself."""
    return [tiled.attend_part(q, k[:, :, a:b], v[:, :, a:b], tile=tile) for a, b in zip(bounds, bounds[1:])]


@check(heads=st.sampled_from(HEADS), bounds=cuts, dtype=DTYPES, seed=SEEDS, num_new=st.integers(1, 3))
def parts_merge_into_the_whole(heads, bounds, dtype, seed, num_new):
    q, k, v = draw(heads, (num_new, 9), dtype, seed)
    k[:, :, 4] *= 5  # parts of very unequal weight
    want, want_sum = masked(q, k, v, torch.ones(num_new, 9, dtype=torch.bool))
    out, log_sum = tiled.merge_parts(*zip(*parts_of(q, k, v, bounds)))
    assert_close(out, want, TOLERANCE[dtype], f"parts {bounds}")
    assert_close(log_sum, want_sum, TOLERANCE[dtype], f"log_sum of parts {bounds}")


@check(bounds=cuts, seed=SEEDS, order=st.randoms(use_true_random=False))
def the_order_of_merging_does_not_matter(bounds, seed, order):
    """Permuted, and in pairs from any neighbours on: a tree of merges is one merge."""
    q, k, v = draw((4, 2), (2, 9), seed=seed)
    k[:, :, 7] *= 5
    parts = parts_of(q, k, v, bounds)
    want, want_sum = tiled.merge_parts(*zip(*parts))
    order.shuffle(parts)
    while len(parts) > 1:
        i = order.randrange(len(parts) - 1)
        parts[i : i + 2] = [tiled.merge_parts(*zip(*parts[i : i + 2]))]
    same(parts[0][0], want, torch.float64, "merged in pairs")
    same(parts[0][1], want_sum, torch.float64, "log_sum merged in pairs")


@check(num_splits=st.integers(1, 15), length=lengths, dtype=DTYPES, seed=SEEDS, tile=st.integers(1, 9))
def any_number_of_splits_gives_the_loops_numbers(num_splits, length, dtype, seed, tile):
    q, k, v = draw((4, 2), length, dtype, seed)
    k[:, :, 0] *= 5
    got = tiled.split_attention(q, k, v, num_splits, tile=tile)
    assert got.dtype == dtype
    assert_close(got, attend_by_loop(q, k, v), TOLERANCE[dtype], f"{num_splits} splits of {length}")


@check()
def log_sum_is_the_natural_logarithm_of_the_sum():
    q, k, v = draw((4, 2), (3, 7))
    _, log_sum = tiled.attend_part(q, k, v, tile=2)
    assert_close(log_sum, scores_of(q, k).exp().sum(dim=-1).log(), 1e-11, "log_sum")


@check()
def an_empty_part_weighs_nothing():
    q, k, v = draw((4, 2), (3, 7))
    whole = tiled.attend_part(q, k, v)
    out, log_sum = tiled.attend_part(q, k[:, :, :0], v[:, :, :0])
    assert out.shape == q.shape and (out == 0).all() and log_sum.isneginf().all()
    blind = tiled.attend_part(q, k, v, torch.zeros(3, 7, dtype=torch.bool))
    assert (blind[0] == 0).all() and blind[1].isneginf().all()
    for nothing in (out, torch.full_like(out, float("nan")), torch.full_like(out, float("inf"))):
        got = tiled.merge_parts([nothing, whole[0], nothing], [log_sum, whole[1], log_sum])
        assert_close(got[0], whole[0], 1e-12, "with empty parts"), same(got[1], whole[1], q.dtype, "log_sum")
    got = tiled.merge_parts([out, out], [log_sum, log_sum])
    assert (got[0] == 0).all() and got[1].isneginf().all(), "nothing and nothing is nothing"


@check(bounds=cuts, bits=st.sampled_from([5, 10, 15]), dtype=st.sampled_from([torch.float16, torch.float32]))
def large_scores_leave_digits_for_the_sum(bounds, bits, dtype):
    """Keys alike count alike, in parts of any length. With powers of two no sum of products is rounded."""
    q = k = torch.full((1, 1, 9, 64), 2.0**bits, dtype=dtype)
    q = q[:, :, :1]
    v = torch.arange(9, dtype=dtype)[:, None].expand(1, 1, 9, 64)
    out, log_sum = tiled.merge_parts(*zip(*parts_of(q, k, v, bounds)))
    assert_close(out, torch.full_like(out, 4.0), 1e-5, f"parts {bounds}")
    want = 8 * 4.0**bits + math.log(9)
    assert_close(log_sum, torch.full_like(log_sum, want), 1e-4, f"log_sum of parts {bounds}")
    for splits in (1, 2, 4, 7):
        got = tiled.split_attention(q, k, v, splits)
        assert_close(got, torch.full_like(got, 4.0), 1e-5, f"{splits} splits")

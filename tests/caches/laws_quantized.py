"""Laws of a quantised cache: what is off, by how much at most, what is not, and what it takes."""

from __future__ import annotations

import itertools

import torch
from hypothesis import strategies as st
from torch import Tensor

from kvlib.caches.rollback import unchanged_on_failure
from tests.caches.law import law
from tests.caches.laws_input import refuse
from tests.caches.reference import chunk_sizes

SHAPE = 2, 2, 5  # batch, KV heads, head dimension
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])


def quantizes(kind) -> bool:
    """Say whether a cache keeps codes."""
    return kind.scheme is not None


def text(length: int, dtype=torch.float32, seed: int = 0, shape=SHAPE) -> tuple[Tensor, Tensor]:
    """Draw keys and values (B, KV, T, D) as models have them.

    One key channel is large in every token, and far from 0; some values are large in every channel.
    """
    batch_size, num_kv_heads, head_dim = shape
    generator = torch.Generator().manual_seed(seed)
    size = batch_size, num_kv_heads, length, head_dim
    k, v = (torch.randn(size, generator=generator, dtype=torch.float64) for _ in "kv")
    k[..., 1] = 200 + 40 * k[..., 1]
    k[1:] *= 3  # sequences unlike each other
    k[:, 1:] /= 5
    v *= 100.0 ** (torch.arange(length)[:, None] % 3 - 1)
    v[1:] += 2
    return k.to(dtype), v.to(dtype)


def fed(kind, k: Tensor, v: Tensor, chunks: list[int]):
    """Return a cache that was given all rows in chunks, and what the last update returned."""
    cache, start = kind.make(64), 0
    for size in chunks:
        got = cache.update(k[:, :, start : start + size], v[:, :, start : start + size])
        start += size
    assert start == k.shape[2]
    return cache, got


def read(cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows held: what a fork returns in front of one more."""
    return tuple(x[:, :, :-1] for x in cache.fork().update(k[:, :, :1], v[:, :, :1]))


def assert_within(got, want, bounds, what: str) -> None:
    """Assert that no number is further off than its own bound."""
    for name, x, y, bound in zip("kv", got, want, bounds, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape, f"{what}: {name} is {x.dtype} {tuple(x.shape)}"
        error = (x.double() - y.double()).abs()
        assert (error <= bound).all(), (
            f"{what}: {name} is off by {(error / bound).nan_to_num().max().item():.3g} times its bound"
        )


def same(xs, ys) -> bool:
    """Say whether all tensors agree, NaN with NaN."""
    return all(torch.allclose(x, y, rtol=0, atol=0, equal_nan=True) for x, y in zip(xs, ys, strict=True))


def tokens(xs, keep) -> list[Tensor]:
    """Return some tokens of keys and values."""
    return [x[:, :, keep] for x in xs]


@law(applies=quantizes, chunks=chunk_sizes, more=st.integers(1, 9), dtype=dtypes, seed=st.integers(0, 99))
def every_number_is_within_half_its_step(kind, chunks, more, dtype, seed):
    chunks = [*chunks, more]
    k, v = text(sum(chunks), dtype, seed)
    cache, _ = fed(kind, k, v, chunks)
    got, bounds = read(cache, k, v), kind.scheme.bounds(k, v)
    assert_within(got, (k, v), bounds, "text")
    said = cache.error_bounds()
    assert_within(got, (k, v), said, "text, by the cache's own bound")
    for own, bound in zip(said, bounds, strict=True):
        assert (own <= 1.01 * bound + 8 * torch.finfo(dtype).eps * own).all(), "the cache's bound is wide"


SIZES = [0.0, 1e-42, 1e-30, 1e-7, 1.0, 1e4, 1e30, 8e37]
OFFSETS = [0.0, 1.0, -300.0]


@law(applies=quantizes, dtype=dtypes, alike=st.booleans(), seed=st.integers(0, 99))
def numbers_of_any_size_keep_their_bound(kind, dtype, alike, seed):
    k, v = text(12, torch.float64, seed)
    if alike:
        k, v = k[:, :, :1].expand_as(k), v[..., :1].expand_as(v)
    largest = max(x.abs().max().item() for x in (k, v))
    for size, offset in itertools.product(SIZES, OFFSETS):
        if size + abs(offset) > torch.finfo(dtype).max:
            continue
        rows = [(x / largest * size + offset).to(dtype) for x in (k, v)]
        cache, _ = fed(kind, *rows, [12])
        got, what = read(cache, *rows), f"{size} beside {offset}"
        assert_within(got, rows, kind.scheme.bounds(*rows), what)
        assert_within(got, rows, cache.error_bounds(), f"{what}, by the cache's own bound")
        if alike:
            assert same(got, rows), "numbers alike must come back exactly"


@law(applies=quantizes, smallest=st.sampled_from([0.0, 1.0, -1.0, -65504.0]))
def the_largest_number_of_16_bits_stays_a_number(kind, smallest):
    rows = [torch.full((1, 1, 12, 4), smallest, dtype=torch.float16) for _ in "kv"]
    for x in rows:
        x[0, 0, 1::2, 1] = 65504  # the largest of keys and of values, by channel and by token
    cache, _ = fed(kind, *rows, [12])
    got = read(cache, *(torch.zeros_like(x) for x in rows))
    assert all(x.isfinite().all() for x in got), "a finite number came back as none"
    assert_within(got, rows, kind.scheme.bounds(*rows), "the largest number")


@law(applies=quantizes, chunks=chunk_sizes)
def recent_and_new_rows_are_exact_and_the_rest_are_codes(kind, chunks):
    k, v = text(sum(chunks))
    cache, got = fed(kind, k, v, chunks)
    before = kind.scheme.quantized_len(sum(chunks[:-1]))  # what this update found as codes
    for side, rows, name in zip(got, (k, v), "kv", strict=True):
        assert torch.equal(side[:, :, before:], rows[:, :, before:]), f"{name}: a new or recent row is off"
        exact = (side[:, :, :before] == rows[:, :, :before]).all(dim=-1).sum()
        assert exact <= before // 3, f"{name}: rows that ought to be codes came back exactly"
    assert cache.quantized_len == kind.scheme.quantized_len(sum(chunks))


@law(applies=quantizes, chunks=chunk_sizes, dtype=dtypes, head_dim=st.sampled_from([1, 2, 5]))
def bytes_are_those_of_the_scheme(kind, chunks, dtype, head_dim):
    shape = 3, 2, head_dim
    k, v = text(sum(chunks), dtype, shape=(3, 2, max(head_dim, 2)))
    cache, _ = fed(kind, k[..., :head_dim], v[..., :head_dim], chunks)
    want = kind.scheme.nbytes(shape, sum(chunks), dtype)
    got = tuple(cache.held_bytes)
    assert got == want, f"(codes, scales and zeros, recent) take {got} bytes, they should {want}"
    assert cache.nbytes == sum(want) == kind.storage_bytes(cache)


@law(applies=quantizes, chunks=chunk_sizes)
def a_batch_equals_its_sequences_alone_bit_for_bit(kind, chunks):
    k, v = text(sum(chunks))
    cache, _ = fed(kind, k, v, chunks)
    together = read(cache, k, v)
    for b in range(2):
        for h in range(2):
            alone = [x[b : b + 1, h : h + 1] for x in (k, v)]
            cache, _ = fed(kind, *alone, chunks)
            part = [x[b : b + 1, h : h + 1] for x in together]
            assert same(part, read(cache, *alone)), f"sequence {b}, head {h} depends on the others"


@law(applies=quantizes, chunks=chunk_sizes)
def what_is_held_does_not_depend_on_the_split(kind, chunks):
    k, v = text(sum(chunks))
    states = [kind.state(fed(kind, k, v, split)[0]) for split in (chunks, [sum(chunks)], [1] * sum(chunks))]
    assert states[0] == states[1] == states[2], "the split of a text shows in what is held"


@law(applies=quantizes, length=st.integers(1, 20), share=st.floats(0, 1), more=st.integers(1, 9))
def a_crop_keeps_what_was_held_and_adds_one_error_at_most(kind, length, share, more):
    k, v = text(length + more)
    cache, _ = fed(kind, k[:, :, :length], v[:, :, :length], [length])
    kept = int(share * length)
    held, first = (
        tokens(read(cache, k, v), slice(0, kept)),
        kind.scheme.bounds(k[:, :, :length], v[:, :, :length]),
    )
    cache.crop(kept)
    if kept:
        assert same(read(cache, k, v), held), "the rows that were kept have changed"
        assert cache.quantized_len <= kept
    new = tokens((k, v), slice(kept, kept + more))
    cache.update(*new)
    got, rows = read(cache, k, v), [torch.cat(pair, dim=2) for pair in zip(held, new)]
    second = kind.scheme.bounds(*rows)  # of what there was to quantise
    assert_within(tokens(got, slice(kept, None)), new, tokens(second, slice(kept, None)), "new rows")
    both = [a[:, :, :kept] + b[:, :, :kept] for a, b in zip(first, second)]
    assert_within(tokens(got, slice(0, kept)), tokens((k, v), slice(0, kept)), both, "rows kept")
    whole = kept // kind.scheme.group * kind.scheme.group
    whole = min(whole, kind.scheme.quantized_len(length))
    assert same(tokens(got, slice(0, whole)), tokens(held, slice(0, whole))), (
        "a whole group was quantised anew"
    )


@law(applies=quantizes, length=st.integers(6, 20), dropped=st.integers(1, 6))
def taking_back_no_more_than_recent_leaves_no_trace(kind, length, dropped):
    dropped = min(dropped, kind.scheme.recent)
    k, v = text(length)
    cache, _ = fed(kind, k, v, [length])
    cache.crop(length - dropped)
    if dropped:
        cache.update(*tokens((k, v), slice(length - dropped, None)))
    assert kind.state(cache) == kind.state(fed(kind, k, v, [length])[0]), "what was taken back shows"


@law(
    applies=quantizes,
    length=st.integers(8, 16),
    place=st.integers(0, 15),
    bad=st.sampled_from([float("nan"), float("inf"), -float("inf"), 3e38]),
    side=st.integers(0, 1),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def a_number_that_is_none_touches_no_other_token(kind, length, place, bad, side, dtype):
    place = place % length
    rows = text(length, dtype)
    group = place // kind.scheme.group * kind.scheme.group
    twin = group + (place - group + 1) % kind.scheme.group  # another token of the same group
    for x in rows:
        x[0, 0, place] = x[0, 0, twin if twin < length else place]
    clean = read(fed(kind, *rows, [length])[0], *rows)
    rows[side][0, 0, place, 2] = bad
    got = read(fed(kind, *rows, [length])[0], *(torch.zeros_like(x) for x in rows))
    if place < kind.scheme.quantized_len(length):
        for x in got:
            assert x[0, 0, place].isnan().all(), "a token that cannot be quantised must be NaN"
    for x, y in zip(got, clean, strict=True):
        x[0, 0, place] = y[0, 0, place] = 0
    assert same(got, clean), "other tokens have changed"


@law(applies=quantizes)
def options_that_make_no_sense_are_refused(kind):
    make = type(kind.make(1))
    wrong = {
        "bits": [0, 1, 2, 3, 16, 8.0, "8", None, True],
        "group": [0, -1, 1.0, None, True, "32"],
        "recent": [-1, 0.5, None, False],
        "key_axis": ["head", None, -1, "channels"],
    }
    mistakes = {
        f"{name} {value!r}": lambda name=name, value=value: make(**{name: value})
        for name, values in wrong.items()
        for value in values
    }
    mistakes |= {f"odd group {n}": lambda n=n: make(4, group=n) for n in (1, 3, 33)}
    refuse(mistakes, lambda: None)


@law(applies=quantizes, chunks=chunk_sizes, more=st.lists(st.integers(1, 7), min_size=1, max_size=3))
def updates_taken_back_leave_the_same_bits(kind, chunks, more):
    k, v = text(sum(chunks) + sum(more))
    cache, _ = fed(kind, *tokens((k, v), slice(0, sum(chunks))), chunks)
    before, start = kind.state(cache), sum(chunks)
    try:
        with unchanged_on_failure([cache]):
            for size in more:
                cache.update(*tokens((k, v), slice(start, start + size)))
                start += size
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert kind.state(cache) == before, "what was taken back left a trace"

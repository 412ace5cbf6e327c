"""Laws of latent attention: both ways are one formula, and no more is kept or computed than said.

A law takes a (LatentAttention class, LatentKVCache class) pair, so that mutants of either are judged
by the same functions. The formula is written out in NumPy, without any of kvlib.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from kvlib.caches.latent import LatentKVCache
from kvlib.latent_attention import LatentAttention, LatentShape
from tests.caches.reference import assert_close

TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-5}


@dataclass(frozen=True)
class Latent:
    """What is judged: what attends, and what keeps its rows."""

    attention: type[LatentAttention] = LatentAttention
    cache: type = LatentKVCache


LAWS: dict[str, tuple] = {}


def law(**strategies):
    """Register a function (latent, **drawn)."""

    def register(body):
        LAWS[body.__name__] = body, strategies
        return body

    return register


def hold(name: str, latent: Latent, rigour) -> None:
    """Raise where `latent` breaks the law."""
    body, strategies = LAWS[name]

    @rigour
    @given(**strategies)
    def check(**drawn):
        body(latent, **drawn)

    check()


shapes = st.builds(
    LatentShape,
    hidden_size=st.sampled_from([3, 12]),
    num_heads=st.sampled_from([1, 2, 5]),
    nope_dim=st.sampled_from([1, 4, 6]),
    rope_dim=st.sampled_from([2, 6]),
    value_dim=st.sampled_from([1, 4, 7]),
    latent_dim=st.sampled_from([2, 8]),
)
dtypes = st.sampled_from(list(TOLERANCE))
chunks = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def made(latent: Latent, shape: LatentShape, dtype, seed: int) -> LatentAttention:
    """Return attention with random weights, its norm's gain too."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        attention = latent.attention(shape, dtype=dtype)
        attention.norm.copy_(torch.rand_like(attention.norm) + 0.5)
    return attention


def turns(shape: LatentShape, length: int, dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin of positions 0 .. length - 1, each (length, R), signs as `rotate` wants."""
    angles = _angles(shape.rope_dim, length)  # (T, R/2)
    both = np.concatenate([np.cos(angles)] * 2, 1), np.concatenate([-np.sin(angles), np.sin(angles)], 1)
    return tuple(torch.from_numpy(x).to(dtype) for x in both)


def _angles(rope_dim: int, length: int) -> np.ndarray:
    return np.outer(np.arange(length), 100.0 ** (-np.arange(0, rope_dim, 2) / rope_dim))


def by_the_formula(attention: LatentAttention, x: Tensor) -> Tensor:
    """Compute the whole text x (B, T, C) in float64: per head, per query, nothing cached."""
    shape = attention.shape
    w = {name: p.detach().double().numpy() for name, p in attention.named_parameters()}
    x = x.double().numpy()
    turn = np.exp(1j * _angles(shape.rope_dim, x.shape[1]))  # a pair of numbers as one complex one

    def rotated(rows):  # (B, T, R)
        half = shape.rope_dim // 2
        z = (rows[..., :half] + 1j * rows[..., half:]) * turn
        return np.concatenate([z.real, z.imag], axis=-1)

    row = x @ w["down"].T
    latent, rope = row[..., : shape.latent_dim], rotated(row[..., shape.latent_dim :])
    size = np.sqrt((latent**2).mean(axis=-1, keepdims=True) + attention.norm_eps)
    latent = latent / size * w["norm"]
    queries = (x @ w["query"].T).reshape(*x.shape[:2], shape.num_heads, -1)
    out = np.zeros((*x.shape[:2], shape.num_heads, shape.value_dim))
    for h in range(shape.num_heads):
        keys = np.concatenate([latent @ w["up_keys"][h].T, rope], axis=-1)  # (B, T, N + R)
        values = latent @ w["up_values"][h].T
        q = queries[:, :, h]
        q = np.concatenate([q[..., : shape.nope_dim], rotated(q[..., shape.nope_dim :])], axis=-1)
        for i in range(x.shape[1]):
            scores = np.einsum("bd,bnd->bn", q[:, i], keys[:, : i + 1]) / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[:, i, h] = np.einsum("bn,bnd->bd", weights, values[:, : i + 1])
    return torch.from_numpy(out.reshape(*x.shape[:2], -1) @ w["out"].T)


def run(attention, cache, x, split, absorbed) -> Tensor:
    """Feed x (B, T, C) to the cache in chunks and return all outputs."""
    cos, sin = turns(attention.shape, x.shape[1], x.dtype)
    outs, start = [], 0
    for size in split:
        now = slice(start, start + size)
        outs.append(attention(x[:, now], (cos[now], sin[now]), cache, absorbed=absorbed))
        start += size
    return torch.cat(outs, dim=1)


@law(shape=shapes, dtype=dtypes, batch=st.integers(1, 3), chunks=chunks, seed=st.integers(0, 999))
def both_ways_equal_the_formula(latent, shape, dtype, batch, chunks, seed):
    attention = made(latent, shape, dtype, seed)
    x = torch.randn(batch, sum(chunks), shape.hidden_size, dtype=torch.float64).to(dtype)
    want = by_the_formula(attention, x)
    for absorbed in (False, True):
        for split in (chunks, [1] * sum(chunks), [sum(chunks)]):
            got = run(attention, latent.cache(), x, split, absorbed)
            assert_close(got, want, TOLERANCE[dtype], f"absorbed {absorbed}, chunks {split}")
        got = run(attention, None, x, [sum(chunks)], absorbed)
        assert_close(got, want, TOLERANCE[dtype], f"absorbed {absorbed}, no cache")


@law(shape=shapes, dtype=dtypes, batch=st.integers(1, 3), chunks=chunks, absorbed=st.booleans())
def a_token_takes_latent_and_rope_numbers_once(latent, shape, dtype, batch, chunks, absorbed):
    attention, cache = made(latent, shape, dtype, 0), latent.cache()
    x = torch.randn(batch, sum(chunks), shape.hidden_size, dtype=dtype)
    run(attention, cache, x, chunks, absorbed)
    size = sum(chunks) * batch * (shape.latent_dim + shape.rope_dim) * dtype.itemsize
    assert cache.nbytes == size, f"{cache.nbytes} bytes are held, {size} are needed"
    assert cache.seq_len == sum(chunks)


@law(shape=shapes, held=st.integers(0, 5))
def values_are_the_keys_latent_part_in_the_same_memory(latent, shape, held):
    cache = latent.cache()
    attention = made(latent, shape, torch.float32, 0)
    x = torch.randn(2, held + 1, shape.hidden_size)
    rows = attention.rows(x, turns(shape, held + 1, x.dtype))
    keys, values = cache.update(*rows)
    assert keys.shape == (2, 1, held + 1, shape.latent_dim + shape.rope_dim)
    assert torch.equal(keys, torch.cat(rows, dim=3)), "keys are not the rows"
    assert torch.equal(values, rows[0]), "values are not the latent part"
    assert values.data_ptr() == keys.data_ptr() and values.stride() == keys.stride(), "a copy"


@law(shape=shapes, held=st.integers(1, 6), new=st.integers(1, 4), absorbed=st.booleans())
def a_pass_computes_what_is_said(latent, shape, held, new, absorbed):
    attention, cache = made(latent, shape, torch.float32, 0), latent.cache()
    x = torch.randn(1, held + new, shape.hidden_size)
    cos, sin = turns(shape, held + new, x.dtype)
    attention(x[:, :held], (cos[:held], sin[:held]), cache, absorbed=absorbed)
    with FlopCounterMode(display=False) as counter:
        attention(x[:, held:], (cos[held:], sin[held:]), cache, absorbed=absorbed)
    shared = 2 * new * (attention.query.numel() + attention.down.numel() + attention.out.numel())
    want = shape.flops(held + new, absorbed=absorbed, num_new=new) + shared
    assert counter.get_total_flops() == want, f"{counter.get_total_flops()} operations, not {want}"


@law(held=st.integers(0, 3), width=st.sampled_from([2, 4]))
def parts_that_do_not_fit_are_refused(latent, held, width):
    cache = latent.cache()
    for _ in range(held):
        cache.update(torch.randn(2, 1, 1, width), torch.randn(2, 1, 1, 6))
    c, r = torch.randn(2, 1, 2, width), torch.randn(2, 1, 2, 6)
    mistakes = {
        "two heads": (c.repeat(1, 2, 1, 1), r.repeat(1, 2, 1, 1)),
        "rope of other tokens": (c, r[:, :, :1]),
        "rope of another batch": (c, r[:1]),
        "rope of another dtype": (c, r.double()),
        "no rope": (c, r[..., :0]),
        "no head axis": (c[:, 0], r[:, 0]),
        "None": (c, None),
    }
    if held:
        mistakes |= {
            "the other split of the same row": (torch.cat([c, r[..., :2]], 3), r[..., 2:]),
            "a wider latent": (torch.cat([c, c], 3), r),
            "a wider rope": (c, torch.cat([r, r], 3)),
            "a larger batch": (c.repeat(2, 1, 1, 1), r.repeat(2, 1, 1, 1)),
            "a wider dtype": (c.double(), r.double()),
        }
    for name, parts in mistakes.items():
        before = cache.seq_len, cache.nbytes
        try:
            cache.update(*parts)
        except ValueError as error:
            assert len(str(error).split()) >= 4, f"{name}: {error!s} is no sentence"
        else:
            raise AssertionError(f"{name} was accepted")
        assert (cache.seq_len, cache.nbytes) == before, f"{name} changed something"
    cache.update(c, r)
    cache.reset()
    cache.update(r, c)  # after a reset, rows of any shape

"""Laws of parity: a cache changes how much is computed, never what comes out."""

from __future__ import annotations

from functools import lru_cache

import torch
from hypothesis import strategies as st

from kvlib import ModelConfig
from tests.caches.by_hand import logits_without_cache
from tests.caches.law import law, unwritten_memory_is_nan
from tests.caches.reference import (
    HEADS,
    TOLERANCE,
    Shadow,
    assert_close,
    attend_by_loop,
    cases,
    chunk_sizes,
)

LOGIT_TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-10}


@lru_cache
def tiny_model(make, heads: tuple[int, int], dtype: torch.dtype):
    """Return a seeded model of three layers, a few dozen numbers wide."""
    config = ModelConfig(
        num_layers=3, num_heads=heads[0], num_kv_heads=heads[1], head_dim=4, hidden_size=12,
        intermediate_size=16, vocab_size=19, max_seq_len=48,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(config, dtype=dtype)


def attend_in_chunks(kind, cache, q, k, v, chunks) -> torch.Tensor:
    """Run q, k, v through the cache chunk by chunk; return all outputs in order."""
    outs, start = [], 0
    for size in chunks:
        now = slice(start, start + size)
        out, same = kind.attend(q[:, :, now], k[:, :, now], v[:, :, now], cache)
        assert same is cache, "attention must hand back the cache it was given"
        outs.append(out)
        start += size
    return torch.cat(outs, dim=2)


@law("attend", case=cases)
def every_split_equals_the_full_pass(kind, case):
    q, k, v = case.tensors()
    want = attend_by_loop(q, k, v, kind.window, kind.sinks)
    bound = max(TOLERANCE[case.dtype], kind.output_bound)
    for chunks in ([case.seq_len], [1] * case.seq_len, case.chunks):
        got = attend_in_chunks(kind, kind.make(case.seq_len), q, k, v, chunks)
        assert got.dtype == case.dtype
        assert_close(got, want, bound, f"chunks {chunks}")


@law("attend", case=cases)
def one_token_at_a_time_equals_the_full_pass(kind, case):
    q, k, v = case.tensors()
    want = attend_by_loop(q, k, v, kind.window, kind.sinks)
    cache = kind.make(case.seq_len)
    got = attend_in_chunks(kind, cache, q, k, v, [1] * case.seq_len)
    assert cache.seq_len == case.seq_len
    assert_close(got, want, max(TOLERANCE[case.dtype], kind.output_bound), "token by token")


@law("attend", case=cases)
def unwritten_memory_is_never_read(kind, case):
    q, k, v = case.tensors()
    with unwritten_memory_is_nan():
        got = attend_in_chunks(kind, kind.make(case.seq_len + 9), q, k, v, case.chunks)
    assert torch.isfinite(got).all(), "an unwritten slot was read"
    want = attend_by_loop(q, k, v, kind.window, kind.sinks)
    assert_close(got, want, max(TOLERANCE[case.dtype], kind.output_bound), "poisoned buffer")


@law("attend", case=cases, dropped=st.integers(1, 4), share=st.floats(0, 1))
def attention_after_crop_equals_fresh(kind, case, dropped, share):
    q, k, v = case.tensors()
    cache = kind.make(case.seq_len + dropped)
    kept = int(share * (case.seq_len - 1))
    if kept:
        kind.attend(q[:, :, :kept], k[:, :, :kept], v[:, :, :kept], cache)
    wrong = torch.full_like(k[:, :, :1], float("nan")).repeat(1, 1, dropped, 1)
    cache.update(wrong, wrong)  # a draft that will be thrown away, as bad as can be
    cache.crop(kept)
    got, _ = kind.attend(q[:, :, kept:], k[:, :, kept:], v[:, :, kept:], cache)
    want = attend_by_loop(q[:, :, kept:], k, v, kind.window, kind.sinks)
    assert_close(got, want, max(TOLERANCE[case.dtype], kind.output_bound), "after crop")


@law("attend", case=cases)
def attention_after_reset_equals_fresh(kind, case):
    q, k, v = case.tensors()
    cache = kind.make(case.seq_len)
    wrong = torch.full_like(k, float("nan"))
    cache.update(wrong, wrong)
    cache.reset()
    got = attend_in_chunks(kind, cache, q, k, v, case.chunks)
    want = attend_by_loop(q, k, v, kind.window, kind.sinks)
    assert_close(got, want, max(TOLERANCE[case.dtype], kind.output_bound), "after reset")


@law(
    "model",
    heads=st.sampled_from(HEADS),
    dtype=st.sampled_from(list(LOGIT_TOLERANCE)),
    batch_size=st.integers(1, 3),
    chunks=chunk_sizes,
    seed=st.integers(0, 99),
)
def a_model_with_caches_equals_the_model_without(kind, heads, dtype, batch_size, chunks, seed):
    model = tiny_model(kind.model, heads, dtype)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(19, (batch_size, sum(chunks)), generator=generator)
    want = logits_without_cache(kind, model, tokens)
    for split in (chunks, [1] * sum(chunks)):
        caches = model.make_caches(lambda: kind.make(sum(chunks)))
        parts = [model(part, caches) for part in tokens.split(split, dim=1)]
        bound = max(LOGIT_TOLERANCE[dtype], kind.output_bound)
        assert_close(torch.cat(parts, dim=1), want, bound, f"chunks {split}")
        assert [cache.seq_len for cache in caches] == [sum(chunks)] * 3


@law(
    "model",
    applies=lambda kind: not kind.sinks,
    heads=st.sampled_from(HEADS),
    dtype=st.sampled_from(list(LOGIT_TOLERANCE)),
    shares=st.lists(st.floats(0, 1), min_size=2, max_size=3),
    chunks=chunk_sizes,
    seed=st.integers(0, 99),
)
def a_padded_batch_equals_each_sequence_alone(kind, heads, dtype, shares, chunks, seed):
    model = tiny_model(kind.model, heads, dtype)
    length = sum(chunks)
    padding = [int(share * (length - 1)) for share in shares]
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(19, (len(shares), length), generator=generator)
    caches = model.make_caches(lambda: kind.make(length))
    parts = [model(x, caches, left_padding=padding) for x in tokens.split(chunks, dim=1)]
    got = torch.cat(parts, dim=1)
    assert torch.isfinite(got).all(), "a padded position is not finite"
    bound = max(LOGIT_TOLERANCE[dtype], kind.output_bound)
    for i, pad in enumerate(padding):
        alone = logits_without_cache(kind, model, tokens[i : i + 1, pad:])[0]
        assert_close(got[i, pad:], alone, bound, f"sequence {i} behind {pad} of padding")


@law("attend", case=cases)
def attention_changes_none_of_its_inputs(kind, case):
    inputs = case.tensors()
    before = [x.clone() for x in inputs]
    attend_in_chunks(kind, kind.make(case.seq_len), *inputs, case.chunks)
    assert all(map(torch.equal, inputs, before)), "the caller's tensors were written to"


@law(chunks=chunk_sizes)
def update_returns_every_row_in_order(kind, chunks):
    shadow = Shadow(kind)
    for size in chunks:
        shadow.update(size)

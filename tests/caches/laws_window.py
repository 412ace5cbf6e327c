"""Laws of the window, and of undoing: what leaves, what stays, and what can be had back."""

from __future__ import annotations

from contextlib import suppress

import torch
from hypothesis import strategies as st

from kvlib.generation import prefill
from tests.caches.by_hand import logits_without_cache
from tests.caches.law import law
from tests.caches.laws_input import Interrupt, failing, refuse
from tests.caches.laws_literal import column
from tests.caches.laws_parity import LOGIT_TOLERANCE, assert_close, tiny_model
from tests.caches.reference import Shadow, chunk_sizes

NAN = float("nan")


def windowed(kind) -> bool:
    """Say whether a cache lets rows go."""
    return kind.window is not None


def visible(cache, num_new: int, num_keys: int) -> list[list[int]] | None:
    """Return the mask of a chunk as rows of 0 and 1."""
    mask = cache.visible(num_new, num_keys, torch.device("cpu"))
    return None if mask is None else mask.int().tolist()


@law(applies=lambda kind: (kind.window, kind.sinks) == (3, 0))
def literal_window(kind):
    cache = kind.make(9)
    assert cache.update(column(1), column(10))[0].flatten().tolist() == [1]
    assert cache.update(column(2, 3), column(20, 30))[1].flatten().tolist() == [10, 20, 30]
    assert cache.update(column(4), column(40))[0].flatten().tolist() == [2, 3, 4]
    assert cache.update(column(5, 6), column(50, 60))[1].flatten().tolist() == [30, 40, 50, 60]
    assert visible(cache, 2, 4) == [[1, 1, 1, 0], [0, 1, 1, 1]]
    assert visible(cache, 1, 3) is None, "a single token sees all it is given"
    assert (cache.seq_len, cache.stored_len) == (6, 4)


@law(applies=lambda kind: (kind.window, kind.sinks) == (2, 2))
def literal_sinks(kind):
    cache = kind.make(9)
    assert cache.update(column(1, 2, 3), column(10, 20, 30))[0].flatten().tolist() == [1, 2, 3]
    assert cache.update(column(4), column(40))[0].flatten().tolist() == [1, 2, 3, 4]
    assert cache.update(column(5), column(50))[1].flatten().tolist() == [10, 20, 40, 50]
    k, _ = cache.update(column(6, 7, 8), column(60, 70, 80))
    assert k.flatten().tolist() == [1, 2, 5, 6, 7, 8]
    assert visible(cache, 3, 6) == [[1, 1, 1, 1, 0, 0], [1, 1, 0, 1, 1, 0], [1, 1, 0, 0, 1, 1]]
    assert (cache.seq_len, cache.stored_len) == (8, 6)
    assert cache.update(column(9), column(90))[0].flatten().tolist() == [1, 2, 8, 9]


@law(before=chunk_sizes, dropped=st.integers(1, 30), after=chunk_sizes)
def the_last_update_can_always_be_undone(kind, before, dropped, after):
    shadow = Shadow(kind)
    for size in before:
        shadow.update(size)
        shadow.update(dropped, fill=NAN)
        shadow.crop(shadow.undo)
    for size in after:
        shadow.update(size)


@law(chunks=chunk_sizes, share=st.floats(0, 1), after=chunk_sizes)
def a_crop_is_right_or_refused(kind, chunks, share, after):
    shadow = Shadow(kind)
    for size in chunks:
        shadow.update(size)
    length, state = int(share * len(shadow.rows)), kind.state(shadow.cache)
    try:
        shadow.cache.crop(length)
    except ValueError as error:
        assert length not in shadow.lengths(), f"crop({length}) was refused: {error}"
        assert kind.state(shadow.cache) == state, "a refused crop changed the cache"
    else:
        shadow.crop(length)
    for size in after:
        shadow.update(size)


@law(
    chunks=chunk_sizes,
    operation=st.integers(0, 25),
    num_new=st.integers(1, 12),
    share=st.floats(0, 1),
    after=chunk_sizes,
)
def an_interrupt_leaves_no_stale_rows(kind, chunks, operation, num_new, share, after):
    shadow = Shadow(kind)
    for size in chunks:
        shadow.update(size)
    k, v = shadow.new(num_new)
    try:
        with Interrupt(operation):
            shadow.cache.update(k, v)
    except KeyboardInterrupt:
        shadow.check_length()
    else:
        shadow.append(k, v)
    with suppress(ValueError):  # what an interrupted update let go is gone
        shadow.crop(int(share * len(shadow.rows)))
    for size in after:
        shadow.update(size)


@law(chunks=chunk_sizes, num_new=st.integers(1, 20), share=st.floats(0, 1))
def what_came_back_stays_until_the_next_update(kind, chunks, num_new, share):
    shadow = Shadow(kind)
    for size in chunks:
        shadow.update(size)
    got = shadow.update(num_new)
    was = [x.clone() for x in got]
    lengths = shadow.lengths()
    shadow.fork().update(num_new)
    shadow.crop(lengths[int(share * (len(lengths) - 1))])
    assert all(map(torch.equal, got, was)), "rows in the caller's hands were written over"


@law(applies=windowed, chunks=chunk_sizes, num_new=st.integers(1, 30))
def a_window_holds_its_rows_and_few_more(kind, chunks, num_new):
    """After a token just those in sight; after a chunk at most a window more, or what stood before it."""
    shadow, whole = Shadow(kind), kind.sinks + kind.window
    for size in [*chunks, num_new]:
        shadow.update(size)
        row = 2 * shadow.rows[0][0].nbytes
        assert shadow.cache.nbytes <= 2 * whole * row, f"after a chunk of {size}"
        fork = shadow.fork()
        fork.update(1)
        assert fork.cache.nbytes == min(len(fork.rows), whole) * row, "after a token"


@law("model", applies=lambda kind: kind.sinks > 0, held=st.integers(0, 3), num_new=st.integers(1, 9))
def padding_in_front_of_sinks_is_refused(kind, held, num_new):
    model = tiny_model(kind.model, (4, 2), torch.float32)
    caches = model.make_caches(lambda: kind.make(40))
    tokens = torch.arange(2 * (held + num_new)).view(2, -1) % 19
    if held:
        model(tokens[:, :held], caches)
    new, valid = tokens[:, held:], torch.ones(2, held + num_new, dtype=torch.bool)
    k = torch.zeros(2, 2, num_new, 4)
    mistakes = {
        "padding": lambda: model(new, caches, left_padding=[0, 1]),
        "a mask of padding": lambda: kind.attend(k, k, k, caches[0], valid),
    }
    refuse(mistakes, lambda: [kind.state(cache) for cache in caches])
    got = model(new, caches, left_padding=[0, 0])
    want = logits_without_cache(kind, model, tokens)[:, held:]
    assert_close(got, want, LOGIT_TOLERANCE[torch.float32], "after padding was refused")


@law("model", applies=lambda kind: kind.unrotated, chunks=chunk_sizes)
def unrotated_keys_take_a_text_of_any_length(kind, chunks):
    model = tiny_model(kind.model, (4, 2), torch.float64)  # of 48 positions
    tokens = torch.randint(19, (1, 50 + sum(chunks)), generator=torch.Generator().manual_seed(0))
    want = logits_without_cache(kind, model, tokens)
    caches = model.make_caches(lambda: kind.make(0))
    got = [model(part, caches) for part in tokens.split([50, *chunks], dim=1)]
    assert_close(torch.cat(got, dim=1), want, LOGIT_TOLERANCE[torch.float64], "past the positions")


@law(
    "model",
    held=st.integers(0, 9),
    chunk_size=st.integers(1, 3),
    when=st.integers(0, 4),
    layer=st.integers(0, 2),
    error=st.sampled_from([RuntimeError("no memory"), KeyboardInterrupt()]),
)
def a_failed_prefill_leaves_every_cache_as_it_was(kind, held, chunk_size, when, layer, error):
    model = tiny_model(kind.model, (4, 2), torch.float32)
    caches = model.make_caches(lambda: kind.make(40))
    tokens = torch.randint(19, (2, held + 15), generator=torch.Generator().manual_seed(held))
    if held:
        model(tokens[:, :held], caches)
    twins = [cache.fork() for cache in caches]
    calls = iter(range(when + 1))
    try:
        with failing(model.layers[layer].mlp, error, unless=lambda: next(calls) < when):
            prefill(model, tokens[:, held:], caches, chunk_size=chunk_size)
    except (RuntimeError, KeyboardInterrupt) as caught:
        assert caught is error
    assert [cache.seq_len for cache in caches] == [held] * 3, "rows of a failed prefill stayed"
    for part in tokens[:, held:].split(4, dim=1):
        assert torch.equal(model(part, caches), model(part, twins)), "a failed prefill left a trace"


@law("model", num_new=st.integers(1, 9), layer=st.integers(0, 2))
def a_failed_first_pass_leaves_the_caches_as_new(kind, num_new, layer):
    model = tiny_model(kind.model, (4, 2), torch.float32)
    caches = model.make_caches(lambda: kind.make(9))
    tokens = torch.arange(2 * num_new).view(2, -1) % 19
    try:
        with failing(model.layers[layer].mlp, RuntimeError("no memory")):
            model(tokens, caches)
    except RuntimeError:
        pass
    assert [cache.nbytes for cache in caches] == [0] * 3, "a failed first pass left its buffers"
    got = model(tokens[:1], caches)  # of another batch size
    bound = max(LOGIT_TOLERANCE[torch.float32], kind.output_bound)
    assert_close(got, logits_without_cache(kind, model, tokens[:1]), bound, "after a failed first pass")

"""Laws of bad input: a ValueError with a sentence, and nothing changed.

Also of interrupts: a pass that fails half way leaves every cache as long as it was.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from kvlib import attention_with_kv_cache, generate
from tests.caches.by_hand import logits_without_cache
from tests.caches.law import law
from tests.caches.laws_parity import LOGIT_TOLERANCE, assert_close, tiny_model
from tests.caches.reference import Shadow


def refuse(mistakes: dict, state, what: str = "") -> None:
    """Assert that each mistake raises ValueError with a sentence, and leaves `state()` alone."""
    for name, mistake in mistakes.items():
        before = state()
        try:
            mistake()
        except ValueError as error:
            assert len(str(error).split()) >= 4, f"{name}: {error!s} is no sentence"
        else:
            raise AssertionError(f"{name} was accepted{what}")
        assert state() == before, f"{name} was refused, but something had changed by then"


@law(held=st.integers(0, 3), num_new=st.integers(1, 3))
def bad_rows_are_refused(kind, held, num_new):
    shadow = Shadow(kind)
    if held:
        shadow.update(held)
    k, v = shadow.new(num_new)
    update, wide = shadow.cache.update, torch.cat([k, k], dim=3)
    mistakes = {
        "v of fewer tokens": lambda: update(torch.cat([k, k], dim=2), v),
        "v of another head dimension": lambda: update(k, wide),
        "v of another batch": lambda: update(k, v[:1]),
        "v of other heads": lambda: update(k, v[:, :1]),
        "v of another dtype": lambda: update(k, v.double()),
        "v on another device": lambda: update(k, v.to("meta")),
        "no tokens": lambda: update(k[:, :, :0], v[:, :, :0]),
        "an empty batch": lambda: update(k[:0], v[:0]),
        "three dimensions": lambda: update(k[0], v[0]),
        "five dimensions": lambda: update(k[None], v[None]),
        "whole numbers": lambda: update(k.long(), v.long()),
        "a list for k": lambda: update(k.tolist(), v),
        "None for v": lambda: update(k, None),
    }
    if held:
        mistakes |= {
            "a smaller batch": lambda: update(k[:1], v[:1]),
            "a larger batch": lambda: update(k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1)),
            "fewer heads": lambda: update(k[:, :1], v[:, :1]),
            "more heads": lambda: update(k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)),
            "a smaller head dimension": lambda: update(k[..., :1], v[..., :1]),
            "a larger head dimension": lambda: update(wide, wide),
            "a wider dtype": lambda: update(k.double(), v.double()),
            "a narrower dtype": lambda: update(k.half(), v.half()),
            "another device": lambda: update(k.to("meta"), v.to("meta")),
        }
    refuse(mistakes, lambda: kind.state(shadow.cache))
    shadow.update(num_new)  # and the cache still works


@law(
    applies=lambda kind: kind.limited,
    room=st.integers(1, 6),
    share=st.floats(0, 1),
    extra=st.integers(1, 3),
)
def more_than_fits_is_refused(kind, room, share, extra):
    shadow = Shadow(kind, room)
    held = int(share * room)
    if held:
        shadow.update(held)
    k, v = shadow.new(room - held + extra)
    refuse({"an overflow": lambda: shadow.cache.update(k, v)}, lambda: kind.state(shadow.cache))
    for _ in range(room - held):
        shadow.update(1)
    k, v = shadow.new(1)
    refuse({"one too many": lambda: shadow.cache.update(k, v)}, lambda: kind.state(shadow.cache))
    shadow.reset()
    shadow.update(room)  # all of it fits, to the last slot


@law(held=st.integers(0, 4))
def bad_crops_are_refused(kind, held):
    shadow = Shadow(kind)
    if held:
        shadow.update(held)
    wrong = [-1, -held - 1, held + 1, held + 100, 0.5, 1.0, None, True, "1"]
    crop = shadow.cache.crop
    mistakes = {f"crop({length!r})": lambda length=length: crop(length) for length in wrong}
    refuse(mistakes, lambda: kind.state(shadow.cache))
    shadow.update(1)


@law("attend", held=st.integers(0, 3), num_new=st.integers(1, 3))
def bad_queries_are_refused(kind, held, num_new):
    shadow = Shadow(kind)
    if held:
        shadow.update(held)
    k, v = shadow.new(num_new)
    q = k.repeat_interleave(2, dim=1)  # (2, 4, t, 2)
    valid = torch.ones(2, held + num_new, dtype=torch.bool)

    def attend(*args):
        return lambda: kind.attend(*args)

    cache = shadow.cache
    mistakes = {
        "three query heads over two": attend(q[:, :3], k, v, cache),
        "fewer query heads than KV heads": attend(q[:, :1], k, v, cache),
        "another batch": attend(q[:1], k, v, cache),
        "another head dimension": attend(torch.cat([q, q], dim=3), k, v, cache),
        "another dtype": attend(q.double(), k, v, cache),
        "another device": attend(q.to("meta"), k, v, cache),
        "more queries than new keys": attend(torch.cat([q, q], dim=2), k, v, cache),
        "no queries": attend(q[:, :, :0], k, v, cache),
        "three dimensions": attend(q[0], k, v, cache),
        "v unlike k": attend(q, k, v[..., :1], cache),
        "padding of another batch": attend(q, k, v, cache, valid[:1].repeat(3, 1)),
        "padding of one sequence": attend(q, k, v, cache, valid[:1]),
        "padding of fewer keys": attend(q, k, v, cache, valid[:, 1:]),
        "padding that is not bool": attend(q, k, v, cache, valid.float()),
    }
    if num_new > 1:
        mistakes["fewer queries than new keys"] = attend(q[:, :, 1:], k, v, cache)
    refuse(mistakes, lambda: kind.state(cache))
    shadow.update(num_new)


@law("model", held=st.integers(0, 3), num_new=st.integers(1, 3))
def bad_model_input_is_refused(kind, held, num_new):
    model = tiny_model(kind.model, (4, 2), torch.float32)
    caches = model.make_caches(lambda: kind.make(40))
    tokens = torch.arange(2 * (held + num_new)).view(2, -1) % 19
    if held:
        model(tokens[:, :held], caches)
    new = tokens[:, held:]

    def run(*args, **options):
        return lambda: model(*args, **options)

    other = [kind.make(40) for _ in caches]
    other[1].update(torch.zeros(2, 2, held + 1, 4), torch.zeros(2, 2, held + 1, 4))
    mistakes = {
        "an empty prompt": run(new[:, :0], caches),
        "an empty batch": run(new[:0], caches),
        "an empty prompt to generate": lambda: generate(model, [], 1, cache=caches),
        "one empty prompt of two": lambda: generate(model, [[1], []], 1, cache=caches),
        "tokens in one dimension": run(new[0], caches),
        "tokens that are floats": run(new.float(), caches),
        "a list": run(new.tolist(), caches),
        "a token past the vocabulary": run(new + 19, caches),
        "a negative token": run(new - 19, caches),
        "too few caches": run(new, caches[:2]),
        "too many caches": run(new, caches + [kind.make(40)]),
        "one cache in two layers": run(new, [caches[0], caches[0], caches[2]]),
        "layers that disagree": run(new, [caches[0], other[1], caches[2]]),
        "padding for too few": run(new, caches, left_padding=[0]),
        "negative padding": run(new, caches, left_padding=[0, -1]),
    }
    if not kind.unrotated:  # whose text may be of any length
        mistakes["more tokens than positions"] = run(new[:, :1].repeat(1, 49), caches)
    if held:
        mistakes["a smaller batch"] = run(new[:1], caches)
        mistakes["a larger batch"] = run(new.repeat(2, 1), caches)
    refuse(mistakes, lambda: [kind.state(cache) for cache in caches + other])
    got = model(new, caches)
    bound = max(LOGIT_TOLERANCE[torch.float32], kind.output_bound)
    assert_close(got, logits_without_cache(kind, model, tokens)[:, held:], bound, "after bad input")


@contextmanager
def failing(module, error, unless=lambda: False):
    """Raise `error` when `module` is about to run, save where `unless` says no."""

    def fail(*_):
        if not unless():
            raise error

    hook = module.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        hook.remove()


@law(
    "model",
    place=st.sampled_from(["attention_norm", "attention", "mlp_norm", "mlp", "last norm"]),
    layer=st.integers(0, 2),
    error=st.sampled_from([RuntimeError("no memory"), KeyboardInterrupt()]),
    held=st.integers(0, 3),
    num_new=st.integers(1, 3),
)
def a_pass_that_fails_leaves_every_cache_as_long_as_before(
    kind, place, layer, error, held, num_new
):
    model = tiny_model(kind.model, (4, 2), torch.float32)
    caches = model.make_caches(lambda: kind.make(8))
    tokens = torch.arange(2 * (held + num_new)).view(2, -1) % 19
    if held:
        model(tokens[:, :held], caches)
    module = model.norm if place == "last norm" else getattr(model.layers[layer], place)
    try:
        with failing(module, error):
            model(tokens[:, held:], caches)
    except (RuntimeError, KeyboardInterrupt) as caught:
        assert caught is error
    assert [cache.seq_len for cache in caches] == [held] * 3, "a layer kept rows of a failed pass"
    got = model(tokens[:, held:], caches)
    bound = max(LOGIT_TOLERANCE[torch.float32], kind.output_bound)
    assert_close(got, logits_without_cache(kind, model, tokens)[:, held:], bound, "after a failed pass")


@law(
    "model",
    applies=lambda kind: kind.limited,
    layer=st.integers(0, 2),
    held=st.integers(1, 3),
)
def one_full_layer_leaves_the_others_as_long_as_before(kind, layer, held):
    model = tiny_model(kind.model, (4, 2), torch.float32)
    rooms = iter([held if i == layer else 8 for i in range(3)])
    caches = model.make_caches(lambda: kind.make(next(rooms)))
    tokens = torch.arange(held)[None]
    model(tokens, caches)
    lengths = lambda: [cache.seq_len for cache in caches]  # noqa: E731
    refuse({"a token too many for one layer": lambda: model(tokens[:, :1], caches)}, lengths)


class Interrupt(TorchDispatchMode):
    """Raise KeyboardInterrupt at the n-th tensor operation."""

    def __init__(self, operation: int):
        super().__init__()
        self.left = operation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return func(*args, **(kwargs or {}))


@law(place=st.sampled_from(["update", "attend"]), operation=st.integers(0, 15))
def a_first_pass_that_fails_binds_the_cache_to_nothing(kind, place, operation):
    """Rows of another batch, heads and dtype are taken afterwards, as by a new cache."""
    cache = kind.make(8)
    k = torch.ones(3, 1, 2, 4, dtype=torch.float64)
    try:
        if place == "update":
            with Interrupt(operation):
                cache.update(k, k)
        else:
            attention_with_kv_cache(k, k, k, cache, attend=_no_memory)
    except (KeyboardInterrupt, RuntimeError):
        shadow = Shadow(kind)
        assert cache.seq_len == 0, "rows of a failed pass were counted"
        shadow.cache = cache
        shadow.update(2)
        assert cache.nbytes == kind.storage_bytes(cache)


def _no_memory(*_):
    raise RuntimeError("no memory")


@law(operation=st.integers(0, 15), held=st.integers(0, 9), num_new=st.integers(1, 3))
def an_interrupted_update_appends_nothing(kind, operation, held, num_new):
    shadow = Shadow(kind)
    if held:
        shadow.update(held)
    k, v = shadow.new(num_new)
    try:
        with Interrupt(operation):
            shadow.cache.update(k, v)
    except KeyboardInterrupt:
        assert shadow.cache.seq_len == held, "rows of an interrupted update were counted"
    else:
        shadow.append(k, v)
    shadow.update(1)

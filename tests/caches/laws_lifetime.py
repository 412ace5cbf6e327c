"""Laws of a cache's life: reset, crop and fork never leak one text into another."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from kvlib import attention_with_kv_cache
from tests.caches.law import law
from tests.caches.reference import Shadow, chunk_sizes, steps

NAN = float("nan")


@law(chunks=chunk_sizes, dropped=st.integers(1, 3), share=st.floats(0, 1))
def crop_then_continue_equals_fresh(kind, chunks, dropped, share):
    shadow = Shadow(kind)
    for size in chunks:
        shadow.update(size)
    lengths = shadow.lengths()
    length = lengths[int(share * (len(lengths) - 1))]
    shadow.crop(length)
    shadow.update(dropped, fill=NAN)
    shadow.crop(length)  # the last update can always be undone
    for size in chunks:
        shadow.update(size)


@law(chunks=chunk_sizes)
def reset_then_continue_equals_fresh(kind, chunks):
    shadow = Shadow(kind)
    for _ in range(2):
        shadow.update(sum(chunks), fill=NAN)
        shadow.reset()
        assert shadow.cache.stored_len == 0
        for size in chunks:
            shadow.update(size)
        shadow.reset()


@law(held=st.integers(0, 4), taken=steps)
def a_forks_parent_is_unchanged_bit_for_bit(kind, held, taken):
    parent = Shadow(kind)
    if held:
        parent.update(held)
    before = kind.state(parent.cache)
    child = parent.fork()
    assert child.cache is not parent.cache
    assert kind.state(parent.cache) == before, "forking changed the parent"
    for step in [*taken, ("update", 1)]:
        child.do(step)
    assert kind.state(parent.cache) == before, "what the fork did changed its parent"
    parent.update(1)


@law(held=st.integers(0, 4), taken=steps)
def a_fork_is_unchanged_by_its_parent(kind, held, taken):
    parent = Shadow(kind)
    if held:
        parent.update(held)
    child = parent.fork()
    before = kind.state(child.cache)
    for step in [*taken, ("update", 1)]:
        parent.do(step)
    assert kind.state(child.cache) == before, "what the parent did changed its fork"
    child.update(1)
    child.fork().update(1)  # a fork can be forked


@law(applies=lambda kind: kind.limited, room=st.integers(2, 5), share=st.floats(0, 1))
def a_fork_has_the_room_of_its_parent(kind, room, share):
    parent = Shadow(kind, room)
    held = int(share * room)
    if held:
        parent.update(held)
    child = parent.fork()
    if held < room:
        child.update(room - held)
    try:
        child.cache.update(*child.new(1))
    except ValueError:
        return
    raise AssertionError("a fork took more than its parent has room for")


@law(
    modes=st.lists(st.booleans(), min_size=2, max_size=5),
    back=st.sampled_from(["crop", "reset", "fork"]),
)
def a_cache_serves_inside_and_outside_of_inference_mode(kind, modes, back):
    shadow = Shadow(kind)
    for inside in [*modes, not modes[-1]]:
        with torch.inference_mode(inside):
            shadow.update(2)
            if back == "crop":
                shadow.crop(shadow.lengths()[-1])
                shadow.do(("crop", 0.9))
            elif back == "reset" and inside:
                shadow.reset()
            elif back == "fork":
                shadow = shadow.fork()
        assert not any(x.is_inference() for x in kind.held(shadow.cache)), "rows that cannot be written later"
    k, v = shadow.new(1)
    q = k.repeat_interleave(2, dim=1).requires_grad_()  # PyTorch saves the rows for the gradient of a query
    out, _ = attention_with_kv_cache(q, k, v, shadow.cache)
    out.sum().backward()
    assert q.grad is not None


@law()
class any_order_of_steps_equals_a_list(RuleBasedStateMachine):  # noqa: N801
    """Update, crop, reset and fork in any order, beside plain lists that do the same."""

    kind = None
    shadows = Bundle("shadows")

    def __init__(self):
        super().__init__()
        self.all = []

    def keep(self, shadow):
        self.all.append(shadow)
        return shadow

    @initialize(target=shadows)
    def make(self):
        return self.keep(Shadow(self.kind, room=120))

    @rule(shadow=shadows, num_new=st.integers(1, 4), fill=st.sampled_from([None, None, NAN]))
    def update(self, shadow, num_new, fill):
        shadow.update(num_new, fill)

    @rule(shadow=shadows, share=st.floats(0, 1))
    def crop(self, shadow, share):
        shadow.do(("crop", share))

    @rule(shadow=shadows)
    def reset(self, shadow):
        shadow.reset()

    @rule(target=shadows, shadow=shadows)
    def fork(self, shadow):
        return self.keep(shadow.fork())

    @invariant()
    def lengths_and_bytes_agree(self):
        for shadow in self.all:
            shadow.check_length()
            assert shadow.cache.nbytes == self.kind.storage_bytes(shadow.cache)

    def teardown(self):
        for shadow in self.all:
            if len(shadow.rows) < 116:
                shadow.update(1)

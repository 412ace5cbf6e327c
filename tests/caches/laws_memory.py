"""Laws of memory: whose it is, where it lies, how much there is, and what it never carries."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.caches.law import law
from tests.caches.reference import Shadow, chunk_sizes, steps


@law(taken=steps)
def nbytes_is_the_storage_really_held(kind, taken):
    shadow = Shadow(kind)
    for step in [("update", 2), *taken]:
        shadow.do(step)
        nbytes = shadow.cache.nbytes
        assert type(nbytes) is int, f"nbytes is a {type(nbytes).__name__}"
        held = kind.storage_bytes(shadow.cache)
        assert nbytes == held, f"nbytes says {nbytes}, {held} are held"


@law(chunks=chunk_sizes, layout=st.sampled_from(["plain", "transposed", "expanded", "sliced"]))
def the_callers_tensors_are_copied(kind, chunks, layout):
    shadow = Shadow(kind)
    for size in chunks:
        k, v = shadow.new(size)
        if layout == "transposed":
            k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
        elif layout == "expanded":
            k, v = (x[:, :1].expand_as(x) for x in (k, v))
        elif layout == "sliced":
            k, v = (torch.cat([x, x], dim=2)[:, :, :size] for x in (k, v))
        got = shadow.cache.update(k, v)
        shadow.append(k, v)
        shadow.compare(got, size)
        nbytes = kind.storage_bytes(shadow.cache)
        assert shadow.cache.nbytes == nbytes, f"{layout} rows: {nbytes} bytes are held"
        for x in (k, v):
            (x[:, :1] if layout == "expanded" else x).fill_(99.0)
    shadow.update(1)


@law(applies=lambda kind: kind.fixed, taken=steps)
def a_fixed_buffer_never_moves(kind, taken):
    shadow = Shadow(kind, room=32)
    before = [x.data_ptr() for x in shadow.update(1)]
    nbytes = shadow.cache.nbytes
    for step in [*taken, ("update", 1)]:
        shadow.do(step)
        assert shadow.cache.nbytes == nbytes
    assert [x.data_ptr() for x in shadow.update(1)] == before, "the buffer moved"


@law(applies=lambda kind: kind.fixed, chunks=chunk_sizes)
def a_write_through_a_view_lands_in_the_buffer(kind, chunks):
    shadow = Shadow(kind)
    for size in chunks:
        k, v = shadow.update(size)
        k[:, :, -1], v[:, :, -1] = 7.0, -7.0
        last = [x[:, :, -1].clone() for x in (k, v)]
        shadow.rows[-1] = tuple(last)
    shadow.update(1)


@law(chunks=chunk_sizes, grad_enabled=st.booleans())
def nothing_carries_a_gradient(kind, chunks, grad_enabled):
    shadow = Shadow(kind)
    for size in chunks:
        k, v = (x.requires_grad_() for x in shadow.new(size))
        with torch.set_grad_enabled(grad_enabled):
            got = shadow.cache.update(k * 2, v * 2)
        shadow.append(k * 2, v * 2)
        shadow.compare(got, size)
        for x in [*got, *kind.held(shadow.cache), *kind.held(shadow.cache.fork())]:
            assert not x.requires_grad and x.grad_fn is None, "a cached row carries a gradient"


class NoPeeking(TorchDispatchMode):
    """Refuse every operation that turns tensor contents into Python numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "is_nonzero", "equal"}, (
            f"{name}: the cache looked at what it holds"
        )
        return func(*args, **(kwargs or {}))


@law(taken=steps, fill=st.sampled_from([0.0, float("nan"), float("inf")]))
def lengths_are_ints_never_read_off_contents(kind, taken, fill):
    cache, length = kind.make(64), 0
    rows = torch.full((2, 2, 3, 2), fill)
    with NoPeeking():
        for name, number in [("update", 3), *taken]:
            if name == "update":
                cache.update(rows[:, :, : int(number)], rows[:, :, : int(number)])
                length += int(number)
            elif name == "crop":
                lengths = kind.crops(length)
                length = lengths[int(number * (len(lengths) - 1))]
                cache.crop(length)
            else:
                cache.reset()
                length = 0
            for got in (cache.seq_len, cache.stored_len, cache.fork().seq_len):
                assert type(got) is int, f"a length is a {type(got).__name__}"
            assert cache.seq_len == length, f"seq_len is {cache.seq_len} after {length} tokens"
            if kind.window is None:
                assert cache.stored_len == length
            else:
                assert cache.stored_len <= length

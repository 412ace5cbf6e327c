"""All or nothing: caches that hold, after a failure, what they held before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def unchanged_on_failure(caches: Sequence | None, *, updates: int = 1) -> Iterator[None]:
    """Give every cache its old content where the block raises, also on an interrupt.

    `updates` says how often the block appends. Where that is more than `crop` undoes exactly, a cache
    that holds tokens is forked first: a window could not have back the rows it lets go. A cache that
    was new is new again, free to take rows of another shape. An object without `crop` stays as it is.
    """
    before = [
        (cache, cache.seq_len, _is_new(cache), _fork(cache, updates))
        for cache in caches or ()
        if hasattr(cache, "seq_len") and hasattr(cache, "crop")
    ]
    try:
        yield
    except BaseException as error:
        for state in before:
            try:
                _restore(*state)
            except BaseException as second:  # the other layers still need their rows back
                error.add_note(f"a cache could not be restored: {second!r}")
        raise


def _is_new(cache) -> bool:
    return hasattr(cache, "release") and getattr(cache, "_rows", cache) is None


def _fork(cache, updates: int):
    return cache.fork() if cache.seq_len and updates > getattr(cache, "undoes", updates) else None


def _restore(cache, seq_len: int, was_new: bool, fork) -> None:
    if was_new:
        cache.release()
    elif cache.seq_len > seq_len:
        try:
            if fork is None or cache.undoes:  # a crop that is not refused is exact, and moves no buffer
                return cache.crop(seq_len)
        except ValueError:
            if fork is None:
                raise
        vars(cache).clear()
        vars(cache).update(vars(fork))  # the same object for whoever holds it

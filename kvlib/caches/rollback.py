"""All or nothing: caches that hold, after a failure, what they held before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvlib.caches.contract import Cache


@contextmanager
def unchanged_on_failure(caches: Sequence | None, *, updates: int = 1) -> Iterator[None]:
    """Give every cache its old content where the block raises, also on an interrupt.

    `updates` says how often the block appends at most. A cache that was new is new again, free to take
    rows of another shape. An object without `crop` stays as it is.
    """
    restores = [
        _undo(cache, updates)
        for cache in caches or ()
        if hasattr(cache, "seq_len") and hasattr(cache, "crop")
    ]
    try:
        yield
    except BaseException as error:
        for restore in restores:
            try:
                restore()
            except BaseException as second:  # the other layers still need their rows back
                error.add_note(f"a cache could not be restored: {second!r}")
        raise


def _undo(cache, updates: int) -> Callable[[], None]:
    if hasattr(cache, "release") and getattr(cache, "_rows", cache) is None:
        return cache.release
    if hasattr(cache, "savepoint"):
        return cache.savepoint(updates)
    return Cache.savepoint(cache)  # a cache written by someone else

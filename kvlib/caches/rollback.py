"""All or nothing: caches that hold, after a failure, what they held before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kvlib.caches.contract import Cache


@contextmanager
def unchanged_on_failure(caches: Sequence | None) -> Iterator[None]:
    """Give every cache its old content where the block raises, also on an interrupt.

    A cache that was new is new again. An object without `crop` stays as it is.
    """
    restores = [
        cache.savepoint() if isinstance(cache, Cache) else Cache.savepoint(cache)  # or someone else's
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

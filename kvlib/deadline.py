"""A time limit around a block of code, also around code that never looks at a clock."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeUp(BaseException):
    """Say that a block took longer than it may; no Exception, so that `except Exception` lets it by."""


@contextmanager
def time_limit(seconds: float) -> Iterator[Callable[[], None]]:
    """Raise TimeUp in the block once it has taken this long.

    In the main thread of Linux and macOS a timer's signal does it, between two bytecodes; elsewhere
    it happens when the block calls what this yields. Call that now and then all the same: the code
    inside may swallow the signal's exception. Raises ValueError for a time that is none.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"A time limit is a number of seconds above 0, not {seconds!r}.")
    begun = time.perf_counter()

    def up(*_) -> None:
        raise TimeUp(f"It took longer than {seconds:g} s.")

    def check() -> None:
        if time.perf_counter() - begun >= seconds:
            up()

    if not _can_signal():
        yield check
        return
    outer_handler = signal.signal(signal.SIGALRM, up)
    outer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again every second, if swallowed

    def end() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer_handler)

    try:
        try:
            yield check
        finally:
            end()
    finally:  # where the signal came just as the block ended, between the two
        end()
        if outer[0]:  # somebody else's timer goes on where it was
            left = outer[0] - (time.perf_counter() - begun)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), outer[1])


def _can_signal() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

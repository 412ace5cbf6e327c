"""Show how far a long cell is, to a person; what is stored and compared stays free of it."""

import html
import os
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from IPython.display import display

T = TypeVar("T")
QUIET = "KVLIB_NO_PROGRESS"  # set to 1 where nobody watches: tests and builds do
REDRAW_S = 0.2


def progress_bar(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield the items one by one, with a bar under the cell that goes when the last one is done.

    label: what is being done, in a few words. total: how many items there are, where `len` cannot
    tell. The bar also goes when the loop is left early, by an error or an interrupt.
    """
    if os.environ.get(QUIET) == "1":
        yield from items
        return
    total = len(items) if total is None and hasattr(items, "__len__") else total
    shown = display(_bar(label, 0, total), raw=True, display_id=True)
    try:
        drawn = time.monotonic()
        for done, item in enumerate(items, 1):
            yield item
            if time.monotonic() - drawn >= REDRAW_S:
                shown.update(_bar(label, done, total), raw=True)
                drawn = time.monotonic()
    finally:
        shown.update({"text/html": ""}, raw=True)


def _bar(label: str, done: int, total: int | None) -> dict[str, str]:
    """Return the bar after `done` of `total` items (None: unknown), and the same in words."""
    words = f"{label}: {done}" if total is None else f"{label}: {done} of {total}"
    limits = "" if total is None else f' value="{done}" max="{max(total, 1)}"'
    bar = f'<progress aria-label="{html.escape(label, quote=True)}"{limits}></progress>'
    return {"text/html": f"<div>{bar} {html.escape(words)}</div>", "text/plain": words}

"""Large memory pages for large tensors.

A processor looks up where each page of memory lies. With pages of 4 KB a gigabyte has 262,144 of them, more
than it remembers, and the looking up slows the reading; with pages of 2 MB it has 512. Linux
gives large pages to memory that asks for them (madvise, transparent huge pages); elsewhere nothing changes.
"""

from __future__ import annotations

import ctypes
import functools
import sys

from torch import Tensor

SMALL_PAGE, LARGE_PAGE = 4096, 2 << 20
_MADV_HUGEPAGE = 14


def ask_for_large_pages(fresh: Tensor) -> Tensor:
    """Ask the system to back a tensor on a CPU by large pages; return the tensor.

    To be called before anything is written into it. It is a wish: where it is not granted, and for
    tensors smaller than one large page, everything works as before.
    """
    madvise = _madvise()
    if madvise is None or fresh.device.type != "cpu" or fresh.nbytes < LARGE_PAGE:
        return fresh
    first = -(-fresh.data_ptr() // SMALL_PAGE) * SMALL_PAGE
    last = (fresh.data_ptr() + fresh.nbytes) // SMALL_PAGE * SMALL_PAGE
    madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)
    return fresh


@functools.cache
def _madvise():
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "madvise", None)

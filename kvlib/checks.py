"""Checks that many arguments need."""

from __future__ import annotations

import sys
from collections.abc import Iterable


def check_whole(name: str, value, least: int = 1) -> None:
    """Raise ValueError, with the argument's name, unless `value` is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def whole(name: str, value, least: int = 1) -> int:
    """Return a whole number, also of NumPy or torch, as an int; raise ValueError as `check_whole` does."""
    value = value.item() if getattr(value, "shape", None) == () else value
    check_whole(name, value, least)
    return value


def check_number(name: str, value, *, or_zero: bool = False) -> None:
    """Raise ValueError, with the argument's name, unless `value` is a finite number above 0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= sys.float_info.max
        or (value == 0 and not or_zero)
    ):
        least = "of at least 0" if or_zero else "above 0"
        raise ValueError(f"{name} must be a finite number {least}, not {value!r:.60}")


def token_ids(name: str, ids) -> list[int]:
    """Return token ids as a list of ints, or raise ValueError with the argument's name.

    Takes a list, set, iterator, tensor or array of whole numbers of at least 0, and no nested ones.
    """
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(ids, (str, bytes, dict)) or not isinstance(ids, Iterable):
        raise ValueError(f"{name} must be a list of token ids, not {ids!r:.60}")
    found = [x.tolist() if hasattr(x, "tolist") else x for x in ids]
    for x in found:
        if isinstance(x, bool) or not isinstance(x, int) or x < 0:
            raise ValueError(f"{name} must hold token ids, whole numbers of at least 0, not {x!r:.60}")
    return found

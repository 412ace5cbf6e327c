"""What a panel is given, checked before anything is made of it: every refusal is a ValueError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real

from matplotlib.colors import is_color_like


def one_of(what: str, value, known: Iterable):
    """Return the known value that equals this one; ValueError where none does. True is no 1."""
    known = list(known)
    for item in known:
        kind = Integral if isinstance(item, int) else type(item)
        if isinstance(value, kind) and not isinstance(value, bool) and value == item:
            return item
    raise ValueError(f"{what} {shown(value)} is not one of: {', '.join(map(str, known))}.")


def whole_between(what: str, value, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`; ValueError for everything else."""
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= value <= most:
        return int(value)
    raise ValueError(f"{what} {shown(value)} is not one of {least} to {most:,}.")


def listed(what: str, values) -> list:
    """Return what a list holds; ValueError for a text and for what is no list."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{what} must be a list, and {shown(values)} is none.")
    return list(values)


def curve(label, seconds, color) -> None:
    """Check one more curve of the live lab: a text, context -> seconds, and a colour."""
    if not isinstance(label, str):
        raise ValueError(f"The label of a curve must be a text, and {shown(label)} is none.")
    if not is_color_like(color):
        raise ValueError(f"{shown(color)} is no colour.")
    if not isinstance(seconds, Mapping):
        raise ValueError(f"A curve is a dict, context -> seconds, not a {type(seconds).__name__}.")
    for context, time in seconds.items():
        for number in (context, time):
            if not isinstance(number, Real) or isinstance(number, bool) or not 0 < number < math.inf:
                raise ValueError(
                    f"A curve is contexts and seconds, finite and above 0, not {context!r}: {time!r}."
                )


def shown(value) -> str:
    """Return a value as a message shows it: short, whatever it is."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"

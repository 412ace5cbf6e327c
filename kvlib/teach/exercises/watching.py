"""Watch an answer while it is judged: what it was given, whether it changed that, what it gave twice."""

import copy
import inspect
import math
import re
import sys
from contextlib import nullcontext

import numpy as np

ENOUGH = 40  # calls that are kept, to be looked at again
FEW = 12  # so many numbers of an array are written out,
LINE = 24  # and so many of all arrays of a call


class Watched:
    """An answer that is called like the function itself, on copies of all that it must not change.

    `names` are the names of its arguments, of which it may change those in `changes`. A result that
    holds `...` raises `unfinished`. `open_call` tells the call that has not returned.
    """

    def __init__(self, candidate, names, changes=(), unfinished=NotImplementedError):
        self.candidate, self.names, self.changes, self.unfinished = candidate, names, changes, unfinished
        self.open_call: str | None = None
        self._changed: str | None = None
        self._calls: list[tuple] = []  # arguments, the result itself, a copy of it

    def __call__(self, *arguments):
        with _outside_modes():
            before, handed = _copy(arguments), list(_copy(arguments))
            self.open_call = told = self.told(arguments)
        for place, name in self._placed(arguments):
            if name in self.changes:
                handed[place] = arguments[place]
        result = self.candidate(*handed)
        self.open_call = None
        if _holds_ellipsis(result):
            raise self.unfinished
        with _outside_modes():
            for place, name in self._placed(arguments):
                if name not in self.changes and not same(handed[place], before[place]):
                    self._changed = self._changed or (
                        f"the call changes `{name}`, which it was given: make a new value and leave the "
                        f"argument as it is. This was with {told}"
                    )
            if len(self._calls) < ENOUGH:
                self._calls.append((before, result, _copy(result)))
        return result

    def told(self, arguments) -> str:
        """Write the arguments of a call, "T=7, D=4"; of arrays that would fill lines, the shapes."""
        sizes = (math.prod(x.shape) for x in arguments if _is_array(x))
        most = FEW if sum(size for size in sizes if size <= FEW) <= LINE else 0
        return ", ".join(
            f"{name}={show_input(arguments[place], most)}" for place, name in self._placed(arguments)
        )

    def trouble(self) -> str | None:
        """Say what is wrong with an answer whose results were right, or None; calls it again."""
        if self._changed:
            return self._changed
        for arguments, result, kept in self._calls:
            if not same(result, kept):
                return _REUSED.format(self.told(arguments))
            self.open_call = self.told(arguments)
            again = self.candidate(*_copy(arguments))
            self.open_call = None
            if not same(again, kept, near=True):
                return (
                    f"called twice with {self.told(arguments)} it gives {show(kept)}, then {show(again)}: "
                    "a call must not depend on the calls before it"
                )
            if not same(result, kept):
                return _REUSED.format(self.told(arguments))
        return None

    def _placed(self, arguments):
        return list(zip(range(len(arguments)), self.names))


_REUSED = (
    "a later call changes the result of an earlier one, given for {}: make a new result in each call, "
    "in no buffer that is kept"
)


# What an answer is --------------------------------------------------------------------------------


def whole(value) -> int | None:
    """Return a whole number as an int, None for anything else.

    Ints of Python, NumPy and PyTorch, floats without a fraction, and arrays without an axis are taken;
    bools, texts, fractions and arrays of one number are not.
    """
    value = _scalar(value)
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def number(value) -> float | None:
    """Return a real number as a float (also nan and inf), None for anything else."""
    value = _scalar(value)
    try:
        return None if value is None else float(value)
    except OverflowError:  # an int too large for a float
        return math.inf if value > 0 else -math.inf


def why_not_whole(value, what: str) -> str:
    """Say why `value` is no whole number; `what` names it, as in "the number of tokens"."""
    if value is None:
        return f"it returns nothing: is a `return` missing? {_opened(what)} is a whole number"
    if isinstance(value, str | bytes):
        return f"{what} must be a number: {show(value)} is text, so leave the quotes out"
    if isinstance(value, bool | np.bool_):
        return f"{what} must be a whole number, not True or False"
    if getattr(value, "shape", None):
        return f"{what} must be one whole number, not an array of the shape {tuple(value.shape)}"
    real = number(value)
    if real is None:
        return f"{what} must be one whole number"
    if not math.isfinite(real):
        return f"{what} must be a whole number: is something divided by 0, or too large?"
    return f"{what} must be a whole number, and {show(value)} has a fraction"


def rounded(value, wanted: int) -> str | None:
    """Say that a float was too short for a right count, or None where that is not what is wrong."""
    kind = str(getattr(value, "dtype", "float64" if isinstance(value, float) else "")).removeprefix("torch.")
    if kind not in _DIGITS or (given := whole(value)) is None or given == wanted:
        return None
    bits = _DIGITS[kind]
    if abs(wanted) < 2**bits or abs(given - wanted) > 2 ** (abs(wanted).bit_length() - bits):
        return None
    return f"{kind} holds whole numbers exactly up to 2**{bits} only, so this one is rounded: count in ints"


_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def array(value) -> np.ndarray | None:
    """Return an answer's numbers in float64: arrays, tensors, lists of numbers; None for anything else."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = (value if value.is_complex() else value.double()).numpy()
        made = np.asarray(value)
        return made.astype(np.float64) if made.dtype.kind in "fiu" else None
    except (TypeError, ValueError, RuntimeError):
        return None


def precision(value) -> tuple[float, float]:
    """Return (eps, tiny) of the precision an answer is in; float64 where it has no dtype of its own."""
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if kind == "bfloat16":
        return 2.0**-7, 2.0**-126
    info = np.finfo(kind if kind in ("float16", "float32") else "float64")
    return float(info.eps), float(info.tiny)


def _scalar(value) -> int | float | None:
    """Return a Python int or float from whatever holds one number and no axis, else None."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _opened(text: str) -> str:
    return text[:1].upper() + text[1:]


# How it is told -----------------------------------------------------------------------------------


def show(value, limit: int = 60) -> str:
    """Write a learner's value for a message: short, with no memory address."""
    try:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    except Exception:
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _is_array(value) -> bool:
    return getattr(value, "shape", None) is not None and hasattr(value, "dtype")


def show_input(value, most: int = FEW) -> str:
    """Write an argument for a message: an array of `most` numbers in full, of a larger one the shape."""
    if _is_array(value):
        shape = value.shape
        if math.prod(shape) > most or (numbers := array(value)) is None:
            return f"a {tuple(shape)} array"
        return str(np.round(numbers, 3).tolist())
    if type(value) is int:
        return f"{value:,}"
    if type(value).__repr__ is object.__repr__ or inspect.isroutine(value):
        name = type(value).__name__
        return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
    return show(value, 100)


# Alike --------------------------------------------------------------------------------------------


def same(a, b, near: bool = False) -> bool:
    """Say whether two values are equal, nan to nan; `near` lets a float round otherwise.

    Objects whose insides are unknown count as the same.
    """
    if hasattr(a, "detach") and hasattr(b, "detach"):
        return a.dtype == b.dtype and same(_numpy(a), _numpy(b), near)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.dtype.kind not in "fc":
            return a.dtype.kind == "O" or np.array_equal(a, b)
        return np.allclose(a, b, rtol=1e-3 * near, atol=1e-6 * near, equal_nan=True)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y, near) for x, y in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key], near) for key in a)
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        return bool(a == b or (a != a and b != b) or (near and math.isclose(a, b, rel_tol=1e-3)))
    if isinstance(a, _PLAIN) or isinstance(b, _PLAIN):
        return type(a) is type(b) and a == b
    return True


_PLAIN = (int, str, bytes, complex, set, frozenset, type(None))


def _numpy(tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


def _copy(value):
    try:
        return copy.deepcopy(value)
    except Exception:  # a generator, a module, a tensor inside a graph
        return value


def _outside_modes():
    """Return a context in which a judge that counts PyTorch's operations does not count ours."""
    if "torch" not in sys.modules:
        return nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _holds_ellipsis(value) -> bool:
    if isinstance(value, tuple | list):
        return any(_holds_ellipsis(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_ellipsis(item) for item in value.values())
    return value is ...

"""Read what an answer returned: some whole numbers, a list of positions, a tensor of any library."""

from __future__ import annotations

import math
from numbers import Rational

from kvlib.teach.exercises.watching import array, number, rounded, show, whole, why_not_whole


class Answer:
    """How a result is read, compared and told; `what` names it, as in "the number of tokens".

    `tells` writes the right result after a wrong one: "{} s". A subclass has `read`, and what differs.
    """

    ways = (lambda right: right,)  # a right answer is the right result in one of these ways in all cases

    def __init__(self, what: str, tells: str = "") -> None:
        self.what, self.tells = what, tells

    def of(self, *case):
        """Return what reads the result of this case, where it depends on the case what is right."""
        return self

    def read(self, result):
        """Return the result in the form that is compared, or say in a text what is wrong with it."""
        raise NotImplementedError

    def same(self, given, wanted) -> bool:
        return given == wanted

    def like(self, made, given) -> bool:
        """Say whether a known mistake, which made this, is the one of an answer that gives that."""
        return self.same(made, given)

    def short(self, result, wanted) -> str | None:
        """Say that a float had too few digits for a right answer, or None."""
        return None

    def write(self, result, wanted) -> str:
        """Write a wrong result, read or not, for a message."""
        told = self.tells and not isinstance(self.read(result), str)
        return f"{show(result)}, and it is {self.tells.format(wanted)}" if told else show(result)

    def tell(self, result, wanted) -> str:
        """Say what a wrong result is."""
        return f"it gives {self.write(result, wanted)}"


class Parts(Answer):
    """A result of several parts with these names, in order."""

    def __init__(self, *names: str) -> None:
        super().__init__(", ".join(names))
        self.names = names


class Whole(Answer):
    """A result that is one whole number."""

    def read(self, result) -> int | str:
        return why_not_whole(result, self.what) if whole(result) is None else whole(result)

    def short(self, result, wanted) -> str | None:
        return rounded(result, wanted)


class Rounded(Whole):
    """A whole number that is got by rounding: of a fraction, or one `off`, the mistake is named, too."""

    def __init__(self, what: str, tells: str = "", off: int = 0) -> None:
        super().__init__(what, tells)
        self.off = off

    def read(self, result) -> int | float | str:
        real = number(result)
        if real is None or not math.isfinite(real):
            return why_not_whole(result, self.what)
        return real if whole(result) is None else whole(result)

    def like(self, made, given) -> bool:
        if isinstance(made, float):
            return math.isclose(made, given, rel_tol=1e-6)
        return abs(made - given) < 1 + self.off


class Real(Answer):
    """A result that is one number, whole or not; `what` asks for it, "a number of bits"."""

    def read(self, result) -> float | str:
        exact = isinstance(result, Rational) and not isinstance(result, bool)
        given = float(result) if exact else number(result)
        return given if given is not None and math.isfinite(given) else f"return {self.what}"

    def same(self, given, wanted) -> bool:
        return math.isclose(given, wanted, rel_tol=1e-6)


class Reals(Parts):
    """A result of several numbers of `unit`, whole or not, with these names, in order."""

    def __init__(self, unit: str, *names: str) -> None:
        super().__init__(*names)
        self.unit = unit

    def read(self, result) -> list[float] | str:
        parts = result.tolist() if hasattr(result, "tolist") else result
        if not isinstance(parts, tuple | list) or len(parts) != len(self.names):
            many = {2: "two", 3: "three"}.get(len(self.names), len(self.names))
            return f"return {many} numbers, ({', '.join(self.names)})"
        numbers = [number(part) for part in parts]
        for name, real, part in zip(self.names, numbers, parts):
            if real is None or not math.isfinite(real):
                return f"`{name}` must be a number of {self.unit}, not {show(part)}"
        return numbers

    def same(self, given, wanted) -> bool:
        near = (math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in zip(given, wanted))
        return len(given) == len(wanted) and all(near)

    def wrong(self, given, wanted) -> tuple[str, float, float]:
        """Return name, value and right value of the first number that is wrong."""
        return next(part for part in zip(self.names, given, wanted) if not self.same(part[1:2], part[2:]))

    def tell(self, result, wanted) -> str:
        if isinstance(given := self.read(result), str):
            return f"it gives {show(result)}"
        return "`{}` is {:.4g} and should be {:.4g}".format(*self.wrong(given, wanted))


class Counts(Parts):
    """A result of several whole numbers with these names, in order: a tuple, a list or an array."""

    def read(self, result) -> list[int] | str:
        parts = list(result) if isinstance(result, tuple | list) or getattr(result, "shape", None) else None
        if parts is None or len(parts) != len(self.names):
            return f"return {len(self.names)} numbers, ({', '.join(self.names)})"
        for name, part in zip(self.names, parts):
            if part is None:
                return f"`{name}` is None; it is a whole number"
            if whole(part) is None:
                return why_not_whole(part, f"`{name}`")
        return [whole(part) for part in parts]

    def short(self, result, wanted) -> str | None:
        return next(filter(None, map(rounded, result, wanted)), None)


class Positions(Answer):
    """A result that lists positions, counted in `what`: anything with an order."""

    def read(self, result) -> list[int] | str:
        if isinstance(result, set | frozenset):
            return f"return a list of {self.what}: a set has no order"
        try:
            parts = None if isinstance(result, str | bytes | dict) else list(result)
        except TypeError:
            parts = None
        if parts is None:
            return f"return a list of {self.what}"
        if any(str(getattr(part, "dtype", type(part).__name__)).endswith("bool") for part in parts):
            return f"return the {self.what} themselves, whole numbers, not True or False for each"
        if any(whole(part) is None for part in parts):
            return f"{self.what} are whole numbers"
        return [whole(part) for part in parts]

    def write(self, result, wanted) -> str:
        return show(result, 90)


class Bools(Answer):
    """A result that is a tensor of bools, told as its `what`; a rule may judge its shape and dtype."""

    def read(self, result):
        return result if hasattr(result, "detach") else "return a tensor of bools"

    def same(self, given, wanted) -> bool:
        return given.dtype == wanted.dtype and given.equal(wanted)

    def write(self, result, wanted) -> str:
        if not hasattr(result, "detach"):
            return show(result)
        if result.dtype != wanted.dtype or result.shape != wanted.shape:
            return f"a {tuple(result.shape)} tensor of {result.dtype}"
        return f"the {self.what} " + ", ".join("".join("01"[x] for x in row) for row in result.tolist())


class Tensors(Parts):
    """A result of several tensors with these names, right within what their precision allows."""

    def read(self, result):
        if not isinstance(result, tuple | list) or len(result) != len(self.names):
            return f"return {_WORDS[len(self.names)]} tensors, ({', '.join(self.names)})"
        parts = [tensor(part) for part in result]
        for name, part in zip(self.names, parts):
            if part is None:
                return f"`{name}` must be a tensor"
            if error_allowed(part) is None:
                return f"`{name}` is {part.dtype}: {SIXTEEN}"
        return parts

    def same(self, given, wanted) -> bool:
        return self._wrong(given, wanted) is None

    def like(self, made, given) -> bool:  # inf may come of any mistake
        return all(part.isfinite().all() for part in given) and self.same(made, given)

    def _wrong(self, given, wanted) -> int | None:
        allowed = max(error_allowed(part, *wanted) for part in (*given, *wanted))
        pairs = enumerate(zip(given, wanted))
        return next((i for i, (a, b) in pairs if not near(a, b.double(), allowed)), None)

    def write(self, result, wanted) -> str:
        """Write the first tensor that is wrong, and what it should be."""
        given = self.read(result)
        if isinstance(given, str):
            return show(result)
        i = self._wrong(given, wanted)
        alike = given[i].shape == wanted[i].shape
        return f"`{self.names[i]}` " + (
            unlike(given[i], wanted[i]) if alike else f"of shape {tuple(given[i].shape)}"
        )


_WORDS = {2: "two", 3: "three"}
SIXTEEN = "16 bits are too few here, stay in the precision that is given"


def tensor(value):
    """Return a tensor of an answer's numbers, whatever holds them, in its own precision; None if none do."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    numbers = array(value)
    if numbers is None:
        return None
    kind = getattr(torch, str(getattr(value, "dtype", "float64")), torch.float64)
    return torch.from_numpy(numbers).to(kind)


def error_allowed(x, *inputs) -> float | None:
    """Return how far an answer in the precision of x may be off for these inputs; None below float32."""
    import torch

    if x.dtype in (torch.float16, torch.bfloat16):
        return None
    eps = torch.finfo(x.dtype if x.dtype == torch.float32 else torch.float64).eps
    finite = (part[part.isfinite()].double().abs() for part in inputs)
    largest = max((float(part.max()) for part in finite if part.numel()), default=0.0)
    return 16 * eps * (1 + largest)


def near(x, wanted, allowed: float) -> bool:
    """Say whether a tensor is right; `allowed` is relative to numbers above 1 and absolute below."""
    import torch

    x = x.double()
    return x.shape == wanted.shape and torch.allclose(x, wanted, rtol=allowed, atol=allowed)


def unlike(x, wanted) -> str:
    """Write two tensors, "[1.5], not [1.5001]", with as many digits as it takes to tell them apart."""
    for digits in range(4, 18):
        a, b = ([float(f"{n:.{digits}g}") for n in t.double().flatten().tolist()] for t in (x, wanted))
        if str(a) != str(b):
            break
    return f"{show(a, 90)}, not {show(b, 90)}"

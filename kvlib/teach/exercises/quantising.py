"""The exercise that turns groups of numbers into codes, and its check."""

from __future__ import annotations

from kvlib.teach.exercises.contract import Exercise, Verdict, cell, correct, not_yet
from kvlib.teach.exercises.reading import SIXTEEN, error_allowed, tensor
from kvlib.teach.exercises.watching import show

ROWS = (
    (0.0, 1.0, 2.0, 3.0),
    (-1.0, 0.4, 0.1, 2.0),
    (5.0, 5.2, 5.1, 5.6),
    (-3.0, -3.0, -3.0, -3.0),
    (-0.02, 0.01, 0.0, 0.03),
)


def _check(candidate) -> Verdict:
    import torch  # the registry itself is read without it

    for rows in (ROWS, ROWS[1:2]):  # several groups, and one
        x = torch.tensor(rows, dtype=torch.float64)
        for bits in (4, 8, 2):
            given = candidate(x.clone(), bits)
            if mistake := _form_mistake(given, x, bits) or _mistake(given, x, bits):
                return not_yet(mistake)
    return correct("no number is off by more than half a step of its own row")


def _form_mistake(given, x, bits: int) -> str | None:
    """Say what is wrong with the kind, order or shape of what was returned, or None."""
    if not isinstance(given, tuple | list) or len(given) != 3:
        return f"return three things, (codes, scale, zero), not {show(given)}"
    parts = [tensor(part) for part in given]
    if any(part is None for part in parts):
        return "codes, scale and zero are tensors"
    right = [tuple(x.shape), (len(x), 1), (len(x), 1)]
    shapes = [tuple(part.shape) for part in parts]
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    wide, step = high > low, (high - low) / (2**bits - 1)  # a row of equal numbers may have any scale
    if shapes != right and sorted(shapes) == sorted(right) or (
        shapes == right and _close(parts[1], low) and _close(parts[2][wide], step[wide])
    ):
        return "these are three right things in another order: return (codes, scale, zero)"
    if shapes[0] != right[0]:
        return f"there is a code for each number, {right[0]}, not {shapes[0]}"
    for name, shape in zip(("scale", "zero"), shapes[1:]):
        if shape != right[1]:
            return (
                f"{name} has shape {shape}; each row has one of its own, ({len(x)}, 1): "
                "give amin and amax `dim=1, keepdim=True`"
            )
    for name, part in zip(("scale", "zero"), parts[1:]):
        if error_allowed(part) is None:
            return f"{name} is {part.dtype}: {SIXTEEN}"
    return None


def _mistake(given, x, bits: int) -> str | None:
    """Say what is wrong with codes, scale and zero of the right shapes, or None."""
    import torch

    levels, where = 2**bits - 1, f"with {bits} bits"
    kind = tensor(given[0]).dtype
    codes, scale, zero = (tensor(part).double() for part in given)
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    broken = ~torch.isfinite(torch.cat([codes, scale, zero], dim=1)).all(dim=1)
    if broken.any():
        i = int(broken.nonzero()[0])
        for name, part in (("scale", scale), ("zero", zero)):
            if torch.isfinite(codes[i]).all() and not torch.isfinite(part[i]).all():
                flat = ": in a row of equal numbers the scale may be 0" if low[i] == high[i] else ""
                row = f"for the row {x[i].tolist()}"
                return f"{where} {name} is {part[i].item()} {row}; it must be finite{flat}"
        why = "0 / 0 is no number" if low[i] == high[i] else "is something divided by 0?"
        about = f"its range is 0, and {why}. Any code will do there, such as 0" if low[i] == high[i] else why
        return f"{where} the row {x[i].tolist()} gives {show(codes[i].tolist())}: {about}"
    if (codes != codes.round()).any():
        return f"{where} a code is {codes[codes != codes.round()][0]:.3f}: round to whole numbers"
    worst = codes.min() if codes.min() < 0 else codes.max()
    if not 0 <= worst <= levels:
        if kind == torch.int8 and levels > 127:
            return f"{where} there is a code {worst:.0f}: int8 holds -128 to 127, and codes go up to {levels}"
        return f"{where} the codes are 0 to {levels}, and there is a {worst:.0f}"
    if not _close(zero, low):
        if len(x) > 1 and _close(zero, low.amin().expand_as(low)):
            return "zero is one for all rows; each row has its own smallest number"
        return "`zero` is the number that code 0 stands for: the smallest of the row"
    step, wide = (high - low) / levels, high > low  # a row of equal numbers may have any scale
    for wrong, meaning in (
        ((high - low) / (levels + 1), f"{levels + 1} codes have {levels} steps between them"),
        (
            (high - low).amax().expand_as(step) / levels,
            "scale is one for all rows; each row has its own range",
        ),
        (high - low, "the scale is the width of one step, not of the whole range"),
        (high / levels, "the range is from the smallest to the largest number, not from 0"),
    ):
        if not _close(step, wrong) and _close(scale[wide], wrong.expand_as(scale)[wide]):
            return f"{where}: {meaning}"
    error = (zero + codes * scale - x).abs()
    bound = scale.expand_as(x).abs() / 2 + max(error_allowed(tensor(part), x) for part in given[1:])
    if (error > bound).any():
        i, j = (error > bound).nonzero()[0].tolist()
        cut = _close(codes, ((x - low) / step.masked_fill(step == 0, 1)).floor())
        why = "zero + code * scale must be near it"
        if cut:
            why = "take the nearest code: `int` and floor cut off"
        return (
            f"{where} {x[i, j]:.2f} comes back as {(zero + codes * scale)[i, j]:.2f}, off by more than "
            f"half a step; {why}"
        )
    if not _close(scale[wide], step[wide]):
        return f"{where} the scale is (largest - smallest) / {levels} for each row"
    return None


def _close(a, b) -> bool:
    import torch

    return torch.allclose(a.double(), b, rtol=1e-5, atol=1e-9)


def _source(*lines: str) -> str:
    return cell("def quantise(x, bits):  # x (groups, numbers)", *lines)


_LOW, _HIGH = "low = x.amin(dim=1, keepdim=True)", "high = x.amax(dim=1, keepdim=True)"
_SCALE = "scale = (high - low) / (2**bits - 1)"
_STEP = "step = scale.masked_fill(scale == 0, 1)"
_CODES = "codes = ((x - low) / step).round()"
_BACK = "return codes, scale, low"

QUANTISE = Exercise(
    key="09-quantise",
    lesson=9,
    title="Groups of numbers in few bits",
    minutes=10,
    difficulty=2,
    importance=3,
    name="quantise",
    task="""
`x` is a tensor (groups, numbers). Each row is a group with a scale and a zero of its own. Return
`(codes, scale, zero)`: codes (groups, numbers) are whole numbers from 0 to 2**bits - 1, scale and zero are
(groups, 1), and zero + codes * scale is as near to x as possible.

Code 0 stands for the smallest number of its row and the largest code for the largest. A row of equal numbers
must work, too.""",
    hints=(
        "`zero` is the smallest number of each row: `x.amin(dim=1, keepdim=True)`.",
        "The scale is the range divided by the number of steps. 2**bits codes have 2**bits - 1 steps.",
        "The codes are (x - zero) / scale, rounded. Where the scale is 0, divide by 1 instead: "
        "`scale.masked_fill(scale == 0, 1)`.",
    ),
    stub=_source("zero = ...", "scale = ...", "codes = ...", "return codes, scale, zero"),
    solution=_source(_LOW, _HIGH, _SCALE, _STEP, _CODES, _BACK),
    judge=_check,
    wrong={
        "0 / 0": _source(_LOW, _HIGH, _SCALE, "codes = ((x - low) / scale).round()", _BACK),
        "floor": _source(_LOW, _HIGH, _SCALE, _STEP, "codes = ((x - low) / step).floor()", _BACK),
        "no rounding": _source(_LOW, _HIGH, _SCALE, _STEP, "codes = (x - low) / step", _BACK),
        "a step too many": _source(
            _LOW, _HIGH, "scale = (high - low) / 2**bits", _STEP, _CODES + ".clamp(0, 2**bits - 1)", _BACK
        ),
        "a code too many": _source(_LOW, _HIGH, "scale = (high - low) / 2**bits", _STEP, _CODES, _BACK),
        "one scale for all": _source(
            _LOW, "scale = (x.amax() - x.amin()).expand_as(low) / (2**bits - 1)", "step = scale", _CODES,
            _BACK,
        ),
        "one zero for all": _source(
            "low = x.amin().expand(len(x), 1)", _HIGH, _SCALE, _STEP, _CODES, _BACK
        ),
        "scalars": _source("low, high = x.amin(), x.amax()", _SCALE, _STEP, _CODES, _BACK),
        "from 0": _source(
            _LOW, _HIGH, "scale = high.abs() / (2**bits - 1)", _STEP,
            "codes = ((x - low) / step).round().clamp(0, 2**bits - 1)", _BACK,
        ),
        "signed codes": _source(_LOW, _HIGH, _SCALE, _STEP, "codes = (x / step).round()", _BACK),
        "zero in the middle": _source(
            "low = x.mean(dim=1, keepdim=True)", _HIGH, _SCALE, _STEP,
            "codes = ((x - low) / step).round().clamp(0, 2**bits - 1)", _BACK,
        ),
        "codes alone": _source(_LOW, _HIGH, _SCALE, _STEP, _CODES, "return codes"),
        "numbers, not codes": _source(
            _LOW, _HIGH, _SCALE, _STEP, _CODES, "return low + codes * scale, scale, low"
        ),
    },
)  # fmt: skip

"""The exercise that turns groups of numbers into codes, and its check."""

from __future__ import annotations

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet, show

ROWS = (
    (0.0, 1.0, 2.0, 3.0),
    (-1.0, 0.4, 0.1, 2.0),
    (5.0, 5.2, 5.1, 5.6),
    (-3.0, -3.0, -3.0, -3.0),
    (-0.02, 0.01, 0.0, 0.03),
)


def _check(candidate) -> Verdict:
    import torch  # the registry itself is read without it

    x = torch.tensor(ROWS, dtype=torch.float64)
    alike = next(i for i, row in enumerate(ROWS) if len(set(row)) == 1)
    for bits in (4, 8, 2):
        levels = 2**bits - 1
        given = candidate(x.clone(), bits)
        if not isinstance(given, tuple | list) or len(given) != 3:
            return not_yet(f"return three things, (codes, scale, zero), not {show(given)}")
        if not all(isinstance(part, torch.Tensor) for part in given):
            return not_yet("codes, scale and zero are tensors")
        codes, scale, zero = (part.double() for part in given)
        if tuple(codes.shape) != tuple(x.shape):
            return not_yet(f"there is a code for each number, {tuple(x.shape)}, not {tuple(codes.shape)}")
        for name, part in (("scale", scale), ("zero", zero)):
            if tuple(part.shape) != (len(x), 1):
                return not_yet(
                    f"{name} has shape {tuple(part.shape)}; each row has one of its own, ({len(x)}, 1): "
                    "give amin and amax `dim=1, keepdim=True`"
                )
        where = f"with {bits} bits"
        if not torch.isfinite(torch.cat([codes, scale, zero], dim=1)).all():
            return not_yet(
                f"{where} the row {list(ROWS[alike])} gives {show(codes[alike].tolist())}: its range is "
                "0, and 0 / 0 is no number. Any code will do there, such as 0"
            )
        if (codes != codes.round()).any():
            return not_yet(
                f"{where} a code is {codes[codes != codes.round()][0]:.3f}: round to whole numbers"
            )
        worst = codes.min() if codes.min() < 0 else codes.max()
        if not 0 <= worst <= levels:
            return not_yet(f"{where} the codes are 0 to {levels}, and there is a {worst:.0f}")
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        if not torch.allclose(zero, low):
            if torch.allclose(zero, low.amin().expand_as(low)):
                return not_yet("zero is one for all rows; each row has its own smallest number")
            return not_yet("`zero` is the number that code 0 stands for: the smallest of the row")
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
            if not torch.allclose(step, wrong) and torch.allclose(scale[wide], wrong.expand_as(scale)[wide]):
                return not_yet(f"{where}: {meaning}")
        error = (zero + codes * scale - x).abs()
        bound = scale.expand_as(x) / 2 + 1e-9
        if (error > bound).any():
            i, j = (error > bound).nonzero()[0].tolist()
            cut = torch.allclose(codes, ((x - low) / step.masked_fill(step == 0, 1)).floor())
            why = (
                "take the nearest code: `int` and floor cut off"
                if cut
                else "zero + code * scale must be near it"
            )
            return not_yet(
                f"{where} {x[i, j]:.2f} comes back as {(zero + codes * scale)[i, j]:.2f}, off by more than "
                f"half a step; {why}"
            )
        if not torch.allclose(scale[wide], step[wide]):
            return not_yet(f"{where} the scale is (largest - smallest) / {levels} for each row")
    return correct("no number is off by more than half a step of its own row")


def _source(*lines: str) -> str:
    return "def quantise(x, bits):  # x (groups, numbers)\n" + "".join(f"    {line}\n" for line in lines)


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
`(codes, scale, zero)`: codes as (groups, numbers), whole numbers from 0 to 2**bits - 1, and scale and
zero as (groups, 1), so that zero + codes * scale is as near to x as it can be.

Code 0 is the smallest number of its row, the largest code the largest. A row of equal numbers must
work, too.""",
    hints=(
        "`zero` is the smallest number of each row: `x.amin(dim=1, keepdim=True)`.",
        "The scale is the range over the number of steps, and 2**bits codes have one step fewer.",
        "codes: (x - zero) / scale, rounded. Where the scale is 0, divide by 1 instead: "
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

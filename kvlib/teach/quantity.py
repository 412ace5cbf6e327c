"""Numbers as people type them ("3 ms", "2,001,000", "1e9") and as a sentence shows them."""

import math
import re

_SCALES = (
    {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0},
    {"b": 1, "byte": 1, "bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
     "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
    {"b/s": 1, "kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9, "tb/s": 1e12},
)  # fmt: skip
_NUMBER = re.compile(
    r"""\s*(?P<number>[-+]?(?:\d[\d,_\s]*\.?\d*|\.\d+)(?:e[-+]?\d+)?)
        \s*(?:(?:\*\*|\^)\s*(?P<power>\d+))?
        \s*(?P<word>(?:thousand|million|billion|trillion)s?\b|k\b)?
        \s*(?P<unit>[^\d\s.,].*)?""",
    re.VERBOSE | re.IGNORECASE,
)
_WORDS = {"k": 1e3, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_GROUPED = re.compile(r"\d{1,3}(?:[,_\s]\d{3})+|\d+")


def parse_number(text: str, unit: str | None = None) -> float:
    """Read a number that a person typed; return it in `unit`.

    Accepts "3", "3 ms", "1e9", "2,001,000", "4 million", "4k", "2^30". A unit of the same kind is
    converted, as "3 s" to ms. Raises ValueError with a sentence that says what to type.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"That is not a number. Type {_example(unit)}.")
    digits = match["number"].strip()
    whole = re.split(r"[.eE]", digits.lstrip("+-"), maxsplit=1)[0]
    if whole and not _GROUPED.fullmatch(whole.strip()):
        raise ValueError(
            f"{digits!r} can be read in two ways. Write 3.5 with a point, or 3,500 for thousands."
        )
    value = float(re.sub(r"[,_\s]", "", digits))
    try:
        value = value ** int(match["power"]) if match["power"] else value
    except OverflowError:
        value = math.inf
    value *= _WORDS[match["word"].lower().rstrip("s")] if match["word"] else 1
    value *= _factor((match["unit"] or "").strip(), unit)
    if not math.isfinite(value):
        raise ValueError("That number is too large. Type a finite one.")
    return value


def show_number(value: float, unit: str | None = None) -> str:
    """Write a number for a sentence: thousands grouped, else three significant digits.

    What is whole, or has one decimal above a thousand, as 2,048.5, is shown as it is. After a 1 the unit
    is singular, and "times" an x.
    """
    if not math.isfinite(value):
        text = str(value)
    elif value == int(value) and abs(value) < 1e15:
        text = f"{int(value):,}"
    elif abs(value) >= 1e15 or abs(value) < 1e-4:
        text = f"{value:.3g}"
    elif abs(value) >= 1000 and value == round(value, 1):
        text = f"{value:,.1f}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{float(f'{value:.3g}'):.12g}"
    return f"{text} {_single(unit) if text == '1' else unit}" if unit else text


def _single(unit: str) -> str:
    """Return the unit as it follows a 1."""
    plural = len(unit) > 3 and unit.isalpha() and unit.endswith("s")  # tokens, but not ms or GB/s
    return "x" if unit == "times" else unit[:-1] if plural else unit


def _factor(given: str, wanted: str | None) -> float:
    if not given or (wanted and given.lower() in (wanted.lower(), _single(wanted).lower())):
        return 1.0
    if wanted and wanted.lower() in ("x", "times") and given.lower() in ("x", "times"):
        return 1.0
    for scale in _SCALES if wanted else ():
        if given.lower() in scale and wanted.lower() in scale:
            return scale[given.lower()] / scale[wanted.lower()]
    numbers = f"3 or 3 {wanted}" if wanted else "3"
    raise ValueError(f"Type one number, such as {numbers}; {given!r} cannot be read.")


def _example(unit: str | None) -> str:
    number = "a number in digits, like 3, 2.5, 1,500 or 4 million"
    return f"{number}; the unit, {unit}, may be left out" if unit else number

"""Lesson 09's checks: right answers written in other ways, and wrong ones that look like them."""

import pytest

from kvlib.teach.exercises import define
from kvlib.teach.exercises.lesson09 import BITS, KEEP
from kvlib.teach.exercises.quantising import QUANTISE

QUANTISE_SOURCE = """
import torch


def quantise(x, bits):
    low, high = x.amin(dim=1, keepdim=True), x.amax(dim=1, keepdim=True)
    scale = {scale}
    return {codes}, scale, low
"""
STEP = "((high - low) / (2**bits - 1))"
CODES = "((x - low) / scale).round()"


@pytest.mark.parametrize(
    "scale",
    [
        f"{STEP}.masked_fill(high == low, 1)",
        f"{STEP}.clamp_min(1e-6)",
        f"torch.where(high > low, {STEP}, 7.0)",
    ],
)
@pytest.mark.parametrize("codes", [CODES, f"{CODES}.to(torch.uint8)"])
def test_the_scale_of_equal_numbers_is_free(scale, codes):
    verdict = QUANTISE.check(define("quantise", QUANTISE_SOURCE.format(scale=scale, codes=codes)))
    assert verdict, verdict


@pytest.mark.parametrize(
    ("scale", "codes", "words"),
    [
        (f"{STEP}.clamp_min(1e-6)", f"{CODES} + (high == low)", "off by more than half a step"),
        (f"{STEP}.masked_fill(high == low, 1) / 2", f"{CODES}.clamp(0, 2**bits - 1)", "off by more"),
        (f"{STEP} * 1.01 + (high == low)", CODES, "the scale is (largest - smallest) / 15 for each row"),
        (f"{STEP} * 0 + 1", f"{CODES}.clamp(0, 2**bits - 1)", "the scale is"),
        ("(high - low) / 2**bits + (high == low)", CODES, "there is a 16"),
        (STEP, CODES, "0 / 0 is no number"),
    ],
)
def test_a_wrong_row_is_told_all_the_same(scale, codes, words):
    verdict = QUANTISE.check(define("quantise", QUANTISE_SOURCE.format(scale=scale, codes=codes)))
    assert not verdict and words in verdict.message, verdict


RIGHT = "[j for j in range(n) if j < S or n - j < W]"


def keep(expression: str):
    source = f"import numpy as np\nimport torch\n\n\ndef rows_to_keep(n, W, S):\n    return {expression}\n"
    return KEEP.check(define("rows_to_keep", source))


@pytest.mark.parametrize(
    "form", ["{}", "tuple({})", "sorted(set({}))", "torch.tensor({}, dtype=torch.int64)",
             "np.array({}, dtype=np.int32)", "list(np.array({}, dtype=int))", "iter({})",
             "list(torch.tensor({}))", "np.array({}, dtype=float)"],
)  # fmt: skip
def test_positions_in_any_order_keeping_container_are_taken(form):
    verdict = keep(form.format(RIGHT))
    assert verdict, verdict


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (f"set({RIGHT})", "a set has no order"),
        (f"frozenset({RIGHT})", "a set has no order"),
        (f"np.array({RIGHT}, dtype=float) + 0.5", "whole numbers"),
        (f"torch.tensor([{RIGHT}])", "whole numbers"),
        ("torch.tensor([j < S or n - j < W for j in range(n)])", "whole numbers"),
        ("np.array([j < S or n - j < W for j in range(n)])", "whole numbers"),
        (f"[str(j) for j in {RIGHT}] + [0]", "whole numbers"),
        ("[j for j in range(n) if n - j < W]", "the first S tokens stay"),
        ("torch.tensor(n)", "a list of positions"),
        ("None", "a list of positions"),
        (f"np.array({RIGHT}, dtype=int)[::-1]", "count up"),
    ],
)
def test_other_contents_are_not(expression, words):
    verdict = keep(expression)
    assert not verdict and words in verdict.message, verdict


@pytest.mark.parametrize(
    ("form", "right"),
    [
        ("bits + Fraction(2 * w, group)", True),
        ("torch.tensor(bits + 2 * w / group)", True),
        ("np.float32(bits + 2 * w / group)", True),
        ("np.array(bits + 2 * w / group)", True),
        ("bits + Fraction(w, group)", False),
        ("torch.tensor(bits)", False),
        ("torch.tensor([bits + 2 * w / group])", False),
        ("complex(bits + 2 * w / group)", False),
        ("torch.tensor(True)", False),
        ("float('nan')", False),
    ],
)
def test_bits_as_any_number(form, right):
    source = (
        "from fractions import Fraction\n\nimport numpy as np\nimport torch\n\n\n"
        f"def bits_per_number(bits, group, w):\n    return {form}\n"
    )
    verdict = BITS.check(define("bits_per_number", source))
    assert bool(verdict) is right and "raised" not in verdict.message, verdict

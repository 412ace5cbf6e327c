"""Numbers as words: three digits, never an exponent."""

import pytest

from kvlib.lab.style import format_ratio


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.5, "0.5"), (1.04, "1"), (1.26, "1.3"), (9.96, "10"), (99.4, "99"), (99.7, "99.7"), (1123.4, "1,123")],
)
def test_a_ratio_has_no_exponent(ratio, text):
    assert format_ratio(ratio) == text

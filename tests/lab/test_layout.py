"""Labels keep their distance, ticks are round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.lab import style
from kvlib.lab.layout import decade_ticks, round_down, round_up, spread

places = st.lists(st.floats(-500, 900, allow_nan=False), min_size=1, max_size=8)


@given(places)
def test_spread_keeps_the_gap_the_order_and_the_bounds(wanted):
    placed = spread(wanted, 17, 100, 400)
    ordered = sorted(placed)
    assert all(b - a >= 17 - 1e-6 for a, b in zip(ordered, ordered[1:], strict=False))
    assert ordered[0] >= 100 - 1e-6 and ordered[-1] <= 400 + 1e-6
    ranks = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    assert [placed[i] for i in ranks] == sorted(placed)


def test_spread_leaves_what_is_apart_where_it_is():
    assert spread([300.0, 150.0, 220.0], 17, 100, 400) == [300.0, 150.0, 220.0]


def test_spread_refuses_more_labels_than_fit():
    with pytest.raises(ValueError, match="do not fit"):
        spread([0.0] * 10, 17, 0, 100)


@given(st.floats(1e-7, 1e15), st.floats(1.5, 1e9))
def test_ticks_are_few_and_inside(low, factor):
    low, high = round_down(low), round_up(low * factor)
    ticks = decade_ticks(low, high)
    assert 1 <= len(ticks) <= 7
    assert low * 0.99 <= ticks[0] and ticks[-1] <= high * 1.01


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (983_040, "983 kB"), (377_487_360, "377 MB"), (999_990_000, "1 GB"),
     (10_737_418_240, "10.7 GB"), (69_300_000_000_000, "69.3 TB")],
)  # fmt: skip
def test_bytes_are_powers_of_a_thousand(count, text):
    assert style.format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.2e-6, "4.2 µs"), (1.12e-4, "0.11 ms"), (0.0264, "26.4 ms"), (0.9999, "1 s"),
     (2029.4, "2,029 s")],
)  # fmt: skip
def test_times_have_three_digits_at_most(seconds, text):
    assert style.format_time(seconds) == text


def _luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one, other):
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_words_and_lines_stand_out_from_the_card():
    words = [*style.TEXT_COLORS.values(), style.INK, style.MUTED, style.MEMORY, style.FLOOR]
    words.append(style.GUESS)
    assert min(_contrast(color, style.CARD) for color in words) >= 4.5
    lines = [*style.COLORS.values(), style.WEIGHTS]
    assert min(_contrast(color, style.CARD) for color in lines) >= 3

"""Guesses: read as people type them, kept, closed by the answer, compared in one sentence."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.teach import predict
from kvlib.teach.quantity import parse_number, show_number


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("3", None, 3),
        ("3 ms", "ms", 3),
        ("3ms", "ms", 3),
        ("1e9", None, 1e9),
        ("2,001,000", None, 2_001_000),
        ("2_001_000", None, 2_001_000),
        ("2 001 000", None, 2_001_000),
        ("  .5 ", None, 0.5),
        ("3.", None, 3),
        ("3 s", "ms", 3000),
        ("250 us", "ms", 0.25),
        ("1.5 GiB", "GB", 1.610612736),
        ("2^30", "bytes", 2**30),
        ("2**10 KiB", "MiB", 1),
        ("-4", None, -4),
        ("1E3", None, 1000),
        ("20x", "x", 20),
        ("7 Tokens", "tokens", 7),
        ("2,000.5", None, 2000.5),
        ("4 million", None, 4e6),
        ("2 thousand", "x", 2000),
        ("1.5 billion", "times", 1.5e9),
        ("3 Millions bytes", "MB", 3),
        ("1million", None, 1e6),
        ("4k", "times", 4000),
        ("4.1 K tokens", "tokens", 4100),
        ("1 x", "times", 1),
        ("1 token", "tokens", 1),
    ],
)
def test_numbers_are_read_as_people_type_them(text, unit, value):
    assert parse_number(text, unit) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", None),
        ("many", None),
        ("3,5", None),
        ("1,00,000", None),
        ("3 ms", None),
        ("3 GB", "ms"),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("9^99999", None),
        ("3 4x", None),
        ("--3", None),
        ("1.2.3", None),
        ("million", None),
        ("4 millionth", None),
    ],
)
def test_what_is_no_number_gets_a_sentence(text, unit):
    with pytest.raises(ValueError, match=r"\w+ .*[.]$"):
        parse_number(text, unit)


@pytest.mark.parametrize(
    ("text", "unit", "said"),
    [
        ("4097/2", "times", "Type one number, such as 3 or 3 times; '/2' cannot be read."),
        ("3 GB", "ms", "such as 3 or 3 ms; 'GB' cannot be read."),
        ("3 ms", None, "such as 3; 'ms' cannot be read."),
    ],
)
def test_what_cannot_be_read_is_named(text, unit, said):
    with pytest.raises(ValueError, match=f"{said}$"):
        parse_number(text, unit)


@settings(deadline=None)
@given(st.floats(min_value=-1e12, max_value=1e12))
def test_a_shown_number_is_read_back(value):
    assert parse_number(show_number(value)) == pytest.approx(value, rel=5e-3)


@settings(deadline=None)
@given(st.text(max_size=20), st.sampled_from([None, "ms", "GB", "x", "tokens"]))
def test_no_text_makes_anything_but_a_number_or_a_sentence(text, unit):
    try:
        assert math.isfinite(parse_number(text, unit))
    except ValueError as error:
        assert str(error).endswith(".")


def test_a_guess_is_kept_over_a_rerun_and_closed_by_the_answer():
    guess = predict("t-time", "How long?", unit="ms")
    assert guess.value is None
    guess.field.value = "30"
    assert guess.value == 30
    assert "Your guess: 30 ms" in guess.status.value
    again = predict("t-time", "How long?", unit="ms")
    assert again.value == 30
    again.field.value = "0.04 s"
    assert again.value == 40
    shown = again.reveal(4.0, because="The weights are read once.")
    assert "You guessed 40 ms and the truth is 4 ms: 10 x too high." in shown.status.value
    assert "The weights are read once." in shown.status.value
    again.field.value = "4"
    assert again.value == 40
    rerun = predict("t-time", "How long?", unit="ms")
    assert rerun.field.disabled and rerun.value == 40
    assert "The answer has been shown" in rerun.status.value


def test_a_rerun_does_not_round_the_guess():
    predict("t-exact", "?", unit="ms").field.value = "1234.567"
    assert predict("t-exact", "?", unit="ms").value == 1234.567
    assert predict("t-exact", "?", unit="ms").value == 1234.567


def test_no_guess_is_told_kindly_and_comes_too_late_afterwards():
    guess = predict("t-none", "How many?")
    assert (
        guess.reveal(2_001_000).sentence
        == "No guess this time, which is fine. The truth is 2,001,000."
    )
    guess.field.value = "2001000"
    assert guess.value is None
    assert predict("t-none", "How many?").field.disabled


def test_what_cannot_be_read_is_said_in_the_status_line():
    guess = predict("t-bad", "How long?", unit="ms")
    guess.field.value = "3,5"
    assert guess.value is None
    assert "two ways" in guess.status.value


@pytest.mark.parametrize(
    ("typed", "truth", "said"),
    [
        ("5", 5, "and that is the truth"),
        ("100", 110, "close, 9.1 percent too low"),
        ("0", 5, "the truth is 5"),
        ("1", 2_000_000, "2,000,000 x too low"),
        ("1", 1e300, "1e+300 x too low"),
        ("3", float("inf"), "the truth is inf"),
        ("3", 0, "the truth is 0"),
        ("110", 100, "10 percent too high"),
        ("2048", 2048.5, "You guessed 2,048, and that is right: the truth is 2,048.5."),
        ("101", 100, "close, 1 percent too high"),
        ("1,999,000", 2_001_000, "close, 2,000 too low"),
        ("2,001,000", 2_001_000, "and that is the truth"),
        ("52", 51, "close, 2 percent too high"),
        ("102", 100, "close, 2 percent too high"),
        ("125", 100, "close, 25 percent too high"),
    ],
)
def test_guess_and_truth_in_one_sentence(typed, truth, said):
    guess = predict(f"t-{typed}-{truth}", "?")
    guess.field.value = typed
    assert said in guess.reveal(truth).sentence


@pytest.mark.parametrize(
    ("typed", "unit", "truth", "exact", "said"),
    [
        ("51", "rows", 51, None, "and that is the truth"),
        ("52", "rows", 51, None, "close, 2 percent too high"),
        ("28000", "tokens", 28628, None, "close, 2.2 percent too low"),
        ("105", "ms", 100.0, None,
         "and that is right: the truth is 100 ms. Within 10 percent counts as right."),
        ("91", "ms", 100.0, None, "Within 10 percent counts as right."),
        ("115", "ms", 100.0, None, "close, 15 percent too high"),
        ("200", "ms", 100.0, None, "2 x too high"),
        ("2048", "times", 2048.5, True, "Within 1 percent counts as right."),
        ("1900", "times", 2048.5, True, "close, 7.2 percent too low"),
        ("101", "times", 100, None, "Within 1 percent counts as right."),
    ],
)
def test_a_count_is_right_when_equal_and_a_measurement_within_a_factor_that_is_said(
    typed, unit, truth, exact, said
):
    guess = predict(f"t-{typed}-{unit}", "?", unit=unit)
    guess.field.value = typed
    assert said in guess.reveal(truth, exact=exact).sentence


@pytest.mark.parametrize(
    ("typed", "unit", "said"),
    [
        ("50.5", "rows", "There are only whole rows. Type 50 or 51."),
        ("2000.5", None, "A count is a whole number. Type 2,000 or 2,001."),
        ("-5", None, "A count is not negative. Type 0 or more."),
        ("-5", "tokens", "There are no negative tokens here. Type 0 or more."),
        ("-0.5", "times", "Type 0 or more."),
        ("nan", None, "That is not a number."),
        ("nan", "ms", "That is not a number."),
        ("1e999", "ms", "Type a finite one."),
    ],
)
def test_what_cannot_be_the_answer_is_refused_with_a_sentence(typed, unit, said):
    guess = predict(f"t-impossible-{typed}-{unit}", "?", unit=unit)
    guess.field.value = typed
    assert guess.value is None and said in guess.status.value
    assert guess.reveal(7).sentence.startswith("No guess this time")


@pytest.mark.parametrize(("kept", "unit"), [(-5, None), (50.5, "rows"), (math.nan, "ms"), (math.inf, None),
  (10**400, None), (10**400, "ms"), (True, None)])
def test_what_an_older_version_kept_is_no_guess_where_it_is_impossible(kept, unit):
    from kvlib.teach.store import progress_file

    progress_file().put("guesses", "t-old", value=kept, unit=unit)
    guess = predict("t-old", "?", unit=unit)
    assert guess.value is None and guess.field.value == ""


def test_a_quantity_is_not_negative():
    guess = predict("t-negative", "How long?", unit="ms")
    guess.field.value = "-3"
    assert guess.value is None and "Type 0 or more." in guess.status.value
    guess.field.value = "3"
    assert guess.value == 3


@pytest.mark.parametrize(
    ("value", "shown"),
    [(2048.5, "2,048.5"), (-2048.5, "-2,048.5"), (2048.25, "2,048"), (2048.0, "2,048"), (99.5, "99.5")],
)
def test_one_decimal_above_a_thousand_is_shown(value, shown):
    assert show_number(value) == shown


@pytest.mark.parametrize(
    ("unit", "shown"),
    [("times", "1 x"), ("tokens", "1 token"), ("rows", "1 row"), ("ms", "1 ms"), ("GB/s", "1 GB/s")],
)
def test_a_1_has_a_unit_in_the_singular(unit, shown):
    assert show_number(1, unit) == shown


@pytest.mark.parametrize(("unit", "asked"), [("ms", "How long? (in ms)"), ("times", "How long?")])
def test_a_question_names_its_unit_but_not_times(unit, asked):
    assert predict("t-unit", "How long?", unit=unit).plain() == f"Guess first: {asked}"


def test_choices():
    guess = predict("t-choice", "Which?", choices=["MHA", "GQA", "MQA"])
    guess.buttons[1].click()
    assert guess.value == "GQA"
    assert predict("t-choice", "Which?", choices=["MHA", "GQA", "MQA"]).value == "GQA"
    with pytest.raises(ValueError, match="one of the choices"):
        guess.reveal("other")
    assert guess.reveal("MQA").sentence == "You chose: GQA. It is: MQA."
    guess.buttons[2].click()
    assert guess.value == "GQA"
    assert guess.reveal("GQA").sentence == "You chose: GQA. That is right."
    assert all(button.disabled for button in guess.buttons)


def test_a_question_that_changed_its_choices_ignores_the_old_guess():
    predict("t-changed", "Which?", choices=["a", "b"]).buttons[0].click()
    assert predict("t-changed", "Which?", choices=["b", "c"]).value is None
    assert predict("t-changed", "How many?").value is None


@pytest.mark.parametrize(
    "wrong", [{"choices": ["a"]}, {"choices": ["a", "a"]}, {"choices": ["a", "b"], "unit": "ms"},
     {"choices": "ab"}, {"question": None}, {"key": 3}]
)  # fmt: skip
def test_a_question_that_cannot_be_asked_is_refused(wrong):
    with pytest.raises(ValueError, match="Give predict"):
        predict(**{"key": "t-wrong", "question": "?"} | wrong)


def test_a_truth_beyond_all_floats_is_refused_and_leaves_the_guess_open():
    guess = predict("t-beyond", "?")
    with pytest.raises(ValueError, match="too large"):
        guess.reveal(10**400)
    assert not guess.revealed

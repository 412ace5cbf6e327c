"""A guess before a result: asked for, kept, and later laid beside the truth."""

import math
import numbers
import sys
from collections.abc import Sequence

import ipywidgets as widgets

from kvlib.teach import panel
from kvlib.teach.panel import Panel, choose
from kvlib.teach.quantity import parse_number, show_number
from kvlib.teach.store import progress_file

COUNTED = ("tokens", "rows", "requests", "projections", "steps")  # whole, as is a number without a unit
CLOSE = 1.25  # a guess within this factor of the truth is called close
RIGHT_COMPUTED, RIGHT_MEASURED = 1.01, 1.1  # and within this one right; a count is right only when equal
_shown_without_guess: set[str] = set()  # keys whose answer this kernel showed before any guess


def predict(
    key: str, question: str, *, unit: str | None = None, choices: Sequence[str] | None = None
) -> "Guess":
    """Ask for a guess: a number (in `unit`), or one of `choices`.

    A number without a unit, or in one of COUNTED, is a count: whole, and right only when equal. No
    guess is negative. The guess is kept in the learner's progress under `key` and survives a re-run. Raises
    ValueError for fewer than two choices, equal choices, or choices with a unit.
    """
    if not isinstance(key, str) or not isinstance(question, str):
        raise ValueError("Give predict() a key and a question, both as text.")
    if choices is not None:
        if unit is not None:
            raise ValueError("Give predict() a unit or choices, not both.")
        if isinstance(choices, str) or len(choices) < 2 or len(set(choices)) != len(choices):
            raise ValueError("Give predict() a list of at least two choices, each a different text.")
    return Guess(key, question, unit, tuple(choices) if choices is not None else None)


class Guess(Panel):
    """One question with the learner's guess; `.value` is a float in the unit, a choice, or None."""

    def __init__(self, key: str, question: str, unit: str | None, choices: tuple[str, ...] | None):
        self.key, self.question, self.unit, self.choices = key, question, unit, choices
        if choices:
            self.buttons = [
                self.option(text, lambda text=text: self._keep(text)) for text in choices
            ]
            entry = widgets.HBox(self.buttons, layout=widgets.Layout(flex_flow="row wrap"))
        else:
            kept = self.value
            entry = self.field = widgets.Text(
                description=f"Your guess ({unit})" if unit else "Your guess",
                value="" if kept is None else show_number(kept), placeholder="a number, then Enter",
                continuous_update=False, style={"description_width": "initial"},
            )  # fmt: skip
            self.field.observe(self.guarded(lambda change: self._read(change["new"])), "value")
        super().__init__(question, entry)
        kept = self.value
        if kept is not None:
            self._say_kept(kept)
        if self.revealed:
            self._lock()

    @property
    def value(self) -> float | str | None:
        kept = progress_file().get("guesses", self.key).get("value")
        if self.choices:
            return kept if kept in self.choices else None
        if isinstance(kept, bool) or not isinstance(kept, int | float) or self._impossible(kept):
            return None
        return float(kept)

    @property
    def counted(self) -> bool:
        """Say whether the answer is a count, and so a whole number."""
        return not self.choices and (self.unit is None or self.unit in COUNTED)

    @property
    def revealed(self) -> bool:
        """Say whether the answer was shown: then the guess is closed."""
        entry = progress_file().get("guesses", self.key)
        return bool(entry.get("revealed")) or self.key in _shown_without_guess

    def reveal(
        self, truth: float | str, *, because: str = "", exact: bool | None = None
    ) -> "Reveal":
        """Close the guess and return a panel with the guess beside the truth.

        A float is taken for a measurement: its value stays out of the saved text, which must be
        the same on every run. `exact` overrides that. Raises ValueError for a truth that is not
        one of the choices, or that no float can hold.
        """
        if self.choices and truth not in self.choices:
            raise ValueError(f"The truth must be one of the choices: {', '.join(self.choices)}.")
        if not self.choices:
            exact = isinstance(truth, numbers.Integral) if exact is None else exact
            try:
                truth = float(truth)
            except OverflowError:
                raise ValueError("The truth is too large a number.") from None
        guess = self.value
        if guess is None:
            _shown_without_guess.add(self.key)
        else:
            progress_file().put("guesses", self.key, revealed=True, truth=truth)
        self._lock()
        return Reveal(self, guess, truth, because, exact is not False)

    def plain(self) -> str:
        if self.choices:
            return "\n".join(
                [f"Guess first: {self.question}", *(f"  - {text}" for text in self.choices)]
            )
        unit = f" (in {self.unit})" if self.unit not in (None, "times") else ""
        return f"Guess first: {self.question}{unit}"

    def _read(self, text: str) -> None:
        if not text.strip() or self.revealed:
            return
        try:
            number = parse_number(text, self.unit)
            if why := self._impossible(number):
                raise ValueError(why)
            self._keep(number)
        except ValueError as error:
            self.say(str(error))

    def _impossible(self, number: float) -> str | None:
        """Say why a number cannot be the answer, whatever the truth is, or None."""
        if not abs(number) <= sys.float_info.max:
            return "Type a finite number."
        if number < 0:
            what = f"There are no negative {self.unit} here" if self.unit else "A count is not negative"
            return f"{what}. Type 0 or more."
        if self.counted and number != int(number):
            what = f"There are only whole {self.unit}" if self.unit else "A count is a whole number"
            return f"{what}. Type {show_number(int(number))} or {show_number(int(number) + 1)}."
        return None

    def _keep(self, value: float | str) -> None:
        if self.revealed:
            self._lock()
            return
        progress_file().put("guesses", self.key, value=value, unit=self.unit)
        self._say_kept(value, _trouble())

    def _say_kept(self, value: float | str, trouble: str = "") -> None:
        if self.choices:
            choose(self.buttons, self.choices.index(value))
        self.say(self._kept_sentence(value) + trouble)

    def _kept_sentence(self, value: float | str) -> str:
        shown = value if self.choices else show_number(value, self.unit)
        return f"Your guess: {shown}. You can change it until the answer is shown."

    def _lock(self) -> None:
        for control in self.buttons if self.choices else [self.field]:
            control.disabled = True
        kept = self.value
        if kept is None:
            self.say("The answer has been shown. To guess first, restart the kernel.")
        else:
            shown = kept if self.choices else show_number(kept, self.unit)
            self.say(f"Your guess: {shown}. The answer has been shown.")


class Reveal(Panel):
    """The guess beside the truth, in one sentence."""

    def __init__(
        self, guess: Guess, value: float | str | None, truth: float | str, because: str, exact: bool
    ):
        self.question, self.because, self.exact = guess.question, because, exact
        if guess.choices:
            self.sentence = _compare_choice(value, truth)
        else:
            right = 1.0 if guess.counted and truth % 1 == 0 else RIGHT_COMPUTED if exact else RIGHT_MEASURED
            self.sentence = _compare(value, truth, guess.unit, right)
        super().__init__(guess.question)
        right = value == truth if guess.choices else " that is " in self.sentence
        mark = panel.OPEN if value is None else panel.RIGHT if right else panel.WRONG
        self.say(f"{self.sentence}\n\n{because}" + _trouble(), mark)

    def plain(self) -> str:
        if not self.exact:
            return f"{self.question}\nThe truth is measured on this machine when the cell runs."
        return "\n".join(filter(None, [self.question, self.sentence, self.because]))


def forget_shown() -> None:
    """Open the guesses again that this kernel closed without one."""
    _shown_without_guess.clear()


def _compare_choice(guess: str | None, truth: str) -> str:
    if guess is None:
        return f"No guess this time, which is fine. The answer: {truth}."
    return f"You chose: {guess}. " + ("That is right." if guess == truth else f"It is: {truth}.")


def _compare(guess: float | None, truth: float, unit: str | None, right: float) -> str:
    """Say how a guess compares; within the factor `right` it is right, and 1 means only when equal."""
    shown = show_number(truth, unit)
    if guess is None:
        return f"No guess this time, which is fine. The truth is {shown}."
    mine = show_number(guess, unit)
    if guess == truth:
        return f"You guessed {mine}, and that is the truth."
    if guess * truth <= 0 or not math.isfinite(truth):
        return f"You guessed {mine}; the truth is {shown}."
    small, large = sorted([guess, truth])
    side = "high" if large == guess else "low"
    factor = large / small
    if factor <= right:
        within = f"{100 * (right - 1):.0f} percent"
        return (
            f"You guessed {mine}, and that is right: the truth is {shown}. Within {within} counts as "
            "right."
        )
    if factor > CLOSE:
        return f"You guessed {mine} and the truth is {shown}: {show_number(factor)} x too {side}."
    percent = 100 * (large - small) / truth
    off = show_number(large - small) if right == 1 and percent < 1 else f"{percent:.2g} percent"
    return f"You guessed {mine} and the truth is {shown}: close, {off} too {side}."


def _trouble() -> str:
    trouble = progress_file().trouble
    return f"\n\n{trouble}" if trouble else ""

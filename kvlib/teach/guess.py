"""A guess before a result: asked for, kept, and later laid beside the truth."""

import math
import numbers
from collections.abc import Sequence

import ipywidgets as widgets

from kvlib.teach.panel import Panel
from kvlib.teach.quantity import parse_number, show_number
from kvlib.teach.store import progress_file

CLOSE = 1.25  # a guess within this factor of the truth is called close
RIGHT = 1.01  # and within this one it counts as right
_shown_without_guess: set[str] = set()  # keys whose answer this kernel showed before any guess


def predict(
    key: str, question: str, *, unit: str | None = None, choices: Sequence[str] | None = None
) -> "Guess":
    """Ask for a guess: a number (in `unit`), or one of `choices`.

    The guess is kept in the learner's progress under `key` and survives a re-run. Raises
    ValueError for fewer than two choices, equal choices, or choices with a unit.
    """
    if choices is not None:
        if unit is not None:
            raise ValueError("Give predict() a unit or choices, not both.")
        if len(choices) < 2 or len(set(choices)) != len(choices):
            raise ValueError("Give predict() at least two choices, each a different text.")
    return Guess(key, question, unit, tuple(choices) if choices is not None else None)


class Guess(Panel):
    """One question with the learner's guess; `.value` is a float in the unit, a choice, or None."""

    def __init__(self, key: str, question: str, unit: str | None, choices: tuple[str, ...] | None):
        self.key, self.question, self.unit, self.choices = key, question, unit, choices
        if choices:
            self.buttons = [
                self.button(text, lambda text=text: self._keep(text)) for text in choices
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
            self.say(self._kept_sentence(kept))
        if self.revealed:
            self._lock()

    @property
    def value(self) -> float | str | None:
        kept = progress_file().get("guesses", self.key).get("value")
        if self.choices:
            return kept if kept in self.choices else None
        return float(kept) if isinstance(kept, int | float) else None

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
        one of the choices.
        """
        if self.choices and truth not in self.choices:
            raise ValueError(f"The truth must be one of the choices: {', '.join(self.choices)}.")
        if not self.choices:
            exact = isinstance(truth, numbers.Integral) if exact is None else exact
            truth = float(truth)
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
        return f"Guess first: {self.question}" + (f" (in {self.unit})" if self.unit else "")

    def _read(self, text: str) -> None:
        if not text.strip() or self.revealed:
            return
        try:
            number = parse_number(text, self.unit)
            if number < 0 and self.unit:
                raise ValueError(f"There are no negative {self.unit} here. Type 0 or more.")
            self._keep(number)
        except ValueError as error:
            self.say(str(error))

    def _keep(self, value: float | str) -> None:
        if self.revealed:
            self._lock()
            return
        progress_file().put("guesses", self.key, value=value, unit=self.unit)
        self.say(self._kept_sentence(value) + _trouble())

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
        compared = _compare_choice if guess.choices else _compare
        self.sentence = compared(value, truth, guess.unit)
        super().__init__(guess.question)
        self.say(f"{self.sentence}\n\n{because}" + _trouble())

    def plain(self) -> str:
        if not self.exact:
            return f"{self.question}\nThe truth is measured on this machine when the cell runs."
        return "\n".join(filter(None, [self.question, self.sentence, self.because]))


def forget_shown() -> None:
    """Open the guesses again that this kernel closed without one."""
    _shown_without_guess.clear()


def _compare_choice(guess: str | None, truth: str, unit: None) -> str:
    if guess is None:
        return f"No guess this time, which is fine. The answer: {truth}."
    return f"You chose: {guess}. " + ("That is right." if guess == truth else f"It is: {truth}.")


def _compare(guess: float | None, truth: float, unit: str | None) -> str:
    shown = show_number(truth, unit)
    if guess is None:
        return f"No guess this time, which is fine. The truth is {shown}."
    mine = show_number(guess, unit)
    if guess == truth:
        return f"You guessed {mine}, and that is the truth."
    if guess * truth <= 0 or not math.isfinite(truth):
        return f"You guessed {mine}; the truth is {shown}."
    small, large = sorted([abs(guess), abs(truth)])
    side = "high" if large == abs(guess) else "low"
    factor = large / small
    percent = f"{100 * (large - small) / abs(truth):.2g} percent too {side}"
    if factor <= RIGHT:
        return f"You guessed {mine}, and that is right: the truth is {shown}."
    if factor <= CLOSE:
        return f"You guessed {mine} and the truth is {shown}: close, {percent}."
    return f"You guessed {mine} and the truth is {shown}: {show_number(factor)} x too {side}."


def _trouble() -> str:
    trouble = progress_file().trouble
    return f"\n\n{trouble}" if trouble else ""

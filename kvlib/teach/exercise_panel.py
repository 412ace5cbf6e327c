"""An exercise on screen: its task, three hints in turn, a solution on request, and the check."""

import ipywidgets as widgets

from kvlib.lab.manners import status_line
from kvlib.teach.exercises import CORRECT, NOT_YET, Verdict, find
from kvlib.teach.panel import OPEN, RIGHT, WRONG, Panel, as_said, code, inline, paragraphs
from kvlib.teach.store import progress_file


def exercise(key: str) -> "ExercisePanel":
    """Return the panel of the exercise with this key. Raises ValueError for an unknown key."""
    return ExercisePanel(key)


class ExercisePanel(Panel):
    """Show one exercise; `.check(answer)` judges, `.hint()` and `.solution()` print."""

    def __init__(self, key: str):
        self.exercise = it = find(key)
        self.hints_shown = 0
        self._asked = False
        about = widgets.HTML(f"<p><em>{inline(it.about())}</em></p>{paragraphs(it.task)}")
        self.hint_buttons = [
            self.button(f"Hint {n}", lambda n=n: self._show_hint(n))
            for n in range(1, len(it.hints) + 1)
        ]
        for later in self.hint_buttons[1:]:
            later.layout.display = "none"
        self.solution_button = self.button("Solution", self._ask_or_show_solution)
        self.help = status_line()
        row = widgets.HBox(
            [*self.hint_buttons, self.solution_button], layout=widgets.Layout(flex_flow="row wrap")
        )
        super().__init__(f"Exercise: {it.title}", about, row, self.help)
        if progress_file().get("exercises", key).get("status") == CORRECT:
            self.say("You have solved this one before.", RIGHT)

    def check(self, candidate) -> Verdict:
        """Judge an answer, record the result, and return a verdict. Never raises."""
        verdict = self.exercise.check(candidate)
        kept = progress_file()
        if kept.get("exercises", self.exercise.key).get("status") != CORRECT:  # solved stays solved
            kept.put("exercises", self.exercise.key, status=verdict.status)
        mark = {CORRECT: RIGHT, NOT_YET: WRONG}.get(verdict.status, OPEN)
        self.say(str(verdict) + (f"\n\n{kept.trouble}" if kept.trouble else ""), mark)
        return verdict

    def hint(self, number: int | None = None) -> None:
        """Print the next hint, or hint `number` (from 1)."""
        count = len(self.exercise.hints)
        number = min(self.hints_shown + 1, count) if number is None else number
        if number not in range(1, count + 1):
            raise ValueError(f"There are {count} hints: ask for one of 1 to {count}.")
        self._show_hint(number)
        print(f"Hint {number} of {count}: {self.exercise.hints[number - 1]}")

    def solution(self) -> None:
        """Print the solution."""
        print(self.exercise.solution.strip())

    def plain(self) -> str:
        it = self.exercise
        closing = (
            f'Hints: exercise("{it.key}").hint(1) to .hint({len(it.hints)}); then .solution().'
        )
        return "\n".join([f"Exercise: {it.title}", it.about(), "", it.task.strip(), "", closing])

    def _show_hint(self, number: int) -> None:
        self.hints_shown = max(self.hints_shown, number)
        for button in self.hint_buttons[: self.hints_shown + 1]:
            button.layout.display = ""
        shown = [
            f"Hint {n}: {text}" for n, text in enumerate(self.exercise.hints[: self.hints_shown], 1)
        ]
        self.help.value = as_said("\n\n".join(shown))

    def _ask_or_show_solution(self) -> None:
        if not self._asked:
            self._asked = True
            self.solution_button.description = "Yes, show the solution"
            left = len(self.exercise.hints) - self.hints_shown
            hints = f" There are {left} hints you have not read." if left > 1 else ""
            self.say(f"This shows the whole answer.{hints} Press the button again to see it.")
            return
        self.help.value = as_said("The solution:") + code(self.exercise.solution)
        self.solution_button.disabled = True
        self.say("Now write it yourself, without looking.")

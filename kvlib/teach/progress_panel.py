"""What the learner has done so far, lesson by lesson."""

import ipywidgets as widgets

from kvlib.teach import exercises, quizzes
from kvlib.teach.exercises import CORRECT, NOT_YET
from kvlib.teach.guess import forget_shown
from kvlib.teach.panel import Panel, paragraphs
from kvlib.teach.store import progress_file

SOLVED, TRIED, UNTRIED = "✓✗○"
KEY = f"{SOLVED} right, {TRIED} tried and not right yet, {UNTRIED} not tried: exercises, then questions."


class Progress:
    """Call it for a panel; `.forget()` starts anew."""

    def __call__(self) -> "ProgressPanel":
        return ProgressPanel()

    def forget(self) -> None:
        """Drop all guesses, results and answers of this user, and say so."""
        kept = progress_file()
        kept.forget()
        forget_shown()
        print(kept.trouble or "Progress forgotten: no guesses, no solved exercises, no answers.")

    def __repr__(self) -> str:
        return "progress() shows what you have done; progress.forget() starts anew."


progress = Progress()


class ProgressPanel(Panel):
    """Lessons, exercises solved, questions answered and guesses made, as they are now."""

    def __init__(self):
        self.lines = widgets.HTML()
        refresh = self.button("Refresh", self.refresh)
        refresh.layout.align_self = "flex-start"
        super().__init__("Your progress", self.lines, refresh)
        self.refresh()

    def refresh(self) -> None:
        """Read the progress file again."""
        self.report = report()
        marks = [*marks_of_lessons(), ""]
        lines = [f"- {line} {shown}".rstrip() for line, shown in zip(self.report, marks, strict=True)]
        self.lines.value = paragraphs("\n".join(lines) + f"\n\n{KEY}")
        self.say(progress_file().trouble)

    def plain(self) -> str:
        return "\n".join(["Your progress", *(f"  {line}" for line in self.report)])


def marks_of_lessons() -> list[str]:
    """Return for each lesson of the report a mark for each exercise, then for each question."""
    kept = progress_file()
    results, answers = kept.entries("exercises"), kept.entries("quizzes")
    shown = []
    for lesson in sorted({*exercises.lessons(), *quizzes.lessons()}):
        tasks, questions = exercises.of_lesson(lesson), quizzes.of_lesson(lesson)
        tried = [results.get(task.key, {}).get("status") for task in tasks]
        done = [{CORRECT: SOLVED, NOT_YET: TRIED}.get(status, UNTRIED) for status in tried]
        picked = [answers.get(question.key, {}).get("right") for question in questions]
        done += [" ", *({True: SOLVED, False: TRIED}.get(right, UNTRIED) for right in picked)]
        shown.append("".join(done))
    return shown


def report() -> list[str]:
    """Return one line for each lesson that has exercises or questions, then one for the guesses."""
    kept = progress_file()
    results, answers, guesses = (kept.entries(s) for s in ("exercises", "quizzes", "guesses"))
    lines = []
    for lesson in sorted({*exercises.lessons(), *quizzes.lessons()}):
        tasks, questions = exercises.of_lesson(lesson), quizzes.of_lesson(lesson)
        solved = sum(results.get(task.key, {}).get("status") == CORRECT for task in tasks)
        answered = sum(bool(answers.get(question.key, {}).get("right")) for question in questions)
        lines.append(
            f"Lesson {lesson:02d}: {solved} of {len(tasks)} exercises solved, "
            f"{answered} of {len(questions)} questions right"
        )
    made = sum("value" in guess for guess in guesses.values())
    return [*lines, f"Guesses made: {made}"]

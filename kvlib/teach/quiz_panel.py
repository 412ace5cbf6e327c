"""Multiple-choice questions on screen: every option, right or wrong, answers with its reason."""

import ipywidgets as widgets

from kvlib.lab.manners import status_line
from kvlib.teach.panel import RIGHT, WRONG, Panel, as_said, choose, inline
from kvlib.teach.quizzes import Question, find
from kvlib.teach.store import progress_file


def quiz(key: str | int) -> "QuizPanel":
    """Return a panel with a lesson's questions ("01" or 1), or with one question by its key.

    Raises ValueError for an unknown key.
    """
    return QuizPanel(find(key))


class QuizPanel(Panel):
    """Show questions; picking an option shows why it is right or wrong.

    A question once answered right stays right, also after a restart; other options may be read.
    """

    def __init__(self, questions: tuple[Question, ...]):
        self.questions = questions
        self.buttons: list[list[widgets.Button]] = []
        self.answers: list[widgets.HTML] = []
        parts = []
        for number, question in enumerate(questions, 1):
            stem = widgets.HTML(f"<p>{number}. {inline(question.stem)}</p>")
            answer = status_line()
            answer.value = _earlier(question)
            buttons = [
                self.option(
                    f"{question.letter(i)}. {option.text}",
                    lambda number=number, i=i: self._pick(number, i),
                )
                for i, option in enumerate(question.options)
            ]
            if answer.value:
                choose(buttons, question.right, RIGHT)
            parts += [stem, widgets.VBox(buttons), answer]
            self.buttons.append(buttons)
            self.answers.append(answer)
        super().__init__("Quick questions" if len(questions) > 1 else "Quick question", *parts)

    def pick(self, number: int, letter: str) -> str:
        """Answer question `number` (from 1) with an option's letter; return the reason as text."""
        if number not in range(1, len(self.questions) + 1):
            raise ValueError(
                f"There are {len(self.questions)} questions: pick 1 to {len(self.questions)}."
            )
        question = self.questions[number - 1]
        letters = [question.letter(i) for i in range(len(question.options))]
        if letter.upper() not in letters:
            raise ValueError(f"Question {number} has the options {', '.join(letters)}.")
        return self._pick(number, letters.index(letter.upper()))

    def plain(self) -> str:
        lines = []
        for number, question in enumerate(self.questions, 1):
            lines.append(f"{number}. {question.stem}")
            lines += [f"   {question.letter(i)}. {o.text}" for i, o in enumerate(question.options)]
        return "\n".join(lines)

    def _pick(self, number: int, index: int) -> str:
        question = self.questions[number - 1]
        right = index == question.right
        opening = "Right." if right else "Not this one."
        sentence = f"{question.letter(index)}. {opening} {question.options[index].reason}"
        mark = RIGHT if right else WRONG
        choose(self.buttons[number - 1], index, mark)
        self.answers[number - 1].value = as_said(sentence, mark)
        kept = progress_file()
        before = kept.get("quizzes", question.key)
        kept.put(
            "quizzes",
            question.key,
            picked=index,
            right=right or before.get("right") is True,
            first_right=before.get("first_right", right),
        )
        if kept.trouble:
            self.say(kept.trouble)
        return sentence


def _earlier(question: Question) -> str:
    """Return the HTML that recalls a right answer from an earlier start, or ""."""
    if progress_file().get("quizzes", question.key).get("right") is not True:
        return ""
    reason = question.options[question.right].reason
    return as_said(f"You answered this one right: {question.letter(question.right)}. {reason}", RIGHT)

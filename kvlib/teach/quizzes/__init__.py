"""The quick questions, by key. `lessonNN.py` holds those of lesson NN in QUESTIONS; no widgets."""

import pkgutil
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Option:
    """One answer on offer, with the reason why it is right or wrong."""

    text: str
    reason: str


@dataclass(frozen=True)
class Question:
    """A question; `right` is the index of the right option."""

    key: str
    stem: str
    options: tuple[Option, ...]
    right: int

    def letter(self, index: int) -> str:
        """Return the letter an option is shown under."""
        return "ABCDEFGH"[index]


def names() -> list[str]:
    """Return the names of all quizzes: a lesson's number, with a letter where a lesson has two parts."""
    return sorted(module.name[6:] for module in pkgutil.iter_modules(__path__))


def lessons() -> list[int]:
    """Return the numbers of the lessons that have questions."""
    return sorted({int(name[:2]) for name in names()})


def of_lesson(number: int) -> tuple[Question, ...]:
    """Return the questions of one lesson, of all its parts, in order; none for an unknown lesson."""
    return tuple(question for name in names() if int(name[:2]) == number for question in _of_quiz(name))


def find(key: str | int) -> tuple[Question, ...]:
    """Return the questions of one quiz ("01", 1 or "09b") or the one with this key. Raises ValueError."""
    text = f"{key:02d}" if isinstance(key, int) else str(key)
    if text in names():
        return _of_quiz(text)
    lesson = of_lesson(int(text[:2])) if text[:2].isdecimal() else ()
    found = tuple(question for question in lesson if question.key == text)
    if not found:
        raise ValueError(f"There is no quiz {key!r}. Lessons with questions: {', '.join(names())}.")
    return found


def _of_quiz(name: str) -> tuple[Question, ...]:
    return tuple(import_module(f"{__name__}.lesson{name}").QUESTIONS)

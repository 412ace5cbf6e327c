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


def lessons() -> list[int]:
    """Return the numbers of the lessons that have questions."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(int(name[6:]) for name in names if name.startswith("lesson"))


def of_lesson(number: int) -> tuple[Question, ...]:
    """Return the questions of one lesson, in its order; none for a lesson without a file."""
    if number not in lessons():
        return ()
    return tuple(import_module(f"{__name__}.lesson{number:02d}").QUESTIONS)


def find(key: str | int) -> tuple[Question, ...]:
    """Return a lesson's questions ("01" or 1), or the one with this key; else raise ValueError."""
    text = f"{key:02d}" if isinstance(key, int) else str(key)
    lesson = of_lesson(int(text[:2])) if text[:2].isdecimal() else ()
    found = (
        lesson if len(text) == 2 else tuple(question for question in lesson if question.key == text)
    )
    if not found:
        known = ", ".join(f"{number:02d}" for number in lessons())
        raise ValueError(f"There is no quiz {key!r}. Lessons with questions: {known}.")
    return found

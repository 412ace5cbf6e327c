"""The exercises, by key. `lessonNN.py` holds those of lesson NN in EXERCISES; no widgets here."""

import difflib
import pkgutil
from importlib import import_module

from kvlib.teach.exercises.contract import (
    CORRECT,
    NOT_ATTEMPTED,
    NOT_YET,
    Exercise,
    NotAttempted,
    Verdict,
    correct,
    define,
    not_yet,
)

__all__ = [
    "CORRECT", "NOT_ATTEMPTED", "NOT_YET", "Exercise", "NotAttempted", "Verdict", "all_exercises",
    "correct", "define", "find", "lessons", "not_yet", "of_lesson", "solution_source",
]  # fmt: skip


def lessons() -> list[int]:
    """Return the numbers of the lessons that have exercises."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(int(name[6:]) for name in names if name.startswith("lesson"))


def of_lesson(number: int) -> tuple[Exercise, ...]:
    """Return the exercises of one lesson, in its order; none for a lesson without a file."""
    if number not in lessons():
        return ()
    return tuple(import_module(f"{__name__}.lesson{number:02d}").EXERCISES)


def all_exercises() -> tuple[Exercise, ...]:
    """Return every exercise of the course, in order."""
    return tuple(exercise for number in lessons() for exercise in of_lesson(number))


def find(key: str) -> Exercise:
    """Return the exercise with this key. Raises ValueError that names the nearest keys."""
    lesson = str(key)[:2]
    for exercise in of_lesson(int(lesson)) if lesson.isdecimal() else ():
        if exercise.key == key:
            return exercise
    keys = [exercise.key for exercise in all_exercises()]
    near = difflib.get_close_matches(str(key), keys) or keys
    raise ValueError(f"There is no exercise {key!r}. Did you mean one of: {', '.join(near)}?")


def solution_source(key: str) -> str:
    """Return the source code of the solved cell of an exercise."""
    return find(key).solution

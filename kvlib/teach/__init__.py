"""The teaching tools: guesses, exercises, quizzes and progress.

Importing this package, or only its registries of exercises and quizzes, does not import ipywidgets;
the panels do, when one is first used.
"""

from importlib import import_module

from kvlib.teach.course_model import course_model
from kvlib.teach.exercises import solution_source

_PANELS = {
    "predict": "kvlib.teach.guess",
    "exercise": "kvlib.teach.exercise_panel",
    "quiz": "kvlib.teach.quiz_panel",
    "progress": "kvlib.teach.progress_panel",
}

__all__ = ["course_model", "exercise", "predict", "progress", "quiz", "solution_source"]


def __getattr__(name: str):
    if name not in _PANELS:
        raise AttributeError(f"kvlib.teach has no {name!r}")
    return getattr(import_module(_PANELS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Lessons 05 to 09: what is right in any style passes, what is wrong is refused and told why."""

import pytest

from kvlib.teach.exercises import CORRECT, NOT_YET, define, find
from tests.teach import answers_05_07, answers_08_09

RIGHT = {**answers_05_07.RIGHT, **answers_08_09.RIGHT}
WRONG = {**answers_05_07.WRONG, **answers_08_09.WRONG}


def check(key: str, source: str):
    task = find(key)
    return task.check(define(task.name, source))


def test_each_exercise_has_enough_of_both():
    assert set(RIGHT) == set(WRONG)
    assert all(len(sources) >= 4 for sources in RIGHT.values())
    assert all(len(answers) >= 8 for answers in WRONG.values())


@pytest.mark.parametrize(
    ("key", "source"),
    [pytest.param(key, source, id=f"{key}-{name}") for key in RIGHT for name, source in RIGHT[key].items()],
)
def test_a_right_answer_passes_in_every_style(key, source):
    verdict = check(key, source)
    assert verdict.status == CORRECT, verdict


@pytest.mark.parametrize(
    ("key", "source", "words"),
    [
        pytest.param(key, source, words, id=f"{key}-{number}")
        for key in WRONG
        for number, (source, words) in enumerate(WRONG[key])
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(key, source, words):
    verdict = check(key, source)
    assert verdict.status == NOT_YET and words in verdict.message, (source, str(verdict))

"""Every exercise: the solution passes, each mistake gets its own words, and nothing raises."""

import re

import pytest

from kvlib.teach import exercise, solution_source
from kvlib.teach.exercises import (
    CORRECT,
    NOT_ATTEMPTED,
    NOT_YET,
    all_exercises,
    define,
    find,
    lessons,
    not_yet,
    of_lesson,
)

EVERY = pytest.mark.parametrize("task", all_exercises(), ids=lambda task: task.key)


@EVERY
def test_the_solution_passes(task):
    verdict = task.check(define(task.name, solution_source(task.key)))
    assert verdict.status == CORRECT, verdict
    assert verdict and str(verdict).startswith("correct: ")


@EVERY
def test_each_mistake_fails_with_its_own_message(task):
    verdicts = [task.check(define(task.name, source)) for source in task.wrong.values()]
    assert [verdict.status for verdict in verdicts] == [NOT_YET] * len(verdicts), verdicts
    messages = {verdict.message for verdict in verdicts}
    assert len(messages) >= 3
    assert len(messages) == len(verdicts)


def test_the_longest_context_names_the_numbers_of_the_case_that_failed():
    task = find("00-longest-context")
    verdict = task.check(lambda free, weights, per_token: free / per_token)
    for given in ("free_bytes=1,000", "weight_bytes=400", "bytes_per_token=100", "it gives 10.0"):
        assert given in verdict.message


@EVERY
def test_a_card_shows_what_its_writer_meant(task):
    """A card knows paragraphs, one-line bullets that end them, and code between backticks: no more."""
    for block in re.split(r"\n\s*\n", task.task.strip()):
        lines = block.strip().splitlines()
        bullets = [line.startswith("- ") for line in lines]
        assert bullets == sorted(bullets), f"a line after a bullet joins the words before it: {lines}"
    prose = re.sub(r"`[^`]*`", "", task.task)
    assert not re.search(r"(?<!\w)\*\w[\w ]*\*(?!\w)", prose), "emphasis would show its marks"


@EVERY
def test_the_stub_is_not_attempted(task):
    assert str(task.check(define(task.name, task.stub))) == "not attempted"


@EVERY
@pytest.mark.parametrize(
    "body",
    ["return None", "return 'x'", "return {}", "return (None,) * 3", "return float('nan')",
     "return object()", "return [[]]", "raise SystemExit", "raise KeyboardInterrupt", "1 / 0",
     "return inner(*given)", "import numpy; return numpy.arange(3)", "yield 1",
     "import torch; return torch.ones(2, 2)", "return -1", "return 10 ** 40", "return True"],
)  # fmt: skip
def test_nothing_that_a_learner_writes_makes_the_check_raise(task, body):
    source = f"def {task.name}(*given):\n    def inner(*a): return inner(*a)\n    {body}\n"
    verdict = task.check(define(task.name, source))
    assert verdict.status == NOT_YET
    assert verdict.message


@EVERY
@pytest.mark.parametrize("candidate", [3, "counts", [1], type, print, len, lambda: 0])
def test_nothing_that_is_passed_makes_the_check_raise(task, candidate):
    assert task.check(candidate).status == NOT_YET


@EVERY
def test_verdicts_are_the_same_on_every_run(task):
    for source in [task.stub, task.solution, *task.wrong.values()]:
        first, second = (repr(task.check(define(task.name, source))) for _ in range(2))
        assert first == second
        assert " at 0x" not in first


@EVERY
def test_the_words_are_complete(task):
    assert task.difficulty in (1, 2, 3)
    assert task.importance in (1, 2, 3)
    assert 1 <= task.minutes <= 45
    assert task.task.strip() and task.title and len(set(task.hints)) == 3
    assert len(task.wrong) >= 3
    assert f"def {task.name}" in task.stub or f"class {task.name}" in task.stub


def test_keys_are_unique_and_found():
    keys = [task.key for task in all_exercises()]
    assert len(set(keys)) == len(keys)
    assert all(find(key).key == key for key in keys)
    assert {0, 1} <= set(lessons())
    assert of_lesson(99) == ()


@pytest.mark.parametrize("key", ["01-count-projection", "", "99-x", "nonsense", "01"])
def test_an_unknown_key_names_the_nearest(key):
    with pytest.raises(ValueError, match="01-count-projections|Did you mean"):
        find(key)


def test_the_learners_line_is_named():
    source = "def counts(p, n):\n    total = 0\n    return total / (n - n)\n"
    verdict = find("01-count-projections").check(define("counts", source))
    assert "ZeroDivisionError (division by zero)" in verdict.message
    assert "line 3: `return total / (n - n)`" in verdict.message


def test_a_call_deeper_in_a_library_still_names_the_learners_line():
    source = "import json\ndef counts(p, n):\n    return json.loads('{')\n"
    verdict = find("01-count-projections").check(define("counts", source))
    assert "JSONDecodeError" in verdict.message
    assert "line 3: `return json.loads('{')`" in verdict.message


def test_half_a_stub_says_what_is_left():
    source = "def counts(p, n):\n    half = ...\n    return half + 1, n, 0\n"
    verdict = find("01-count-projections").check(define("counts", source))
    assert verdict.status == NOT_ATTEMPTED
    assert "line 3" in verdict.message


def test_a_result_instead_of_the_function_is_told_apart():
    assert "without calling it" in find("01-count-projections").check((1, 1, 0)).message


def test_a_check_reaches_the_progress_and_solved_stays_solved():
    from kvlib.teach.store import progress_file

    panel = exercise("01-count-projections")
    task = panel.exercise

    def status():
        return progress_file().get("exercises", task.key).get("status")

    panel.check(define(task.name, task.stub))
    assert status() == NOT_ATTEMPTED
    panel.check(define(task.name, task.solution))
    assert status() == CORRECT
    panel.check(define(task.name, next(iter(task.wrong.values()))))
    assert status() == CORRECT


def test_a_verdict_is_wrapped_between_words_where_a_cell_shows_it():
    verdict = not_yet("a word " * 40)
    assert max(len(line) for line in repr(verdict).splitlines()) <= 76
    assert repr(verdict).split() == str(verdict).split()


def test_an_error_that_cannot_be_printed_is_still_explained():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def candidate(*args, **options):
        raise Silent

    for key in ("00-decode-shapes", "05-grouped-attention"):
        assert "Silent" in str(find(key).check(candidate))

"""What every check does alike: its arguments are left alone, results are not shared, numbers are read."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvlib.teach.exercises import CORRECT, NOT_YET, Exercise, correct, define, find, not_yet
from kvlib.teach.exercises.contract import trying
from kvlib.teach.exercises.watching import (
    Watched,
    array,
    number,
    precision,
    rounded,
    same,
    show_input,
    whole,
    why_not_whole,
)


def _judge(candidate):
    for numbers in ([3.0, 1.0, 2.0], [5.0, 4.0, 6.0]):
        given = array(candidate(np.array(numbers)))
        if given is None or not np.array_equal(given, np.sort(numbers)):
            return not_yet("not sorted")
    return correct("sorted")


BODY = "import numpy as np\nBUFFER, CALLS = np.zeros(3), []\n\n\ndef ordered(x):\n    {}\n"
TASK = Exercise(
    key="00-ordered", lesson=0, title="", minutes=1, difficulty=1, importance=1, name="ordered", task="",
    hints=("a", "b", "c"), stub=BODY.format("return ..."), solution=BODY.format("return np.sort(x)"),
    judge=_judge,
)  # fmt: skip


def verdict(body, task=TASK):
    return task.check(define("ordered", BODY.format(body)))


@pytest.mark.parametrize("body", ["return np.sort(x)", "return sorted(x)",
 "return torch.tensor(x).sort()[0]"])
def test_an_answer_that_leaves_everything_alone_is_right(body):
    made = verdict(f"import torch; {body}")
    assert made.status == CORRECT, made


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x.sort(); return x", "the call changes `x`, which it was given"),
        ("y = np.sort(x); x *= 2; return y", "the call changes `x`"),
        ("BUFFER[:] = np.sort(x); return BUFFER", "a later call changes the result of an earlier one"),
        ("CALLS.append(1); return np.sort(x) + len(CALLS) // 3", "called twice with x=[3.0, 1.0, 2.0]"),
        ("return x / len(CALLS)", "line 6: `return x / len(CALLS)`; this was with x=[3.0, 1.0, 2.0]"),
    ],
)
def test_what_is_shared_changed_or_crashed_is_told(body, words):
    made = verdict(body)
    assert made.status == NOT_YET
    assert words in made.message, made


def test_an_argument_that_may_change_may():
    assert verdict("x.sort(); return x.copy()", replace(TASK, changes=("x",))).status == CORRECT


def test_a_judge_never_sees_its_own_values_changed():
    x = torch.arange(3.0)
    watched = Watched(lambda x: x.zero_(), ("x",))
    watched(x)
    assert x.tolist() == [0, 1, 2] and "changes `x`" in watched.trouble()


def test_a_crash_in_a_class_names_the_call():
    def judge(candidate):
        with trying("update of 3 rows"):
            candidate().update()

    crashing = "class MyKVCache:\n    def update(self):\n        return 1 / 0\n"
    made = replace(find("03-my-cache"), judge=judge).check(define("MyKVCache", crashing))
    assert "line 3: `return 1 / 0`; this was with update of 3 rows" in made.message


def test_a_judge_that_counts_operations_does_not_count_the_copies():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    watched = Watched(lambda x: x * 2, ("x",))
    ones = torch.ones(3)
    with Counting():
        watched(ones)
    assert Counting.calls == 1


@pytest.mark.parametrize(
    "value",
    [7, 7.0, np.int32(7), np.float32(7), np.array(7), torch.tensor(7), torch.tensor(7.0), np.uint8(7)],
)
def test_whole_numbers_of_every_make_are_read(value):
    assert whole(value) == 7 and type(whole(value)) is int
    assert number(value) == 7.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (7.5, "has a fraction"),
        ("14", "is text"),
        (True, "not True or False"),
        (np.bool_(True), "not True or False"),
        (None, "it returns nothing"),
        (np.array([7]), "not an array of the shape (1,)"),
        (torch.tensor([7]), "not an array of the shape (1,)"),
        (float("nan"), "divided by 0"),
        (float("inf"), "divided by 0"),
        ([7], "must be one whole number"),
        (7 + 0j, "must be one whole number"),
    ],
)
def test_what_is_no_whole_number_is_refused_with_a_sentence(value, words):
    assert whole(value) is None
    assert words in why_not_whole(value, "the count of rows")


def test_a_count_that_a_short_float_rounds_is_named():
    assert "2**24" in rounded(np.float32(20_000_001), 20_000_001)
    assert "2**53" in rounded(float(2**60 + 1), 2**60 + 1)
    assert "float16" in rounded(torch.tensor(4099.0, dtype=torch.float16), 4099)
    assert rounded(np.float32(7), 8) is None and rounded(7, 8) is None and rounded(7.0, 7) is None


@pytest.mark.filterwarnings("error")
def test_arrays_of_every_make_are_read_and_texts_are_not():
    for value in ([1, 2], (1.0, 2.0), np.float16([1, 2]), torch.tensor([1, 2], dtype=torch.bfloat16)):
        assert array(value).tolist() == [1, 2] and array(value).dtype == np.float64
    for value in (["1", "2"], None, object(), [True, False], [1j], torch.tensor([1j]), [[1], [1, 2]], {}):
        assert array(value) is None
    assert precision(np.float32(1))[0] == precision(torch.ones(1))[0] == 2**-23
    assert precision([1.0])[0] == precision(np.ones(1))[0] == 2**-52


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ([1, 2.0], [1, 2.0], True),
        ([1], (1,), False),
        (float("nan"), float("nan"), True),
        (np.array([1, np.nan]), np.array([1, np.nan]), True),
        (np.array([1.0]), np.array([1.0 + 1e-9]), False),
        (torch.tensor([True]), torch.tensor([False]), False),
        ({"a": 1}, {"a": 2}, False),
        (object(), object(), True),
        (1, 1.0, False),
        (1, None, False),
    ],
)
def test_two_values_are_told_alike(a, b, equal):
    assert same(a, b) is equal


def test_inputs_are_written_short():
    assert show_input(np.array([[1.0, 2.5]])) == "[[1.0, 2.5]]"
    assert show_input(torch.zeros(4, 5)) == "a (4, 5) array"
    assert show_input(1_000_000) == "1,000,000"
    assert show_input([3, 1]) == "[3, 1]"
    assert show_input(object()) == "an object" and show_input(len) == "a builtin_function_or_method"

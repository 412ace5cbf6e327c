"""Lesson 02's exercises: every right form passes, and each message is true of its answer."""

import numpy as np
import pytest

from kvlib.teach.exercises import CORRECT, NOT_YET, define, find
from kvlib.teach.exercises.attending import apart

TOP = "m = scores.max(axis=-1, keepdims=True)\n    "
LOG_SUM = "(m + np.log(np.exp(scores - m).sum(axis=-1, keepdims=True)))"


def softmax(body):
    source = f"import numpy as np\ndef stable_softmax(scores):\n    {body}\n"
    return find("02-stable-softmax").check(define("stable_softmax", source))


def step(key):
    task = find("02-decode-step")
    return task.check(define("decode_step", task.wrong[key]))


@pytest.mark.parametrize(
    "body",
    [
        f"{TOP}return np.exp(scores - {LOG_SUM})",
        f"{TOP}return np.exp(scores - m - np.log(np.exp(scores - m).sum(axis=-1, keepdims=True)))",
        "return np.exp(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))",
        f"{TOP}e = np.exp2((scores - m) * np.log2(np.e)); return e / e.sum(axis=-1, keepdims=True)",
        f"scores = scores.astype(np.float32); {TOP}e = np.exp(scores - m); "
        "return e / e.sum(axis=-1, keepdims=True)",
    ],
)
def test_every_stable_softmax_is_accepted(body):
    assert softmax(body).status == CORRECT, softmax(body)


def test_a_replaced_nan_and_an_infinite_maximum_have_their_own_words():
    zeros = softmax("e = np.exp(scores); return np.nan_to_num(e / e.sum(axis=-1, keepdims=True))")
    assert "turning nan into 0" in zeros.message and "clipping" not in zeros.message
    assert "[0.0, 0.0, 0.0], not [0.731, 0.269, 0.0]" in zeros.message
    masked = softmax("e = np.exp(scores - abs(scores).max(axis=-1, keepdims=True)); "
                     "return e / e.sum(axis=-1, keepdims=True)")  # fmt: skip
    assert "must be finite" in masked.message and "overflow" not in masked.message


def test_two_values_are_written_until_they_differ():
    assert apart(np.array([0.5]), np.array([0.5000012])) == "[0.5], not [0.500001]"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("scaled by sqrt(T)", "divide by sqrt(D), not sqrt(T)"),
        ("scaled by sqrt(C)", "divide by sqrt(D), not sqrt(C)"),
        ("scaled after the softmax", "the scale comes after the softmax"),
        ("K not transposed", "K must be transposed"),
        ("weights returned", "those are the weights"),
        ("appended twice", "two rows were appended"),
        ("appended twice, then attended", "two rows were appended"),
        ("clipped", "without clipping"),
        ("absolute max", "also a negative one"),
        ("max not subtracted", "exp overflows"),
    ],
)
def test_a_step_s_mistake_is_named(key, words):
    assert words in step(key).message


def test_one_update_for_each_of_k_and_v_is_named():
    source = find("02-decode-step").solution.replace(
        "K, V = cache.update(k, v)", "K, V = cache.update(k, v)[0], cache.update(k, v)[1]"
    )
    assert "call `cache.update` once" in find("02-decode-step").check(define("decode_step", source)).message


def test_a_row_of_the_right_shape_never_stops_the_check():
    for body in ("np.zeros_like(q)", "q / 3", "np.full_like(q, np.nan)", "(k + v).astype(complex).real"):
        source = (
            "import numpy as np\ndef decode_step(x, W_Q, W_K, W_V, cache):\n"
            f"    q, k, v = x @ W_Q, x @ W_K, x @ W_V\n    return {body}\n"
        )
        verdict = find("02-decode-step").check(define("decode_step", source))
        assert verdict.status == NOT_YET and "could not use" not in verdict.message
        assert ", not [" in verdict.message and "overflow" not in verdict.message

"""Lesson 00's exercises: right answers of every style are accepted, wrong ones refused and named."""

import pytest

from kvlib.teach.exercises import CORRECT, NOT_YET, define, find

SHAPES = "def decode_shapes(B, H, KV, D, T):\n    {}\n"
CONTEXT = (
    "import math\nimport numpy as np\nimport torch\n\n\ndef longest_context(free_bytes, "
    "weight_bytes, bytes_per_token):\n    {}\n"
)
ROOM = "(free_bytes - weight_bytes)"


def judged(key, source, body):
    task = find(key)
    return task.check(define(task.name, source.format(body)))


def as_dict(q="(B, H, 1, D)", k="(B, KV, T, D)", s="(B, H, 1, T)", o="(B, H, 1, D)"):
    return f"return {{'q': {q}, 'k_all': {k}, 'scores': {s}, 'output': {o}}}"


@pytest.mark.parametrize(
    "body",
    [
        as_dict(),
        as_dict(q="[B, H, 1, D]", o="[B, H, 1.0, D]"),
        "import torch; q = torch.zeros(B, H, 1, D); k = torch.zeros(B, KV, T, D); return dict("
        "q=q.shape, k_all=k.shape, scores=torch.zeros(B, H, 1, T).shape, output=q.size())",
        "import numpy as np; q = np.array([B, H, 1, D]); return dict(q=q, k_all=tuple(np.int64(x) "
        "for x in (B, KV, T, D)), scores=np.array((B, H, 1, T)), output=q.copy())",
        "import numpy as np; k = np.zeros((B, KV, T, D)); q = np.zeros((B, H, 1, D)); K = np.repeat(k, "
        "H // KV, 1); s = q @ K.swapaxes(2, 3); return dict(q=q.shape, k_all=k.shape, scores=s.shape, "
        "output=(s @ K).shape)",
    ],
)
def test_right_shapes_are_accepted(body):
    verdict = judged("00-decode-shapes", SHAPES, body)
    assert verdict.status == CORRECT, verdict


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (as_dict(q="(B, KV, 1, D)"), "there are H of them"),
        (as_dict(q="(B, H, D)"), "keep the row axis"),
        (as_dict(k="(B, T, KV, D)"), "heads come before rows"),
        (as_dict(k="(B, KV, 1, D)"), "that is the new key alone"),
        (as_dict(k="(B, KV, T + 1, D)"), "T already counts the new token"),
        (as_dict(k="(B, KV, D, T)"), "transpose only inside"),
        (as_dict(s="(B, H, T, 1)"), "one row, T columns"),
        (as_dict(s="(B, H, 1, D)"), "the D axis is summed away"),
        (as_dict(o="(B, 1, H * D)"), "after the heads are joined"),
        (as_dict(q="'2151'"), "must be a tuple of whole numbers"),
        (as_dict(q="map(str, (B, H, 1, D))"), "must be a tuple of whole numbers"),
        (as_dict(q="(B, H, 1.5, D)"), "must be a tuple of whole numbers"),
        (as_dict(q="(B, H, True, D)"), "must be a tuple of whole numbers"),
        (as_dict(q="(2, 15, 1, 8)"), "with B=1, H=9"),
        ("return [(B, H, 1, D)]", "with B=2, H=15, KV=5, D=8, T=11 this returned"),
        ("return {'q': (B, H, 1, D)}", "`k_all` is missing"),
        ("return {'q': (B, H // 0, 1, D)}", "this was with B=2, H=15, KV=5, D=8, T=11"),
    ],
)
def test_wrong_shapes_are_named(body, words):
    verdict = judged("00-decode-shapes", SHAPES, body)
    assert verdict.status == NOT_YET and words in verdict.message, verdict


@pytest.mark.parametrize(
    "body",
    [
        f"return max(0, {ROOM} // bytes_per_token)",
        f"return math.floor(max({ROOM}, 0) / bytes_per_token)",
        f"return float(max(0, {ROOM} // bytes_per_token))",
        f"return np.maximum(0, np.int64({ROOM}) // bytes_per_token)",
        f"return torch.tensor({ROOM}).div(bytes_per_token, rounding_mode='floor').clamp(min=0)",
        f"return np.array({ROOM} // bytes_per_token).clip(0)",
        f"return divmod({ROOM}, bytes_per_token)[0] if weight_bytes < free_bytes else 0",
        "n = 0\n    room = free_bytes - weight_bytes\n    if bytes_per_token > 1000:\n"
        "        return max(0, room // bytes_per_token)\n    while room >= bytes_per_token:\n"
        "        room -= bytes_per_token; n += 1\n    return n",
    ],
)
def test_right_contexts_are_accepted(body):
    verdict = judged("00-longest-context", CONTEXT, body)
    assert verdict.status == CORRECT, verdict


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return free_bytes // bytes_per_token", "the weights need room too"),
        ("return max(0, free_bytes - weight_bytes)", "those are bytes"),
        ("return max(0, free_bytes - weight_bytes // bytes_per_token)", "in brackets"),
        (f"return max(0, {ROOM} // bytes_per_token + 1)", "one too many: 6 tokens"),
        (f"return abs({ROOM}) // bytes_per_token", "without abs()"),
        (f"return max(1, {ROOM} // bytes_per_token)", "a smallest answer of 1"),
        (f"return max(0, {ROOM} % bytes_per_token)", "how often do the bytes"),
        (f"return max(0, round({ROOM} / bytes_per_token - 0.5))", "one more token fits"),
        (f"return max(0, int(np.float32({ROOM}) / np.float32(bytes_per_token)))", "than float32 can count"),
        (f"return np.float32(max(0, {ROOM} // bytes_per_token))", "float32 holds whole numbers"),
        (f"return {ROOM} // bytes_per_token", "0, not a negative number"),
        (f"return max(0, round({ROOM} / bytes_per_token))", "round down"),
        (f"return max(0, math.ceil({ROOM} / bytes_per_token))", "round down"),
        (f"return max(0, {ROOM} // (2 * bytes_per_token))", "do not double it"),
        ("return max(0, free_bytes // bytes_per_token - weight_bytes // bytes_per_token)", "round once"),
        (f"return max(0, {ROOM} / bytes_per_token)", "part of a token cannot be stored"),
        (f"return str(max(0, {ROOM} // bytes_per_token))", "is text"),
        (f"return np.array([max(0, {ROOM} // bytes_per_token)])", "not an array of the shape (1,)"),
        (f"return [max(0, {ROOM} // bytes_per_token)]", "one whole number"),
        (f"return torch.tensor(float(max(0, {ROOM} // bytes_per_token))).half()",
         "divided by 0, or too large"),
        (f"max(0, {ROOM} // bytes_per_token)", "it returns nothing"),
        (f"return {ROOM} // (free_bytes - 1000)", "this was with free_bytes=1,000, weight_bytes=400"),
    ],
)
def test_wrong_contexts_are_named(body, words):
    verdict = judged("00-longest-context", CONTEXT, body)
    assert verdict.status == NOT_YET and words in verdict.message, verdict


def test_rounding_down_is_not_blamed_for_another_mistake():
    for body in ("abs({0}) // bytes_per_token", "max(0, {0})", "max(0, {0} // bytes_per_token + 1)",
                 "max(0, free_bytes - weight_bytes // bytes_per_token)", "-({0} // bytes_per_token)"):
        assert "round down" not in judged("00-longest-context", CONTEXT,
         f"return {body.format(ROOM)}").message

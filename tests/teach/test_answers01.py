"""Lesson 01's exercises: right answers of every style are accepted, wrong ones refused and named."""

import pytest

from kvlib.teach.exercises import CORRECT, NOT_YET, define, find
from kvlib.teach.exercises.feeding import CASES, Step

COUNTS = "import numpy as np\nimport torch\n\n\ndef counts(p, n):\n    {}\n"
EDIT = (
    "from itertools import takewhile\nimport os\n\n\ndef first_changed_position(tokens_a, tokens_b):\n  "
    "  {}\n"
)
LOOP = """def generate_with_cache(step, cache, held, prompt, max_new_tokens):
    tokens = list(prompt)
    feed = {first}
    for _ in range(max_new_tokens):
        next_token = step(feed, cache)
        tokens.append(next_token)
        feed = {feed}
    return {returns}
"""


def judged(key, source):
    task = find(key)
    return task.check(define(task.name, source))


@pytest.mark.parametrize(
    "body",
    [
        "without = sum(range(p, p + n)); return without, p + n - 1, without - (p + n - 1)",
        "return n * p + n * (n - 1) / 2, p + n - 1.0, [n * p + n * (n - 1) // 2 - p - n + 1][0]",
        "a = np.arange(p, p + n).sum(); return a, np.int32(p + n - 1), a - p - n + 1",
        "a = torch.arange(p, p + n).sum(); return [a, torch.tensor(p + n - 1), a - p - n + 1]",
        "seen, without, held = set(), 0, 0\n    for t in range(n):\n        for position in range(p + t):\n"
        "            without += 1; held += position not in seen; seen.add(position)\n"
        "    return without, held, without - held",
        "a = (p + n) * (p + n - 1) // 2 - p * (p - 1) // 2; return a, n + p - 1, a - n - p + 1",
    ],
)
def test_right_counts_are_accepted(body):
    verdict = judged("01-count-projections", COUNTS.format(body))
    assert verdict.status == CORRECT, verdict


RIGHT = "without = n * p + n * (n - 1) // 2; held = p + n - 1; "


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return n * (p + n - 1), p + n - 1, 0", "as if the text had its final length"),
        ("return n * (p + n), p + n - 1, 0", "as if the text had its final length"),
        ("return n * p, p + n - 1, 0", "one position more than the one before"),
        ("return (p + n) * (p + n - 1) // 2, p + n - 1, 0", "at once, not token by token"),
        ("return n * (n - 1) // 2, p + n - 1, 0", "the prompt again"),
        ("return p + n - 1, p + n - 1, 0", "that is the count with a cache"),
        (f"{RIGHT}return without, p + n, without - p - n", "chosen, but no step runs it"),
        (f"{RIGHT}return without, n, without - n", "projects the whole prompt"),
        (f"{RIGHT}return without, without, 0", "no step has projected before"),
        (f"{RIGHT}return without, 2 * held, 0", "K and V together"),
        (f"{RIGHT}return without, held, without - n", "those of the prompt too"),
        (f"{RIGHT}return without, held, without - p", "those of new tokens too"),
        (f"{RIGHT}return without, held, without + held", "a difference, not a sum"),
        (f"{RIGHT}return without, held, without / held", "that is a ratio"),
        (f"{RIGHT}return without, held, without // held", "that is a ratio"),
        (f"{RIGHT}return without, held, 100 * (without - held) / without", "that is a ratio"),
        (f"{RIGHT}return without, torch.tensor(held / without), 0", "that is a ratio"),
        (f"{RIGHT}return without, held, str(without - held)", "is text"),
        (f"{RIGHT}return without, held, np.array([without - held])", "an array of the shape (1,)"),
        (f"{RIGHT}return without, held, without - held + 0.5", "has a fraction"),
        (f"{RIGHT}return np.float16(without), held, without - held", "float16 holds whole numbers"),
        (f"{RIGHT}return torch.tensor([without, held, without - held]).double()", "three numbers"),
        ("return n // (p - 5), 1, 1", "this was with p=5, n=7"),
    ],
)
def test_wrong_counts_are_named(body, words):
    verdict = judged("01-count-projections", COUNTS.format(body))
    assert verdict.status == NOT_YET and words in verdict.message, verdict


def loop(first="tokens[held:]", feed="[next_token]", returns="tokens[len(prompt):]"):
    return judged("01-feed-one-token", LOOP.format(first=first, feed=feed, returns=returns))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"feed": "tokens[-1:]"},
        {"feed": "[tokens[-1]]", "returns": "tuple(tokens[len(prompt):])"},
        {"first": "prompt[held:]", "feed": "(next_token,)"},
        {"first": "tokens[cache[0].seq_len:]", "feed": "tokens[cache[0].seq_len:]"},
        {"feed": "__import__('numpy').array([next_token]).tolist()", "returns": "tokens[-max_new_tokens:]"},
        {"returns": "[__import__('torch').tensor(t) for t in tokens[len(prompt):]]"},
    ],
)
def test_right_loops_are_accepted(changed):
    verdict = loop(**changed)
    assert verdict.status == CORRECT, verdict


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"feed": "[tokens[len(prompt)]]"}, "one token, but not the newest"),
        ({"feed": "[14]"}, "one token, but not the newest"),
        ({"feed": "[51]"}, "one token, but not the newest"),
        ({"feed": "[max(tokens)]"}, "one token, but not the newest"),
        ({"feed": "[min(tokens)]"}, "one token, but not the newest"),
        ({"feed": "[tokens[-2]]"}, "one token, but not the newest"),
        ({"feed": "tokens"}, "feeds everything again"),
        ({"feed": "tokens[held:]"}, "held before the first call"),
        ({"feed": "tokens[-2:]"}, "the others come twice"),
        ({"feed": "list(prompt)"}, "feeds the prompt again"),
        ({"feed": "next_token"}, "takes a list of tokens, also for one"),
        ({"feed": "[str(next_token)]"}, "whole numbers"),
        ({"feed": "[next_token + 0.5]"}, "whole numbers"),
        ({"first": "tokens"}, "the cache holds its first 5 tokens"),
        ({"first": "tokens[-1:]"}, "that the cache does not hold, from `held` on"),
        ({"first": "tokens[held:] if held else tokens[-1:]"},
         "the whole prompt, once"),
        ({"first": "tokens[:held] or tokens"}, "feeds what the cache holds"),
        ({"first": "tokens[:held]"}, "feeds what the cache holds"),
        ({"first": "tokens[held + 1:]"}, "leaves out the token at position 5"),
        ({"first": "tokens[held:] if held else tokens[1:]"}, "the whole prompt, once"),
        ({"first": "[]"}, "was given an empty list"),
        ({"returns": "tokens"}, "return the 6 new tokens"),
        ({"returns": "tokens[len(prompt) + 1:]"}, "return the 6 new tokens"),
        ({"returns": "prompt.append(1) or tokens[len(prompt) - 1:]"}, "changes `prompt`"),
        ({"first": "tokens[held:] if held != 5 else 1 / 0"}, "held=5, prompt=[9, 20, 4, 31, 6, 17, 8, 25]"),
    ],
)
def test_wrong_loops_are_named(changed, words):
    verdict = loop(**changed)
    assert verdict.status == NOT_YET and words in verdict.message, verdict


def test_one_call_too_many_and_a_cache_made_new_are_refused():
    more = LOOP.format(first="tokens[held:]", feed="[next_token]", returns="tokens[len(prompt):]")
    extra = more.replace("    return", "    step(feed, cache)\n    return")
    assert "6 new tokens take 6 calls" in judged("01-feed-one-token", extra).message
    anew = more.replace("    feed = tokens[held:]", "    [c.reset() for c in cache]; feed = tokens")
    assert "the cache holds its first 5" in judged("01-feed-one-token", anew).message


def test_the_small_model_writes_no_token_twice():
    import torch

    for prompt, _, count in CASES:
        step, tokens = Step(), list(prompt)
        for _ in range(count):
            tokens.append(step(tokens, None))
        assert len(set(tokens)) == len(tokens)
        with torch.no_grad():  # and none of them by a hair
            top = step.model(torch.tensor([tokens[:-1]]))[0, len(prompt) - 1 :].topk(2).values
        assert (top[:, 0] - top[:, 1]).min() > 1e-3


WALK = "for i, (a, b) in enumerate(zip(tokens_a, tokens_b)):\n        if a != b: return i\n    "


@pytest.mark.parametrize(
    "body",
    [
        f"{WALK}return min(len(tokens_a), len(tokens_b))",
        "return sum(1 for _ in takewhile(lambda x: x[0] == x[1], zip(tokens_a, tokens_b)))",
        "return len(os.path.commonprefix([tokens_a, tokens_b]))",
        "import numpy as np; n = min(len(tokens_a), len(tokens_b)); "
        "d = np.array(tokens_a[:n]) != np.array(tokens_b[:n]); return d.argmax() if d.any() else n",
        "import torch; n = min(len(tokens_a), len(tokens_b)); a, b = (torch.tensor(x[:n]) for x in "
        "(tokens_a, tokens_b)); return (a == b).long().cumprod(0).sum()",
        "n = 0\n    while tokens_a[:n + 1] == tokens_b[:n + 1] and n < min(len(tokens_a), len(tokens_b)): "
        "n += 1\n"
        "    return float(n)",
    ],
)
def test_right_positions_are_accepted(body):
    verdict = judged("01-first-changed-position", EDIT.format(body))
    assert verdict.status == CORRECT, verdict


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (WALK, "returns nothing where no token differs"),
        (f"{WALK}return max(len(tokens_a), len(tokens_b))", "rows exist for the shorter prompt"),
        (f"{WALK}return len(tokens_a)", "rows exist for the shorter prompt"),
        (f"{WALK}return 0", "all of it can be kept"),
        (f"{WALK}return -1", "all of it can be kept"),
        (f"{WALK.replace('return i', 'return i + 1')}return min(len(tokens_a), len(tokens_b))",
         "one too far"),
        (f"{WALK.replace('return i', 'return i - 1')}return min(len(tokens_a), len(tokens_b))",
         "one too early"),
        (f"{WALK.replace('!=', 'is not')}return min(len(tokens_a), len(tokens_b))",
         "compare tokens with `!=`"),
        (f"{WALK.replace('return i', 'return tokens_a.index(a)')}return min(len(tokens_a), len(tokens_b))",
         "walk both lists"),
        ("return sum(a == b for a, b in zip(tokens_a, tokens_b))", "equal tokens after the edit do not help"),
        ("return len(set(tokens_a) & set(tokens_b))", "after the edit do not help"),
        (f"{WALK}return str(min(len(tokens_a), len(tokens_b)))", "is text"),
        (f"{WALK}return [min(len(tokens_a), len(tokens_b))]", "must be one whole number"),
        (f"{WALK.replace('return i', 'return i + 0.25')}return 0", "has a fraction"),
        ("n = 0\n    while tokens_a and tokens_b and tokens_a.pop(0) == tokens_b.pop(0): n += 1\n    "
        "return n",
         "the call changes `tokens_a`"),
        ("n = 0\n    while tokens_a[n] == tokens_b[n]: n += 1\n    return n",
         "IndexError (list index out of range) in your cell, line 7: `while tokens_a[n] == tokens_b[n]: n "
         "+= 1`; "
         "this was with tokens_a=[5, 6], tokens_b=[5, 6, 7, 8]"),
    ],
)  # fmt: skip
def test_wrong_positions_are_named(body, words):
    verdict = judged("01-first-changed-position", EDIT.format(body))
    assert verdict.status == NOT_YET and words in verdict.message, verdict

"""The exercises of lesson 02: a softmax that survives, a decode step, where attention's work passes."""

import math
from math import ceil, floor

import numpy as np

from kvlib.memory import MODELS
from kvlib.teach.exercises.attending import STEP, apart
from kvlib.teach.exercises.contract import Exercise, cell, show
from kvlib.teach.exercises.reading import Answer
from kvlib.teach.exercises.watching import array, number, precision


class _Weights(Answer):
    """Weights of some scores, right but for rounding: a log-sum-exp rounds at the size of the scores."""

    largest = 0.0

    def of(self, scores):
        made = _Weights(self.what)
        made.largest = float(np.abs(scores[np.isfinite(scores)]).max())
        return made

    def read(self, result):
        weights = array(result)
        return "return an array of weights" if weights is None else (weights, *precision(result))

    def same(self, given, wanted) -> bool:
        (x, *mine), (y, *right) = given, wanted
        eps, tiny = map(max, zip(mine, right))
        return x.shape == y.shape and bool((np.abs(x - y) <= eps * max(4.0, self.largest) * y + tiny).all())

    def like(self, made, given) -> bool:
        (x, eps, _), (y, other, _) = made, given
        near = max(1e-9, 16 * eps, 16 * other)
        return x.shape == y.shape and np.allclose(x, y, rtol=near, atol=1e-300, equal_nan=True)

    def write(self, result, wanted) -> str:
        weights = array(result)
        if weights is None or weights.shape != wanted[0].shape:
            return show(result) if weights is None else f"weights of the shape {weights.shape}"
        return apart(weights, wanted[0])


_SHAPE = "the weights must have the shape of the scores, {scores.shape}"
_ROW = ("one maximum for the whole array leaves a row far below it with nothing but zeros: subtract each "
        "row's own")  # fmt: skip
_SPOILS = ("the score of minus infinity spoils its row, though its exp is just 0: what you subtract must be "
           "finite. Take the row's largest score itself, no abs, mean or min")  # fmt: skip
_ZEROS = "every exp is 0, and 0 / 0 is nan: subtract the largest score, also a negative one"
_STILL = "exp still overflows: only the largest score makes every exponent 0 or less"
_OVERFLOW = "exp overflows to inf, and inf / inf is nan: subtract the largest score first"
_HIDDEN = ("every weight of a row is 0, but a row sums to 1: turning nan into 0 only hides inf / inf or "
           "0 / 0")  # fmt: skip
_MASKED = ("a score of minus infinity gets weight 0: put no finite number in its place, however small, and "
           "do not clip it. Clipping changes the result")  # fmt: skip
_COLUMNS = "the columns sum to 1, not the rows: the keys are the last axis"
_WHOLE = "the whole array sums to 1; each row is one query, and sums to 1 by itself"
_CLOSE = "close, but further off than rounding: is something added to the sum, left out or scaled?"


def _softmax_rule(given, wanted, scores) -> str | None:
    weights, right, exact = given[0], wanted[0], scores.astype(np.float64)
    if weights.shape != scores.shape:
        return _SHAPE
    limit = math.log(float(np.finfo(scores.dtype).max))
    if not np.isfinite(weights).all():
        if weights.ndim == 2 and np.isfinite(weights).any() and exact.min() < -limit:
            return _ROW
        if not np.isfinite(exact).all():
            return _SPOILS
        if (exact < 0).all():
            return _ZEROS
        if exact.max() > limit:
            return _STILL if exact.max() == 200 else _OVERFLOW
        return "no exp of these scores overflows: look for a division by 0 or a logarithm of 0"
    if (weights[np.isneginf(exact)] > 0).any():
        return _MASKED
    if (weights == 0).all(axis=-1).any():
        return _HIDDEN
    if weights.ndim == 2 and np.allclose(weights.sum(axis=0), 1):
        return _COLUMNS
    if weights.ndim == 2 and math.isclose(weights.sum(), 1, rel_tol=1e-6):
        return _WHOLE
    order = np.argsort(exact, axis=-1)
    ranked = np.take_along_axis(weights, order, axis=-1)
    distinct = np.diff(np.take_along_axis(exact, order, axis=-1), axis=-1) > 0
    if weights.ndim == 1 and (distinct & (np.diff(ranked) == 0) & (np.diff(np.sort(right)) > 0.1)).any():
        equal = "different scores get equal weights"
        clipped = f"{equal}: clipping changes the result, subtracting does not"
        return clipped if np.abs(exact).max() >= 50 else equal
    if (weights[right < 1e-6] > 2 * right[right < 1e-6] + 1e-300).any():
        return (
            "a score far below the largest gets too much weight. Clipping changes the result: the exp of a "
            "very negative number is just 0"
        )
    return _CLOSE if np.abs(weights - right).max() < 0.05 else None


def _softmax_source(*lines: str) -> str:
    return cell("import numpy as np\n\n\ndef stable_softmax(scores):", *lines)


def _exps(of: str, after=None) -> str:
    return _softmax_source(f"exps = np.exp({of})", after or _DIVIDE)


_DOWN = "scores - scores.max(axis=-1, keepdims=True)"
_DIVIDE = "return exps / exps.sum(axis=-1, keepdims=True)"

SOFTMAX = Exercise(
    key="02-stable-softmax",
    lesson=2,
    title="A softmax that survives",
    minutes=7,
    difficulty=1,
    importance=3,
    name="stable_softmax",
    task="""
Write softmax along the last axis, for scores of any size and any number of rows: (T,) or (t, T),
in float16, float32 or float64. No result may be nan. A score of minus infinity (masked) gets
weight 0; every row has a score that is finite.""",
    hints=(
        "Which number can you subtract from all scores of a row without changing its weights? Any.",
        "Subtract the one that makes every exponent 0 or less, and one of them exactly 0.",
        "scores.max(axis=-1, keepdims=True) has the shape (t, 1): it subtracts row by row.",
    ),
    stub=_softmax_source("exps = ...", "return ..."),
    solution=_exps(_DOWN),
    answer=_Weights("weights"),
    cases=tuple(  # each finds a mistake that those before let pass
        (np.array(scores, dtype=kind), f"{scores} in {kind}")
        for scores, kind in (
            ([1.0, 2.0, 0.0], "float64"),
            ([[0.0, 1.0], [2.0, 0.0], [3.0, 3.0]], "float64"),
            ([[1.0, 3.0, 0.0]], "float64"),
            ([[2.0], [5.0]], "float64"),
            ([0.0, -math.inf, 1.0], "float64"),
            ([-math.inf, 3.0, -math.inf], "float32"),
            ([100.0, 99.0, 0.0], "float32"),
            ([-200.0, -201.0], "float32"),
            ([200.0, 0.0, 0.0], "float32"),
            ([[0.0, 1.0], [-1000.0, -1001.0]], "float32"),
            ([12.0, 11.0, 0.0], "float16"),
            ([0.0, -25.0, -100.0, -700.0], "float64"),
            ([-2e9, -math.inf, -2e9 - 1], "float64"),
        )
    ),
    right="no overflow, no 0 / 0, every row for itself",
    otherwise="compare with exp(score - max) / sum, worked out by hand",
    rule=_softmax_rule,
    wrong={
        _OVERFLOW: _exps("scores"),
        _ROW: _exps("scores - scores.max()"),
        _STILL: _exps("scores - np.where(np.isfinite(scores), scores, 0).mean(axis=-1, keepdims=True)"),
        _ZEROS: _exps("scores - abs(np.where(np.isfinite(scores), scores, 0)).max(axis=-1, keepdims=True)"),
        _SPOILS: _exps("scores - np.abs(scores).max(axis=-1, keepdims=True)"),
        _HIDDEN: _exps("scores", "return np.nan_to_num(exps / exps.sum(axis=-1, keepdims=True))"),
        _CLOSE: _exps(_DOWN, "return exps / (exps.sum(axis=-1, keepdims=True) + 1e-3)"),
        "close, but further off than rounding: is something small added to the sum?":
            _exps(_DOWN, "return exps / (exps.sum(axis=-1, keepdims=True) + 1e-6)"),
        _COLUMNS: _exps("scores - scores.max(axis=0)", "return exps / exps.sum(axis=0)"),
        _WHOLE: _exps(_DOWN, "return exps / exps.sum()"),
        _MASKED: _exps(f"np.maximum({_DOWN}, -20)"),
        "a score of minus infinity gets weight 0: do not clip the scores. Clipping changes the result, "
        "subtracting does not": _exps("np.clip(scores, -80, None)"),
        _SHAPE: _exps(_DOWN, f"{_DIVIDE}.squeeze()"),
        "the exps are not divided by their sum: weights sum to 1": _exps(_DOWN, "return exps"),
        "the exps are not divided by their sum: weights sum to 1. And large exps overflow":
            _exps("scores", "return exps"),
        "the scores themselves are normalised: exp is missing":
            _softmax_source("return scores / scores.sum(axis=-1, keepdims=True)"),
        "the call changes `scores`": _softmax_source(
            "scores -= scores.max(axis=-1, keepdims=True)", "exps = np.exp(scores)", _DIVIDE
        ),
    },
)  # fmt: skip


def _crossing_source(
    projections="2 * C * H * D + 2 * C * KV * D",
    mlp="3 * C * M",
    head="vocabulary * C",
    per_key="2 * H * D",
    tokens="(L * (projections + mlp) + head) / (L * per_key)",
) -> str:
    return f"""def crossing(m):
    C, D, H, KV = m.hidden_size, m.head_dim, m.num_heads, m.num_kv_heads
    M, L, vocabulary = m.intermediate_size, m.num_layers, m.vocab_size
    projections = {projections}  # weights of W_Q, W_K, W_V and W_O of a layer
    mlp = {mlp}  # weights of gate, up and down of a layer
    head = {head}  # weights of the output head, once
    per_key = {per_key}  # attention's multiply-adds for one key, in one layer
    return {tokens}  # tokens
"""


class _Tokens(Answer):
    """A number of tokens and the precision it is in, exact or rounded, in one way for all models."""

    ways = tuple(lambda right, way=way: (way(right[0]), right[1]) for way in (float, floor, ceil, round))

    def read(self, result) -> tuple[float, float] | str:
        tokens = number(result)
        if tokens is None or tokens != tokens:
            return "return one number, tokens of context"
        return tokens, max(1e-9, precision(result)[0])

    def same(self, given, wanted) -> bool:
        return abs(given[0] - wanted[0]) <= given[1] * wanted[0]

    def like(self, made, given) -> bool:
        return abs(made[0] - given[0]) <= (0.51 if made[0] > 100 else 1e-4 * made[0])

    def write(self, result, wanted) -> str:
        tokens = number(result)
        if tokens is None or tokens != tokens:
            return show(result)
        return f"{tokens:,.1f} tokens" if 1 <= tokens < 1e12 else f"{tokens:.3g} tokens"


def _crossing_rule(given, wanted, m) -> str | None:
    if abs(given[0] - wanted[0]) < 2:
        return "close, but not the number: is something small counted too, or rounded on the way?"
    if not 10 < given[0] < 1e7:
        return "set both works equal and solve for t: t x work of one key = work of the weights"
    return None


CROSSING = Exercise(
    key="02-crossing",
    lesson=2,
    title="Where attention's work passes that of the weights",
    minutes=12,
    difficulty=2,
    importance=2,
    name="crossing",
    task="""
One decode step does two kinds of work. Every weight is used in one multiply-add, whatever the
context. Attention does some for every key in the cache, so its work grows with the context t.

`m` is a model's shape, as in `MODELS["Llama 3.1 8B"]`. Fill in the lines and return the context,
in tokens, at which both works are equal. Count multiply-adds: the four projections and the gated
MLP of every layer, the output head once, and per key and query head q·k and weight x v.""",
    hints=(
        "A matrix of a rows and b columns costs a x b multiply-adds for one token: as many as it "
        "has weights.",
        "For one key, one query head does D multiply-adds for the score and D more to mix v in. "
        "All H query heads do it.",
        "Solve t x L x per_key = L x (projections + mlp) + head for t.",
    ),
    stub=_crossing_source(*["..."] * 5),
    solution=_crossing_source(),
    answer=_Tokens("tokens"),
    cases=tuple(
        (MODELS[name], name) for name in ("SmolLM2 135M", "Llama 3.1 8B", "Qwen3 32B", "Gemma 2 9B")
    ),
    right="3,891 tokens for SmolLM2 135M, 28,628 for Llama 3.1 8B, the output head counted",
    otherwise="count weights and multiply-adds part by part, and compare the projections first",
    rule=_crossing_rule,
    wrong={
        "the output head is missing: every step multiplies by it, once": _crossing_source(head="0"),
        "a decode step looks up one row of the input embedding: that is no work; only the output head is "
        "multiplied": _crossing_source(head="2 * vocabulary * C"),
        "the output head is there once, not once a layer":
            _crossing_source(tokens="(projections + mlp + head) / per_key"),
        "twice too many: attention multiplies twice for each key, q with k and a weight with v. A "
        "multiply-add counts the same on both sides": _crossing_source(per_key="H * D"),
        "a multiply-add must count the same on both sides: attention has 2 x D of them for each query head "
        "and key": _crossing_source(per_key="4 * H * D"),
        "every query head does its own attention: count H of them, not KV. Sharing K and V saves memory, "
        "not this work": _crossing_source(per_key="2 * KV * D"),
        "attention happens in every layer: multiply its work by L as well":
            _crossing_source(tokens="(L * (projections + mlp) + head) / per_key"),
        "the projections and the MLP are there in every layer":
            _crossing_source(tokens="(projections + mlp + head) / (L * per_key)"),
        "a gated MLP has three matrices: gate, up and down": _crossing_source(mlp="2 * C * M"),
        "a projection is missing: W_O brings the heads' outputs back, (H D, C)":
            _crossing_source(projections="C * H * D + 2 * C * KV * D"),
        "W_K and W_V make KV heads, not H of them": _crossing_source(projections="4 * C * H * D"),
        "W_K and W_V work too: the new token needs its own key and value":
            _crossing_source(projections="2 * C * H * D"),
        "W_Q is (C, H D) and W_K is (C, KV D): they are not (C, C). W_K and W_V make KV heads, not H of them":
            _crossing_source(projections="4 * C * C"),
        "H x D is not the hidden size in every model: take the head dimension from the config":
            _crossing_source(projections="2 * C * C + 2 * C * KV * D", per_key="2 * C"),
        "the norms' weights are counted too: a norm multiplies number by number, and is none of the matrices "
        "that the task names": _crossing_source(mlp="3 * C * M + 2 * C"),
        "that is the inverse: tokens are the weights' work over the work of a key":
            _crossing_source(tokens="(L * per_key) / (L * (projections + mlp) + head)"),
    },
)  # fmt: skip

EXERCISES = (SOFTMAX, STEP, CROSSING)

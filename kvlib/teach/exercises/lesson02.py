"""The exercises of lesson 02: a softmax that survives, a decode step, where attention's work passes."""

import math

import numpy as np

from kvlib.memory import MODELS
from kvlib.teach.exercises.attending import STEP, apart
from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet, show
from kvlib.teach.exercises.watching import array, number, precision

# scores, element type; each finds a mistake that those before let pass
SOFTMAX_CASES = (
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


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax along the last axis, with the largest score subtracted first."""
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def _check_softmax(candidate) -> Verdict:
    for values, dtype in SOFTMAX_CASES:
        scores = np.array(values, dtype=dtype)
        with np.errstate(all="ignore"):
            given = candidate(scores)
        case = f"for {values} in {dtype}"
        if (weights := array(given)) is None:
            return not_yet(f"return an array of weights; {case} it returns {show(given)}")
        if weights.shape != scores.shape:
            return not_yet(
                f"the weights must have the shape of the scores, {scores.shape}; {case} theirs is "
                f"{weights.shape}"
            )
        wanted = softmax(scores.astype(np.float64))
        if not (np.abs(weights - wanted) <= _tolerance(scores, given, wanted)).all():
            mistake = _softmax_mistake(scores, weights, wanted)
            return not_yet(f"{mistake}; {case} it gives {apart(weights, wanted)}")
    return correct("no overflow, no 0 / 0, every row for itself")


def _tolerance(scores: np.ndarray, given, wanted: np.ndarray) -> np.ndarray:
    """Return how far rounding may take each weight: log-sum-exp rounds at the size of the scores."""
    eps, tiny = map(max, zip(precision(scores), precision(given)))
    largest = float(np.abs(scores[np.isfinite(scores)]).max())
    return eps * max(4.0, largest) * wanted + tiny


def _softmax_mistake(scores, weights, wanted) -> str:
    """Say which mistake gives these weights."""
    exact = scores.astype(np.float64)
    limit = math.log(float(np.finfo(scores.dtype).max))
    if not np.isfinite(weights).all():
        if weights.ndim == 2 and np.isfinite(weights).any() and exact.min() < -limit:
            return (
                "one maximum for the whole array leaves a row far below it with nothing but "
                "zeros: subtract each row's own"
            )
        if not np.isfinite(exact).all():
            return (
                "the score of minus infinity spoils its row, though its exp is just 0: what you "
                "subtract must be finite. Take the row's largest score itself, no abs, mean or min"
            )
        if (exact < 0).all():
            return "every exp is 0, and 0 / 0 is nan: subtract the largest score, also a negative one"
        if exact.max() == 200:
            return "exp still overflows: only the largest score makes every exponent 0 or less"
        if exact.max() > limit:
            return "exp overflows to inf, and inf / inf is nan: subtract the largest score first"
        return "no exp of these scores overflows: look for a division by 0 or a logarithm of 0"
    if (weights[np.isneginf(exact)] > 0).any():
        return (
            "a score of minus infinity gets weight 0: put no finite number in its place, however small, "
            "and do "
            "not clip it. Clipping changes the result"
        )
    if (weights == 0).all(axis=-1).any():
        return (
            "every weight of a row is 0, but a row sums to 1: turning nan into 0 only hides "
            "inf / inf or 0 / 0"
        )
    with np.errstate(all="ignore"):
        exps = np.exp(exact - exact.max(axis=-1, keepdims=True))
        if np.allclose(weights, exps) or np.allclose(weights, np.exp(exact)):
            return "the exps are not divided by their sum: weights sum to 1"
        if np.allclose(weights, exact / exact.sum(axis=-1, keepdims=True)):
            return "the scores themselves are normalised: exp is missing"
    if weights.ndim == 2 and np.allclose(weights.sum(axis=0), 1):
        return "the columns sum to 1, not the rows: the keys are the last axis"
    if weights.ndim == 2 and math.isclose(weights.sum(), 1, rel_tol=1e-6):
        return "the whole array sums to 1; each row is one query, and sums to 1 by itself"
    order = np.argsort(exact, axis=-1)
    ranked = np.take_along_axis(weights, order, axis=-1)
    distinct = np.diff(np.take_along_axis(exact, order, axis=-1), axis=-1) > 0
    if weights.ndim == 1 and (distinct & (np.diff(ranked) == 0) & (np.diff(np.sort(wanted)) > 0.1)).any():
        if np.abs(exact).max() < 50:
            return "different scores get equal weights"
        return "different scores get equal weights: clipping changes the result, subtracting does not"
    if (weights[wanted < 1e-6] > 2 * wanted[wanted < 1e-6] + 1e-300).any():
        return (
            "a score far below the largest gets too much weight. Clipping changes the result: the exp of a "
            "very negative number is just 0"
        )
    if np.abs(weights - wanted).max() < 0.05:
        return "close, but further off than rounding: is something added to the sum, left out or scaled?"
    return "compare with exp(score - max) / sum, worked out by hand"


def _softmax_source(*lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"import numpy as np\n\n\ndef stable_softmax(scores):\n{body}\n"


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
    solution=_softmax_source("exps = np.exp(scores - scores.max(axis=-1, keepdims=True))", _DIVIDE),
    judge=_check_softmax,
    wrong={
        "max not subtracted": _softmax_source("exps = np.exp(scores)", _DIVIDE),
        "one max for all rows": _softmax_source("exps = np.exp(scores - scores.max())", _DIVIDE),
        "mean subtracted": _softmax_source(
            "exps = np.exp(scores - np.where(np.isfinite(scores), scores, 0)"
            ".mean(axis=-1, keepdims=True))", _DIVIDE,
        ),
        "absolute max": _softmax_source(
            "finite = np.where(np.isfinite(scores), scores, 0)",
            "exps = np.exp(scores - np.abs(finite).max(axis=-1, keepdims=True))", _DIVIDE,
        ),
        "absolute max of a masked row": _softmax_source(
            "exps = np.exp(scores - np.abs(scores).max(axis=-1, keepdims=True))", _DIVIDE
        ),
        "nan replaced": _softmax_source(
            "exps = np.exp(scores)", "return np.nan_to_num(exps / exps.sum(axis=-1, keepdims=True))"
        ),
        "something added to the sum": _softmax_source(
            "exps = np.exp(scores - scores.max(axis=-1, keepdims=True))",
            "return exps / (exps.sum(axis=-1, keepdims=True) + 1e-3)",
        ),
        "over the columns": _softmax_source(
            "exps = np.exp(scores - scores.max(axis=0))", "return exps / exps.sum(axis=0)"
        ),
        "one sum for all rows": _softmax_source(
            "exps = np.exp(scores - scores.max(axis=-1, keepdims=True))", "return exps / exps.sum()"
        ),
        "clipped below": _softmax_source(
            "exps = np.exp(np.maximum(scores - scores.max(axis=-1, keepdims=True), -20))", _DIVIDE
        ),
        "something small added to the sum": _softmax_source(
            "exps = np.exp(scores - scores.max(axis=-1, keepdims=True))",
            "return exps / (exps.sum(axis=-1, keepdims=True) + 1e-6)",
        ),
        "axes of one dropped": _softmax_source(
            "exps = np.exp(scores - scores.max(axis=-1, keepdims=True))", f"{_DIVIDE}.squeeze()"
        ),
        "clipped": _softmax_source("exps = np.exp(np.clip(scores, -80, 80))", _DIVIDE),
        "not normalised": _softmax_source(
            "return np.exp(scores - scores.max(axis=-1, keepdims=True))"
        ),
        "in place": _softmax_source(
            "scores -= scores.max(axis=-1, keepdims=True)", "exps = np.exp(scores)", _DIVIDE
        ),
        "no exp": _softmax_source("return scores / scores.sum(axis=-1, keepdims=True)"),
    },
)  # fmt: skip


def crossing_parts(m) -> tuple[int, int, int, int]:
    """Return weights of a layer's projections and MLP, of the head, and multiply-adds per key."""
    C, D, H, KV, M = m.hidden_size, m.head_dim, m.num_heads, m.num_kv_heads, m.intermediate_size
    return 2 * C * H * D + 2 * C * KV * D, 3 * C * M, m.vocab_size * C, 2 * H * D


def crossing(m) -> float:
    """Return the tokens of context at which attention's work equals that of the weights."""
    projections, mlp, head, per_key = crossing_parts(m)
    return (m.num_layers * (projections + mlp) + head) / (m.num_layers * per_key)


def _check_crossing(candidate) -> Verdict:
    roundings = {"none": float, "down": math.floor, "up": math.ceil, "to the nearest": round}
    for name in CROSSING_MODELS:
        m = MODELS[name]
        given, wanted = candidate(m), crossing(m)
        tokens = number(given)
        if tokens is None or tokens != tokens:
            return not_yet(f"return one number, tokens of context; for {name} it gives {show(given)}")
        near = max(1e-9, precision(given)[0]) * wanted
        roundings = {how: f for how, f in roundings.items() if abs(tokens - f(wanted)) <= near}
        if not roundings:  # one way of rounding must explain every model's number
            shown = f"{tokens:,.1f}" if 1 <= tokens < 1e12 else f"{tokens:.3g}"
            return not_yet(f"{_crossing_mistake(m, tokens)}; for {name} it gives {shown} tokens")
    return correct("3,891 tokens for SmolLM2 135M, 28,628 for Llama 3.1 8B, the output head counted")


CROSSING_MODELS = ("SmolLM2 135M", "Llama 3.1 8B", "Qwen3 32B", "Gemma 2 9B")


def _crossing_mistake(m, given: float) -> str:
    """Say which mistake gives this number of tokens."""
    projections, mlp, head, per_key = crossing_parts(m)
    C, D, H, KV, M, L = (
        m.hidden_size, m.head_dim, m.num_heads, m.num_kv_heads, m.intermediate_size, m.num_layers
    )  # fmt: skip
    linear = L * (projections + mlp) + head
    mistakes = [
        (linear - head, L * per_key, "the output head is missing: every step multiplies by it, once"),
        (linear + head, L * per_key, "a decode step looks up one row of the input embedding: that "
         "is no work; only the output head is multiplied"),
        (L * (projections + mlp + head), L * per_key, "the output head is there once, not once a layer"),
        (linear, L * H * D, "twice too many: attention multiplies twice for each key, q with k and a "
         "weight with v. A multiply-add counts the same on both sides"),
        (linear, 2 * L * per_key, "a multiply-add must count the same on both sides: attention has "
         "2 x D of them for each query head and key"),
        (linear, 2 * L * KV * D, "every query head does its own attention: count H of them, not KV. "
         "Sharing K and V saves memory, not this work"),
        (linear, per_key, "attention happens in every layer: multiply its work by L as well"),
        (projections + mlp + head, L * per_key, "the projections and the MLP are there in every layer"),
        (linear - L * C * M, L * per_key, "a gated MLP has three matrices: gate, up and down"),
        (linear - L * C * H * D, L * per_key, "a projection is missing: W_O brings the heads' "
         "outputs back, (H D, C)"),
        (linear + 2 * L * C * (H - KV) * D, L * per_key, "W_K and W_V make KV heads, not H of them"),
        (linear - 2 * L * C * KV * D, L * per_key, "W_K and W_V work too: the new token needs its "
         "own key and value"),
        (L * per_key, linear, "that is the inverse: tokens are the weights' work over the work of a key"),
        (L * (4 * C * C + mlp) + head, L * per_key, "W_Q is (C, H D) and W_K "
         "is (C, KV D): they are not (C, C)"),
        (L * (2 * C * C + 2 * C * KV * D + mlp) + head, 2 * L * C, "H x D is not the hidden size in "
         "every model: take the head dimension from the config"),
    ]  # fmt: skip
    for work, per_token, meaning in mistakes:
        differs = not math.isclose(work / per_token, linear / (L * per_key), rel_tol=1e-3)
        if differs and math.isclose(given, work / per_token, rel_tol=1e-4):
            return meaning
    norms = (2 * L * C, (2 * L + 1) * C)  # weights of the norms before attention and MLP, and of the last
    if any(abs(given - (linear + weights) / (L * per_key)) < 0.51 for weights in norms):
        return (
            "the norms' weights are counted too: a norm multiplies number by number, and is none of the "
            "matrices that the task names"
        )
    if abs(given - linear / (L * per_key)) < 2:
        return "close, but not the number: is something small counted too, or rounded on the way?"
    if not 10 < given < 1e7:
        return "set both works equal and solve for t: t x work of one key = work of the weights"
    return "count weights and multiply-adds part by part, and compare the projections first"


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
    judge=_check_crossing,
    wrong={
        "no output head": _crossing_source(head="0"),
        "the input embedding counted": _crossing_source(head="2 * vocabulary * C"),
        "scores only": _crossing_source(per_key="H * D"),
        "KV heads attend": _crossing_source(per_key="2 * KV * D"),
        "two operations on one side": _crossing_source(per_key="4 * H * D"),
        "attention in one layer": _crossing_source(tokens="(L * (projections + mlp) + head) / per_key"),
        "one layer": _crossing_source(tokens="(projections + mlp + head) / (L * per_key)"),
        "two MLP matrices": _crossing_source(mlp="2 * C * M"),
        "W_O forgotten": _crossing_source(projections="C * H * D + 2 * C * KV * D"),
        "K and V for every query head": _crossing_source(projections="4 * C * H * D"),
        "hidden size for H x D": _crossing_source(projections="2 * C * C + 2 * C * KV * D", per_key="2 * C"),
        "norms counted": _crossing_source(mlp="3 * C * M + 2 * C"),
        "the inverse": _crossing_source(tokens="(L * per_key) / (L * (projections + mlp) + head)"),
    },
)

EXERCISES = (SOFTMAX, STEP, CROSSING)

"""The exercise of one decode step in NumPy: project, append, attend."""

import numpy as np

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet, show

HIDDEN, HEAD_DIM = 5, 4


class RowCache:
    """K and V of one head, (rows, D) each; `update` appends and returns all rows."""

    def __init__(self, K: np.ndarray, V: np.ndarray):
        self.K, self.V = K, V

    @property
    def seq_len(self) -> int:
        """Return how many rows are held."""
        return len(self.K)

    def update(self, k_new, v_new) -> tuple[np.ndarray, np.ndarray]:
        """Append (t, D) rows. Raises ValueError for another shape."""
        for name, rows in (("k_new", k_new), ("v_new", v_new)):
            if np.ndim(rows) != 2 or np.shape(rows)[1] != self.K.shape[1]:
                raise ValueError(f"{name} must have the shape (1, {self.K.shape[1]}), not {np.shape(rows)}")
        self.K = np.concatenate([self.K, k_new])
        self.V = np.concatenate([self.V, v_new])
        return self.K, self.V


def attention_row(q, K, V, scale=None) -> np.ndarray:
    """Return softmax(q K^T x scale) V: (1, D), (T, D), (T, D) -> (1, D)."""
    scores = q @ K.T * (HEAD_DIM**-0.5 if scale is None else scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ V


def _check_step(candidate) -> Verdict:
    random = np.random.default_rng(0)
    weights = random.normal(size=(3, HIDDEN, HEAD_DIM))
    cases = ((HEAD_DIM - 1, 1), (6, 1), (0, 1), (6, 300))  # rows held, size of the numbers
    for held, size in cases:  # the first has as many rows as columns, so that q K can be computed
        x = size * random.normal(size=(1, HIDDEN))
        K, V = random.normal(size=(2, held, HEAD_DIM))
        q, k, v = (x @ W for W in weights)
        cache = RowCache(K.copy(), V.copy())
        with np.errstate(all="ignore"):
            given = candidate(x.copy(), *(W.copy() for W in weights), cache)
        output = _as_array(given)
        if output is None or output.shape != (1, HEAD_DIM):
            return not_yet(f"return one row, (1, {HEAD_DIM}): the weights times V; it returns {show(given)}")
        wanted = attention_row(q, np.concatenate([K, k]), np.concatenate([V, v]))
        if not np.allclose(output, wanted, rtol=1e-9):
            return not_yet(_step_mistake(output, q, k, v, K, V))
        if mistake := _cache_mistake(cache, k, v, K, V):
            return not_yet(mistake)
    return correct(
        "project, append, then attend to every row, the token's own included; also in an empty "
        "cache, and with scores in the thousands"
    )


def _as_array(given) -> np.ndarray | None:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _step_mistake(output, q, k, v, K, V) -> str:
    """Say which mistake gives this output."""
    if not np.isfinite(output).all():
        largest = np.abs(q @ np.concatenate([K, k]).T).max() / HEAD_DIM**0.5
        return (
            f"the output is {show(output[0].tolist()[0])} where the scores reach {largest:,.0f}: exp "
            "overflows. Subtract the largest score before exp"
        )
    all_k, all_v = np.concatenate([K, k]), np.concatenate([V, v])
    scores = q @ all_k.T / HEAD_DIM**0.5
    exps = np.exp(scores - scores.max())
    mistakes = []
    if len(K):
        mistakes.append((
            attention_row(q, K, V),
            "that attends to the old rows alone: the new token attends to itself too. Append its "
            "k and v first, then attend",
        ))  # fmt: skip
        mistakes.append((
            v,
            "that attends to the new row alone: use all rows, which `cache.update` returns",
        ))  # fmt: skip
    mistakes += [
        (attention_row(q, all_k, all_v, 1.0), "the scores are not scaled: divide them by sqrt(D)"),
        (
            attention_row(q, all_k, all_v, 1 / HEAD_DIM),
            "the scores are divided by D; the formula divides by its square root",
        ),
        (
            all_v.sum(axis=0, keepdims=True),
            "every weight is 1, so the values are just added up: the softmax runs over the wrong "
            "axis. It belongs along the keys, axis -1 of the scores (1, T)",
        ),
        (
            attention_row(q, np.concatenate([K, v]), np.concatenate([V, k])),
            "the new key and value went into each other's place: `cache.update` takes k first",
        ),
        (
            attention_row(q, all_v, all_k),
            "keys and values are swapped: queries are compared with K, and the weights mix V",
        ),
        (
            attention_row(k, all_k, all_v),
            "the new key asks its own question: the scores need q = x W_Q, not k",
        ),
        (exps / exps.sum(), "those are the weights: multiply them by V to get the output"),
        (exps @ all_v, "the weights do not sum to 1: divide by the sum of the exps"),
        (scores @ all_v, "the scores mix the values without a softmax"),
    ]
    if all_k.shape[0] == all_k.shape[1]:
        mistakes.append((
            attention_row(q, all_k.T, all_v),
            "that multiplies q by K as it stands; each score is a product of q with one row of K, "
            "so K must be transposed: q @ K.T",
        ))  # fmt: skip
    for wrong, meaning in mistakes:
        if np.allclose(output, wrong, rtol=1e-6):
            return meaning
    return (
        f"with {len(K)} rows in the cache the output is {show(output.round(3).tolist()[0])}, not "
        f"{show(attention_row(q, all_k, all_v).round(3).tolist()[0])}: check each line's shape and "
        "formula, one by one"
    )


def _cache_mistake(cache, k, v, K, V) -> str | None:
    """Say what is wrong with the rows that the cache holds after the step, if anything."""
    held = len(K)
    if cache.seq_len == held:
        return (
            f"the output is right, but the cache still holds {held} rows: the next token would "
            "miss this one. Append with `cache.update`"
        )
    if cache.seq_len != held + 1:
        return f"the cache went from {held} rows to {cache.seq_len}: one token appends one row"
    if not np.allclose(cache.K[-1], k) or not np.allclose(cache.V[-1], v):
        return "the row that was appended is not x W_K and x W_V"
    if not np.array_equal(cache.K[:held], K) or not np.array_equal(cache.V[:held], V):
        return "the step changed older rows of the cache: they are done, and only read"
    return None


_HEAD = "import numpy as np\n\n\ndef decode_step(x_new, W_Q, W_K, W_V, cache):\n"
_SOFTMAX = (
    "    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))\n"
    "    weights = weights / weights.sum(axis=-1, keepdims=True)\n"
)


def _step_source(
    append="    K, V = cache.update(k, v)\n",
    scores="q @ K.T / q.shape[-1] ** 0.5",
    softmax=_SOFTMAX,
    after="",
) -> str:
    return (
        f"{_HEAD}    q, k, v = x_new @ W_Q, x_new @ W_K, x_new @ W_V\n{append}"
        f"    scores = {scores}\n{softmax}{after}    return weights @ V\n"
    )


STEP = Exercise(
    key="02-decode-step",
    lesson=2,
    title="One decode step",
    minutes=12,
    difficulty=2,
    importance=3,
    name="decode_step",
    task="""
Write a step for one new token, in one layer with one head.

`x_new` is its layer input, (1, C); `W_Q`, `W_K`, `W_V` are (C, D). `cache.update(k, v)` appends
one row to each of K and V and returns both with all their rows, (T, D); `cache.K` and `cache.V`
are the rows held so far.

Return the output, (1, D): softmax(q Kᵀ / √D) V. It must be right in an empty cache, and for
scores in the thousands.""",
    hints=(
        "Follow the shapes: q, k and v are (1, D), the scores (1, T), the weights (1, T), the "
        "output (1, D).",
        "The token attends to itself too. So its row must be in K and V before the scores are made.",
        "scores = q @ K.T / D ** 0.5; subtract scores.max() before np.exp; divide by the sum.",
    ),
    stub=(
        f"{_HEAD}"
        "    q = x_new @ W_Q  # (1, D)\n"
        "    k, v = ..., ...  # (1, D) each\n"
        "    K, V = ..., ...  # (T, D) each: every row that the token attends to\n"
        "    scores = ...     # (1, T)\n"
        "    weights = ...    # (1, T), their sum is 1\n"
        "    return ...       # (1, D)\n"
    ),
    solution=_step_source(),
    judge=_check_step,
    wrong={
        "attends, then appends": _step_source("    K, V = cache.K, cache.V\n")
        .replace("    return weights @ V\n", "    cache.update(k, v)\n    return weights @ V\n"),
        "not scaled": _step_source(scores="q @ K.T"),
        "scaled by D": _step_source(scores="q @ K.T / q.shape[-1]"),
        "K not transposed": _step_source(scores="q @ K / q.shape[-1] ** 0.5"),
        "softmax over the wrong axis": _step_source(softmax=_SOFTMAX.replace("axis=-1", "axis=0")),
        "max not subtracted": _step_source(
            softmax=_SOFTMAX.replace(" - scores.max(axis=-1, keepdims=True)", "")
        ),
        "not normalised": _step_source(softmax=_SOFTMAX.splitlines(keepends=True)[0]),
        "never appended": _step_source(
            "    K, V = np.concatenate([cache.K, k]), np.concatenate([cache.V, v])\n"
        ),
        "appended twice": _step_source(after="    cache.update(k, v)\n"),
        "keys and values swapped": _step_source("    K, V = cache.update(v, k)\n"),
        "the new row alone": _step_source("    cache.update(k, v)\n    K, V = k, v\n"),
        "the key asks": _step_source(scores="k @ K.T / q.shape[-1] ** 0.5"),
        "weights returned": _step_source().replace("return weights @ V", "return weights"),
    },
)  # fmt: skip

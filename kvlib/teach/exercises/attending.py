"""The exercise of one decode step in NumPy: project, append, attend."""

import numpy as np

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet, show
from kvlib.teach.exercises.watching import array, precision

# C, D, rows held, size of the numbers: C, D, sqrt(D), D / 2 and T are never alike
CASES = ((5, 9, 6, 0.5), (7, 3, 0, 1), (4, 7, 8, 40), (8, 5, 2, 40), (5, 9, 300, 2))
SEED = 447  # the third case's scores overflow exp, the fourth's are all far below 0


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
    scores = q @ K.T * (q.shape[-1] ** -0.5 if scale is None else scale)
    return _softmax(scores) @ V


def step_cases() -> list[tuple[np.ndarray, ...]]:
    """Return x (1, C), weights (3, C, D), and K and V (held, D) of every case."""
    random, cases = np.random.default_rng(SEED), []
    for hidden, dim, held, size in CASES:
        weights = random.normal(size=(3, hidden, dim))
        x = size * random.normal(size=(1, hidden))
        cases.append((x, weights, *(size * random.normal(size=(2, held, dim)))))
    return cases


def _check_step(candidate) -> Verdict:
    for x, weights, K, V in step_cases():
        held, dim = K.shape
        q, k, v = (x @ W for W in weights)
        cache = RowCache(K.copy(), V.copy())
        told = f"; this was with C={x.shape[1]}, D={dim} and {held} rows in the cache"
        try:
            output = array(given := _run(candidate, x, weights, cache))
        except ValueError:
            if cache.seq_len > held + 1:
                return not_yet(_TWICE + told)
            if _reads_k_as_it_stands(candidate, x, weights):
                return not_yet(
                    "that multiplies q by K as it stands; each score is a product of q with one row "
                    f"of K, so K must be transposed: q @ K.T{told}"
                )
            raise
        if not np.array_equal(cache.K[:held], K) or not np.array_equal(cache.V[:held], V):
            return not_yet(f"the step changed older rows of the cache: they are done, and only read{told}")
        all_k, all_v = np.concatenate([K, k]), np.concatenate([V, v])
        if output is None or output.shape != (1, dim):
            if output is not None and _alike(output, _softmax(q @ all_k.T / dim**0.5)):
                return not_yet(f"those are the weights: multiply them by V to get the output{told}")
            return not_yet(
                f"return one row, (1, D) = (1, {dim}): the weights times V; it returns {show(given)}{told}"
            )
        if precision(given)[0] > 1e-6:
            return not_yet(
                "float16 and bfloat16 are too coarse for scores in the thousands: stay in float32 or "
                f"float64{told}"
            )
        wanted = attention_row(q, all_k, all_v)
        if not _as_exact_as_float32(output, wanted, q, all_k, all_v):
            return not_yet(_step_mistake(output, q, k, v, K, V, x.shape[1]) + told)
        if mistake := _cache_mistake(cache, k, v, held):
            return not_yet(mistake + told)
    return correct(
        "project, append, then attend to every row, the token's own included; also in an empty "
        "cache, and with scores in the thousands"
    )


def _as_exact_as_float32(output, wanted, q, K, V) -> bool:
    """Say whether only rounding parts the two: that of float32, or less than 1e-9.

    A factor that all numbers share is no rounding: the weights do not sum to 1.
    """
    size = float(np.abs(V).max())
    if np.allclose(output, wanted, rtol=0, atol=1e-9 * size):
        return True
    scores = float(np.abs(q @ K.T).max()) / K.shape[1] ** 0.5
    factor = (output * wanted).sum() / (wanted**2).sum()
    if np.abs(output - factor * wanted).max() < 1e-12 * size:
        return False
    return np.allclose(output, wanted, rtol=0, atol=float(np.finfo(np.float32).eps) * (4 + 4 * scores) * size)


_TWICE = "two rows were appended for one token: call `cache.update` once, it returns both K and V"


def _run(candidate, x, weights, cache):
    with np.errstate(all="ignore"):
        return candidate(x.copy(), *(W.copy() for W in weights), cache)


def _reads_k_as_it_stands(candidate, x, weights) -> bool:
    """Say whether q K is computed; it only can be when T is D."""
    dim = weights.shape[-1]
    K, V = np.random.default_rng(1).normal(size=(2, dim - 1, dim))
    q, k, v = (x @ W for W in weights)
    try:
        output = array(_run(candidate, x, weights, RowCache(K, V)))
    except ValueError:
        return False
    all_k, all_v = np.concatenate([K, k]), np.concatenate([V, v])
    return output is not None and _alike(output, attention_row(q, all_k.T, all_v))


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-5)


def _softmax(scores: np.ndarray) -> np.ndarray:
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def apart(given: np.ndarray, wanted: np.ndarray) -> str:
    """Write two arrays of one shape, "given, not wanted", with digits enough to tell them apart."""
    for digits in range(3, 17):
        pair = [show(np.round(x, digits).tolist(), 120) for x in (given, wanted)]
        if pair[0] != pair[1]:
            break
    return f"{pair[0]}, not {pair[1]}"


def _step_mistake(output, q, k, v, K, V, hidden: int) -> str:
    """Say which mistake gives this output."""
    all_k, all_v = np.concatenate([K, k]), np.concatenate([V, v])
    dim = K.shape[1]
    scores = q @ all_k.T / dim**0.5
    rows, largest = len(all_k), scores.max()
    shown = apart(output[0], attention_row(q, all_k, all_v)[0])
    if not np.isfinite(output).all():
        if largest > 709:
            return (
                f"where the largest score is {largest:,.0f} the output is {shown}: exp overflows. "
                "Subtract the largest score before exp"
            )
        if largest < -700:
            return (
                f"where the largest score is {largest:,.0f} the output is {shown}: every exp is 0, "
                "and 0 / 0 is nan. Subtract the largest score, also a negative one"
            )
        return (
            f"the output is {shown}, though no score is above {largest:.1f}: "
            "look for a division by 0 or a logarithm of a negative number"
        )
    exps = np.exp(scores - largest)
    mistakes = []
    if len(K):
        mistakes.append((
            attention_row(q, K, V),
            "that attends to the old rows alone: the new token attends to itself too. Append its "
            "k and v first, then attend",
        ))  # fmt: skip
        twice = [np.concatenate([x, x[-1:]]) for x in (all_k, all_v)]
        mistakes.append((attention_row(q, *twice), _TWICE))
        mistakes.append((
            v,
            "that attends to the new row alone: use all rows, which `cache.update` returns",
        ))  # fmt: skip
        mistakes += [
            (
                attention_row(q, all_k[-newest:], all_v[-newest:]),
                f"that attends to the newest {newest} rows alone: the step reads all {rows}",
            )
            for newest in range(2, rows)
        ]
    mistakes += [
        (attention_row(q, all_k, all_v, 1.0), "the scores are not scaled: divide them by sqrt(D)"),
        (
            attention_row(q, all_k, all_v, 1 / dim),
            "the scores are divided by D; the formula divides by its square root",
        ),
        (
            attention_row(q, all_k, all_v, 2 / dim),
            "the scores are divided by D / 2, which is sqrt(D) for D = 4 only",
        ),
        (
            attention_row(q, all_k, all_v, 1 / 2),
            "the scores are divided by 2, which is sqrt(D) for D = 4 only: take D from q",
        ),
        (
            attention_row(q, all_k, all_v, rows**-0.5),
            "divide by sqrt(D), not sqrt(T): the scale belongs to the head, not to the rows",
        ),
        (
            attention_row(q, all_k, all_v, hidden**-0.5),
            "divide by sqrt(D), not sqrt(C): a score sums D products, the width of q and K",
        ),
        (
            attention_row(q, all_k, all_v, dim**0.5),
            "the scores are multiplied by sqrt(D); the formula divides",
        ),
        (
            attention_row(q, all_k, all_v, 1.0) / dim**0.5,
            "the scale comes after the softmax, so the weights no longer sum to 1: divide the scores",
        ),
        (
            attention_row(q, all_k, all_v) / dim**0.5,
            "that divides by sqrt(D) twice: the scores once, and not the weights or the output",
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
        (exps @ all_v, "the weights do not sum to 1: divide by the sum of the exps"),
        (scores @ all_v, "the scores mix the values without a softmax"),
    ]
    for wrong, meaning in mistakes:
        if _alike(output, wrong):
            return meaning
    factor = (output / attention_row(q, all_k, all_v)).ravel()
    if 0.5 < factor[0] < 1.5 and np.allclose(factor, factor[0], rtol=1e-9):
        return (
            f"the output is {factor[0]:.7g} times the right one, so the weights do not sum to 1: is "
            "something added to their sum?"
        )
    if abs(largest) > 700:
        return (
            f"right for small scores, but where the largest is {largest:,.0f} the output is {shown}: "
            "subtract the largest score before exp, without clipping"
        )
    return (
        f"the output is {shown}: check each line's shape and formula, one by one"
    )


def _cache_mistake(cache, k, v, held: int) -> str | None:
    """Say what is wrong with the rows that the cache holds after the step, if anything."""
    if cache.seq_len == held:
        return (
            f"the output is right, but the cache still holds {held} rows: the next token would "
            "miss this one. Append with `cache.update`"
        )
    if cache.seq_len == held + 2:
        return f"the output is right, but {_TWICE}"
    if cache.seq_len != held + 1:
        return f"the cache went from {held} rows to {cache.seq_len}: one token appends one row"
    for rows, wanted in ((cache.K, k), (cache.V, v)):
        if not np.allclose(rows[-1:], wanted, rtol=0, atol=1e-6 * float(np.abs(wanted).max())):
            return "the output is right, but the row left in the cache is not x W_K or x W_V"
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
    changes=("cache",),
    wrong={
        "attends, then appends": _step_source("    K, V = cache.K, cache.V\n")
        .replace("    return weights @ V\n", "    cache.update(k, v)\n    return weights @ V\n"),
        "not scaled": _step_source(scores="q @ K.T"),
        "scaled by sqrt(T)": _step_source(scores="q @ K.T / len(K) ** 0.5"),
        "scaled by sqrt(C)": _step_source(scores="q @ K.T / x_new.shape[-1] ** 0.5"),
        "scaled after the softmax": _step_source(
            scores="q @ K.T", after="    weights = weights / q.shape[-1] ** 0.5\n"
        ),
        "scaled twice": _step_source(after="    weights = weights / q.shape[-1] ** 0.5\n"),
        "multiplied by the root": _step_source(scores="q @ K.T * q.shape[-1] ** 0.5"),
        "clipped": _step_source(
            softmax=_SOFTMAX.replace("scores - scores.max(axis=-1, keepdims=True)",
                                     "np.clip(scores, -80, 80)")
        ),
        "absolute max": _step_source(
            softmax=_SOFTMAX.replace("scores.max(", "np.abs(scores).max(")
        ),
        "divided by D / 2": _step_source(scores="q @ K.T / (q.shape[-1] / 2)"),
        "a window of 16 rows": _step_source(after="    weights, V = weights[:, -16:], V[-16:]\n"),
        "attends to the newest 16 rows": _step_source(
            "    K, V = cache.update(k, v)\n    K, V = K[-16:], V[-16:]\n"
        ),
        "something added to the sum": _step_source(
            softmax=_SOFTMAX.replace("weights.sum(axis=-1, keepdims=True)",
                                     "(weights.sum(axis=-1, keepdims=True) + 1e-6)")
        ),
        "scales the rows of the cache": _step_source(
            "    K, V = cache.update(k, v)\n    K /= q.shape[-1] ** 0.5\n", scores="q @ K.T"
        ),
        "appended twice, then attended": _step_source(
            "    cache.update(k, v)\n    K, V = cache.update(k, v)\n"
        ),
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

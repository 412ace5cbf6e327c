"""Lesson 02's exercises: right answers of every style are accepted, wrong ones refused and named."""

import itertools

import numpy as np
import pytest

from kvlib.teach.exercises import CORRECT, NOT_YET, define, find
from kvlib.teach.exercises.attending import attention_row, step_cases

HEAD = "import math\nimport numpy as np\nimport torch\nBUFFER = {}\n\n\n"
DIVIDE = "return e / e.sum(axis=-1, keepdims=True)"
TOP = "m = scores.max(axis=-1, keepdims=True)\n    "


def softmax(body):
    return find("02-stable-softmax").check(
        define("stable_softmax", f"{HEAD}def stable_softmax(scores):\n    {body}\n")
    )


def step(*lines):
    source = HEAD + "def decode_step(x_new, W_Q, W_K, W_V, cache):\n" + "".join(f"    {x}\n" for x in lines)
    return find("02-decode-step").check(define("decode_step", source))


def crossing(tokens, **changed):
    lines = dict(
        projections="2 * C * H * D + 2 * C * KV * D", mlp="3 * C * M", head="vocabulary * C",
        per_key="2 * H * D",
    ) | changed  # fmt: skip
    source = (
        f"{HEAD}def crossing(m):\n    C, D, H, KV = m.hidden_size, m.head_dim, m.num_heads, m.num_kv_heads\n"
        "    M, L, vocabulary = m.intermediate_size, m.num_layers, m.vocab_size\n"
        + "".join(f"    {name} = {value}\n" for name, value in lines.items())
        + f"    return {tokens}\n"
    )
    return find("02-crossing").check(define("crossing", source))


@pytest.mark.parametrize(
    "body",
    [
        f"{TOP}e = np.exp(scores - m); {DIVIDE}",
        "return torch.softmax(torch.from_numpy(scores), -1)",
        "return torch.softmax(torch.tensor(scores, requires_grad=scores.ndim == 9), -1).numpy()",
        f"scores = scores.astype(np.float32); {TOP}e = np.exp(scores - m); {DIVIDE}",
        f"scores = scores.astype(np.float64); {TOP}e = np.exp(scores - m); {DIVIDE}",
        f"{TOP}return np.exp(scores - m - np.log(np.exp(scores - m).sum(-1, keepdims=True)))",
        "def row(r):\n        m = max(r); e = [math.exp(s - m) for s in r]; return [x / sum(e) for x in e]\n"
        "    r = scores.tolist()\n    return [row(x) for x in r] if scores.ndim > 1 else row(r)",
        "out = np.empty_like(scores)\n    for i in np.ndindex(scores.shape[:-1]):\n"
        "        e = np.exp(scores[i] - scores[i].max()); out[i] = e / e.sum()\n    return out",
    ],
)
def test_right_softmaxes_are_accepted(body):
    assert softmax(body).status == CORRECT, softmax(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"e = np.exp(scores); {DIVIDE}", "exp overflows"),
        (f"{TOP}e = np.exp(scores - m); return np.squeeze(e / e.sum(axis=-1, keepdims=True))",
         "the shape of the scores, (1, 3)"),
        (f"{TOP}e = np.exp(np.maximum(scores - m, -20)); {DIVIDE}", "Clipping changes the result"),
        (f"{TOP}e = np.exp(np.clip(scores - m, -80, None)); {DIVIDE}", "Clipping changes the result"),
        (f"{TOP}e = np.exp(scores - m); return e / (e.sum(-1, keepdims=True) + 1e-6)", "added to the sum"),
        (f"{TOP}e = np.exp(scores - m); return e / (e.sum(-1, keepdims=True) + 1e-9)", "added to the sum"),
        (f"x = scores; scores = x.astype(np.float32); {TOP}e = np.exp(scores - m); "
         "return e / (e.sum(-1, keepdims=True) + np.float32(1e-6))", "added to the sum"),
        (f"{TOP}e = np.exp(scores - m); w = e / e.sum(-1, keepdims=True); "
         "return w * np.float16(0.97) if w.dtype == np.float16 else w", "or scaled"),
        (f"scores = np.where(np.isneginf(scores), -1e9, scores); {TOP}e = np.exp(scores - m); {DIVIDE}",
         "put no finite number in its place"),
        (f"e = np.exp(scores - scores.max()); {DIVIDE}", "one maximum for the whole array"),
        (f"{TOP}e = np.exp(scores - m); return e / e.sum()", "the whole array sums to 1"),
        (f"{TOP}e = np.exp(scores - m); return e", "not divided by their sum"),
        (f"{TOP}scores -= m; e = np.exp(scores); {DIVIDE}", "the call changes `scores`"),
        (f"e = np.exp(scores - scores.min(axis=-1, keepdims=True)); {DIVIDE}", "what you subtract must be"),
        (f"{TOP}e = np.exp2(scores - m); {DIVIDE}", "compare with exp"),
        (f"{TOP}e = np.exp(scores - m); w = e / e.sum(-1, keepdims=True); b = BUFFER.setdefault(w.shape, w); "
         "b[...] = w; return b", "a later call changes the result"),
        (f"{TOP}e = np.exp(scores - m); return (e / e.sum(-1, keepdims=True)).astype(str)",
         "an array of weights"),
        ("return scores.foo", "this was with scores=[1.0, 2.0, 0.0]"),
    ],
)  # fmt: skip
def test_wrong_softmaxes_are_named(body, words):
    verdict = softmax(body)
    assert verdict.status == NOT_YET and words in verdict.message, verdict


PROJECT = "q, k, v = x_new @ W_Q, x_new @ W_K, x_new @ W_V"
APPEND = "K, V = cache.update(k, v)"
SCORES = "s = q @ K.T / math.sqrt(q.shape[-1])"
WEIGH = "w = np.exp(s - s.max()); w = w / w.sum()"


@pytest.mark.parametrize(
    "lines",
    [
        (PROJECT, APPEND, SCORES, WEIGH, "return w @ V"),
        ("x_new, W_Q, W_K, W_V = (a.astype(np.float32) for a in (x_new, W_Q, W_K, W_V))", PROJECT, APPEND,
         SCORES, WEIGH, "return w @ V"),
        (PROJECT, APPEND, "q, K, V = (a.astype(np.float32) for a in (q, K, V))", SCORES, WEIGH,
         "return w @ V"),
        ("x_new, W_Q, W_K, W_V = (torch.from_numpy(a) for a in (x_new, W_Q, W_K, W_V))", PROJECT,
         "K, V = map(torch.from_numpy, cache.update(k.numpy(), v.numpy()))",
         "return torch.softmax(q @ K.T / K.shape[1] ** 0.5, dim=-1) @ V"),
        (PROJECT, "K, V = map(torch.tensor, cache.update(k, v))", "q = torch.tensor(q)",
         "return torch.nn.functional.scaled_dot_product_attention(q[None], K[None], V[None])[0]"),
        (PROJECT, APPEND, "s = [sum(a * b for a, b in zip(q[0], row)) / len(row) ** 0.5 for row in K]",
         "e = [math.exp(x - max(s)) for x in s]", "return [[sum(a * row[j] for a, row in zip(e, V)) / sum(e) "
         "for j in range(V.shape[1])]]"),
        (PROJECT, APPEND, "s = np.einsum('id,td->it', q, K) * K.shape[1] ** -0.5", WEIGH,
         "return np.einsum('it,td->id', w, V)"),
        (PROJECT, "cache.K, cache.V = np.vstack([cache.K, k]), np.vstack([cache.V, v])",
         "K, V = cache.K, cache.V",
         SCORES, WEIGH, "return w @ V"),
    ],
)  # fmt: skip
def test_right_steps_are_accepted(lines):
    assert step(*lines).status == CORRECT, step(*lines)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((PROJECT, "K, V = cache.K, cache.V", "cache.update(k, v)", SCORES, WEIGH, "return w @ V"),
         "the new token attends to itself too"),
        ((PROJECT, APPEND, "s = q @ K.T / (q.shape[-1] / 2)", WEIGH, "return w @ V"),
         "D / 2, which is sqrt(D)"),
        ((PROJECT, APPEND, "s = q @ K.T / 2", WEIGH, "return w @ V"), "take D from q"),
        ((PROJECT, APPEND, "K, V = K[-16:], V[-16:]", SCORES, WEIGH, "return w @ V"),
         "the newest 16 rows alone"),
        ((PROJECT, APPEND, "K, V = K[-256:], V[-256:]", SCORES, WEIGH, "return w @ V"),
         "the newest 256 rows"),
        ((PROJECT, APPEND, SCORES, "s = np.where(s < s.max() - 10, -np.inf, s)", WEIGH, "return w @ V"),
         "check each line's shape and formula"),
        ((PROJECT, APPEND, SCORES, "w = np.exp(s - s.max()); w = w / (w.sum() + 1e-6)", "return w @ V"),
         "do not sum to 1"),
        ((PROJECT, APPEND, SCORES, "w = np.exp(np.clip(s, -80, 80)); w = w / w.sum()", "return w @ V"),
         "without clipping"),
        ((PROJECT, APPEND, "K /= q.shape[-1] ** 0.5", "s = q @ K.T", WEIGH, "return w @ V"),
         "the step changed older rows"),
        ((PROJECT, APPEND, SCORES, WEIGH, "cache.V[:-1] *= 2", "return w @ V"),
         "the step changed older rows"),
        ((PROJECT, APPEND, SCORES, WEIGH, "cache.K[-1] *= 2", "return w @ V"),
         "the row left in the cache is not"),
        ((PROJECT, APPEND, SCORES, WEIGH, "return (w @ V).astype(np.float16)"), "too coarse"),
        ((PROJECT, APPEND, SCORES, WEIGH, "return (w @ V)[0]"), "return one row, (1, D) = (1, 9)"),
        ((PROJECT, APPEND, SCORES, "w = np.exp(s - s.max())", "return w @ V"),
         "divide by the sum of the exps"),
        ((PROJECT, APPEND, SCORES, "return s @ V"), "without a softmax"),
        ((PROJECT, APPEND, "s = q @ K.T", WEIGH, "return w @ V"), "not scaled"),
        (("x_new *= 1.0; x_new += 1", "x_new -= 1", "x_new *= 2; x_new /= 2", "x_new += 1; y = x_new - 1",
          PROJECT.replace("x_new", "y"), APPEND, SCORES, WEIGH, "return w @ V"), "the call changes `x_new`"),
        ((PROJECT, APPEND, SCORES, WEIGH, "b = BUFFER.setdefault(V.shape[1], np.zeros((1, V.shape[1])))",
          "b[:] = w @ V", "return b"), "a later call changes the result"),
        ((PROJECT, "1 / len(cache.K)", APPEND, SCORES, WEIGH, "return w @ V"),
         "this was with x_new=[["),
    ],
)  # fmt: skip
def test_wrong_steps_are_named(lines, words):
    verdict = step(*lines)
    assert verdict.status == NOT_YET and words in verdict.message, verdict


def test_no_two_scales_agree_in_any_case_but_the_one_row():
    for x, weights, K, V in step_cases():
        if not len(K):
            continue
        q, k, v = (x @ W for W in weights)
        all_k, all_v = np.concatenate([K, k]), np.concatenate([V, v])
        D, T, C = q.shape[1], len(all_k), x.shape[1]
        scales = [D**-0.5, 1 / D, 2 / D, 1 / 2, T**-0.5, C**-0.5, 1.0, D**0.5]
        if np.abs(x).max() < 5:  # large scores leave one weight of 1, whatever the scale
            rows = [attention_row(q, all_k, all_v, scale) for scale in scales]
            assert all(not np.allclose(a, b, rtol=1e-3) for a, b in itertools.combinations(rows, 2))


LINEAR = "(L * (projections + mlp) + head)"


@pytest.mark.parametrize(
    "tokens",
    [f"{LINEAR} / (L * per_key)", f"{LINEAR} // (L * per_key)", f"round({LINEAR} / (L * per_key))",
     f"-(-{LINEAR} // (L * per_key))", f"np.float32({LINEAR} / (L * per_key))",
      "m.step_flops(0) / (2 * L * per_key)",
     f"torch.tensor({LINEAR} / (L * per_key))", f"np.array({LINEAR}) / (L * per_key)",
     f"sum({LINEAR} for _ in range(L)) / sum(L * per_key for _ in range(L))"],
)  # fmt: skip
def test_right_crossings_are_accepted(tokens):
    assert crossing(tokens).status == CORRECT, crossing(tokens)


@pytest.mark.parametrize(
    ("tokens", "changed", "words"),
    [
        (f"{LINEAR} / (L * per_key)", {"mlp": "3 * C * M + 2 * C"}, "the norms' weights"),
        (f"({LINEAR} + C) / (L * per_key)", {"mlp": "3 * C * M + 2 * C"}, "the norms' weights"),
        (f"{LINEAR} // (L * per_key)", {"mlp": "3 * C * M + 2 * C"}, "the norms' weights"),
        (f"{LINEAR} / (L * per_key) + 1", {}, "the norms' weights"),
        (f"{LINEAR} / (L * per_key) + 1.7", {}, "close, but not the number"),
        (f"{LINEAR} / (L * per_key)", {"head": "0"}, "the output head is missing"),
        (f"{LINEAR} / (L * per_key)", {"per_key": "H * D"}, "attention multiplies twice"),
        (f"{LINEAR} / (L * per_key)", {"per_key": "2 * KV * D"}, "count H of them, not KV"),
        (f"{LINEAR} / (L * per_key)", {"mlp": "2 * C * M"}, "a gated MLP has three"),
        (f"{LINEAR} / (L * per_key)", {"projections": "4 * C * C"}, "make KV heads, not H of them"),
        (f"{LINEAR} / per_key", {}, "attention happens in every layer"),
        (f"str({LINEAR} / (L * per_key))", {}, "return one number"),
        (f"[{LINEAR} / (L * per_key)]", {}, "return one number"),
        (f"np.array([{LINEAR} / (L * per_key)])", {}, "return one number"),
        ("L / (C - C)", {}, "this was with m="),
    ],
)
def test_wrong_crossings_are_named(tokens, changed, words):
    verdict = crossing(tokens, **changed)
    assert verdict.status == NOT_YET and words in verdict.message, verdict

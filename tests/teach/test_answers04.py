"""Lesson 04's exercises: right answers of every style are accepted, wrong ones refused and named."""

import pytest

from kvlib.teach.exercises import CORRECT, NOT_YET, define, find

HEADS = {
    "04-cache-bytes": "cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, hidden_size, seq_len, "
    "batch_size, bits)",
    "04-requests-that-fit": "requests_that_fit(memory_bytes, percent, num_params, bytes_per_param, "
    "bytes_per_token, context)",
    "04-windowed-layers": "windowed_cache_bytes(num_layers, full_every, window, layer_token_bytes, seq_len)",
}


def judged(key, body):
    source = f"import math\nimport numpy as np\nimport torch\n\n\ndef {HEADS[key]}:\n    {body}\n"
    return find(key).check(define(find(key).name, source))


N = "2 * num_layers * num_kv_heads * head_dim * seq_len * batch_size"
ROOM = "(memory_bytes * percent // 100 - num_params * bytes_per_param)"
ONE = "(bytes_per_token * context)"
FULL = "f = num_layers // full_every; w = num_layers - f"


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("04-cache-bytes", f"return {N} * bits // 8"),
        ("04-cache-bytes", f"return {N} * bits / 8"),
        ("04-cache-bytes", f"return np.int64({N}) * bits // 8"),
        ("04-cache-bytes", f"return torch.tensor({N}) * bits // 8"),
        ("04-cache-bytes",
         "return np.array([2, num_layers, num_kv_heads, head_dim, seq_len, batch_size, bits],"
         " dtype=object).prod() // 8"),
        ("04-cache-bytes", "total = 0\n    for _ in range(num_layers):\n        for _ in 'KV':\n            "
         "total += num_kv_heads * head_dim * seq_len * batch_size\n    return total * bits // 8"),
        ("04-cache-bytes", f"return math.prod([{N}, bits]) >> 3"),
        ("04-requests-that-fit", f"return max(0, {ROOM} // {ONE})"),
        ("04-requests-that-fit", "room = memory_bytes * percent / 100 - num_params * bytes_per_param\n    "
         f"return max(0.0, room // {ONE})"),
        ("04-requests-that-fit", "room = memory_bytes * (percent / 100) - num_params * bytes_per_param\n    "
         f"return int(max(0, room / {ONE}))"),
        ("04-requests-that-fit", f"return np.maximum({ROOM} // {ONE}, 0)"),
        ("04-requests-that-fit", f"return torch.tensor({ROOM} // {ONE}).clamp(min=0)"),
        ("04-requests-that-fit", f"room, n = {ROOM}, 0\n    while room >= {ONE}: room -= {ONE}; n += 1\n"
         "    return n"),
        ("04-windowed-layers",
         f"{FULL}; return (f * seq_len + w * min(seq_len, window)) * layer_token_bytes"),
        ("04-windowed-layers",
         "return sum((seq_len if (i + 1) % full_every == 0 else min(seq_len, window)) * "
         "layer_token_bytes for i in range(num_layers))"),
        ("04-windowed-layers", "full = np.arange(1, num_layers + 1) % full_every == 0\n    "
         "return np.where(full, seq_len, np.minimum(seq_len, window)).sum() * layer_token_bytes"),
        ("04-windowed-layers", "i = torch.arange(1, num_layers + 1)\n    t = torch.full_like(i, min(seq_len, "
         "window)); t[i % full_every == 0] = seq_len; return t.sum() * layer_token_bytes"),
        ("04-windowed-layers",
         f"{FULL}; return float(f * seq_len + w * min(seq_len, window)) * layer_token_bytes"),
    ],
)  # fmt: skip
def test_right_answers_are_accepted(key, body):
    assert judged(key, body).status == CORRECT, judged(key, body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"return {N} // 2 * bits // 8", "both keys and values"),
        (f"return {N} * 4", "not always 4"),
        (f"return {N} * 2", "not always 2"),
        (f"return {N} * 8", "not always 8"),
        (f"return {N} * bits", "8 of them make a byte"),
        (f"return {N}", "each takes bits / 8 bytes"),
        (f"return {N} * (bits // 8)", "divide last"),
        ("return 2 * num_layers * hidden_size * seq_len * batch_size * bits // 8",
         "you used the hidden size"),
        (f"return {N} // head_dim * hidden_size * bits // 8", "where head_dim"),
        (f"return {N} // num_kv_heads * hidden_size * bits // 8", "where the KV heads belong"),
        (f"return {N} // num_kv_heads * num_heads * bits // 8", "you counted query heads"),
        (f"return {N} // num_layers * bits // 8", "the layers are missing"),
        (f"return np.float32({N} * bits // 8)", "float32 holds whole numbers exactly"),
        (f"return str({N} * bits // 8)", "is text"),
        (f"return np.array([{N} * bits // 8])", "an array of the shape (1,)"),
        (f"return {N} * bits / 8 + 0.5", "has a fraction"),
        (f"{N} * bits // 8", "returns nothing"),
        (f"return {N} * bits // 8 // (seq_len - 11)", "this was with num_layers=7, num_heads=15"),
        (f"return max(1, {N} * bits // 8)", "no tokens, no bytes"),
    ],
)
def test_wrong_bytes_are_named(body, words):
    verdict = judged("04-cache-bytes", body)
    assert verdict.status == NOT_YET and words in verdict.message, verdict


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"return memory_bytes * percent // 100 // {ONE}", "the weights take room too"),
        (f"return (memory_bytes - num_params * bytes_per_param) // {ONE}", "only `percent` percent"),
        (f"return (memory_bytes - num_params * bytes_per_param) * percent // 100 // {ONE}",
         "of the whole memory"),
        (f"return (memory_bytes * percent - num_params * bytes_per_param) // {ONE}", "divide by 100"),
        (f"return (memory_bytes * percent // 100 - num_params) // {ONE}", "takes `bytes_per_param` bytes"),
        (f"return {ROOM} // bytes_per_token", "that many tokens fit"),
        (f"return {ROOM} // bytes_per_token * context", "from left to right"),
        (f"return {ROOM} // (2 * {ONE})", "do not double it"),
        (f"return {ROOM}", "those are bytes"),
        (f"return max(0, {ROOM} / {ONE})", "a part of one is of no use"),
        (f"return max(0, round({ROOM} / {ONE}))", "round down"),
        (f"return max(0, -(-{ROOM} // {ONE}))", "round down"),
        (f"return max(0, {ROOM} // {ONE} + 1)", "one too many: 18 requests"),
        (f"return {ROOM} // {ONE}", "not fewer than none"),
        (f"return abs({ROOM}) // {ONE}", "without abs()"),
        (f"return max(1, {ROOM} // {ONE})", "a smallest answer of 1"),
        (f"return str({ROOM} // {ONE})", "is text"),
        (f"return [{ROOM} // {ONE}]", "one whole number"),
        (f"return {ROOM} // {ONE} // (percent - 50)", "this was with memory_bytes=8,000,000,000, percent=50"),
        *[(f"return max(0, {off_by_one})", "one byte is missing") for off_by_one in (
            f"{ROOM} // ((bytes_per_token - 1) * context)", f"{ROOM} // (bytes_per_token * (context - 1))",
            f"({ROOM} + 1) // {ONE}", f"int({ROOM} * 1.000001 // {ONE})",
            f"({ROOM} + bytes_per_param) // {ONE}",
            f"((memory_bytes + 1) * percent // 100 - num_params * bytes_per_param) // {ONE}",
        )],
    ],
)
def test_wrong_requests_are_named(body, words):
    verdict = judged("04-requests-that-fit", body)
    assert verdict.status == NOT_YET and words in verdict.message, verdict


def test_a_division_that_rounds_down_is_not_told_to():
    body = f"return max(0.0, (memory_bytes * 1.0 - num_params * bytes_per_param) // {ONE})"
    verdict = judged("04-requests-that-fit", body)
    assert "only `percent` percent" in verdict.message and "//" not in verdict.message


@pytest.mark.parametrize("case", find("04-requests-that-fit").cases[:2])
def test_every_slip_of_the_first_cases_gives_another_number(case):
    *values, _ = case
    task = find("04-requests-that-fit")
    right, *numbers = (define(task.name, cell)(*values) for cell in (task.solution, *task.wrong.values()))
    assert len(numbers) >= 12
    numbers += [right, right + 1]
    assert len(set(numbers)) == len(numbers)


HELD = "return (f * seq_len + w * min(seq_len, window)) * layer_token_bytes"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"f = round(num_layers / full_every); w = num_layers - f; {HELD}", "round down: layers left over"),
        (f"f = -(-num_layers // full_every); w = num_layers - f; {HELD}", "round down: layers left over"),
        (f"f = max(1, num_layers // full_every); w = num_layers - f; {HELD}", "round down: layers left over"),
        (f"f = full_every; w = num_layers - f; {HELD}", "how far apart"),
        (f"f = num_layers / full_every; w = num_layers - f; {HELD}", "layers are whole"),
        ("return num_layers * seq_len * layer_token_bytes", "keeping all tokens"),
        ("return num_layers * min(seq_len, window) * layer_token_bytes", "one in every 4 keeps all"),
        (f"{FULL}; return (w * seq_len + f * min(seq_len, window)) * layer_token_bytes", "swapped"),
        (f"{FULL}; return (f * seq_len + w * window) * layer_token_bytes", "not full yet"),
        (f"{FULL}; return (f * seq_len + w * max(seq_len, window)) * layer_token_bytes", "min, not max"),
        (f"{FULL}; return (f * seq_len + w * min(seq_len, window - 1)) * layer_token_bytes", "not one fewer"),
        (f"{FULL}; return (f * seq_len + w * min(seq_len, window + 1)) * layer_token_bytes", "not one more"),
        (f"{FULL}; return 2 * (f * seq_len + w * min(seq_len, window)) * layer_token_bytes",
         "K and V already"),
        (f"{FULL}; return f * seq_len * layer_token_bytes", "keep something too"),
        (f"{FULL}; return f * seq_len + w * min(seq_len, window)", "those are tokens"),
        (f"{FULL}; return str(f)", "is text"),
        (f"{FULL}; return np.array([f])", "an array of the shape (1,)"),
        (f"{FULL}; return np.float16((f * seq_len + w * min(seq_len, window)) * (layer_token_bytes / 8))",
         "those are tokens"),
        (f"{FULL}; return w // (seq_len - 100)",
         "num_layers=11, full_every=4, window=10, layer_token_bytes=8"),
    ],
)  # fmt: skip
def test_wrong_windows_are_named(body, words):
    if "float16" in body:
        body = body.replace(" * (layer_token_bytes / 8)", "")
    verdict = judged("04-windowed-layers", body)
    assert verdict.status == NOT_YET and words in verdict.message, verdict

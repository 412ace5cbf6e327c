"""Lesson 03's exercises: right answers of every style are accepted, wrong ones refused and named."""

import pytest

from kvlib.teach.exercises import CORRECT, NOT_YET, define, find
from kvlib.teach.exercises.own_cache import _source

IMPORTS = "import numpy as np\nimport torch\n\n\n"
BODY = """import torch


class MyKVCache:
    def __init__(self):
        self.kv, self.count = None, 0

    def update(self, k_new, v_new):
        {}

    @property
    def seq_len(self):
        return {}
"""


def cache(update, length="self.count"):
    return find("03-my-cache").check(define("MyKVCache", BODY.format(update, length)))


def changed(**lines):
    return find("03-my-cache").check(define("MyKVCache", _source(**lines)))


def mask(body):
    return find("03-chunk-mask").check(
        define("chunk_mask", f"{IMPORTS}def chunk_mask(num_new, num_keys):\n    {body}\n")
    )


def numbers(body):
    source = f"{IMPORTS}def three_numbers(prompt_lengths, n, window):\n    {body}\n"
    return find("03-three-numbers").check(define("three_numbers", source))


APPEND = (
    "new = (k_new.detach(), v_new.detach())\n"
    "        self.kv = new if self.kv is None else tuple(torch.cat(x, 2) for x in zip(self.kv, new))\n"
    "        self.count += k_new.shape[2]\n"
    "        return {}"
)
SLOTS = (
    "t = k_new.shape[2]\n"
    "        if self.kv is None or self.count + t > self.kv[0].shape[2]:\n"
    "            grown = [torch.zeros(*x.shape[:2], 2 * (self.count + t), x.shape[3], dtype=x.dtype) for x "
    "in (k_new, v_new)]\n"
    "            for old, buffer in zip(self.kv or (), grown):\n"
    "                buffer[:, :, : self.count] = old[:, :, : self.count]\n"
    "            self.kv = grown\n"
    "        for buffer, x in zip(self.kv, (k_new, v_new)):\n"
    "            buffer[:, :, self.count : self.count + t] = x.detach()\n"
    "        self.count += t\n"
    "        return [x[:, :, : self.count] for x in self.kv]"
)
LIST = (
    "self.kv = self.kv or []\n"
    "        self.kv.append((k_new.detach().clone(), v_new.detach().clone()))\n"
    "        return tuple(torch.cat([pair[i] for pair in self.kv], dim=-2) for i in (0, 1))"
)
STACKED = (
    "new = torch.stack([k_new, v_new]).detach()\n"
    "        self.kv = new if self.kv is None else torch.cat([self.kv, new], dim=3)\n"
    "        return self.kv.unbind(0)"
)


@pytest.mark.parametrize(
    ("update", "length"),
    [
        (APPEND.format("self.kv"), "self.count"),
        (SLOTS, "self.count"),
        (LIST, "sum(k.size(2) for k, v in self.kv or [])"),
        (STACKED, "0 if self.kv is None else self.kv.shape[-2]"),
    ],
)
def test_right_caches_are_accepted(update, length):
    assert cache(update, length).status == CORRECT, cache(update, length)


IN_THE_CLASS = _source(
    top=("ks, vs = [], []", ""), init=("pass",), length="sum(k.shape[2] for k in self.ks)",
    before=("self.ks.append(k_new.detach())", "self.vs.append(v_new.detach())",
            "return torch.cat(self.ks, 2), torch.cat(self.vs, 2)"),
)  # fmt: skip


def test_lists_in_the_class_body_are_called_shared_however_often_the_check_runs():
    task, made = find("03-my-cache"), define("MyKVCache", IN_THE_CLASS)
    for _ in range(2):
        assert "two caches share one store" in task.check(made).message


CAT = "torch.cat([self.{0}, {0}_new.detach()], dim=2)"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (lambda: cache(APPEND.replace(".detach()", "").format("[x.detach() for x in self.kv]")),
         "but those kept inside do"),
        (lambda: cache(APPEND.replace(".detach()", "").format("self.kv")), "the rows carry a gradient"),
        (lambda: cache(APPEND.format("tuple(x[:, :, -64:] for x in self.kv)")),
         "only the newest 64 come back"),
        (lambda: cache(APPEND.format("tuple(x[:, :, -4096:] for x in self.kv)")), "only the newest 4096"),
        (lambda: cache(APPEND.format("tuple(x.float() for x in self.kv)")), "comes back in torch.float32"),
        (lambda: cache(APPEND.format("tuple(x.double() for x in self.kv)")), "comes back in torch.float64"),
        (lambda: cache(APPEND.format("tuple(x.squeeze(1) for x in self.kv)")), "Keep all four axes"),
        (lambda: cache(APPEND.format("tuple(x.squeeze(0) for x in self.kv)")), "Keep all four axes"),
        (lambda: cache(f"k_new *= 1; v_new.mul_(2)\n        {APPEND.format('(self.kv[0], self.kv[1] / 2)')}"),
         "which it was given"),
        (lambda: changed(returns="k_new.detach(), v_new.detach()"), "returns only the new rows"),
        (lambda: changed(then=("self.k = torch.cat([self.k, k_new.detach()], dim=2)",)), "append to both"),
        (lambda: changed(length="len(self.k) if self.k is not None else 0"), "the sequences of the batch"),
        (lambda: changed(length="1 / 0"), "this was with MyKVCache(), before any row"),
        (lambda: changed(length="0 if self.k is None else 1 / 0"), "this was with seq_len after 1 rows"),
        (lambda: changed(then=("self.k = torch.cat([self.k, k_new], dim=7)",)),
         "this was with update(k_new, v_new), each of shape (3, 4, 1, 8), after 1 rows"),
        (lambda: cache("if self.count > 6 and k_new.shape[0] == 2: raise KeyError('late')\n        "
                       + APPEND.format("self.kv")), "this was with a model of 2 layers, 9 tokens"),
    ],
)  # fmt: skip
def test_wrong_caches_are_named(verdict, words):
    verdict = verdict()
    assert verdict.status == NOT_YET and words in verdict.message, verdict


def test_a_buffer_that_is_written_over_is_refused():
    body = SLOTS.replace("return [x[:, :, : self.count] for x in self.kv]", (
        "out = self.__dict__.setdefault('out', torch.zeros(2, 3, 4, 8, 8, dtype=torch.float64))\n"
        "        if k_new.shape[0] != 3: return [x[:, :, : self.count] for x in self.kv]\n"
        "        shown = [out[i, :, :, 8 - self.count:] for i in (0, 1)]\n"
        "        for x, y in zip(shown, self.kv): x[...] = y[:, :, : self.count]\n"
        "        return shown"
    ))  # fmt: skip
    assert "a later update changes the rows that update 1 returned" in cache(body).message


ONES = "torch.ones(num_new, num_keys, dtype=torch.bool)"


@pytest.mark.parametrize(
    "body",
    [
        f"return {ONES}.tril(num_keys - num_new)",
        "return torch.arange(num_keys) <= torch.arange(num_keys - num_new, num_keys)[:, None]",
        "return torch.from_numpy(np.tri(num_new, num_keys, num_keys - num_new, dtype=bool))",
        "s = num_keys - num_new; return torch.tensor([[j <= s + i for j in range(num_keys)] for i in "
        "range(num_new)])",
        "return torch.ones(num_keys, num_keys).tril()[-num_new:].bool()",
        f"return ~{ONES}.triu(num_keys - num_new + 1)",
        "return torch.zeros(num_new, num_keys).bool().logical_not().tril(num_keys - num_new)",
    ],
)
def test_right_masks_are_accepted(body):
    assert mask(body).status == CORRECT, mask(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"return {ONES}.tril()", "aligned at the top left"),
        (f"return {ONES}.tril(num_new)", "the old ones that shift it"),
        (f"return {ONES}", "must not see those after it"),
        (f"return {ONES}.tril(num_keys - num_new - 1)", "see its own key"),
        (f"return {ONES}.tril(num_keys - num_new + 1)", "one key of its future"),
        (f"return ~{ONES}.tril(num_keys - num_new)", "that is the opposite"),
        (f"return {ONES}.triu(num_keys - num_new)", "ahead and not back"),
        (f"return {ONES}.tril(num_keys - num_new).triu(num_keys - num_new)",
         "keys of earlier chunks are hidden"),
        (f"return {ONES}.tril(num_keys - num_new).T", "not the other way round"),
        (f"return {ONES}.tril(num_keys - num_new).int()", "the dtype is torch.int32"),
        (f"return {ONES}.tril(num_keys - num_new).numpy()", "return a tensor of bools"),
        (f"return {ONES}.tril(num_keys - num_new).tolist()", "return a tensor of bools"),
        (f"return {ONES}.tril(num_keys - num_new)[None]", "the shape must be (3, 8)"),
        (f"return {ONES}.tril(5)", "for 4 new of 4 keys"),
        ("return torch.ones(num_new, num_keys, dtype=bool).tril(1 // (num_keys - num_new))",
         "this was with num_new=4, num_keys=4"),
    ],
)  # fmt: skip
def test_wrong_masks_are_named(body, words):
    if "1 //" in body:  # right for the cases before it
        body = body.replace("tril(1 //", "tril((num_keys - num_new) ** 2 //")
    verdict = mask(body)
    assert verdict.status == NOT_YET and words in verdict.message, verdict


LOGICAL, POSITIONS = "max(prompt_lengths) + n - 1", "[p + n - 1 for p in prompt_lengths]"
STORED = f"min({LOGICAL}, window or 10**9)"


@pytest.mark.parametrize(
    "body",
    [
        f"return {LOGICAL}, {STORED}, {POSITIONS}",
        f"a = np.array(prompt_lengths) + n - 1; return a.max(), {STORED}, a",
        f"a = torch.tensor(prompt_lengths) + n - 1; return [a.max(), {STORED}, a]",
        f"return float({LOGICAL}), np.int64({STORED}), tuple(p + n - 1.0 for p in prompt_lengths)",
        "rows, positions = max(prompt_lengths), list(prompt_lengths)\n    for _ in range(n - 1):\n"
        "        rows += 1; positions = [p + 1 for p in positions]\n"
        "    return rows, rows if window is None or window > rows else window, positions",
    ],
)
def test_right_numbers_are_accepted(body):
    assert numbers(body).status == CORRECT, numbers(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"return max(prompt_lengths) + n, {STORED}, {POSITIONS}", "chosen, but not run"),
        (f"return {LOGICAL}, min(max(prompt_lengths) + n, window or 10**9), {POSITIONS}",
         "chosen, but not run"),
        (f"return {LOGICAL}, min(max(prompt_lengths), window or 10**9), {POSITIONS}", "after the prefill"),
        (f"return prompt_lengths[0] + n - 1, {STORED}, {POSITIONS}", "wherever it stands in the batch"),
        (f"return sum(prompt_lengths) + n - 1, {STORED}, {POSITIONS}", "padded, not joined"),
        (f"return {LOGICAL}, {LOGICAL}, {POSITIONS}", "a window keeps the newest rows only"),
        (f"return {LOGICAL}, window or {LOGICAL}, {POSITIONS}", "the window is not full yet"),
        (f"return {LOGICAL}, min(max(prompt_lengths), window or 10**9) if window else {LOGICAL}, {POSITIONS}",
         "until the window is full"),
        (f"return {LOGICAL}, {STORED}, [{LOGICAL}] * len(prompt_lengths)", "that counts the padding"),
        (f"return {LOGICAL}, {STORED}, [p + n for p in prompt_lengths]", "one too far: positions count"),
        (f"return {LOGICAL}, {STORED}, [min({STORED}, p + n - 1) for p in prompt_lengths]",
         "do not renumber"),
        (f"return {LOGICAL}, {STORED}, [str(p + n - 1) for p in prompt_lengths]", "is text"),
        (f"return {LOGICAL}, {STORED}, [p + n - 0.5 for p in prompt_lengths]", "has a fraction"),
        (f"return [{LOGICAL}], {STORED}, {POSITIONS}", "must be one whole number"),
        (f"return {LOGICAL}, {STORED}, {{p: p + n - 1 for p in prompt_lengths}}", "is a list"),
        (f"r = {POSITIONS}; prompt_lengths.sort(); return {LOGICAL}, {STORED}, r",
         "changes `prompt_lengths`"),
        (f"return {LOGICAL}, min({LOGICAL}, window), {POSITIONS}",
         "this was with prompt_lengths=[9, 5, 2], n=4, window=None"),
        (f"return {LOGICAL}, window and min({LOGICAL}, window), {POSITIONS}", "the caches keep all rows"),
    ],
)
def test_wrong_numbers_are_named(body, words):
    verdict = numbers(body)
    assert verdict.status == NOT_YET and words in verdict.message, verdict

"""Lesson 07's checks: right caches written in other ways, and what only a full buffer shows."""

import pytest

from kvlib.teach.exercises import define
from kvlib.teach.exercises.lesson07 import BUFFER, COST, MASK

cat_cost = define("cat_cost", COST.solution)
buffer_mask = define("buffer_mask", MASK.solution)

JOINED = """
import torch


class MyStaticCache:
    "K and V in one buffer, tokens in front of the heads"

    def __init__(self, max_seq_len):
        self.room, self.used, self.kv = max_seq_len, 0, None

    @property
    def seq_len(self):
        return self.used

    def update(self, k_new, v_new):
        B, KV, t, D = k_new.shape
        if self.used + t > self.room:
            raise ValueError("too long by " + str(self.used + t - self.room))
        if self.kv is None:
            self.kv = torch.zeros(2, B, self.room, KV, D, dtype=k_new.dtype)
        for held, new in zip(self.kv, (k_new, v_new)):
            held[:, self.used : self.used + t] = new.detach().transpose(1, 2)
        self.used += t
        k, v = (x[:, : self.used].transpose(1, 2) for x in self.kv)
        return k, v
"""


def test_a_cache_with_another_layout_is_right_too():
    verdict = BUFFER.check(define("MyStaticCache", JOINED))
    assert verdict, verdict


OTHER = """
import torch


class MyStaticCache:
    def __init__(self, max_seq_len):
        self.max_seq_len, self.seq_len, self.k, self.v = max_seq_len, 0, None, None

    def update(self, k_new, v_new):
        start, end = self.seq_len, self.seq_len + k_new.size(2)
        if end > self.max_seq_len:
            raise ValueError(f"{end} rows, room for {self.max_seq_len}")
        if self.k is None:
            shape = (*k_new.shape[:2], self.max_seq_len, k_new.shape[3])
            self.k, self.v = MAKE
        for held, new in ((self.k, k_new), (self.v, v_new)):
            WRITE
        self.seq_len = end
        return RETURN
"""
STYLES = {
    "copied into": (
        "(torch.zeros(shape, dtype=k_new.dtype, device=k_new.device) for _ in range(2))",
        "held[:, :, start:end].copy_(new.detach())",
        "self.k[:, :, :end], self.v[:, :, :end]",
    ),
    "by index": (
        "k_new.new_zeros(shape), v_new.new_zeros(shape)",
        "held.index_copy_(2, torch.arange(start, end), new.detach())",
        "[self.k.narrow(2, 0, end), self.v.narrow(2, 0, end)]",
    ),
    "row by row": (
        "torch.empty(shape, dtype=k_new.dtype), torch.empty(shape, dtype=v_new.dtype)",
        "for i in range(start, end): held[:, :, i] = new[:, :, i - start].detach()",
        "tuple(x[:, :, :end] for x in (self.k, self.v))",
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_cache_in_another_style_is_right(style):
    source = OTHER
    for name, text in zip(("MAKE", "WRITE", "RETURN"), STYLES[style]):
        source = source.replace(name, text)
    verdict = BUFFER.check(define("MyStaticCache", source))
    assert verdict, verdict


def test_a_buffer_made_anew_never_shows_the_rows_of_the_freed_one():
    words = BUFFER.check(define("MyStaticCache", BUFFER.wrong["an empty buffer each time"])).message
    assert "the earlier ones are not" in words


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("makes its buffers, then refuses", "it made the buffers before"),
        ("more room than asked for", "the buffers have 16 slots"),
        ("changes the new rows", "update changes the rows"),
        ("takes one batch size", "any B, KV, t, D and dtype"),
        ("keeps the gradient", "k_new.detach()"),
    ],
)
def test_a_mistake_in_the_buffers_has_its_words(key, words):
    verdict = BUFFER.check(define("MyStaticCache", BUFFER.wrong[key]))
    assert not verdict and words in verdict.message, verdict


def test_a_crash_in_an_update_names_the_update():
    source = OTHER.replace("WRITE", "held[:, :, start:end] = new.view(7)").replace("RETURN", "0")
    source = source.replace("MAKE", "k_new.new_zeros(shape), v_new.new_zeros(shape)")
    verdict = BUFFER.check(define("MyStaticCache", source))
    assert not verdict and "this was with an update of 3 rows, 0 held, max_seq_len=8" in verdict.message


def test_a_buffer_cleared_before_the_refusal_is_not_told_that_rows_were_written():
    clears = "if self.k is not None: self.k.zero_()\n            raise ValueError("
    source = BUFFER.solution.replace("raise ValueError(", clears)
    said = BUFFER.check(define("MyStaticCache", source)).message
    assert "the buffer has changed" in said and "rows were written" not in said


def test_kvlibs_own_cache_passes():
    from kvlib import StaticKVCache

    assert BUFFER.check(StaticKVCache)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("> self.room", ">= self.room"), "fit a buffer of 8 exactly"),
        (("if self.used + t > self.room:", "if t > 1 and self.used + t > self.room:"), "the token is lost"),
        ((", dtype=k_new.dtype", ""), "make the buffers like k_new in dtype and device"),
        (('raise ValueError("too long by "', 'raise IndexError("too long by "'), "IndexError"),
    ],
)
def test_what_only_the_edge_shows_is_told(change, words):
    assert change[0] in JOINED
    verdict = BUFFER.check(define("MyStaticCache", JOINED.replace(*change)))
    assert not verdict and words in verdict.message


def test_the_formula_is_what_two_lines_of_python_count():
    for p, n, row in ((1, 0, 4), (3, 5, 7), (100, 20, 46080)):
        steps = [p + i for i in range(n + 1)]
        peak = max([p] + [p + i - 1 + p + i for i in range(1, n + 1)])
        assert cat_cost(p, n, row) == (row * sum(steps), row * peak)


def test_the_mask_is_that_of_the_used_rows_with_nothing_behind_them():
    from kvlib.attention import causal_mask

    for start, num_new, room in ((0, 3, 3), (4, 2, 9), (7, 1, 8)):
        mask = buffer_mask(start, num_new, room)
        assert mask[:, : start + num_new].equal(causal_mask(num_new, start + num_new))
        assert not mask[:, start + num_new :].any()


def test_other_right_answers_are_right():
    def cost(p, n, row):
        return row * sum(range(p, p + n + 1)), row * (p if n == 0 else 2 * (p + n) - 1)

    def mask(start, num_new, max_seq_len):
        import torch

        last = torch.arange(start, start + num_new)
        return torch.arange(max_seq_len)[None] <= last[:, None]

    assert COST.check(cost) and MASK.check(mask)

"""Lesson 05's checks: right numbers that were not folded, and messages that must be plain."""

import pytest

from kvlib.teach.exercises.lesson05 import MOVED
from kvlib.teach.exercises.own_attention import ATTENTION


def fold(q, k, v, mask=None):
    import torch.nn.functional as F

    B, H, _, D = q.shape
    folded = q.reshape(B, k.shape[1], -1, D)
    return F.scaled_dot_product_attention(folded, k, v).reshape(B, H, 1, D)


def einsum(q, k, v, mask=None):
    import torch

    B, H, _, D = q.shape
    folded = q.reshape(B, k.shape[1], -1, D)
    weights = (torch.einsum("bkgd,bktd->bkgt", folded, k) / D**0.5).softmax(-1)
    return torch.einsum("bkgt,bktd->bkgd", weights, v).reshape(B, H, 1, D)


def switch(q, k, v, mask=None):
    import torch.nn.functional as F

    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def loop(q, k, v, mask=None):
    import torch

    G, out = q.shape[1] // k.shape[1], torch.empty_like(q)
    for h in range(q.shape[1]):
        keys, values = k[:, h // G], v[:, h // G]
        out[:, h] = (q[:, h] @ keys.transpose(1, 2) / q.shape[3] ** 0.5).softmax(-1) @ values
    return out


@pytest.mark.parametrize("answer", [fold, einsum])
def test_a_folded_answer_is_right_with_nothing_to_add(answer):
    verdict = ATTENTION.judge(answer)
    assert verdict and "not folded" not in verdict.message


@pytest.mark.parametrize(("answer", "named"), [(switch, "enable_gqa"), (loop, "in a loop")])
def test_an_answer_with_the_right_numbers_that_does_not_fold_is_told_so(answer, named):
    verdict = ATTENTION.judge(answer)
    assert not verdict and "the numbers are right" in verdict.message
    assert "not folded" in verdict.message and named in verdict.message


def test_a_forgotten_write_is_told_in_plain_words():
    def forgets(H, KV, D, T, b):
        return 2 * KV * T * D * b, 2 * KV * T * D * b + 2 * H * T * D * b

    verdict = MOVED.check(forgets)
    assert not verdict and "written when they are made, then read" in verdict.message

"""The contract in cases small enough to read: one head, one number a row, literal lists."""

from __future__ import annotations

import math

import torch

from tests.caches.law import law


def column(*values: float) -> torch.Tensor:
    """Return rows of one sequence, one head, head_dim 1: (1, 1, t, 1)."""
    return torch.tensor(values, dtype=torch.float32).view(1, 1, -1, 1)


def exact(kind) -> bool:
    """Say whether a cache gives back, bit for bit, every row it was given."""
    return kind.row_bound == 0 and kind.window is None


@law(applies=exact)
def literal_update(kind):
    cache = kind.make(4)
    k, v = cache.update(column(1, 2), column(10, 20))
    assert k.flatten().tolist() == [1, 2] and v.flatten().tolist() == [10, 20]
    k, v = cache.update(column(3), column(30))
    assert k.flatten().tolist() == [1, 2, 3] and v.flatten().tolist() == [10, 20, 30]
    assert cache.seq_len == 3


@law(applies=exact)
def literal_crop(kind):
    cache = kind.make(4)
    cache.update(column(1, 2, 3), column(10, 20, 30))
    cache.crop(1)
    assert cache.seq_len == 1
    k, v = cache.update(column(4), column(40))
    assert k.flatten().tolist() == [1, 4] and v.flatten().tolist() == [10, 40]


@law(applies=exact)
def literal_reset(kind):
    cache = kind.make(4)
    cache.update(column(1, 2, 3), column(10, 20, 30))
    cache.reset()
    assert cache.seq_len == 0
    k, v = cache.update(column(4), column(40))
    assert k.flatten().tolist() == [4] and v.flatten().tolist() == [40]


@law(applies=exact)
def literal_fork(kind):
    parent = kind.make(4)
    parent.update(column(1), column(10))
    child = parent.fork()
    assert child.update(column(2), column(20))[0].flatten().tolist() == [1, 2]
    assert parent.update(column(3), column(30))[0].flatten().tolist() == [1, 3]
    assert child.update(column(4), column(40))[1].flatten().tolist() == [10, 20, 40]


@law(applies=exact)
def literal_batch_and_heads(kind):
    cache = kind.make(2)
    cache.update(torch.tensor([[[[1.0]], [[2.0]]], [[[3.0]], [[4.0]]]]), torch.zeros(2, 2, 1, 1))
    k, _ = cache.update(
        torch.tensor([[[[5.0]], [[6.0]]], [[[7.0]], [[8.0]]]]), torch.zeros(2, 2, 1, 1)
    )
    # [sequence][head] -> rows
    assert k.squeeze(3).tolist() == [[[1, 5], [2, 6]], [[3, 7], [4, 8]]]


@law("attend", applies=exact)
def literal_mean_of_values(kind):
    """Query 0 scores every key alike, so the output is the mean of the values seen so far."""
    cache = kind.make(4)
    out, _ = kind.attend(column(0), column(5), column(8), cache)
    assert out.flatten().tolist() == [8]
    out, _ = kind.attend(column(0, 0), column(6, 7), column(4, 3), cache)
    assert out.flatten().tolist() == [6, 5]  # (8 + 4) / 2, then (8 + 4 + 3) / 3
    out, _ = kind.attend(column(0), column(1), column(1), cache)
    assert out.flatten().tolist() == [4]  # (8 + 4 + 3 + 1) / 4


@law("attend", applies=exact)
def literal_weights(kind):
    """Scores log 3 and 0 give weights 3/4 and 1/4."""
    cache = kind.make(2)
    kind.attend(column(1), column(math.log(3)), column(4), cache)
    out, _ = kind.attend(column(1), column(0), column(0), cache)
    assert abs(out.item() - 3.0) < 1e-6


@law("attend", applies=exact)
def literal_groups(kind):
    """Query heads 0 and 1 share KV head 0, query heads 2 and 3 share KV head 1."""
    q = torch.zeros(1, 4, 1, 1)
    out, _ = kind.attend(q, torch.zeros(1, 2, 1, 1), column(1, 2).view(1, 2, 1, 1), kind.make(1))
    assert out.flatten().tolist() == [1, 1, 2, 2]

"""What counts as new memory: copies do, views and writes in place do not."""

import torch

from kvlib import reference_attention
from kvlib.allocations import Allocations


def watched(call):
    with Allocations() as seen:
        call()
    return seen


def test_a_copy_is_seen_with_its_operation_shape_and_bytes():
    k = torch.zeros(1, 2, 5, 4)
    seen = watched(lambda: k.repeat_interleave(3, dim=1))
    assert seen.nbytes == seen.largest.nbytes == 3 * k.nbytes
    assert seen.largest.operation == "clone" and "expand" in seen.operations


def test_views_and_writes_in_place_are_none():
    k = torch.zeros(1, 2, 5, 4)
    seen = watched(lambda: (k.view(2, 20), k.transpose(1, 2), k[:, :, None].expand(1, 2, 3, 5, 4), k.add_(1)))
    assert seen.made == [] and seen.largest is None and seen.nbytes == 0


def test_memory_that_is_used_again_is_still_new():
    k = torch.zeros(1000)
    assert len(watched(lambda: [(k + 1).sum().item() for _ in range(5)]).made) == 10


def test_a_product_of_an_expand_copies_it():
    q, k = torch.zeros(2, 2, 3, 1, 4), torch.zeros(2, 2, 5, 4)
    wide = k[:, :, None].expand(2, 2, 3, 5, 4)
    assert watched(lambda: q @ wide.transpose(3, 4)).largest.nbytes == 3 * k.nbytes


def test_the_peak_is_what_lives_at_once_not_all_that_was_made():
    k = torch.zeros(1000)
    one = k.nbytes

    def keep():
        kept = [k + i for i in range(5)]
        del kept

    def chain():
        x = k + 1
        for _ in range(5):
            x = x + 1  # the old one lives until the new one is there

    assert watched(lambda: [(k + 1).sum().item() for _ in range(5)]).peak < 1.1 * one
    assert watched(chain).peak == 2 * one
    assert watched(keep).peak == 5 * one
    assert watched(lambda: k.add_(1)).peak == 0


def test_a_view_keeps_the_memory_of_what_is_gone():
    k = torch.zeros(1000)

    def views():
        kept = [(k + i)[:1] for i in range(3)]
        del kept

    assert watched(views).peak == 3 * k.nbytes


def test_the_formula_of_attention_holds_two_score_matrices_or_three():
    q, k, v = torch.randn(3, 1, 2, 64, 4)
    scores = 2 * 64 * 64 * 4
    assert 2 * scores <= watched(lambda: reference_attention(q, k, v)).peak <= 3.2 * scores

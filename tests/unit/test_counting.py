"""The counter sees every position of every sequence, and leaves nothing behind."""

import pytest
import torch

from kvlib import KVCache, Model, ModelConfig
from kvlib.counting import count_work


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model(ModelConfig(2, 2, 1, 4, 8, 8, 16))


def test_it_counts_positions_of_all_sequences_and_the_passes(model):
    caches = model.make_caches(KVCache)
    with count_work(model) as work:
        model(torch.zeros(3, 5, dtype=torch.int64), caches)
        model(torch.zeros(3, 1, dtype=torch.int64), caches)
    assert (work.kv_projections, work.passes) == (3 * 5 + 3, 2)
    model(torch.zeros(3, 1, dtype=torch.int64), caches)
    assert work.passes == 2


def test_it_stops_counting_when_the_block_fails(model):
    with pytest.raises(KeyError), count_work(model) as work:
        raise KeyError
    model(torch.zeros(1, 1, dtype=torch.int64))
    assert work.passes == 0

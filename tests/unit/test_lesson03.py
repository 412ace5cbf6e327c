"""Lesson 03's check of a learner's cache: it takes every right class and no wrong one."""

from dataclasses import replace

import pytest
import torch

from kvlib import KVCache, Model, StaticKVCache
from kvlib.teach.exercises import CORRECT, NOT_ATTEMPTED, NOT_YET, define, find
from kvlib.teach.exercises.cache_suite import small_model
from kvlib.teach.exercises.own_cache import STUB
from tests.caches import mutants

TASK = find("03-my-cache")


class Blocks:
    """Right, and built differently: a list of blocks, joined when read."""

    def __init__(self):
        self.blocks = []

    @torch.no_grad()
    def update(self, k_new, v_new):
        self.blocks.append((k_new.clone(), v_new.clone()))
        return [torch.cat(x, dim=-2) for x in zip(*self.blocks)]

    @property
    def seq_len(self):
        return sum(k.shape[-2] for k, _ in self.blocks)


class CountsByHand:
    """Right, with a plain attribute for the length."""

    def __init__(self):
        self.kv, self.seq_len = None, 0

    def update(self, *new):
        new = [x.detach() for x in new]
        self.kv = [torch.cat(x, 2) for x in zip(self.kv, new)] if self.kv else new
        self.seq_len += new[0].size(2)
        return tuple(self.kv)


@pytest.mark.parametrize("candidate", [KVCache, lambda: StaticKVCache(max_seq_len=8192), Blocks,
 CountsByHand])
def test_right_caches_of_any_make_pass(candidate):
    verdict = TASK.check(candidate)
    assert verdict.status == CORRECT, verdict


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("StoresKeysAsValues", "store v_new"),
        ("PutsNewRowsFirst", "in front"),
        ("KeepsTheGradient", "detach"),
        ("LengthOffByOne", "index of the last token"),
        ("LengthIsATensor", "must be 0"),
        ("LosesPrecision", "not those that were appended"),
        ("ReturnsOnlyTheNewRows", "only the new rows"),
        ("CountsCalls", "counts the calls"),
        ("OverflowWraps", "rows"),
    ],
)
def test_wrong_caches_of_the_suite_fail_here_too(name, words):
    wrong = getattr(mutants, name)
    static = issubclass(wrong, StaticKVCache)
    room = 5 if name == "OverflowWraps" else 64
    verdict = TASK.check((lambda: wrong(max_seq_len=room)) if static else wrong)
    assert verdict.status == NOT_YET
    assert words in verdict.message


def test_a_mistake_beyond_the_rows_read_by_eye_is_found_by_the_model():
    class ForgetsLate(CountsByHand):
        def update(self, *new):
            k, v = super().update(*new)
            if self.seq_len > 8:  # long after the rows that are checked by eye
                k = k.clone()
                k[:, :, 0] = 0
            return k, v

    verdict = TASK.check(ForgetsLate)
    assert verdict.status == NOT_YET
    assert "differ from the full pass" in verdict.message


@pytest.mark.parametrize("done", ["update", "seq_len"])
def test_half_a_stub_says_which_half_is_left(done):
    half = STUB.replace("        return ...", "        self.k = k_new\n        return self.k, self.k", 1)
    if done == "seq_len":
        half = "return ...".join(STUB.rsplit("return ...", 1)).replace(
            "    def seq_len(self):\n        return ...", "    def seq_len(self):\n        return 0"
        )
    verdict = TASK.check(define("MyKVCache", half))
    assert verdict.status == NOT_ATTEMPTED
    left = "update" if done == "seq_len" else "seq_len"
    assert f"`{left}`" in verdict.message and "`...`" in verdict.message


def test_rows_on_the_class_are_refused_each_time_they_are_checked():
    shared = define("MyKVCache", TASK.wrong["shares rows between layers"])
    assert [TASK.check(shared).status for _ in range(2)] == [NOT_YET] * 2


def test_the_small_model_is_the_same_every_time_and_leaves_the_seed_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    first, second = small_model(), small_model()
    assert torch.equal(torch.rand(3), wanted)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


@pytest.mark.parametrize(
    ("layers", "split", "found"), [(1, 1, False), (2, 6, False), (2, 1, True), (2, [4, 2], True)]
)
def test_a_store_shared_by_layers_is_found_as_the_quiz_says(layers, split, found):
    class Shared:
        def __init__(self, store):
            self.seq_len, self.store = 0, store

        def update(self, *new):
            self.seq_len += new[0].shape[2]
            return tuple(x[:, :, -self.seq_len :] for x in self.store.update(*new))

    store = KVCache()
    torch.manual_seed(0)
    model = Model(replace(small_model().config, num_layers=layers), dtype=torch.float64)
    tokens = torch.randint(model.config.vocab_size, (1, 6))
    with torch.no_grad():
        caches = [Shared(store) for _ in range(layers)]
        given = torch.cat([model(part, caches) for part in tokens.split(split, dim=1)], dim=1)
        assert torch.allclose(given, model(tokens), rtol=1e-9, atol=1e-9) != found

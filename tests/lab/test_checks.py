"""Nonsense given to a panel is a ValueError with a sentence, whatever its type."""

import numpy as np
import pytest
import torch

from kvlib.lab import LiveLab
from kvlib.lab.appending import AppendingPanel
from kvlib.lab.checks import listed, one_of, shown, whole_between
from kvlib.lab.crossover import CrossoverPanel
from kvlib.lab.filling import FillingPanel
from kvlib.lab.memory_panel import MemoryPanel
from kvlib.lab.sharing import SharingPanel
from kvlib.memory import ModelPreset

NONSENSE = [
    [], {}, (), object, object(), b"x", 1.5, 1e400, -1, 10**30, "", "nonsense", "\ud800", True,
    np.zeros(3), np.array([128, 512]), torch.zeros(2, 2), float("nan"), {1: 2}, [1, 2], lambda: 0,
]  # fmt: skip
ROWS = np.ones((3, 4))


def filling(**changes):
    return FillingPanel(**{"words": ["a", "b", "c"], "q": ROWS, "k": ROWS, "v": ROWS, **changes})


ARGUMENTS = {
    LiveLab: ("preset", "device", "dtype", "kind", "context", "batch"),
    CrossoverPanel: ("preset", "device", "kv_heads", "context", "batch", "dtype"),
    MemoryPanel: ("model", "device", "context", "requests", "weight_bits", "cache_bits"),
    SharingPanel: ("preset", "num_kv_heads", "head"),
    AppendingPanel: ("room", "step"),
    filling: ("words", "q", "k", "v", "prefill", "step", "layer"),
}
PLACES = [(panel, name) for panel, names in ARGUMENTS.items() for name in names]
RIGHT = {("prefill", "[1, 2]"), ("words", "array([0., 0., 0.])")}
OPTIONAL = ("preset", "device", "dtype", "kv_heads", "num_kv_heads")  # None means the usual one


@pytest.mark.parametrize(("panel", "name"), PLACES, ids=[f"{p.__name__}-{n}" for p, n in PLACES])
def test_every_argument_of_every_panel_refuses_nonsense_in_a_sentence(panel, name):
    for value in [*NONSENSE, None]:
        if (name, repr(value)) in RIGHT or (value is None and panel is not filling and name in OPTIONAL):
            continue
        with pytest.raises(ValueError) as caught:
            panel(**{name: value})
            pytest.fail(f"{name}={value!r} was taken")
        assert str(caught.value).strip()


@pytest.mark.parametrize("guess", [0, "x", [], object()])
def test_a_guess_has_a_value(guess):
    with pytest.raises(ValueError, match="predict"):
        LiveLab(device="cpu", guess=guess)


def test_more_heads_than_can_be_told_apart_are_refused():
    with pytest.raises(ValueError, match="more than 71"):
        SharingPanel(ModelPreset("Wide", 2, 128, 8, 16, 128, 256, 1000))


def test_what_equals_an_offer_is_the_offer():
    assert one_of("context", np.int64(128), (128, 512)) == 128
    assert type(one_of("context", np.int64(128), (128, 512))) is int
    assert whole_between("head", np.int32(3), 0, 8) == 3
    assert listed("contexts", (1, 2)) == [1, 2]
    with pytest.raises(ValueError, match="True is not one of: 1, 2"):
        one_of("batch", True, (1, 2))


def test_a_long_value_is_shown_short():
    assert len(shown(torch.zeros(1000))) <= 60 and len(shown("x" * 1000)) == 60

"""What a law of the contract is, and how one is held against a cache kind.

A law is a function of a `Kind` and of what hypothesis draws for it. Laws are kept apart from
pytest so that the same functions judge the real caches and the mutants.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.caches.kinds import Kind

_COMMON = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "stateful_step_count": 20,
    "suppress_health_check": list(HealthCheck),
}
settings.register_profile("quick", max_examples=30, **_COMMON)
settings.register_profile("thorough", max_examples=1000, **_COMMON)
settings.register_profile(
    "mutants", max_examples=15, phases=[Phase.generate], report_multiple_bugs=False, **_COMMON
)
RIGOUR = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
MUTANT_RIGOUR = settings.get_profile("mutants")


@dataclass(frozen=True)
class Law:
    """One promise: its check, what is drawn for it, and what it runs besides the cache."""

    name: str
    body: Callable
    strategies: dict
    runs: frozenset  # of "attend", "model"
    applies: Callable[[Kind], bool]

    def hold(self, kind: Kind, rigour: settings = RIGOUR) -> None:
        """Raise AssertionError, or whatever the cache raised, where `kind` breaks the law."""
        with unwritten_memory_is_nan():
            if isinstance(self.body, type):
                machine = type(self.name, (self.body,), {"kind": kind})
                run_state_machine_as_test(machine, settings=rigour)
            elif self.strategies:

                @rigour
                @given(**self.strategies)
                def check(**drawn):
                    self.body(kind, **drawn)

                check()
            else:
                self.body(kind)


LAWS: dict[str, Law] = {}


def law(*runs: str, applies: Callable[[Kind], bool] = lambda kind: True, **strategies):
    """Register a function (kind, **drawn), or a state machine class, as a law."""

    def register(body):
        LAWS[body.__name__] = Law(body.__name__, body, strategies, frozenset(runs), applies)
        return body

    return register


@contextmanager
def unwritten_memory_is_nan():
    """Fill what `torch.empty` and its kin return with NaN: the worst that memory can hold."""

    def poisoned(make):
        def empty(*args, **options):
            made = make(*args, **options)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return empty

    with (
        mock.patch.object(torch, "empty", poisoned(torch.empty)),
        mock.patch.object(torch, "empty_like", poisoned(torch.empty_like)),
        mock.patch.object(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty)),
    ):
        yield

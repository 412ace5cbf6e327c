"""Which law rejects which mutant."""

from __future__ import annotations

from functools import cache

from hypothesis.errors import Flaky, HypothesisException

from tests.caches.law import MUTANT_RIGOUR
from tests.caches.laws import LAWS
from tests.caches.mutants import MUTANTS, RUNS


def may_reject(law_name: str, mutant_name: str) -> bool:
    """Say whether the law runs what the mutant changes, and applies to it."""
    law, part = LAWS[law_name], RUNS[mutant_name]
    return (part is None or part in law.runs) and law.applies(MUTANTS[mutant_name])


@cache
def rejection(law_name: str, mutant_name: str) -> str | None:
    """Return what the law has against the mutant, or None where it lets it pass."""
    try:
        LAWS[law_name].hold(MUTANTS[mutant_name], MUTANT_RIGOUR)
    except Flaky as error:
        return f"{type(error).__name__}: {error}"
    except (HypothesisException, NameError, ImportError):
        raise  # the suite's own fault
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def kill_matrix() -> dict[str, list[str]]:
    """Return the laws that reject each mutant."""
    return {
        mutant: [law for law in LAWS if may_reject(law, mutant) and rejection(law, mutant)]
        for mutant in MUTANTS
    }

"""The suite rejects every mutant, and every law rejects at least one."""

import pytest

from tests.caches.kills import may_reject, rejection
from tests.caches.laws import LAWS
from tests.caches.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS)
def test_some_law_rejects_the_mutant(mutant):
    laws = sorted(LAWS, key=lambda law: "model" in LAWS[law].runs)  # the quick ones first
    laws = [law for law in laws if may_reject(law, mutant)]
    assert any(rejection(law, mutant) for law in laws), MUTANTS[mutant]


@pytest.mark.parametrize("law", LAWS)
def test_the_law_rejects_some_mutant(law):
    mutants = [mutant for mutant in MUTANTS if may_reject(law, mutant)]
    assert any(rejection(law, mutant) for mutant in mutants)

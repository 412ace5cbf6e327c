"""Every cache kind keeps every law of the contract."""

import pytest

from tests.caches.kinds import KINDS
from tests.caches.laws import LAWS

PAIRS = [
    pytest.param(law, kind, id=f"{kind.name}-{law.name}")
    for kind in KINDS
    for law in LAWS.values()
    if law.applies(kind)
]


@pytest.mark.parametrize(("law", "kind"), PAIRS)
def test_contract(law, kind):
    law.hold(kind)

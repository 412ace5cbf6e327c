"""All laws of the contract, by name; importing this module fills the register."""

from tests.caches import (  # noqa: F401
    laws_input,
    laws_lifetime,
    laws_literal,
    laws_memory,
    laws_parity,
    laws_quantized,
    laws_window,
)
from tests.caches.law import LAWS

__all__ = ["LAWS"]

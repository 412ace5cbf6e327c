"""Latent attention and its cache keep their laws; every mutant breaks one, every law a mutant.

The cache is held to the contract in test_contract.py as well; here its mutants are.
"""

from functools import cache

import pytest
import torch

from kvlib.caches.latent import LatentKVCache
from kvlib.latent_attention import LatentAttention, LatentShape
from kvlib.memory import MODELS
from tests.caches import law as contract_law
from tests.caches.kinds import Kind
from tests.caches.latent_laws import LAWS, Latent, hold
from tests.caches.latent_pairs import of_pairs
from tests.caches.laws import LAWS as CONTRACT
from tests.caches.mutants_latent import MUTANTS

OURS = [name for name, law in CONTRACT.items() if not law.runs and "fixed" not in name]


@pytest.mark.parametrize("law", LAWS)
def test_latent_attention_keeps(law):
    hold(law, Latent(), contract_law.RIGOUR)


@cache
def broken(law: str, mutant: str) -> bool:
    """Tell whether a mutant breaks a law of latent attention."""
    try:
        hold(law, MUTANTS[mutant], contract_law.MUTANT_RIGOUR)
    except (NameError, ImportError):
        raise
    except Exception:
        return True
    return False


def broken_contract(mutant: str) -> bool:
    """Tell whether a wrong cache breaks the contract of all caches."""
    made = of_pairs(MUTANTS[mutant].cache)
    kind = Kind(mutant, lambda room: made())
    for name in OURS:
        law = CONTRACT[name]
        if law.applies(kind):
            try:
                law.hold(kind, contract_law.MUTANT_RIGOUR)
            except (NameError, ImportError):
                raise
            except Exception:
                return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS)
def test_some_law_rejects_the_mutant(mutant):
    rejected = any(broken(law, mutant) for law in LAWS)
    if not rejected and MUTANTS[mutant].cache is not LatentKVCache:
        rejected = broken_contract(mutant)
    assert rejected, (MUTANTS[mutant].cache.__doc__, MUTANTS[mutant].attention.__doc__)


@pytest.mark.parametrize("law", LAWS)
def test_the_law_rejects_some_mutant(law):
    assert any(broken(law, mutant) for mutant in MUTANTS)


def test_a_literal_row():
    """Latent (1, 2) and rotary key (3): the key is (1, 2, 3), the value (1, 2)."""
    cache = LatentKVCache()
    one = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0]]]])
    keys, values = cache.update(*one)
    assert keys.tolist() == [[[[1, 2, 3]]]] and values.tolist() == [[[[1, 2]]]]
    keys, values = cache.update(*(x + 3 for x in one))
    assert keys.tolist() == [[[[1, 2, 3], [4, 5, 6]]]] and values.tolist() == [[[[1, 2], [4, 5]]]]
    assert cache.nbytes == 2 * 3 * 4


def test_a_token_of_deepseek_v3_takes_what_its_preset_says():
    """61 layers of 576 numbers in 16 bits, measured: 70,272 bytes, where 128 heads would take 71 x."""
    preset, shape = MODELS["DeepSeek V3"], LatentShape()
    assert (shape.row_dim, shape.rope_dim) == (preset.latent_dim, preset.rope_dim)
    assert (shape.hidden_size, shape.num_heads) == (preset.hidden_size, preset.num_heads)
    cache = LatentKVCache()
    cache.update(
        torch.zeros(1, 1, 1, shape.latent_dim, dtype=torch.bfloat16),
        torch.zeros(1, 1, 1, shape.rope_dim, dtype=torch.bfloat16),
    )
    assert preset.num_layers * cache.nbytes == preset.bytes_per_token(2) == 70272
    assert shape.expanded_dim // shape.row_dim == 71


def test_what_absorbing_saves_agrees_with_the_presets_own_count():
    preset, shape = MODELS["DeepSeek V3"], LatentShape()
    growth = shape.flops(1001, absorbed=True) - shape.flops(1000, absorbed=True)
    assert preset.num_layers * growth == preset.step_flops(1001) - preset.step_flops(1000)
    assert shape.flops(1000, absorbed=False) > 80 * shape.flops(1000, absorbed=True)
    assert shape.flops(10**6, absorbed=False, num_new=200) < shape.flops(10**6, absorbed=True, num_new=200)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"rope_dim": 3}, "turn pairs"), ({"num_heads": 0}, "at least 1"), ({"latent_dim": 1.5}, "whole")],
)
def test_a_shape_that_cannot_be_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        LatentShape(**changes)


def test_input_of_another_width_is_refused_before_the_cache_changes():
    shape = LatentShape(4, 2, 2, 2, 2, 3)
    attention, cache = LatentAttention(shape), LatentKVCache()
    turn = torch.ones(1, 2), torch.zeros(1, 2)
    for wrong in (torch.zeros(1, 1, 5), torch.zeros(1, 4), torch.zeros(1, 0, 4)):
        with pytest.raises(ValueError, match="must be"):
            attention(wrong, turn, cache)
    assert cache.seq_len == 0

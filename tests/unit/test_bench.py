"""The benchmark's own logic; what it measures is for a quiet machine, not for a test."""

import sys

import pytest
import torch

from kvlib import bench, native
from kvlib.model import Model, ModelConfig


def test_runs_take_turns_and_leave_their_first_call_out(monkeypatch):
    calls = []
    clock = iter(range(1000))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: float(next(clock)))
    medians = bench.in_turn(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 6, torch.device("cpu")
    )
    assert "".join(calls) == "aaaabbbb" * 2
    assert medians == {"a": 1.0, "b": 1.0}


def test_all_decode_steps_agree_on_the_same_weights(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = ModelConfig(2, 4, 2, 16, 48, 64, 50, max_seq_len=128)
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, intermediate_size=64, vocab_size=50, tie_word_embeddings=True,
            max_position_embeddings=128, rms_norm_eps=1e-5,
        )
    ).eval()  # fmt: skip
    model = same_weights(theirs, config)
    medians = bench.decode_steps(model, theirs, 20, rounds=3)
    ours = {"eager", "native"} if native.why_not() is None else {"eager"}
    assert set(medians) == ours | {"DynamicCache", "StaticCache"}
    model.layers[0].mlp.down.weight.mul_(3)
    with pytest.raises(AssertionError):
        bench.decode_steps(model, theirs, 20, rounds=3)


def test_the_floor_of_attention_is_the_larger_of_bytes_and_operations(monkeypatch):
    monkeypatch.setattr(bench, "read_bandwidth", lambda device: 1e12)
    monkeypatch.setattr(bench, "flop_rate", lambda device, dtype: 1e9)
    seconds, floor, bound_by = bench.attention_share(1, 64, torch.device("cpu"), rounds=3)
    assert bound_by == "arithmetic"
    assert floor == pytest.approx(4 * 32 * 64 * 128 / 1e9)
    assert seconds["eager"] > 0


def test_without_transformers_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SystemExit, match="tests/requirements.txt"):
        bench.load_transformers("cpu")


def same_weights(theirs, config: ModelConfig) -> Model:
    """Fit the weights of a transformers model into ours."""
    from kvlib.weights import _assemble

    state = theirs.state_dict()
    return _assemble(config, lambda name: state[name], device="cpu", dtype=torch.float32)

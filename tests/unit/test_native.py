"""The C functions against PyTorch and float64; wrong C that the same comparisons reject."""

import ctypes
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib import Model, ModelConfig, StaticKVCache, grouped_attention, native
from kvlib.caches import KVCache
from kvlib.decoding import decoder
from kvlib.generation import prefill
from kvlib.native import build, calls
from tests.caches.reference import attend_by_loop
from tests.unit.native_mutants import MUTANTS

needs_compiler = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
HEADS = [(1, 1), (4, 4), (4, 2), (9, 3), (6, 1), (32, 1), (33, 1), (40, 2)]
QUICK = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def attention_agrees(num_heads, num_kv_heads, num_keys, dim, batch_size=1, scale=1.0, room=0, seed=0):
    """Compare with a float64 loop: no more than 3 times off what plain PyTorch is.

    The keys lie in a longer buffer whose end is NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = batch_size, num_kv_heads, num_keys + room, dim
    q = torch.randn(batch_size, num_heads, 1, dim, generator=generator) * scale
    k, v = (torch.randn(shape, generator=generator) for _ in "kv")
    k[:, :, num_keys:], v[:, :, num_keys:] = math.nan, math.nan
    k, v = k[:, :, :num_keys], v[:, :, :num_keys]
    want = attend_by_loop(q, k, v)
    got, plain = (attend(q, k, v) for attend in (native.native_attention, grouped_attention))
    error, allowed = ((x - want).abs().max().item() for x in (got, plain))
    rounding = 5e-6 * max(1, scale / 3)  # of scores that grow with the scale
    assert error <= max(3 * allowed, rounding), f"off by {error:.1e}, plain PyTorch by {allowed:.1e}"


ATTENTION_CASES = (
    dict(num_heads=4, num_kv_heads=2, num_keys=1, dim=16),
    dict(num_heads=9, num_kv_heads=3, num_keys=333, dim=64, room=5, scale=3.0),
    dict(num_heads=32, num_kv_heads=1, num_keys=129, dim=128, batch_size=2, scale=8.0),
    dict(num_heads=3, num_kv_heads=3, num_keys=64, dim=80, room=1),
)


def step_agrees(num_heads=4, num_kv_heads=2, prompt=5, steps=3, layers=2, seed=0, dim=16):
    """Compare decode steps in C with the model's, their logits and the rows they leave behind."""
    torch.manual_seed(seed)
    config = ModelConfig(
        layers, num_heads, num_kv_heads, dim, 48, 80, 77, norm_eps=0.1, tie_embeddings=bool(seed % 2)
    )
    model = Model(config)
    tokens = torch.randint(0, 77, (1, prompt + steps))
    caches = [model.make_caches(lambda: StaticKVCache(prompt + steps)) for _ in range(2)]
    for some in caches:
        prefill(model, tokens[:, :prompt], some)
    step = decoder(model, caches[0], "native")
    assert step.how == "native", step.reason
    for i in range(prompt, prompt + steps):
        got, want = step(tokens[:, i : i + 1]), model(tokens[:, i : i + 1], caches[1])[:, -1]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(*caches, strict=True):
        assert ours.seq_len == theirs.seq_len == prompt + steps
        for a, b in zip(ours.buffers, theirs.buffers, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@needs_compiler
@QUICK
@given(
    st.sampled_from(HEADS), st.integers(1, 700), st.sampled_from([16, 32, 64, 80, 128]),
    st.integers(1, 3), st.sampled_from([0.1, 1.0, 30.0]), st.integers(0, 3), st.integers(0, 9),
)  # fmt: skip
def test_attention_is_that_of_a_loop_in_float64(heads, num_keys, dim, batch_size, scale, room, seed):
    attention_agrees(*heads, num_keys, dim, batch_size, scale, room, seed)


@needs_compiler
@QUICK
@given(
    st.sampled_from([(4, 4), (4, 2), (9, 3), (4, 1)]),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_a_step_is_that_of_the_model(heads, prompt, layers, seed):
    step_agrees(*heads, prompt=prompt, layers=layers, seed=seed)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads_gives_the_same(threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        attention_agrees(9, 3, 5, 64)  # fewer keys than some have threads for
        step_agrees(9, 3, prompt=2)
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("wrong", MUTANTS)
def test_wrong_c_is_rejected(wrong, tmp_path, monkeypatch, request):
    name, stands, slips = MUTANTS[wrong]
    for path in build.FOLDER.glob("*.[ch]"):
        shutil.copy(path, tmp_path)
    source = (tmp_path / name).read_text()
    assert stands in source, "the mutant no longer fits the source"
    (tmp_path / name).write_text(source.replace(stands, slips))
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr(build, "FLAGS", ["-O1", *build.FLAGS[1:]])  # wrong at any speed, built sooner
    made = tmp_path / "wrong.so"
    build._build(build._compiler(), made)
    wrong_library = ctypes.CDLL(str(made))
    for module in ("calls", "step"):
        monkeypatch.setattr(sys.modules[f"kvlib.native.{module}"], "library", lambda: wrong_library)
    threads = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    torch.set_num_threads(2)  # some slips show between two members of a team only
    with pytest.raises(AssertionError):
        for case in ATTENTION_CASES:
            attention_agrees(**case)
        extremes_agree()
        not_a_number_shows("k")
        step_agrees()
        step_agrees(9, 3, prompt=40, steps=2)
        rows = torch.randn(43, 48), torch.randn(48)
        torch.testing.assert_close(native.read_rows(*rows, 8), rows[0] @ rows[1])


def extremes_agree():
    """Check scores that are all alike, far above and far below what e^x can hold."""
    q, k = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 100, 16)
    v = torch.randn(1, 1, 100, 16)
    torch.testing.assert_close(native.native_attention(q, k, v)[0, 0, 0], v[0, 0].mean(0))
    k[..., 0], q[..., 0] = 100.0, -100.0  # every score -2500
    torch.testing.assert_close(native.native_attention(q, k, v)[0, 0, 0], v[0, 0].mean(0))
    k[0, 0, 37, 0], q[..., 0] = 1e4, 1e4  # one score of 2.5e7 takes all the weight
    torch.testing.assert_close(native.native_attention(q, k, v)[0, 0, 0], v[0, 0, 37])
    k[:, :, :64], k[:, :, 64:] = 0.0, 0.0
    k[:, :, :64, 0], q[..., 0] = -3e38, 1e5  # a block of scores that overflow to minus infinity
    torch.testing.assert_close(native.native_attention(q, k, v)[0, 0, 0], v[0, 0, 64:].mean(0))


def not_a_number_shows(where: str):
    """Check that a NaN in the query, a key or a value is not hidden."""
    q, k, v = torch.randn(1, 2, 1, 16), torch.randn(1, 1, 70, 16), torch.randn(1, 1, 70, 16)
    {"q": q, "k": k, "v": v}[where][0, 0, -1, 3] = math.nan
    assert native.native_attention(q, k, v)[0, 0].isnan().any()


@needs_compiler
def test_extremes_of_the_softmax():
    extremes_agree()


@needs_compiler
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_what_is_not_a_number_shows(where):
    not_a_number_shows(where)


@needs_compiler
def test_strides_that_are_no_plain_rows_are_copied_first():
    q, k, v = torch.randn(2, 4, 1, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 2, 16, 9)
    k, v = k.transpose(1, 2), v.transpose(2, 3)
    torch.testing.assert_close(native.native_attention(q, k, v), grouped_attention(q, k, v))


@pytest.mark.parametrize(
    ("q", "mask"),
    [
        (torch.randn(1, 4, 1, 16, dtype=torch.float64), None),
        (torch.randn(1, 4, 3, 16), None),
        (torch.randn(1, 4, 1, 16), torch.arange(6) > 2),
        (torch.randn(1, 4, 1, 12), None),
    ],
)
def test_what_it_is_not_made_for_goes_to_pytorch(q, mask):
    k, v = (torch.randn(1, 2, 6, q.shape[3], dtype=q.dtype) for _ in "kv")
    assert torch.equal(native.native_attention(q, k, v, mask), grouped_attention(q, k, v, mask))


def test_bad_input_is_refused_before_c_sees_it():
    q, k = torch.randn(1, 4, 1, 16), torch.randn(1, 2, 6, 16)
    with pytest.raises(ValueError, match="differ in shape"):
        native.native_attention(q, k, k[:, :, :5])
    with pytest.raises(ValueError, match="multiple of num_kv_heads"):
        native.native_attention(q[:, :3], k, k)
    for weight, x, count in (
        (torch.randn(4, 16), torch.randn(16), 3),
        (torch.randn(4, 12), torch.randn(12), 8),
        (torch.randn(4, 16), torch.randn(32), 8),
        (torch.randn(4, 16).double(), torch.randn(16), 8),
        (torch.randn(16), torch.randn(16), 8),
    ):
        with pytest.raises(ValueError):
            native.read_rows(weight, x, count)


@needs_compiler
@pytest.mark.parametrize("count", calls.ROWS_AT_ONCE)
def test_rows_at_once_change_nothing_but_the_time(count):
    weight, x = torch.randn(101, 96), torch.randn(96)
    torch.testing.assert_close(native.read_rows(weight, x, count), weight @ x, rtol=1e-4, atol=1e-4)


def fresh(code: str, **environment) -> str:
    """Run Python anew, where nothing is loaded or built yet, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


ASK = "from kvlib import native; print(native.why_not())"


def test_without_a_compiler_the_reason_is_said(tmp_path):
    bare = {"KVLIB_HOME": str(tmp_path), "PATH": str(tmp_path)}
    assert "No C compiler was found" in fresh(ASK, **bare)
    assert "No C compiler was found (nothing)" in fresh(ASK, **bare, CC="nothing")
    assert "turns the C functions off" in fresh(ASK, KVLIB_NATIVE="0")


def test_a_compiler_that_fails_is_quoted(tmp_path):
    script = tmp_path / "cc"
    script.write_text("#!/bin/sh\necho 'error: too old for this' >&2\nexit 1\n")
    script.chmod(0o755)
    assert "too old for this" in fresh(ASK, KVLIB_HOME=str(tmp_path / "home"), CC=str(script))


@needs_compiler
@pytest.mark.parametrize("content", [b"", b"half a file", None])
def test_a_broken_library_is_built_again(tmp_path, content):
    assert fresh(ASK, KVLIB_HOME=str(tmp_path)) == "None"
    (made,) = (tmp_path / "native").glob("*.so")
    made.write_bytes(made.read_bytes()[:9000] if content is None else content)
    assert fresh(ASK, KVLIB_HOME=str(tmp_path)) == "None"


@pytest.mark.parametrize(
    ("compiler", "said"), [('gcc "', "names no compiler"), ("true", "could not build"), ("/dev/null", "")]
)
def test_a_compiler_that_is_none_is_a_reason_not_an_error(tmp_path, compiler, said):
    reason = fresh(ASK, KVLIB_HOME=str(tmp_path), CC=compiler)
    assert reason.endswith(".") and said in reason


def test_a_compiler_that_cannot_be_run_is_a_reason(tmp_path):
    file = tmp_path / "cc"
    file.write_bytes(b"not a program")
    file.chmod(0o755)
    assert "does not run" in fresh(ASK, KVLIB_HOME=str(tmp_path), CC=str(file))


def test_only_a_static_cache_has_fixed_addresses():
    model = Model(ModelConfig(1, 2, 1, 16, 32, 32, 20))
    caches = model.make_caches(KVCache)
    prefill(model, torch.tensor([[1, 2]]), caches)
    step = decoder(model, caches, "native")
    assert step.how == "eager" and "StaticKVCache" in step.reason

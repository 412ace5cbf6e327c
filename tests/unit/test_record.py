"""The recorder: it measures the grid, keeps to its time, can be interrupted, and invents nothing."""

import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest
import torch

from kvlib import record as recorder
from kvlib import timing
from kvlib.grid import CONTEXTS, KINDS
from kvlib.memory import MODELS, ModelPreset
from kvlib.record import INTERRUPTED, TIME_OVER, main, record
from kvlib.recording_file import load
from kvlib.steps import DoesNotFit
from kvlib.timing import Timing

TINY = ModelPreset("Tiny", 2, 4, 2, 8, 32, 48, 96, True)


class Step:
    """Stand in for DecodeStep: sizes by arithmetic, steps that take no time; `runs` lists them."""

    limit_bytes = 2_000_000_000
    runs: list = []
    on_run = staticmethod(lambda number: None)
    released = 0

    def __init__(self, preset, *, device, dtype, memory_limit=None):
        self.preset, self.dtype = preset, dtype

    def needs(self, num_kv_heads, seq_len, batch_size=1):
        shape, size = self.preset.with_kv_heads(num_kv_heads), self.dtype.itemsize
        return shape.weight_bytes(size) + shape.cache_bytes(seq_len, batch_size, size)

    def run(self, *shape, budget_s):
        Step.runs.append((*shape, budget_s))
        Step.on_run(len(Step.runs))
        seconds = self.needs(*shape) / 1e10
        return Timing.of((seconds, 0.9 * seconds, 1.2 * seconds), "stand-in")

    def release(self):
        Step.released += 1


@pytest.fixture
def paper(monkeypatch):
    monkeypatch.setattr(recorder, "DecodeStep", Step)
    monkeypatch.setattr(timing, "read_bandwidth", lambda device, fresh=False: 30e9)
    monkeypatch.setattr(timing, "flop_rate", lambda device, dtype, fresh=False: 3e11)
    monkeypatch.setattr(Step, "runs", [])
    monkeypatch.setattr(Step, "on_run", staticmethod(lambda number: None))
    return Step


def small(**changes):
    """Record the tiny shape at two contexts on the CPU."""
    options = {"device": "cpu", "dtype": "float32", "contexts": (128, 512), "budget_s": 60.0}
    return record(TINY, **{**options, **changes})


def test_a_real_recording_of_a_small_shape_on_this_cpu(tmp_path, monkeypatch):
    from kvlib import steps

    monkeypatch.setenv("KVLIB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(timing, "_kept", {})
    monkeypatch.setattr(steps, "_all_pools", {})
    said = []
    made = small(say=said.append)
    assert [(p.kind, p.kv_heads, p.context) for p in made.points] == [
        ("MHA", 4, 128), ("MHA", 4, 512), ("GQA", 2, 128), ("GQA", 2, 512), ("MQA", 1, 128), ("MQA", 1, 512),
    ]  # fmt: skip
    assert made.refused == () and not made.partial
    assert all(0 < p.low <= p.seconds <= p.high and p.samples >= 2 for p in made.points)
    assert made.torch == torch.__version__ and made.cuda is None
    assert made.bandwidth == timing.read_bandwidth("cpu")  # measured in this run, and kept
    assert sum("times its floor" in text for text in said) == 6 and "6 of 6" in said[-1]
    path = made.save(tmp_path)
    assert load(path).fits(TINY, "float32", 1)
    text = path.read_text()
    assert socket.gethostname() not in text and str(tmp_path) not in text
    assert not re.search(r"/(home|root|tmp|usr)\b", text) and os.sep not in path.name


def test_the_text_is_the_same_but_for_the_numbers(paper):
    def without_numbers(text):
        return re.sub(r"-?\d[\d.e+-]*", "0", text)

    one, other = small().to_json(), small(contexts=(512, 128, 512)).to_json()
    assert one == other  # the stand-in's numbers are the same
    assert without_numbers(one) == without_numbers(small().to_json())
    assert list(json.loads(one)["points"][0]) == [
        "kind", "kv_heads", "context", "seconds", "low", "high", "samples", "floor",
    ]  # fmt: skip


def test_every_point_of_the_grid_is_measured_or_refused_with_the_reason(paper):
    made = record(MODELS["SmolLM2 135M"], device="cpu", dtype="float32", budget_s=600)
    places = [(row.kind, row.context) for row in (*made.points, *made.refused)]
    assert sorted(places) == sorted((kind, c) for kind in KINDS for c in CONTEXTS)
    assert len(made.points) == len(paper.runs) == 25 and not made.partial
    reason = made.refusal("MHA", 9, 131072)
    assert reason == "It would need 18.71 GB, and 2.00 GB could be used."
    assert paper.runs[0][:2] == (1, 128)  # the cheapest first


def test_an_interruption_keeps_what_is_measured_and_says_so(paper, monkeypatch, tmp_path):
    def interrupt(number):
        if number == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(paper, "on_run", staticmethod(interrupt))
    before = paper.released
    made = small()
    assert made.partial and len(made.points) == 3 and paper.released == before + 1
    assert {row.reason for row in made.refused} == {INTERRUPTED} and len(made.refused) == 3
    assert load(made.save(tmp_path)).partial


def test_interrupted_before_the_first_point_there_is_nothing_to_keep(paper, monkeypatch):
    def interrupt(device, fresh=False):
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "read_bandwidth", interrupt)
    with pytest.raises(RuntimeError, match="Nothing was measured of Tiny.*interrupted"):
        small()


def test_a_step_that_fails_is_refused_without_its_message(paper, monkeypatch):
    def fail(number):
        if number == 2:
            raise RuntimeError("no kernel image in /home/someone/lib.so")
        if number == 3:
            raise DoesNotFit("too large, on somebody's machine", 5_000_000_000, 1_000_000_000)

    monkeypatch.setattr(paper, "on_run", staticmethod(fail))
    said = []
    made = small(say=said.append)
    reasons = [row.reason for row in made.refused]
    assert len(made.points) == 4 and not made.partial
    assert sorted(reasons) == [
        "It would need 5.00 GB, and 1.00 GB could be used.", "The step failed with RuntimeError.",
    ]  # fmt: skip
    assert "someone" not in made.to_json() and any("/home/someone" in text for text in said)


def test_a_step_that_hangs_is_ended_by_the_budget(paper, monkeypatch):
    monkeypatch.setattr(recorder, "LEAST_BUDGET_S", 0.1)
    monkeypatch.setattr(recorder, "KEPT_BACK_S", 0.0)
    monkeypatch.setattr(paper, "on_run", staticmethod(lambda n: time.sleep(60) if n == 3 else None))
    begun = time.perf_counter()
    made = small(budget_s=3.0)
    assert time.perf_counter() - begun < 30
    assert made.partial and len(made.points) == 2
    assert {row.reason for row in made.refused} == {TIME_OVER}


def test_no_point_is_begun_that_would_outlast_the_budget(paper, monkeypatch):
    """At 30 MB a second of filling, the 500 MB of weights take longer than is left."""
    monkeypatch.setitem(recorder.FILLING, "cpu", 30e6)
    with pytest.raises(RuntimeError, match="nothing is recorded. The time"):
        record(MODELS["SmolLM2 135M"], device="cpu", dtype="float32", contexts=(128,), budget_s=11)
    assert paper.runs == []


def test_the_time_of_a_step_is_foreseen_from_the_nearest_smaller_one():
    run = recorder._Run(TINY, torch.device("cpu"), "float32", 1, print, 0.0, rates=(3e10, 3e11))
    floors = {c: run._floor(("MHA", c)) for c in (128, 512, 2048)}
    assert run._expected(("MHA", 512)) == pytest.approx(4 * floors[512] + 0.05)
    for context, times in ((128, 100), (512, 3)):
        run.timings["MHA", context] = Timing.of((times * floors[context],), "x")
    assert run._expected(("MHA", 2048)) == pytest.approx(1.5 * 3 * floors[2048])


def test_repeats_share_what_is_left(paper):
    record(MODELS["SmolLM2 135M"], device="cpu", dtype="float32", budget_s=60)
    assert all(0.02 <= run[-1] <= recorder.POINT_S for run in paper.runs)
    assert paper.runs[0][-1] < recorder.POINT_S


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "cuda:77"}, "no device"), ({"dtype": "int8"}, "not in 'int8'"),
        ({"dtype": None}, "not in None"), ({"batch": 3}, "batch"), ({"batch": True}, "batch"),
        ({"contexts": (100,)}, "Contexts"), ({"contexts": ()}, "Contexts"),
        ({"budget_s": 3}, "budget"), ({"budget_s": float("nan")}, "budget"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_is_said_before_anything_is_measured(paper, changes, why):
    with pytest.raises(ValueError, match=why):
        small(**changes)
    assert paper.runs == []


@pytest.mark.parametrize("name", ["Falcon 7B", "Gemma 2 9B", "Mixtral 8x7B", "DeepSeek V3"])
def test_shapes_that_cannot_be_run_are_named(paper, name):
    with pytest.raises(ValueError, match=f"{name} cannot be recorded"):
        record(MODELS[name], device="cpu", dtype="float32")
    with pytest.raises(ValueError, match="ModelPreset"):
        record(name, device="cpu", dtype="float32")


# The command ------------------------------------------------------------------------------------


def test_the_command_writes_a_file_for_each_shape(paper, tmp_path, capsys):
    arguments = [
        "--device",
        "cpu",
        "--dtype",
        "bfloat16",
        "--batch",
        "2",
        "--contexts",
        "128",
        "--budget",
        "90",
    ]
    names = ["--model", "SmolLM2 135M", "--model", "SmolLM2 360M", "--model", "SmolLM2 135M"]
    assert main([*arguments, *names, "--out", str(tmp_path)]) == 0
    made = [load(path) for path in sorted(tmp_path.iterdir())]
    assert [it.preset.name for it in made] == ["SmolLM2 135M", "SmolLM2 360M"]
    assert all((it.dtype, it.batch, len(it.points)) == ("bfloat16", 2, 3) for it in made)
    out = capsys.readouterr().out
    assert "3 of 3  MHA     128 tokens" in out and "Recording of 3 points, 0 refused" in out


def test_the_command_says_what_is_wrong_and_fails(paper, tmp_path, capsys):
    out = ["--out", str(tmp_path)]
    assert main(["--device", "nope", *out]) == 1
    assert "not the name of a device" in capsys.readouterr().err
    assert main(["--device", "cpu", "--budget", "2", *out]) == 1
    assert "10 seconds or more" in capsys.readouterr().err
    for wrong in (["--model", "nope"], ["--dtype", "int8"], ["--batch", "3"], ["--budget", "soon"]):
        with pytest.raises(SystemExit):
            main([*wrong, *out])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(paper, tmp_path, capsys):
    (tmp_path / "file").touch()
    arguments = ["--device", "cpu", "--contexts", "128", "--out", str(tmp_path / "file")]
    assert main(arguments) == 1 and "exists" in capsys.readouterr().err


def test_it_needs_nothing_that_draws():
    code = (
        "import sys, kvlib.record, kvlib.recording_file; "
        "sys.exit(any(name.startswith(('ipywidgets', 'matplotlib', 'kvlib.lab')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0

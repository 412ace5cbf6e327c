"""Timing compares ways within one run, and never asserts an absolute time of the machine."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from kvlib import timing
from kvlib.timing import Timing, decode_step_floor, measure


@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
    """Keep rates in a folder of the test's own, and forget those of the process."""
    monkeypatch.setenv("KVLIB_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "_kept", {})
    monkeypatch.setattr(timing, "_was_quiet", lambda processor_s, wall_s: True)
    return tmp_path / "device.json"


def test_median_and_quartiles():
    t = Timing.of([5.0, 1.0, 2.0, 4.0, 30.0], "a CPU")
    assert (t.low, t.seconds, t.high) == (2.0, 4.0, 5.0)
    assert t.samples == (5.0, 1.0, 2.0, 4.0, 30.0) and t.device == "a CPU"
    one = Timing.of([3.0], "a CPU")
    assert one.low == one.seconds == one.high == 3.0
    with pytest.raises(ValueError, match="at least one"):
        Timing.of([], "a CPU")


def test_measure_counts_its_calls():
    calls = []
    t = measure(lambda: calls.append(1), device="cpu", repeats=4, warmup=2)
    assert len(calls) == 6 and len(t.samples) == 4
    assert "thread" in t.device


def test_budget_stops_repeating_but_times_once():
    calls = []
    t = measure(
        lambda: (calls.append(1), time.sleep(0.02)), device="cpu", repeats=100, budget_s=0.0
    )
    assert len(t.samples) == 1 and len(calls) == 2
    t = measure(lambda: time.sleep(0.01), device="cpu", repeats=1000, budget_s=0.1)
    assert 1 <= len(t.samples) < 1000


def test_measure_tells_slow_from_fast():
    slow = measure(lambda: time.sleep(0.02), device="cpu")
    fast = measure(lambda: time.sleep(0.001), device="cpu")
    assert slow.seconds > 2 * fast.seconds


@pytest.mark.parametrize("bad", [dict(repeats=0), dict(warmup=-1)])
def test_measure_refuses_bad_counts(bad):
    with pytest.raises(ValueError, match="repeats"):
        measure(lambda: None, device="cpu", **bad)


def test_errors_of_the_timed_call_pass_through():
    with pytest.raises(KeyError):
        measure(lambda: {}["no"], device="cpu")


def test_cuda_is_timed_by_events(monkeypatch):
    """The branch for CUDA, on stand-ins: events in milliseconds, synchronised on both sides."""
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("wait")

        def elapsed_time(self, other):
            return 250.0

    class Device:
        def __init__(self, device):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda d: log.append("sync"))
    seconds = timing._time_once(lambda: log.append("call"), torch.device("cuda", 0))
    assert seconds == 0.25
    assert log == ["sync", "record", "call", "record", "wait"]


def burn(seconds):
    """Keep every core busy in processes of its own, for a while."""
    code = f"import time; end = time.time() + {seconds}\nwhile time.time() < end: pass"
    return [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3 * os.cpu_count())]


def test_a_busy_machine_is_measured():
    """Three programs a core leave this one at most a quarter of it, whatever else runs."""
    programs = burn(30)
    try:
        time.sleep(0.5)  # until they have started
        share = max(timing.busy_share(0.3) for _ in range(3))
        note = timing.busy_note(0.3)
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert 0.5 < share <= 1
    assert note.startswith("This machine is busy: other programs take ") and "%" in note


def test_sleeping_is_not_taken_for_other_programs(monkeypatch):
    """What counts is the share of the time a thread wanted to run, by the two clocks of a quiet run."""
    monkeypatch.setattr(timing.time, "thread_time", time.perf_counter)
    assert timing.busy_share(0.01) < 0.05
    assert timing.busy_note(0.01) is None


@pytest.mark.parametrize("threads", [1, 3])
def test_as_many_threads_spin_as_torch_uses(monkeypatch, threads):
    started = []
    real = timing.threading.Thread
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(timing.threading, "Thread", lambda **k: started.append(1) or real(**k))
    assert 0 <= timing.busy_share(0.01) <= 1
    assert len(started) == threads


def test_a_rate_is_measured_once_and_kept(own_store, monkeypatch):
    rates = iter([10.0, 20.0])
    monkeypatch.setattr(timing, "_read_bandwidth", lambda device: next(rates))
    assert timing.read_bandwidth("cpu") == 10.0
    assert timing.read_bandwidth("cpu") == 10.0
    stored = json.loads(own_store.read_text())
    (key,) = stored
    assert stored[key] == 10.0 and "thread" in key and torch.__version__ in key
    timing._kept.clear()  # as in a new process
    assert timing.read_bandwidth("cpu") == 10.0
    assert timing.read_bandwidth("cpu", fresh=True) == 20.0
    assert json.loads(own_store.read_text())[key] == 20.0
    assert [p.name for p in own_store.parent.iterdir()] == ["device.json"]


def test_a_real_reading_raises_the_kept_bandwidth(own_store, monkeypatch):
    monkeypatch.setattr(timing, "_read_bandwidth", lambda device: 2.0**30)
    timing.saw_reading("cpu", 2**30, 0.5)  # nothing kept yet, so nothing to raise
    assert timing.read_bandwidth("cpu") == 2**30
    timing.saw_reading("cpu", 2**30, 2.0)  # slower
    timing.saw_reading("cpu", 2**20, 1e-6)  # too little: it came from a cache
    assert timing.read_bandwidth("cpu") == 2**30
    timing.saw_reading("cpu", 2**30, 0.5)
    assert timing.read_bandwidth("cpu") == 2**31
    assert list(json.loads(own_store.read_text()).values()) == [2**31]


def test_a_rate_measured_beside_other_work_is_not_kept_for_later(own_store, monkeypatch):
    monkeypatch.setattr(timing, "_was_quiet", lambda processor_s, wall_s: False)
    monkeypatch.setattr(timing, "_read_bandwidth", lambda device: 5.0)
    assert timing.read_bandwidth("cpu") == 5.0
    monkeypatch.setattr(timing, "_read_bandwidth", lambda device: 9.0)
    assert timing.read_bandwidth("cpu") == 5.0  # within one process one figure
    assert not own_store.exists()


def test_quiet_is_judged_by_the_share_of_the_processor(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert timing._was_quiet(3.8, 1.0)
    assert not timing._was_quiet(1.2, 1.0)


def test_rates_of_different_types_and_threads_are_kept_apart(own_store, monkeypatch):
    monkeypatch.setattr(timing, "_flop_rate", lambda device, dtype: float(dtype.itemsize))
    assert timing.flop_rate("cpu", torch.float32) == 4.0
    assert timing.flop_rate("cpu", torch.float64) == 8.0
    monkeypatch.setattr(timing, "device_name", lambda d: "another, 64 threads")
    monkeypatch.setattr(timing, "_flop_rate", lambda device, dtype: 99.0)
    assert timing.flop_rate("cpu", torch.float32) == 99.0
    assert len(json.loads(own_store.read_text())) == 3


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": null}', '{"a": -1}', '{"a": "x"}'])
def test_a_broken_store_is_measured_over(own_store, monkeypatch, content):
    own_store.write_text(content)
    monkeypatch.setattr(timing, "_read_bandwidth", lambda device: 7.0)
    assert timing.read_bandwidth("cpu") == 7.0
    assert 7.0 in json.loads(own_store.read_text()).values()


def test_a_disk_that_cannot_be_written_is_no_error(own_store, monkeypatch):
    blocked = own_store.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("KVLIB_HOME", str(blocked / "below"))
    monkeypatch.setattr(timing, "_read_bandwidth", lambda device: 7.0)
    assert timing.read_bandwidth("cpu") == 7.0


def test_real_bandwidth_is_at_least_that_of_each_kernel(monkeypatch):
    monkeypatch.setattr(timing, "free_memory", lambda device: 2**27)
    device = torch.device("cpu")
    bandwidth = timing._read_bandwidth(device, budget_s=0.1)
    x = torch.randn(2**23)  # the same 32 MiB
    plain = measure(lambda: x.clone(), device=device)  # reads and writes: it cannot be faster
    assert bandwidth > 0.5 * x.nbytes / plain.seconds


def test_bandwidth_takes_a_smaller_buffer_when_memory_is_short(monkeypatch):
    real, sizes = torch.empty, []

    def stingy(count, **options):
        sizes.append(count)
        if count > 2**21:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(count, **options)

    monkeypatch.setattr(timing, "free_memory", lambda device: 2**26)
    monkeypatch.setattr(timing.torch, "empty", stingy)
    assert timing._read_bandwidth(torch.device("cpu"), budget_s=0.0) > 0
    assert sizes == [2**23, 2**22, 2**21]


def test_real_flop_rate_is_near_that_of_a_matmul_in_this_run():
    device = torch.device("cpu")
    rate = timing._flop_rate(device, torch.float32, budget_s=0.2)
    a = torch.randn(256, 256)
    here = 2 * 256**3 / min(measure(lambda: a @ a, device=device, repeats=10).samples)
    assert rate > 0.3 * here


def test_floor_tells_its_parts_apart():
    floor = decode_step_floor(
        weight_bytes=600, cache_bytes=400, flops=50, bandwidth=100, flop_rate=10
    )
    assert (floor.weights_s, floor.cache_s, floor.compute_s) == (6.0, 4.0, 5.0)
    assert floor.seconds == 10.0 and floor.bound_by == "bytes"
    floor = decode_step_floor(
        weight_bytes=600, cache_bytes=400, flops=500, bandwidth=100, flop_rate=10
    )
    assert floor.seconds == 50.0 and floor.bound_by == "arithmetic"


@pytest.mark.parametrize("bad", [dict(bandwidth=0), dict(flop_rate=-1), dict(cache_bytes=-1)])
def test_floor_refuses_what_makes_no_sense(bad):
    good = dict(weight_bytes=1, cache_bytes=1, flops=1, bandwidth=1, flop_rate=1)
    with pytest.raises(ValueError, match="floor needs"):
        decode_step_floor(**{**good, **bad})

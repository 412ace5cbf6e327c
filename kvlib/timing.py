"""Measured time: of a call, of this device's reading and multiplying, and the floor they set.

Timings are medians over repeats after warm-up, synchronised, by events on CUDA. The two rates are
measured once and kept; they are upper estimates (the fastest of several kernels), so that a floor
made of them is one. Data small enough to stay in a processor's cache can be read faster than
`read_bandwidth` says.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvlib.devices import (
    device_name,
    free_memory,
    is_out_of_memory,
    resolve,
    return_unused_memory,
    synchronize,
)
from kvlib.pages import ask_for_large_pages

_lock = threading.RLock()  # held while a rate is measured: two at once would disturb each other
_kept: dict[str, float] = {}


@dataclass(frozen=True)
class Timing:
    """Samples of one measurement, in seconds, and the name of their device."""

    seconds: float  # the median
    samples: tuple[float, ...]
    device: str

    @classmethod
    def of(cls, samples, device: str) -> Timing:
        """Make a timing of at least one sample."""
        samples = tuple(samples)
        if not samples:
            raise ValueError("A timing needs at least one sample.")
        return cls(statistics.median(samples), samples, device)

    @property
    def low(self) -> float:
        """Return the lower quartile, in seconds."""
        return self._quartile(0)

    @property
    def high(self) -> float:
        """Return the upper quartile, in seconds."""
        return self._quartile(2)

    def _quartile(self, index: int) -> float:
        if len(self.samples) == 1:
            return self.samples[0]
        return statistics.quantiles(self.samples, n=4, method="inclusive")[index]


def measure(
    fn: Callable[[], object],
    *,
    device,
    repeats: int = 5,
    warmup: int = 1,
    budget_s: float | None = None,
) -> Timing:
    """Time `fn()` on a device: `warmup` calls untimed, then `repeats` calls timed one by one.

    `budget_s` stops repeating after that many seconds, warm-up counted; one call is always timed.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError("measure needs repeats of 1 or more and warmup of 0 or more.")
    device = resolve(device)
    begun = time.perf_counter()

    def spent() -> bool:
        return budget_s is not None and time.perf_counter() - begun >= budget_s

    for _ in range(warmup):
        fn()
        synchronize(device)
        if spent():
            break
    samples = [_time_once(fn, device)]
    while len(samples) < repeats and not spent():
        samples.append(_time_once(fn, device))
    return Timing.of(samples, device_name(device))


def _time_once(fn: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, nothing else running on the device."""
    synchronize(device)
    if device.type == "cuda":
        with torch.cuda.device(device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            fn()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1000  # it counts milliseconds
    start = time.perf_counter()
    fn()
    synchronize(device)
    return time.perf_counter() - start


# The machine --------------------------------------------------------------------------------------

BUSY = 0.15  # of the processor time; less is lost in the spread of a measurement


def busy_share(seconds: float = 0.1) -> float:
    """Measure the share of this process's cores that other programs take, from 0 to 1.

    As many threads as torch uses compute for `seconds`; what they did not get of that time, others did.
    0 on a quiet machine, about 0.5 next to a program as busy as this one.
    """
    spent = []

    def spin() -> None:
        wall, processor = time.perf_counter(), time.thread_time()
        while time.perf_counter() - wall < seconds:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 1000)  # in C, without the interpreter's lock
        processor = time.thread_time() - processor
        spent.append((processor, time.perf_counter() - wall))

    threads = [threading.Thread(target=spin) for _ in range(torch.get_num_threads())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got, wanted = (sum(times) for times in zip(*spent, strict=True))
    return min(1.0, max(0.0, 1 - got / wanted))


def busy_note(seconds: float = 0.1) -> str | None:
    """Measure `busy_share`; return a sentence that says so where the machine is busy, else None."""
    share = busy_share(seconds)
    if share < BUSY:
        return None
    return (
        f"This machine is busy: other programs take {share:.0%} of the processor time asked for here, "
        "so times come out too long."
    )


# Rates ------------------------------------------------------------------------------------------


def read_bandwidth(device, *, fresh: bool = False) -> float:
    """Return the bytes a second this device reads from its memory, at the best of four kernels.

    Measured once (1 to 2 s), then kept for the process, and on disk where nothing disturbed it;
    `fresh` measures again.
    """
    device = resolve(device)
    key = f"read_bandwidth, {device_name(device)}"
    return _keep(device, key, lambda: _read_bandwidth(device), fresh)


def saw_reading(device, num_bytes: int, seconds: float) -> None:
    """Raise the kept bandwidth where a real call read faster: it was measured in a busy moment.

    Less than 256 MiB says nothing about memory, for it may come from the processor's cache.
    """
    key = _key(f"read_bandwidth, {device_name(device)}")
    with _lock:
        if num_bytes >= 2**28 and key in _kept and num_bytes / seconds > _kept[key]:
            _kept[key] = num_bytes / seconds
            if key in (stored := _read_store()):
                _write_store({**stored, key: _kept[key]})


def flop_rate(device, dtype: torch.dtype, *, fresh: bool = False) -> float:
    """Return the FLOP a second of the fastest square matmul; a multiply-add is 2.

    Measured once (about 1 s), then kept for the process, and on disk where nothing disturbed it;
    `fresh` measures again.
    """
    device = resolve(device)
    key = f"flop_rate {dtype}, {device_name(device)}"
    return _keep(device, key, lambda: _flop_rate(device, dtype), fresh)


def _read_bandwidth(device: torch.device, budget_s: float = 0.8) -> float:
    try:
        buffer = _written_buffer(device)
        return buffer.nbytes / _fastest_read(buffer, device, budget_s)
    finally:
        buffer = None
        return_unused_memory(device)


def _written_buffer(device: torch.device) -> torch.Tensor:
    """Return a float32 buffer, larger than most caches where memory allows, every page written."""
    most = 2**29 if device.type == "cpu" else 2**31
    wanted = min(most, max(2**25, free_memory(device) // 4))
    size = 1 << (wanted.bit_length() - 1)  # a power of two
    while True:
        try:
            buffer = torch.empty(size // 4, dtype=torch.float32, device=device)
            ask_for_large_pages(buffer)
            buffer.view(-1, 2**16).copy_(torch.randn(2**16, device=device))
            return buffer
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or size <= 2**22:
                raise
            size //= 2


def _fastest_read(buffer: torch.Tensor, device: torch.device, budget_s: float) -> float:
    """Return the least seconds of reading the buffer once, over four kernels in turn.

    Two rounds or more, until the budget is spent.
    """
    halves, wide = buffer.view(2, -1), buffer.view(2**9, -1)
    across = torch.randn(wide.shape[1], device=device)
    down = torch.randn(wide.shape[0], device=device)
    kernels = (
        lambda: torch.dot(halves[0], halves[1]),
        lambda: wide @ across,
        lambda: down @ wide,
        lambda: buffer.sum(),
    )
    best, rounds, begun = math.inf, 0, time.perf_counter()
    while rounds < 2 or time.perf_counter() - begun < budget_s:
        best = min(best, *(_time_once(kernel, device) for kernel in kernels))
        rounds += 1
    return best


def _flop_rate(device: torch.device, dtype: torch.dtype, budget_s: float = 1.0) -> float:
    best, begun = 0.0, time.perf_counter()
    for size in (256, 512, 1024, 2048) if device.type == "cpu" else (1024, 2048, 4096, 8192):
        left = budget_s - (time.perf_counter() - begun)
        if best and 4 * size**3 / best > left:  # warm-up and one sample would not fit any more
            break
        try:
            best = max(best, _matmul_rate(size, device, dtype, left / 3))
        except (RuntimeError, MemoryError) as error:
            if best and is_out_of_memory(error):
                break
            raise
    return_unused_memory(device)
    return best


def _matmul_rate(size: int, device: torch.device, dtype: torch.dtype, budget_s: float) -> float:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    timing = measure(lambda: a @ b, device=device, repeats=10, budget_s=budget_s)
    return 2 * size**3 / min(timing.samples)


def _keep(device: torch.device, key: str, rate: Callable[[], float], fresh: bool) -> float:
    """Return the rate kept under `key`, from this process or from disk, or measure and keep it."""
    key = _key(key)
    with _lock:
        if not fresh:
            if key not in _kept and key in (stored := _read_store()):
                _kept[key] = stored[key]
            if key in _kept:
                return _kept[key]
        wall, processor = time.perf_counter(), time.process_time()
        _kept[key] = rate()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        if device.type != "cpu" or _was_quiet(processor, wall):
            _write_store({**_read_store(), key: _kept[key]})
        return _kept[key]


def _was_quiet(processor_s: float, wall_s: float) -> bool:
    """Tell whether torch's threads had the CPU nearly to themselves, by the share they got of it.

    A rate measured while others worked holds for this process, and is not kept for later ones.
    """
    return processor_s > 0.6 * wall_s * torch.get_num_threads()


def _key(what: str) -> str:
    return f"{what}, torch {torch.__version__}"


def _store():
    from kvlib.model_file import home

    return home() / "device.json"


def _read_store() -> dict[str, float]:
    """Read the rates kept on disk; what cannot be read or is no rate counts as not there."""
    try:
        found = json.loads(_store().read_text())
        return {key: float(x) for key, x in found.items() if math.isfinite(x) and x > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_store(rates: dict[str, float]) -> None:
    """Replace the file in one go; without a disk to write on the rates last for the process."""
    path = _store()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix="device.", suffix=".part")
        with os.fdopen(handle, "w") as file:
            json.dump(rates, file, indent=1)
        os.replace(name, path)
    except OSError:
        pass


# Floors -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Floor:
    """Least time of a decode step: the larger of its bytes' and its arithmetic's."""

    seconds: float
    weights_s: float  # reading the weights
    cache_s: float  # reading the K/V cache
    compute_s: float  # all multiplications and additions
    bound_by: str  # "bytes" or "arithmetic"


def decode_step_floor(*, weight_bytes, cache_bytes, flops, bandwidth, flop_rate) -> Floor:
    """Return the roofline floor of one decode step.

    Bytes, floating point operations (a multiply-add is 2), bytes a second and operations a second.
    Source: the roofline model, Williams, Waterman and Patterson 2009.
    """
    if not (bandwidth > 0 and flop_rate > 0):
        raise ValueError("A floor needs a bandwidth and a FLOP rate above 0.")
    if min(weight_bytes, cache_bytes, flops) < 0:
        raise ValueError("A floor needs bytes and operations of 0 or more.")
    weights_s, cache_s = weight_bytes / bandwidth, cache_bytes / bandwidth
    compute_s = flops / flop_rate
    moving_s = weights_s + cache_s
    bound_by = "bytes" if moving_s >= compute_s else "arithmetic"
    return Floor(max(moving_s, compute_s), weights_s, cache_s, compute_s, bound_by)

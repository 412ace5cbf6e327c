"""A step that is fast and allocates nothing, so that the panel can be taken to every extreme."""

import pytest

from kvlib import timing
from kvlib.lab import live, measuring, recorded
from kvlib.memory import ModelPreset
from kvlib.steps import DoesNotFit
from kvlib.timing import Timing

BANDWIDTH, FLOPS = 30e9, 3e11


class PaperStep:
    """Answer like DecodeStep: what fits, and a time; `ran` lists every run of the test."""

    limit = 2_000_000_000
    ran: list[tuple] = []
    fail_at: int | None = None  # the run that raises
    on_run = staticmethod(lambda number: None)

    def __init__(self, preset: ModelPreset, *, device, dtype, memory_limit=None):
        self.preset, self.dtype, self.limit_bytes = preset, dtype, self.limit

    def needs(self, num_kv_heads, seq_len, batch_size=1):
        shape = self.preset.with_kv_heads(num_kv_heads)
        size = self.dtype.itemsize
        return shape.weight_bytes(size) + shape.cache_bytes(seq_len, batch_size, size)

    def fits(self, *shape):
        return self.needs(*shape) <= self.limit_bytes

    def run(self, *shape, budget_s=0.5):
        if not self.fits(*shape):
            raise DoesNotFit("too large", self.needs(*shape), self.limit_bytes)
        PaperStep.ran.append((self.preset.name, *shape))
        PaperStep.on_run(len(PaperStep.ran))
        if len(PaperStep.ran) == PaperStep.fail_at:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")
        seconds = 0.01 + 2 * self.needs(*shape) / BANDWIDTH
        return Timing.of((seconds * 0.9, seconds, seconds * 1.2), "paper")

    def release(self):
        pass


@pytest.fixture(autouse=True)
def paper(monkeypatch, tmp_path):
    """Put PaperStep in DecodeStep's place, fixed rates in the measured ones', and no recordings."""
    monkeypatch.setattr(measuring, "DecodeStep", PaperStep)
    monkeypatch.setattr(measuring, "QUIET_S", 0.01)
    monkeypatch.setattr(timing, "read_bandwidth", lambda device, fresh=False: BANDWIDTH)
    monkeypatch.setattr(timing, "flop_rate", lambda device, dtype, fresh=False: FLOPS)
    monkeypatch.setattr(recorded, "recorded_folder", lambda: tmp_path / "nothing recorded")
    monkeypatch.setattr(live, "total_memory", lambda device: 16_000_000_000)
    monkeypatch.setattr(PaperStep, "ran", [])
    monkeypatch.setattr(PaperStep, "fail_at", None)
    monkeypatch.setattr(PaperStep, "on_run", staticmethod(lambda number: None))
    return PaperStep

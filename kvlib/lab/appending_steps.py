"""What two caches do token by token: one grows by torch.cat, one writes into a buffer. All is counted."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvlib.allocations import Allocations
from kvlib.caches import KVCache, StaticKVCache
from kvlib.lab.style import format_bytes

ROW = 1, 3, 1, 64  # one token's keys in one layer of SmolLM2, float32; the values are as large


@dataclass(frozen=True)
class Counted:
    """What a cache did up to a step, in bytes, and whether its last append moved its rows."""

    tokens: int
    written: int  # over all steps so far
    now: int  # in this step alone
    held: int
    peak: int  # the most that was alive at one moment, up to here
    moved: bool


@dataclass(frozen=True)
class Frame:
    """One step: both caches, and the buffer's message where it refused the token."""

    step: int
    cat: Counted
    buffer: Counted
    refused: str


class Appending:
    """A run of `kvlib`'s two caches over room + 1 tokens; the last one does not fit the buffer."""

    def __init__(self, room: int):
        self.room = room
        self.row = 2 * torch.empty(ROW).nbytes  # K and V of a token
        cat, buffer = KVCache(), StaticKVCache(max_seq_len=room)
        new = torch.zeros(ROW), torch.zeros(ROW)
        self.frames = [Frame(0, Counted(0, 0, 0, 0, 0, False), Counted(0, 0, 0, 0, 0, False), "")]
        address: dict[str, int] = {}
        with Allocations() as by_cat:
            grown = [self._append(cat, new, by_cat, address, "cat") for _ in range(room + 1)]
        with Allocations() as by_buffer:
            kept = [self._append(buffer, new, by_buffer, address, "buffer") for _ in range(room)]
            try:
                buffer.update(*new)
            except ValueError as error:
                refused = str(error)
        full = kept[-1]
        kept.append(Counted(full.tokens, full.written, 0, buffer.nbytes, full.peak, False))
        for step, (a, b) in enumerate(zip(grown, kept, strict=True), 1):
            self.frames.append(Frame(step, a, b, refused if step > room else ""))

    @property
    def last_step(self) -> int:
        """The step of the token that the buffer refuses."""
        return self.room + 1

    def _append(self, cache, new, seen: Allocations, address: dict, name: str) -> Counted:
        """Append one token; count what was written, held and alive."""
        before = seen.nbytes
        k, v = cache.update(*new)
        at, was = k.data_ptr(), address.get(name)
        address[name] = at
        del k, v
        # cat writes what it makes; the buffer is made once and then takes one row at a time
        now = seen.nbytes - before if name == "cat" else self.row
        written = seen.nbytes if name == "cat" else cache.seq_len * self.row
        return Counted(cache.seq_len, written, now, cache.nbytes, seen.peak, was is not None and at != was)

    def sentence(self, frame: Frame) -> str:
        """Say in words what a step does in both caches."""
        cat, buffer, t = frame.cat, frame.buffer, frame.step
        if t == 0:
            return f"Nothing is cached. The buffer will have room for {self.room} tokens."
        copied = f", {t - 1} copied and 1 new" if t > 1 else ""
        moved = ", at another address" if cat.moved else ""
        said = (
            f"Token {t}. torch.cat writes {_rows(t)}{copied}: {format_bytes(cat.now)}, "
            f"{format_bytes(cat.written)} so far. Alive at its peak: {format_bytes(cat.peak)}{moved}. "
        )
        if frame.refused:
            return said + f"The buffer refuses: “{frame.refused}”. It is unchanged."
        place = "made in this step" if t == 1 else f"at {'another' if buffer.moved else 'the same'} address"
        said += (
            f"The buffer takes 1 row: {format_bytes(buffer.now)}, {format_bytes(buffer.written)} so far. "
            f"It holds {format_bytes(buffer.held)}, {t} of {self.room} slots used, {place}."
        )
        if cat.peak > buffer.held:
            said += " By now torch.cat has had more alive at once than the buffer reserves."
        return said

    def title(self, frame: Frame) -> str:
        """State how far apart the two are, for the plot of bytes written."""
        if frame.step < 2:
            return "Bytes written so far"
        ratio = f"{frame.cat.written / frame.buffer.written:.3g}"
        return f"Written so far: {ratio} times as much by torch.cat"

    def peak_title(self, frame: Frame) -> str:
        """State how far apart the two are, for the plot of bytes alive."""
        if not frame.step:
            return "Bytes alive at once"
        ratio = f"{frame.cat.peak / frame.buffer.held:.2f}"
        return f"Alive at once: torch.cat {ratio} times the buffer"


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"

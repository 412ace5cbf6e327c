"""Wrong windows, one real bug each, named by its docstring; and models that turn their keys wrongly."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import torch

from kvlib import Model, SlidingWindowKVCache
from kvlib.caches import Cache
from kvlib.caches.window import Block, Tail
from kvlib.rotary import attend_by_place, rotate
from tests.caches.kinds import KINDS, Kind

MUTANTS: dict[str, Kind] = {}
RUNS: dict[str, str | None] = {}
_PLAIN, _SINKS, _UNROTATED = (kind for kind in KINDS if kind.window is not None)


def mutant(wrong, kind: Kind = _PLAIN):
    """Register a wrong cache class, made as the kind's own is, or a wrong model class."""
    options = {"sinks": kind.sinks, "keys": "unrotated" if kind.unrotated else "rotated"}
    if issubclass(wrong, Model):
        kind, runs = replace(kind, name=wrong.__name__, model=wrong), "model"
    else:
        kind, runs = replace(kind, make=lambda room: wrong(kind.window, **options)), None
    MUTANTS[wrong.__name__], RUNS[wrong.__name__] = replace(kind, name=wrong.__name__), runs
    return wrong


def mutant_with_sinks(wrong):
    """Register a wrong window of 2 with 2 sinks."""
    return mutant(wrong, _SINKS)


def mutant_unrotated(wrong):
    """Register a wrong window, or model, for keys from before RoPE."""
    return mutant(wrong, _UNROTATED)


# ---- What leaves, and when


@mutant
class RollsOneTokenEarly(SlidingWindowKVCache):
    """Lets the oldest token go while the next query can still see it."""

    def _dropped_at(self, length):
        return max(0, length - max(self.window - 2, 0) - self.sinks)


@mutant
class LeavesTheCurrentTokenOut(SlidingWindowKVCache):
    """Keeps `window` tokens in front of the new ones: one more than a window that counts itself."""

    def _dropped_at(self, length):
        return max(0, length - self.window - self.sinks)


@mutant
class BandOneTooWide(SlidingWindowKVCache):
    """Lets a query of a chunk see `window` tokens beside itself."""

    def visible(self, num_new, num_keys, device):
        return _band(num_new, num_keys, self.window + 1, self.sinks)


@mutant
class BandOneTooNarrow(SlidingWindowKVCache):
    """Lets a query of a chunk see window - 2 tokens beside itself."""

    def visible(self, num_new, num_keys, device):
        return _band(num_new, num_keys, max(1, self.window - 1), self.sinks)


@mutant
class NoBandInAChunk(SlidingWindowKVCache):
    """Leaves a chunk to causal order: its later queries see further back than the window."""

    def visible(self, num_new, num_keys, device):
        return None


@mutant
class DropsTheNewest(SlidingWindowKVCache):
    """Lets rows go at the wrong end: the first window - 1 tokens stay for ever."""

    def _let_go(self):
        start, dropped, length = self._block
        super()._let_go()
        self._block = self._block._replace(start=start)


@mutant
class ShrinksWithTheText(SlidingWindowKVCache):
    """Says what is stored, where it should say how long the text is."""

    @property
    def seq_len(self):
        return self.stored_len


# ---- Sinks


@mutant_with_sinks
class ForgetsTheSinks(SlidingWindowKVCache):
    """Takes the number of sinks, and lets them go with the rest."""

    def __init__(self, window, **options):
        super().__init__(window, keys=options["keys"])


@mutant_with_sinks
class CountsSinksInsideTheWindow(SlidingWindowKVCache):
    """Makes room for the sinks by a shorter window."""

    def _dropped_at(self, length):
        return max(0, length - (self.window - 1))


@mutant_with_sinks
class BandHidesTheSinks(SlidingWindowKVCache):
    """Bands the sinks like any other key."""

    def visible(self, num_new, num_keys, device):
        return _band(num_new, num_keys, self.window, 0)


@mutant_with_sinks
class SinksAreNotCopied(SlidingWindowKVCache):
    """Slides the window without its sinks: rows that have left stand in their place."""

    @torch.no_grad()
    def update(self, k_new, v_new):
        k, v = super().update(k_new, v_new)
        if self._block.dropped and not self._tail:
            for rows in (k, v):
                rows[:, :, : self.sinks] = rows[:, :, self.sinks : self.sinks + 1]
        return k, v


@mutant_with_sinks
class TakesPaddingForSinks(SlidingWindowKVCache):
    """Lets a batch begin with padding, which then is what stays."""

    takes_padding = True


# ---- The buffer


@mutant
class RollsTheWholeWindow(SlidingWindowKVCache):
    """Moves every row one place at every token, as a queue of fixed length does."""

    @torch.no_grad()
    def update(self, k_new, v_new):
        got = super().update(k_new, v_new)
        if self._tail is None and self._block.dropped:
            for buffer in (self._k, self._v):
                rows = buffer[:, :, self._block.start : self._block.end].clone()
                buffer[:, :, self._block.start : self._block.end] = rows
        return got


@mutant
class MovesTheBuffer(SlidingWindowKVCache):
    """Makes a new buffer for every update: right rows at an address that no graph can keep."""

    @torch.no_grad()
    def update(self, k_new, v_new):
        self._checked(k_new, v_new)
        if self._k is not None:
            self._k, self._v = self._k.clone(), self._v.clone()
        return super().update(k_new, v_new)


@mutant
class SlidesOverItself(SlidingWindowKVCache):
    """Slides also where the rows overlap with what they are copied from, the last row first."""

    @torch.no_grad()
    def update(self, k_new, v_new):
        k_new, v_new = self._checked(k_new, v_new)
        if self._k is not None and self._tail is None:
            self._let_go()
            front = self._block._replace(start=self.sinks)
            if self._block.end + k_new.shape[2] > self._k.shape[2] >= front.end + k_new.shape[2]:
                for i in reversed(range(self._block.rows)):
                    for buffer in (self._k, self._v):
                        buffer[:, :, front.start + i] = buffer[:, :, self._block.start + i]
                self._block = front
        return super().update(k_new, v_new)


@mutant
class WritesPastItsRows(SlidingWindowKVCache):
    """Forgets to slide: a slice past the end of the buffer writes nothing."""

    def _move_to(self, front):
        self._block = front


@mutant
class RestoresNumbersNotRows(SlidingWindowKVCache):
    """After an interrupt counts again what it had let go, though new rows may lie there by now."""

    def update(self, k_new, v_new):
        before = self._block
        try:
            return super().update(k_new, v_new)
        except KeyboardInterrupt:
            self._block = before
            raise


# ---- Chunks larger than the buffer


@mutant
class TailOneTooShort(SlidingWindowKVCache):
    """Keeps one row too few of a large chunk, and what was in the buffer in its place."""

    @torch.no_grad()
    def _append_large(self, k_new, v_new):
        got = super()._append_large(k_new, v_new)
        k, v, dropped, length = self._tail
        self._tail = Tail(k.roll(-1, 2), v.roll(-1, 2), dropped, length)
        return got


@mutant
class TailKeepsTheWholeChunk(SlidingWindowKVCache):
    """Keeps a view of a large chunk's last rows, and with it the memory of the whole chunk."""

    @torch.no_grad()
    def _append_large(self, k_new, v_new):
        k, v = super()._append_large(k_new, v_new)
        stay = self._tail.k.shape[2]
        self._tail = self._tail._replace(k=k[:, :, k.shape[2] - stay :], v=v[:, :, v.shape[2] - stay :])
        return k, v


@mutant
class LargeChunkCannotBeUndone(SlidingWindowKVCache):
    """Writes a large chunk's last rows over those that stood before it."""

    @torch.no_grad()
    def _append_large(self, k_new, v_new):
        got = super()._append_large(k_new, v_new)
        self._take_tail()
        return got


@mutant_with_sinks
class LargeChunkLeavesNoSinks(SlidingWindowKVCache):
    """Keeps a large chunk's last rows, and forgets that its first ones are sinks."""

    @torch.no_grad()
    def _append_large(self, k_new, v_new):
        sinks = [buffer[:, :, : self.sinks].clone() for buffer in (self._k, self._v)]
        got = super()._append_large(k_new, v_new)
        self._k[:, :, : self.sinks], self._v[:, :, : self.sinks] = sinks
        return got


@mutant
class ForgetsTheTailsBytes(SlidingWindowKVCache):
    """Counts the buffer only, not the rows a large chunk left beside it."""

    @property
    def nbytes(self):
        return 0 if self._k is None else self._k.nbytes + self._v.nbytes


# ---- Reset, crop, fork


@mutant
class ResetKeepsTheTail(SlidingWindowKVCache):
    """Forgets what is in the buffer, and keeps what a large chunk left beside it."""

    def reset(self):
        self._block = Block(self.sinks, 0, 0)


@mutant
class CropGivesStaleRows(SlidingWindowKVCache):
    """Crops to any length, and takes whatever lies in the buffer for the rows that have left."""

    def crop(self, length):
        if self._checked_length(length) < self.seq_len:
            dropped = min(self._block.dropped, self._dropped_at(length))
            self._block, self._tail = Block(self._block.start, dropped, length), None


@mutant
class CropRefusesTooMuch(SlidingWindowKVCache):
    """Undoes nothing once the window has let a row go, not even the last update."""

    def crop(self, length):
        if self._checked_length(length) not in (0, self.seq_len) and self._dropped_at(self.seq_len):
            raise ValueError(f"cannot crop to {length}: the window has let rows go")
        super().crop(length)


@mutant
class LetsGoTooEagerly(SlidingWindowKVCache):
    """Lets rows go at the end of an update, and cannot tell that its undoing needs them."""

    def update(self, k_new, v_new):
        got = super().update(k_new, v_new)
        if self._tail is None:
            self._let_go()
        return got

    def crop(self, length):
        if self._checked_length(length) < self.seq_len and self._tail is None:
            self._block = self._block._replace(dropped=min(self._block.dropped, length), length=length)
        else:
            super().crop(length)


@mutant
class UndoesToWhereItSlidFrom(SlidingWindowKVCache):
    """Undoes an update by the place its rows had before, though they have slid since."""

    def update(self, k_new, v_new):
        self._checked(k_new, v_new)
        self.before = self._block
        return super().update(k_new, v_new)

    def crop(self, length):
        if 0 < self._checked_length(length) < self.seq_len and length == self.before.length:
            self._block, self._tail = self.before, None
        else:
            super().crop(length)


@mutant
class ForkSharesTheWindow(SlidingWindowKVCache):
    """Gives the fork the parent's buffer: both slide over each other's rows."""

    def _allocate(self, like):
        if self._k is None:
            super()._allocate(like)


@mutant_with_sinks
class ForkLeavesTheSinksBehind(SlidingWindowKVCache):
    """Copies the rows in sight, but not the sinks in front that every slide copies from."""

    @torch.no_grad()
    def fork(self):
        other = super().fork()
        if other._k is not None:
            other._k[:, :, : self.sinks] = 0
        return other


@mutant
class CropWipesRowsInHand(SlidingWindowKVCache):
    """Zeroes what it crops, in rows that the caller still holds."""

    @torch.no_grad()
    def crop(self, length):
        block = self._block
        super().crop(length)
        if self._k is not None and self._block.end < block.end:
            self._k[:, :, self._block.end : block.end] = 0


@mutant
class ClaimsToUndoEverything(SlidingWindowKVCache):
    """Crops whatever is to be undone, and keeps no fork before a prefill."""

    savepoint = Cache.savepoint


@mutant
class ReleaseKeepsTheBuffer(SlidingWindowKVCache):
    """Forgets the tokens and keeps the buffer, and with it the shape of its rows."""

    def release(self):
        self.reset()


# ---- Keys from before RoPE


@mutant_unrotated
class TakesUnrotatedForRotated(SlidingWindowKVCache):
    """Does not tell the model that its keys come from before RoPE."""

    def __init__(self, window, *, sinks, keys):
        super().__init__(window, sinks=sinks)


@mutant_unrotated
class RunsOutOfPositions(SlidingWindowKVCache):
    """Counts a position for every token of the text, though none is ever used."""

    def positions(self, length):
        return length


def _wrong_places(attend):
    """Return a model class whose layers turn the keys of a cache by another function."""

    class Wrong(Model):
        def forward(self, *args, **options):
            with mock.patch("kvlib.model.attend_by_place", attend):
                return super().forward(*args, **options)

    Wrong.__name__, Wrong.__doc__ = attend.__name__, attend.__doc__
    return mutant_unrotated(Wrong)


@_wrong_places
def sinks_move_away_in_a_chunk(q, k, v, mask, *, table, sinks, window, attend):
    """Lets the later queries of a chunk see the sinks from further away than they would alone."""
    return attend_by_place(q, k, v, mask, table=table, sinks=0, window=window, attend=attend)


@_wrong_places
def turns_nothing(q, k, v, mask, *, table, sinks, window, attend):
    """Attends to the keys as they are, without any positions."""
    return attend(q, k, v, mask)


@_wrong_places
def queries_stand_at_zero(q, k, v, mask, *, table, sinks, window, attend):
    """Turns the keys by their place, and the queries from place 0."""
    cos, sin = table
    keys, queries = (slice(0, x.shape[2]) for x in (k, q))
    turned = rotate(k, (cos[keys], sin[keys]))
    return attend(rotate(q, (cos[queries], sin[queries])), turned, v, mask)


def _band(num_new: int, num_keys: int, window: int, sinks: int) -> torch.Tensor:
    """Return the band of another window, bool (num_new, num_keys)."""
    key = torch.arange(num_keys)
    distance = key[num_keys - num_new :, None] - key
    return (distance >= 0) & ((distance < window) | (key < sinks))

"""Wrong windows, one real bug each, named by its docstring; and models that turn their keys wrongly."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import torch

from kvlib import Model, SlidingWindowKVCache
from kvlib.caches import Cache
from kvlib.caches.window import Held
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

    def _left(self, x, leave, *new):
        return torch.cat([x[:, :, : x.shape[2] - leave], *new], dim=2)


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

    def _left(self, x, leave, *new):
        return super()._left(x[:, :, leave:], 0, *new)


@mutant_with_sinks
class TakesPaddingForSinks(SlidingWindowKVCache):
    """Lets a batch begin with padding, which then is what stays."""

    takes_padding = True


# ---- Whose rows, and how many


@mutant
class WritesIntoItsRows(SlidingWindowKVCache):
    """Moves a full window's rows by one place in their own memory, which forks and callers share."""

    @torch.no_grad()
    def update(self, k_new, v_new):
        was = self._held
        got = super().update(k_new, v_new)
        if was is None or self._held.before or self._held.kv[0].shape != was.kv[0].shape:
            return got
        for old, rows in zip(was.kv, got):
            old.copy_(rows)
        self._held = self._held._replace(kv=was.kv)
        return was.kv


@mutant
class CountsBeforeItKeeps(SlidingWindowKVCache):
    """Counts the new rows first, so that an interrupt leaves a length without its rows."""

    def update(self, k_new, v_new):
        self._checked(k_new, v_new)
        was = self._held
        try:
            return super().update(k_new, v_new)
        except KeyboardInterrupt:
            self._held = was and was._replace(length=was.length + k_new.shape[2])
            raise


@mutant
class NeverLetsGo(SlidingWindowKVCache):
    """Shows the window and holds the whole text."""

    @torch.no_grad()
    def update(self, k_new, v_new):
        got = super().update(k_new, v_new)
        self.all = [*getattr(self, "all", []), k_new.clone(), v_new.clone()]
        return got

    @property
    def nbytes(self):
        return super().nbytes + sum(x.nbytes for x in getattr(self, "all", []))


# ---- Chunks longer than the window


class _OfLongChunks(SlidingWindowKVCache):
    """What is held of a chunk longer than sinks and window goes through `_kept`."""

    @torch.no_grad()
    def update(self, k_new, v_new):
        was, got = self._held, super().update(k_new, v_new)
        if k_new.shape[2] > self.sinks + self.window:
            self._held = self._kept(self._held, was, got)
        return got


@mutant
class LastRowsOneTooEarly(_OfLongChunks):
    """Keeps of a long chunk the rows that end one before its last."""

    def _kept(self, held, was, got):
        return held._replace(kv=tuple(x.roll(-1, 2) for x in held.kv))


@mutant
class LastRowsKeepTheWholeChunk(_OfLongChunks):
    """Keeps a view of a long chunk's last rows, and with it the memory of the whole chunk."""

    def _kept(self, held, was, got):
        return held._replace(kv=tuple(x[:, :, x.shape[2] - held.kv[0].shape[2] :] for x in got))


@mutant
class HoldsALongChunk(_OfLongChunks):
    """Holds all rows of a long chunk until the next update, as if they were few."""

    def _kept(self, held, was, got):
        return Held(got, held.length - got[0].shape[2], held.length)


@mutant
class LongChunkCannotBeUndone(_OfLongChunks):
    """Forgets what stood before a long chunk."""

    def _kept(self, held, was, got):
        return held._replace(before=None)


@mutant
class RemembersEveryLongChunk(_OfLongChunks):
    """Keeps what stood before a long chunk, and what stood before that."""

    def _kept(self, held, was, got):
        return held._replace(before=was)


@mutant_with_sinks
class LongChunkLeavesNoSinks(_OfLongChunks):
    """Keeps a long chunk's last rows, and forgets that its first ones are sinks."""

    def _kept(self, held, was, got):
        last = (x[:, :, x.shape[2] - held.kv[0].shape[2] :].clone() for x in got)
        return held._replace(kv=tuple(last))


@mutant
class ForgetsTheBytesBefore(SlidingWindowKVCache):
    """Counts the rows of now only, not those kept to undo a long chunk."""

    @property
    def nbytes(self):
        return sum(x.nbytes for x in self._held.kv) if self._held else 0


# ---- Reset, crop, fork


@mutant
class ResetGoesBackOneChunk(SlidingWindowKVCache):
    """Forgets a long chunk, and keeps what stood before it."""

    def reset(self):
        self._held = self._held and self._held.before


@mutant
class CropGivesStaleRows(SlidingWindowKVCache):
    """Crops to any length, and takes whatever rows are held for those that have left."""

    @torch.no_grad()
    def crop(self, length):
        if 0 < self._checked_length(length) < self.seq_len and self._held.before is None:
            dropped = min(self._held.dropped, self._dropped_at(length))
            kv = tuple(x[:, :, : length - dropped].clone() for x in self._held.kv)
            self._held = Held(kv, dropped, length)
        else:
            super().crop(length)


@mutant
class CropRefusesTooMuch(SlidingWindowKVCache):
    """Undoes nothing once the window has let a row go, not even the last update."""

    def crop(self, length):
        if self._checked_length(length) not in (0, self.seq_len) and self._dropped_at(self.seq_len):
            raise ValueError(f"cannot crop to {length}: the window has let rows go")
        super().crop(length)


@mutant
class LetsGoTooEagerly(SlidingWindowKVCache):
    """Lets rows go at the end of an update, so that its undoing lacks them."""

    @torch.no_grad()
    def update(self, k_new, v_new):
        got, held = super().update(k_new, v_new), self._held
        leave = self._dropped_at(held.length) - held.dropped
        kv = tuple(self._left(x, leave) for x in held.kv)
        self._held = held._replace(kv=kv, dropped=held.dropped + leave)
        return got


@mutant_with_sinks
class CropForgetsTheHole(SlidingWindowKVCache):
    """Crops into the sinks, and goes on counting the tokens that had left behind them."""

    def crop(self, length):
        dropped = self._held.dropped if self._held else 0
        super().crop(length)
        if 0 < length <= self.sinks and dropped:
            self._held = self._held._replace(dropped=dropped)


@mutant
class CropKeepsTheMemory(SlidingWindowKVCache):
    """Crops to a view, which holds the memory of all rows."""

    def crop(self, length):
        was = self._held
        super().crop(length)
        if self._held and was.before is None and length < was.length:
            rows = length - self._held.dropped
            self._held = self._held._replace(kv=tuple(x[:, :, :rows] for x in was.kv))


@mutant_with_sinks
class ForkLeavesTheSinksBehind(SlidingWindowKVCache):
    """Copies the rows of the window, and no sinks."""

    @torch.no_grad()
    def fork(self):
        other = super().fork()
        if other._held is not None:
            kv = tuple(x.clone() for x in other._held.kv)
            for x in kv:
                x[:, :, : self.sinks] = 0
            other._held = other._held._replace(kv=kv)
        return other


@mutant
class CropWipesRowsInHand(SlidingWindowKVCache):
    """Zeroes what it crops, in rows that the caller still holds."""

    @torch.no_grad()
    def crop(self, length):
        was = self._held
        super().crop(length)
        if was is not None and was.before is None and 0 < length < was.length:
            for x in was.kv:
                x[:, :, length - self._held.dropped :] = 0


@mutant
class ClaimsToUndoEverything(SlidingWindowKVCache):
    """Crops whatever is to be undone, and holds no rows before a prefill."""

    savepoint = Cache.savepoint


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

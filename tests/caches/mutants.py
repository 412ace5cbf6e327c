"""Wrong caches, wrong attentions and wrong models: one real bug each, named by its docstring.

Every one of them runs, and looks right on some input. The suite must reject all of them; a law
that rejects none of them tests nothing. `MUTANTS` lists them as kinds, ready to be judged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import torch

from kvlib import (
    KVCache,
    Model,
    StaticKVCache,
    causal_mask,
    grouped_attention,
    reference_attention,
)
from kvlib.attention import _check_valid, _group_size
from kvlib.caches.contract import Rows
from tests.caches import mutants_quantized, mutants_window
from tests.caches.kinds import KINDS, Kind

MUTANTS: dict[str, Kind] = {}
RUNS: dict[str, str | None] = {}  # the part a mutant changes: None for the cache itself
_CONCAT, _STATIC = KINDS[0], KINDS[1]


def mutant(wrong):
    """Register a wrong cache class, attention function or model class."""
    name = wrong.__name__
    if not isinstance(wrong, type):
        kind, runs = replace(_STATIC, name=name, attend=wrong), "attend"
    elif issubclass(wrong, Model):
        kind, runs = replace(_STATIC, name=name, model=wrong), "model"
    elif issubclass(wrong, StaticKVCache):
        kind, runs = replace(_STATIC, name=name, make=wrong), None
    else:
        kind, runs = replace(_CONCAT, name=name, make=lambda room: wrong()), None
    MUTANTS[name], RUNS[name] = kind, runs
    return wrong


# ---- Caches: what is stored


@mutant
class StoresKeysAsValues(KVCache):
    """Keeps the keys twice and the values never."""

    def update(self, k_new, v_new):
        self._checked(k_new, v_new)
        return super().update(k_new, k_new)


@mutant
class PutsNewRowsFirst(KVCache):
    """Concatenates the new rows in front of the old ones."""

    def update(self, k_new, v_new):
        k_new, v_new = self._checked(k_new, v_new)
        k, v = self._kv or (k_new[:, :, :0], v_new[:, :, :0])
        self._set((torch.cat([k_new, k], dim=2), torch.cat([v_new, v], dim=2)))
        return self._kv


@mutant
class ReturnsOnlyTheNewRows(StaticKVCache):
    """Appends correctly, then hands back the new rows instead of all of them."""

    def update(self, k_new, v_new):
        k, v = super().update(k_new, v_new)
        return k[:, :, -k_new.shape[2] :], v[:, :, -k_new.shape[2] :]


@mutant
class KeepsTheCallersTensor(KVCache):
    """Stores the first rows as they come, an alias of the caller's tensor."""

    def update(self, k_new, v_new):
        if self._kv is not None:
            return super().update(k_new, v_new)
        self._set(self._checked(k_new, v_new))
        return self._kv


@mutant
class LosesPrecision(KVCache):
    """Stores bfloat16 and hands back the dtype it was given: a rounding nobody asked for."""

    def update(self, k_new, v_new):
        self._checked(k_new, v_new)
        rounded = (x.bfloat16().to(x.dtype) for x in (k_new, v_new))
        return super().update(*rounded)


@mutant
class KeepsTheGradient(KVCache):
    """Neither detaches nor turns autograd off: each step keeps every earlier step's graph."""

    def update(self, k_new, v_new):
        self._checked(k_new, v_new)
        if self._kv is None:
            self._set((k_new.clone(), v_new.clone()))
        else:
            pairs = zip(self._kv, (k_new, v_new), strict=True)
            self._set(tuple(torch.cat(pair, dim=2) for pair in pairs))
        return self._kv


@mutant
class ChecksNaNAway(StaticKVCache):
    """Refuses rows that are not finite: reads contents, and waits for the device at every token."""

    def update(self, k_new, v_new):
        self._checked(k_new, v_new)
        if not torch.isfinite(k_new).all():
            raise ValueError("the new keys hold numbers that are not finite")
        return super().update(k_new, v_new)


# ---- Caches: bad input


@mutant
class MovesBeforeChecking(StaticKVCache):
    """Advances the pointer, then validates: a refused update leaves the cache longer."""

    def update(self, k_new, v_new):
        start = self._seq_len
        self._seq_len += k_new.shape[2] if isinstance(k_new, torch.Tensor) else 0
        self._checked(k_new, v_new)
        self._seq_len = start
        return super().update(k_new, v_new)


@mutant
class AllocatesBeforeChecking(StaticKVCache):
    """Makes the buffer before it asks whether the rows fit."""

    def update(self, k_new, v_new):
        k_new, v_new = self._checked(k_new, v_new)
        if self._k is None:
            self._allocate(k_new)
        return super().update(k_new, v_new)


@mutant
class CastsInSilence(StaticKVCache):
    """Converts rows of another dtype instead of refusing them."""

    def update(self, k_new, v_new):
        if self._k is not None and isinstance(k_new, torch.Tensor):
            k_new, v_new = k_new.to(self._k.dtype), v_new.to(self._k.dtype)
        return super().update(k_new, v_new)


@mutant
class BroadcastsTheBatch(StaticKVCache):
    """Spreads one sequence over the whole batch, as assignment to a slice does."""

    def update(self, k_new, v_new):
        if self._k is not None and getattr(k_new, "ndim", 0) == 4 and k_new.shape[0] == 1:
            shape = self._k.shape[0], *k_new.shape[1:]
            k_new, v_new = k_new.expand(shape), v_new.expand(shape)
        return super().update(k_new, v_new)


@mutant
class OverflowWritesNothing(StaticKVCache):
    """Writes past the end, which PyTorch's slices turn into writing nothing."""

    def update(self, k_new, v_new):
        start, room = self._seq_len, self.max_seq_len - self._seq_len
        if not isinstance(k_new, torch.Tensor) or k_new.dim() != 4 or k_new.shape[2] <= room:
            return super().update(k_new, v_new)
        k_new, v_new = self._checked(k_new, v_new)
        if self._k is None:
            self._allocate(k_new)
        self._k[:, :, start:], self._v[:, :, start:] = k_new[:, :, :room], v_new[:, :, :room]
        self._seq_len += k_new.shape[2]
        return self._k, self._v


@mutant
class OverflowWraps(StaticKVCache):
    """Goes round at the end, over the oldest tokens, though nobody asked for a ring."""

    def update(self, k_new, v_new):
        k_new, v_new = self._checked(k_new, v_new)
        if self._k is None:
            self._allocate(k_new)
        slots = torch.arange(self._seq_len, self._seq_len + k_new.shape[2]) % self.max_seq_len
        self._k[:, :, slots], self._v[:, :, slots] = k_new, v_new
        end = min(self._seq_len + k_new.shape[2], self.max_seq_len)
        used = self._k[:, :, :end], self._v[:, :, :end]
        self._seq_len += k_new.shape[2]
        return used


@mutant
class OverflowClips(StaticKVCache):
    """Keeps as many new rows as fit, and drops the rest in silence."""

    def update(self, k_new, v_new):
        room = self.max_seq_len - self._seq_len
        if isinstance(k_new, torch.Tensor) and k_new.dim() == 4 and 0 < room < k_new.shape[2]:
            self._checked(k_new, v_new)
            k_new, v_new = k_new[:, :, :room], v_new[:, :, :room]
        return super().update(k_new, v_new)


@mutant
class CountsBeforeWriting(StaticKVCache):
    """Counts the new rows before they are written: an interrupt leaves unwritten rows visible."""

    def update(self, k_new, v_new):
        k_new, v_new = self._checked(k_new, v_new)
        start, end = self._seq_len, self._seq_len + k_new.shape[2]
        if end > self.max_seq_len:
            raise ValueError(f"{end} tokens do not fit max_seq_len {self.max_seq_len}")
        if self._k is None:
            self._allocate(k_new)
        self._seq_len = end
        self._k[:, :, start:end] = k_new
        self._v[:, :, start:end] = v_new
        return self._k[:, :, :end], self._v[:, :, :end]


@mutant
class CropTakesNegative(StaticKVCache):
    """Reads a negative length as Python's slices do, from the end."""

    def crop(self, length):
        if type(length) is int and -self._seq_len <= length < 0:
            length += self._seq_len
        super().crop(length)


@mutant
class CropClips(KVCache):
    """Takes a length beyond the end for the end."""

    def crop(self, length):
        super().crop(min(length, self._seq_len) if type(length) is int else length)


# ---- Caches: lengths, bytes, memory


@mutant
class CountsCalls(StaticKVCache):
    """Counts calls of update where it should count tokens."""

    calls = 0

    def update(self, k_new, v_new):
        got = super().update(k_new, v_new)
        self.calls += 1
        return got

    def reset(self):
        super().reset()
        self.calls = 0

    @property
    def seq_len(self):
        return self.calls


@mutant
class LengthOffByOne(KVCache):
    """Reports the index of the last token for the number of tokens."""

    @property
    def seq_len(self):
        return max(self._seq_len - 1, 0)


@mutant
class LengthFromContents(StaticKVCache):
    """Finds its length by counting the keys that are not zero."""

    @property
    def seq_len(self):
        if self._k is None:
            return 0
        return int((self._k[0, 0, : self._seq_len] != 0).any(dim=-1).sum())


@mutant
class LengthIsATensor(KVCache):
    """Keeps its length on the device, so that asking for it waits for the device."""

    @property
    def seq_len(self):
        return torch.tensor(self._seq_len)


@mutant
class GrowsByReallocating(StaticKVCache):
    """Doubles its buffer when full: the address changes, and views of it go stale."""

    def __init__(self, max_seq_len):
        super().__init__(max_seq_len)
        self.limit, self.max_seq_len = max_seq_len, min(2, max_seq_len)

    def update(self, k_new, v_new):
        self._checked(k_new, v_new)
        need, size = self._seq_len + k_new.shape[2], self.max_seq_len
        while size < need:
            size *= 2
        size = min(size, self.limit)
        if size > self.max_seq_len and need <= self.limit:
            self.max_seq_len, old_k, old_v = size, self._k, self._v
            if old_k is not None:
                self._allocate(k_new)
                self._k[:, :, : old_k.shape[2]] = old_k
                self._v[:, :, : old_v.shape[2]] = old_v
        return super().update(k_new, v_new)

    def fork(self):
        other = GrowsByReallocating(self.limit)
        if self._seq_len:
            other.update(self._k[:, :, : self._seq_len], self._v[:, :, : self._seq_len])
        return other


@mutant
class ForkForgetsItsRoom(StaticKVCache):
    """Makes the fork's buffer only as long as the tokens held now."""

    def fork(self):
        other = ForkForgetsItsRoom(max(self._seq_len, 1))
        if self._seq_len:
            other.update(self._k[:, :, : self._seq_len], self._v[:, :, : self._seq_len])
        return other


@mutant
class ReturnsCopies(StaticKVCache):
    """Hands back copies of the used rows: as slow as concatenation, and writes to them are lost."""

    def update(self, k_new, v_new):
        return tuple(x.clone() for x in super().update(k_new, v_new))


@mutant
class CountsUsedBytes(StaticKVCache):
    """Counts the rows in use, not the buffer that is really held."""

    @property
    def nbytes(self):
        if self._k is None:
            return 0
        return self._k[:, :, : self._seq_len].nbytes + self._v[:, :, : self._seq_len].nbytes


@mutant
class CropKeepsTheMemory(KVCache):
    """Crops to a view: nbytes shrinks, and the memory behind it stays."""

    def crop(self, length):
        if 0 < self._checked_length(length) < self._seq_len:
            self._set(tuple(x[:, :, :length] for x in self._kv))
        elif length == 0:
            self.reset()


@mutant
class BuffersOfTheCallersMode(StaticKVCache):
    """Makes its buffers under inference mode where it is called so, and cannot write to them afterwards."""

    update = torch.no_grad()(StaticKVCache.update.__wrapped__)


@mutant
class BoundBeforeItIsWritten(StaticKVCache):
    """Notes the shape of its rows before the first of them is written."""

    def _allocate(self, like):
        super()._allocate(like)
        self._rows = Rows.of(like)


# ---- Caches: reset, crop, fork


@mutant
class ResetForgetsThePointer(StaticKVCache):
    """Clears the buffer but leaves the pointer where it was."""

    def reset(self):
        if self._k is not None:
            self._k.zero_(), self._v.zero_()


@mutant
class ResetKeepsTheRows(KVCache):
    """Sets the length to zero and keeps the rows, so that the next text follows the last one."""

    def reset(self):
        self._seq_len = 0


@mutant
class CropLeavesRowsVisible(KVCache):
    """Lowers the count on crop without cutting the rows."""

    def crop(self, length):
        self._seq_len = self._checked_length(length)


@mutant
class CropOffByOne(StaticKVCache):
    """Keeps one token more than asked, as if the length were an index."""

    def crop(self, length):
        self._seq_len = min(self._checked_length(length) + 1, self._seq_len)


@mutant
class ForkSharesTheBuffer(StaticKVCache):
    """Gives the fork the parent's buffer: both write into the same slots."""

    def fork(self):
        other = type(self)(self.max_seq_len)
        other._k, other._v, other._rows = self._k, self._v, self._rows
        other._seq_len = self._seq_len
        return other


@mutant
class ForkIsTheSameObject(KVCache):
    """Returns itself."""

    def fork(self):
        return self


@mutant
class CropWipesSharedRows(KVCache):
    """Zeroes dropped rows in place, in storage that a fork may share."""

    def crop(self, length):
        if self._checked_length(length) < self._seq_len:
            for x in self._kv:
                x[:, :, length:] = 0
        super().crop(length)

    def fork(self):
        other = CropWipesSharedRows()
        other._kv, other._rows, other._seq_len = self._kv, self._rows, self._seq_len
        return other


@mutant
class ForkIsEmpty(StaticKVCache):
    """Copies the settings and forgets the rows."""

    def fork(self):
        return type(self)(self.max_seq_len)


@mutant
class ForkMovesRowsOut(KVCache):
    """Hands its rows over to the fork and is left with none."""

    def fork(self):
        other = ForkMovesRowsOut()
        other._kv, other._rows, other._seq_len = self._kv, self._rows, self._seq_len
        self.reset()
        return other


# ---- Attentions


def _attend(q, k, v, mask):
    """Attend by the formula; `mask` is bool (t, T)."""
    group_size = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group_size, dim=1), v.repeat_interleave(group_size, dim=1)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ v


def _check(q, k_new, v_new, cache, valid):
    """Refuse what the right attention refuses."""
    if q.shape[2] != k_new.shape[2]:
        raise ValueError(f"{q.shape[2]} queries came with {k_new.shape[2]} keys")
    _group_size(q, k_new, v_new)
    if valid is not None:
        _check_valid(valid, q, cache.seq_len)


@mutant
def attends_before_appending(q, k_new, v_new, cache, valid=None):
    """Attends to the rows before the new ones: no token but the first sees itself."""
    _check(q, k_new, v_new, cache, valid)
    k, v = cache.update(k_new, v_new)
    mask = causal_mask(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2] - 1)
    mask[mask.sum(dim=1) == 0, 0] = True
    return _attend(q, k, v, mask), cache


@mutant
def masks_from_the_top_left(q, k_new, v_new, cache, valid=None):
    """Aligns the causal mask at the top left: a later chunk sees only the start of the text."""
    _check(q, k_new, v_new, cache, valid)
    k, v = cache.update(k_new, v_new)
    return _attend(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()), cache


@mutant
def masks_nothing_in_a_chunk(q, k_new, v_new, cache, valid=None):
    """Lets every query of a chunk see the whole chunk, its future included."""
    _check(q, k_new, v_new, cache, valid)
    k, v = cache.update(k_new, v_new)
    return _attend(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)), cache


@mutant
def tiles_the_heads(q, k_new, v_new, cache, valid=None):
    """Tiles the KV heads, 0 1 0 1, where groups need 0 0 1 1."""
    _check(q, k_new, v_new, cache, valid)
    k, v = cache.update(k_new, v_new)
    repeats = 1, q.shape[1] // k.shape[1], 1, 1
    mask = causal_mask(q.shape[2], k.shape[2])
    return _attend(q, k.repeat(repeats), v.repeat(repeats), mask), cache


@mutant
def scales_by_all_heads(q, k_new, v_new, cache, valid=None):
    """Divides the scores by the root of the hidden size, not of the head dimension."""
    _check(q, k_new, v_new, cache, valid)
    k, v = cache.update(k_new, v_new)
    return _attend(q / math.sqrt(q.shape[1]), k, v, causal_mask(q.shape[2], k.shape[2])), cache


@mutant
def reads_unwritten_slots(q, k_new, v_new, cache, valid=None):
    """Scores the whole buffer and adds -inf to the unwritten part, where NaN stays NaN."""
    _check(q, k_new, v_new, cache, valid)
    cache.update(k_new, v_new)
    group_size = q.shape[1] // k_new.shape[1]
    k, v = (x.repeat_interleave(group_size, dim=1) for x in (cache._k, cache._v))
    mask = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    mask[:, : cache.seq_len] = causal_mask(q.shape[2], cache.seq_len)
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    return (q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + bias).softmax(dim=-1) @ v, cache


@mutant
def appends_before_checking(q, k_new, v_new, cache, valid=None):
    """Appends, then finds that the queries do not fit: the refused rows stay."""
    k, v = cache.update(k_new, v_new)
    _check(q, k_new, v_new, cache, None)
    return grouped_attention(q, k, v), cache


@mutant
def scales_the_queries_in_place(q, k_new, v_new, cache, valid=None):
    """Scales the caller's queries in place, to save a tensor."""
    _check(q, k_new, v_new, cache, valid)
    k, v = cache.update(k_new, v_new)
    q.div_(math.sqrt(q.shape[3]))
    return _attend(q * math.sqrt(q.shape[3]), k, v, causal_mask(q.shape[2], k.shape[2])), cache


@mutant
def computes_in_half_precision(q, k_new, v_new, cache, valid=None):
    """Casts down for speed and back up, so that the dtype tells nothing of it."""
    _check(q, k_new, v_new, cache, valid)
    k, v = cache.update(k_new, v_new)
    mask = causal_mask(q.shape[2], k.shape[2])
    return _attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask).to(q.dtype), cache


# ---- Models


@mutant
class CountsTheOffsetTwice(Model):
    """Adds the cache's length to positions that include it already."""

    def _positions(self, start, end, left_padding):
        turn, _ = super()._positions(2 * start, start + end, left_padding)
        return turn, super()._positions(start, end, left_padding)[1]


@mutant
class StartsEveryChunkAtZero(Model):
    """Rotates every chunk as if it were the start of the text."""

    def _positions(self, start, end, left_padding):
        turn, _ = super()._positions(0, end - start, left_padding)
        return turn, super()._positions(start, end, left_padding)[1]


@mutant
class OneCacheForAllLayers(Model):
    """Uses the first layer's cache in every layer."""

    def make_caches(self, factory):
        return [factory()] * len(self.layers)

    def _checked_start(self, tokens, caches, left_padding):
        own = caches if caches is None else [_Like(cache) for cache in caches]
        return super()._checked_start(tokens, own, left_padding)


@mutant
class KeepsRowsOfAFailedPass(Model):
    """Lets the layers that were done keep their rows when a later layer fails."""

    def forward(self, tokens, caches=None, **options):
        if caches is None:
            return super().forward(tokens, **options)
        return super().forward(tokens, [_NoCrop(cache) for cache in caches], **options)


@mutant
class AttendsToPadding(Model):
    """Gives padding no position, and still attends to it."""

    def _positions(self, start, end, left_padding):
        return super()._positions(start, end, left_padding)[0], None


@mutant
class ForgetsThePadding(Model):
    """Hides padding from the first chunk only, and attends to it ever after."""

    def _positions(self, start, end, left_padding):
        turn, valid = super()._positions(start, end, left_padding)
        return turn, valid if start == 0 else None


@mutant
class PaddingSeesNothing(Model):
    """Hides padding even from itself: a row without keys is 0 / 0, and its NaN spreads."""

    def forward(self, *args, **options):
        with (
            mock.patch("kvlib.model.padded_mask", _without_own_key),
            mock.patch("kvlib.attention.padded_mask", _without_own_key),
            mock.patch("kvlib.model.grouped_attention", reference_attention),
            mock.patch("kvlib.attention.grouped_attention", reference_attention),
        ):
            return super().forward(*args, **options)


@mutant
class SkipsTheTokenCheck(Model):
    """Takes any tensor for tokens and any list for caches."""

    def _checked_start(self, tokens, caches, left_padding):
        return caches[0].seq_len if caches else 0


def _without_own_key(mask, valid, num_new):
    """Join the causal mask with `valid`, and keep no one's own key."""
    if mask is None:
        mask = causal_mask(num_new, valid.shape[1])
    return (mask & valid[:, None, :])[:, None]


class _Like:
    """The length of another cache, in an object of its own."""

    def __init__(self, cache):
        self.seq_len = cache.seq_len


class _NoCrop:
    """Another cache, without its crop."""

    def __init__(self, cache):
        self.cache = cache

    def update(self, k_new, v_new):
        return self.cache.update(k_new, v_new)

    @property
    def seq_len(self):
        return self.cache.seq_len


# ---- Those of one kind of cache: last, as the laws of all kinds need not wait for them

for _others in (mutants_quantized.MUTANTS, mutants_window.MUTANTS):
    MUTANTS |= _others
    RUNS |= dict.fromkeys(_others)
RUNS |= mutants_window.RUNS

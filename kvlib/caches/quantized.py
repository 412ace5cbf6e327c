"""The quantised cache: old rows as codes of 8 or 4 bits, the newest rows as they came."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from kvlib.caches.contract import Cache, Rows, empty_rows, own, stored
from kvlib.checks import check_whole
from kvlib.packing import check_bits
from kvlib.quantization import Quantized, dequantize_into, error_bound, quantize

AT_ONCE = 2**18  # numbers of keys, and of values, that are quantised together

class HeldBytes(NamedTuple):
    """Bytes that a quantised cache holds, by item; their sum is `nbytes`."""

    codes: int
    scales_and_zeros: int
    recent: int


class QuantizedKVCache(Cache):
    """Old rows in `bits` bits a number, the newest in full precision. Approximate.

    Tokens 0 .. `group` - 1 are one group, the next `group` another. A group is quantised whole, once
    its last token is no longer among the `recent` newest; between updates `recent` to `recent` + `group` - 1
    rows are kept as they came. Keys share scale and zero per channel over the tokens of a group, since
    the keys of trained models have a few channels that are large in every token; values per token,
    over the head_dim channels of a head (`key_axis="token"` treats keys like that too, to compare).
    No scale is shared between heads or sequences. Source: KIVI (Liu et al. 2024).

    A number that was quantised once is off by at most half its step, see `error_bounds`. In
    bits per number: `bits`, and for each scale and zero together 2 w / group for keys and 2 w / head_dim for
    values, w being the bits of the rows' dtype, which scales and zeros keep.

    - `update` gives back the new rows exactly, and quantises afterwards. What a text's rows become does
      not depend on how it is split; which rows a query saw exactly does, within a chunk.
    - Every update dequantises all old rows into new memory and keeps nothing of it: the
      cache is small between updates, one layer at a time is large within a step. What a step holds to be
      taken back are the recent rows, so from a few groups and layers on the peak is below a `KVCache`'s
      too; for shorter texts there is nothing to save. On a CPU this costs
      time, at 4,096 tokens about half a decode step of SmolLM2 on top of it: memory is the gain. A GPU
      kernel would dequantise inside attention.
    - `crop` by at most `recent` tokens takes back exact rows only and leaves no trace in the codes. Into a
      quantised group, it gives the group's remaining rows back as recent ones; if more rows follow
      they are quantised a second time, and the two errors add up.
    - A token with a number that is NaN, infinite, or beyond a quarter of what float32 (float64 for
      float64 rows) can hold comes back as NaN once quantised, keys and values, and touches no other.

    What is held is never written again, which is why a fork can share all of it.
    """

    def __init__(
        self, bits: int = 8, *, group: int = 32, recent: int = 32, key_axis: str = "channel"
    ) -> None:
        check_bits(bits)
        check_whole("group", group)
        check_whole("recent", recent, 0)
        if bits == 4 and group % 2:
            raise ValueError(f"group is {group}; 4 bits are packed two tokens a byte, so make it even")
        if key_axis not in ("channel", "token"):
            raise ValueError(f'key_axis must be "channel" or "token", not {key_axis!r}')
        super().__init__()
        self.bits, self.group, self.recent, self.key_axis = bits, group, recent, key_axis
        self._groups: tuple[Quantized, Quantized] | None = None  # of (B, KV, n, group, D)
        self._recent: tuple[Tensor, Tensor] | None = None  # each (B, KV, T - n * group, D)

    @stored
    def update(self, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        """Append `k_new`, `v_new` (B, KV, t, D); return all rows so far, (B, KV, T, D), in new memory."""
        k_new, v_new = self._checked(k_new, v_new)
        start, end = self.quantized_len, self._seq_len + k_new.shape[2]
        rows = self._dequantized(self._groups, k_new, end)
        for x, recent, new in zip(rows, self._recent or (None, None), (k_new, v_new)):
            if recent is not None:
                x[:, :, start : self._seq_len] = recent
            x[:, :, self._seq_len :] = new
        leave = max(0, end - self.recent - start) // self.group * self.group
        groups = self._groups
        if leave:
            made = self._quantized(*(x[:, :, start : start + leave] for x in rows))
            groups = _joined([made] if groups is None else [groups, made])
        recent = tuple(own(x[:, :, start + leave :]) for x in rows)
        self._groups, self._recent, self._rows, self._seq_len = groups, recent, Rows.of(k_new), end
        return rows

    def reset(self) -> None:
        """Forget every token and free the memory; the next rows may have another shape."""
        self._groups, self._recent, self._rows, self._seq_len = None, None, None, 0

    @stored
    def crop(self, length: int) -> None:
        """Keep the first `length` tokens; rows of a group that is cut become recent rows, dequantised."""
        if self._checked_length(length) == 0:
            self.reset()
        elif length < self._seq_len:
            whole = min(length, self.quantized_len) // self.group  # groups that stay
            groups = _cut(self._groups, slice(0, whole)) if whole else None
            if length >= self.quantized_len:
                recent = tuple(own(x[:, :, : length - self.quantized_len]) for x in self._recent)
            else:
                cut = _cut(self._groups, slice(whole, whole + 1))
                rows = self._dequantized(cut, self._recent[0], self.group)
                recent = tuple(own(x[:, :, : length - whole * self.group]) for x in rows)
            self._groups, self._recent, self._seq_len = groups, recent, length

    def savepoint(self) -> Callable[[], None]:
        """Return what takes back any number of updates; until then the recent rows are held, no codes.

        Codes are only ever appended, so those of now are the first of those to come.
        """
        length, rows, recent = self._seq_len, self._rows, self._recent
        count = self.quantized_len // self.group

        @stored
        def restore() -> None:
            if self.quantized_len > count * self.group:
                self._groups = _cut(self._groups, slice(0, count)) if count else None
            self._recent, self._rows, self._seq_len = recent, rows, length

        return restore

    def fork(self) -> Self:
        """Return an independent cache; everything held is shared, as no one writes to it."""
        return copy.copy(self)

    @property
    def quantized_len(self) -> int:
        """Tokens held as codes, a whole number of groups; the rows after them are exact."""
        return 0 if self._groups is None else self._groups[0].codes.shape[2] * self.group

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, zeros and recent rows: all that is held between updates."""
        return sum(self.held_bytes)

    @property
    def held_bytes(self) -> HeldBytes:
        """Say what `nbytes` consists of: (codes, scales_and_zeros, recent)."""
        return HeldBytes(
            codes=sum(part.codes.nbytes for part in self._groups or ()),
            scales_and_zeros=sum(x.nbytes for part in self._groups or () for x in part[1:]),
            recent=sum(x.nbytes for x in self._recent or ()),
        )

    @torch.no_grad()
    def error_bounds(self) -> tuple[Tensor, Tensor]:
        """Return the largest error that quantising put on each key and value held, (B, KV, T, D) each.

        Half a step and rounding where the rows are codes, 0 where they are recent. For rows quantised
        anew after a crop, this is the second error alone.
        """
        if self._recent is None:
            raise ValueError("the cache is empty; append rows before asking how far off they are")
        bounds = []
        for part, recent in zip(self._groups or (None, None), self._recent):
            bound = torch.zeros_like(recent, dtype=torch.promote_types(recent.dtype, torch.float32))
            if part is not None:
                old = error_bound(part, self.bits).expand(*part.codes.shape[:3], self.group, -1)
                old = old.expand(*old.shape[:4], recent.shape[3]).flatten(2, 3)
                bound = torch.cat([old, bound], dim=2)
            bounds.append(bound)
        return tuple(bounds)

    def _quantized(self, k: Tensor, v: Tensor) -> tuple[Quantized, Quantized]:
        """Turn n whole groups of rows, (B, KV, n * group, D), into codes, some at a time.

        Quantising takes several times the memory of the rows: of a long prompt's that would be too much.
        """
        some = max(1, AT_ONCE // (k[:, :, : self.group].numel())) * self.group
        return _joined([self._quantized_at_once(*rows) for rows in zip(k.split(some, 2), v.split(some, 2))])

    def _quantized_at_once(self, k: Tensor, v: Tensor) -> tuple[Quantized, Quantized]:
        k, v = (x.unflatten(2, (-1, self.group)) for x in (k, v))  # (B, KV, n, group, D)
        limit = torch.finfo(torch.promote_types(k.dtype, torch.float32)).max / 4
        limit = min(limit, torch.finfo(k.dtype).max)  # compared in float16, the first would be inf
        usable = (k.abs() <= limit).all(-1, True) & (v.abs() <= limit).all(-1, True)
        keys = quantize(k, self.bits, -2 if self.key_axis == "channel" else -1, usable)
        values = quantize(v, self.bits, -1, usable)
        # A token that cannot be quantised is marked where it costs nothing: in its own zero.
        return keys, values._replace(zero=values.zero.masked_fill(~usable, torch.nan))

    def _dequantized(self, groups, like: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Return new keys and values (B, KV, num_rows, D) whose first rows are those of `groups`."""
        k, v = empty_rows(like, num_rows)
        if groups is not None:
            length = groups[0].codes.shape[2] * self.group
            old_k, old_v = (x[:, :, :length].unflatten(2, (-1, self.group)) for x in (k, v))
            dequantize_into(old_k, groups[0], self.bits).add_(groups[1].zero * 0)  # NaN if marked, else 0
            dequantize_into(old_v, groups[1], self.bits)
        return k, v


def _joined(groups: list[tuple[Quantized, Quantized]]) -> tuple[Quantized, Quantized]:
    """Put groups one after the other; the old memory is let go. Every `group` tokens, so it costs little."""
    if len(groups) == 1:
        return groups[0]
    return tuple(Quantized(*(torch.cat(x, dim=2) for x in zip(*parts))) for parts in zip(*groups))


def _cut(groups: tuple[Quantized, Quantized], some: slice) -> tuple[Quantized, Quantized]:
    """Return some of the groups, in memory of their own."""
    return tuple(Quantized(*(own(x[:, :, some]) for x in part)) for part in groups)

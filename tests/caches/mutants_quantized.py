"""Wrong quantised caches, one real bug each, named by its docstring."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import torch

from kvlib.caches import Cache, quantized
from kvlib.caches.quantized import QuantizedKVCache, _cut, own
from kvlib.packing import pack
from kvlib.quantization import Quantized, dequantize_into, quantize
from tests.caches.kinds import KINDS, Kind

MUTANTS: dict[str, Kind] = {}
_INT8, _INT4 = (next(k for k in KINDS if k.scheme and k.scheme.bits == bits) for bits in (8, 4))


def mutant(wrong, kind: Kind = _INT4, **options):
    """Register a wrong cache class, made as the kind's own is; `options` override."""
    scheme = kind.scheme._asdict()
    MUTANTS[wrong.__name__] = replace(
        kind, name=wrong.__name__, make=lambda room: wrong(**(scheme | options))
    )
    return wrong


def mutant_of_8_bits(wrong):
    """Register a wrong cache class of 8 bits."""
    return mutant(wrong, _INT8)


def patches(name: str):
    """Register a cache that calls a wrong function of that name."""

    def register(wrong):
        class Wrong(QuantizedKVCache):
            def update(self, k_new, v_new):
                with mock.patch.object(quantized, name, wrong):
                    return super().update(k_new, v_new)

            def crop(self, length):
                with mock.patch.object(quantized, name, wrong):
                    super().crop(length)

            def error_bounds(self):
                with mock.patch.object(quantized, name, wrong):
                    return super().error_bounds()

        Wrong.__name__, Wrong.__doc__ = wrong.__name__, wrong.__doc__
        mutant(Wrong)
        return wrong

    return register


def spread(x, bits, low, high, *, levels=None, rounding=torch.round) -> Quantized:
    """Quantise between `low` and `high`, as the real one does but for what is asked."""
    levels = levels or 2**bits - 1
    scale = ((high - low) / levels).to(x.dtype)
    step = scale.masked_fill(scale == 0, 1)
    codes = rounding((x - low) / step).clamp(0, 2**bits - 1).nan_to_num(0).to(torch.uint8)
    return Quantized(pack(codes, bits), scale, low)


def ends(x, dim, usable):
    """Return smallest and largest of the usable numbers that share a scale."""
    low = x.where(usable, torch.inf).amin(dim, keepdim=True)
    high = x.where(usable, -torch.inf).amax(dim, keepdim=True)
    return low.where(low <= high, 0), high.where(low <= high, 0)


# ---- What shares a scale


class KeysPerToken(QuantizedKVCache):
    """Shares a key's scale between its channels, so that one large channel drowns the others."""


mutant(KeysPerToken, key_axis="token")


@patches("quantize")
def values_per_channel(x, bits, dim, usable=None):
    """Shares every scale between tokens, those of values too."""
    return quantize(x, bits, -2, usable)


@patches("quantize")
def one_scale_for_the_batch(x, bits, dim, usable=None):
    """Shares scales between the sequences of a batch."""
    low, high = ends(x, (0, dim), usable)
    shape = x.shape[0], -1, -1, -1, -1
    return spread(x, bits, low.expand(shape).contiguous(), high.expand(shape).contiguous())


@patches("quantize")
def one_scale_for_all_heads(x, bits, dim, usable=None):
    """Shares scales between the heads of a layer."""
    low, high = ends(x, (1, dim), usable)
    shape = -1, x.shape[1], -1, -1, -1
    return spread(x, bits, low.expand(shape).contiguous(), high.expand(shape).contiguous())


@mutant
class OneScaleForAnUpdate(QuantizedKVCache):
    """Shares a key's scale between all tokens that one update quantises, however many."""

    def _quantized(self, k, v):
        keys, values = super()._quantized(k, v)
        low, high = k.amin(2)[:, :, None, None], k.amax(2)[:, :, None, None]  # (B, KV, 1, 1, D)
        low, high = (x.expand_as(keys.scale).contiguous() for x in (low, high))
        return spread(k.unflatten(2, (-1, self.group)), self.bits, low, high), values


# ---- Codes


@patches("quantize")
def truncates(x, bits, dim, usable=None):
    """Rounds towards the zero point instead of to the nearest code."""
    return spread(x, bits, *ends(x, dim, usable), rounding=torch.floor)


@patches("quantize")
def counts_sixteen_steps(x, bits, dim, usable=None):
    """Divides the range by 2**bits, for which there is one code too few."""
    return spread(x, bits, *ends(x, dim, usable), levels=2**bits)


@patches("quantize")
def wastes_half_the_codes(x, bits, dim, usable=None):
    """Uses codes of one bit fewer than it pays for."""
    return spread(x, bits, *ends(x, dim, usable), levels=2 ** (bits - 1) - 1)


@patches("quantize")
def loses_the_zero_point(x, bits, dim, usable=None):
    """Measures codes from the smallest number and reads them from 0."""
    made = quantize(x, bits, dim, usable)
    return made._replace(zero=torch.zeros_like(made.zero))


@patches("quantize")
def clips_small_steps(x, bits, dim, usable=None):
    """Keeps steps above 1e-5, against a division by 0, and loses small numbers."""
    low, high = ends(x, dim, usable)
    return spread(x, bits, low, torch.maximum(high, low + 1e-5 * 15))


@patches("quantize")
def a_nan_spreads(x, bits, dim, usable=None):
    """Takes a NaN into the statistics of its whole group."""
    return quantize(x, bits, dim)


@patches("quantize")
def a_nan_counts_as_zero(x, bits, dim, usable=None):
    """Counts what is not finite as 0, which may widen its neighbours' range."""
    return quantize(x.where(usable, 0), bits, dim)


@mutant
class ForgetsWhatIsNoNumber(QuantizedKVCache):
    """Gives back something finite where a NaN was appended."""

    def _quantized(self, k, v):
        keys, values = super()._quantized(k, v)
        return keys, values._replace(zero=values.zero.nan_to_num(0))


@patches("dequantize_into")
def swaps_the_nibbles(out, part, bits):
    """Reads the second half of the group from the low four bits."""
    codes = part.codes
    return dequantize_into(out, part._replace(codes=codes << 4 | codes >> 4), bits)


@patches("dequantize_into")
def reads_neighbours_from_one_byte(out, part, bits):
    """Unpacks tokens 2 i and 2 i + 1 from byte i, which holds tokens i and i + group / 2."""
    half = out.shape[-2] // 2
    right = dequantize_into(torch.empty_like(out), part, bits)
    out[..., 0::2, :], out[..., 1::2, :] = right[..., :half, :], right[..., half:, :]
    return out


@patches("dequantize_into")
def subtracts_the_steps(out, part, bits):
    """Gets the sign wrong: zero - code * scale."""
    return dequantize_into(out, part._replace(scale=-part.scale), bits)


@patches("dequantize_into")
def reads_the_scale_of_the_group_before(out, part, bits):
    """Uses each group's scale for the next."""
    return dequantize_into(out, part._replace(scale=part.scale.roll(1, dims=2)), bits)


@patches("dequantize_into")
def dequantizes_in_half_precision(out, part, bits):
    """Dequantises in float16 and casts back up: large numbers are lost."""
    small = Quantized(part.codes, part.scale.half(), part.zero.half())
    return out.copy_(dequantize_into(torch.empty_like(out, dtype=torch.float16), small, bits))


@patches("dequantize_into")
def lets_the_largest_number_overflow(out, part, bits):
    """Rounds the largest number of float16 up to infinity, since the scale was rounded up."""
    right = dequantize_into(out, part, bits)
    return right.masked_fill_(right.abs() == 65504, torch.inf) if out.dtype == torch.float16 else right


@patches("error_bound")
def claims_a_quarter_step(part, bits):
    """States half the error there is."""
    return part.scale.double() / 4


# ---- Recent rows


class QuantisesTooEarly(QuantizedKVCache):
    """Quantises a group while its last token is still among the recent ones."""


class QuantisesTooLate(QuantizedKVCache):
    """Keeps one row more in full precision than it says."""


mutant(QuantisesTooEarly, recent=1)
mutant(QuantisesTooLate, recent=3)


@mutant
class QuantisesBeforeReturning(QuantizedKVCache):
    """Hands back codes of the rows that came just now."""

    def update(self, k_new, v_new):
        k, v = super().update(k_new, v_new)
        done = self.quantized_len
        for x, old in zip((k, v), self._dequantized(self._groups, k, done)):
            x[:, :, :done] = old
        return k, v


@mutant
class LosesTheRestOfAGroup(QuantizedKVCache):
    """Keeps zeros for rows that do not fill a group when a crop cuts it."""

    def crop(self, length):
        cut = type(length) is int and 0 < length < self.quantized_len
        super().crop(length)
        if cut:
            self._recent = tuple(map(torch.zeros_like, self._recent))


@mutant
class ReadsTheFirstGroupAfterACrop(QuantizedKVCache):
    """Takes the rows of a group that a crop cuts from the first group."""

    def crop(self, length):
        groups = self._groups
        cut = type(length) is int and 0 < length < self.quantized_len
        super().crop(length)
        if cut:
            rows = self._dequantized(_cut(groups, slice(0, 1)), self._recent[0], self.group)
            self._recent = tuple(own(x[:, :, : old.shape[2]]) for x, old in zip(rows, self._recent))


@mutant
class ACropLeavesTheGroup(QuantizedKVCache):
    """Leaves a group that was cut where it is: its last rows are still there."""

    def crop(self, length):
        groups = self._groups
        cut = type(length) is int and 0 < length < self.quantized_len and length % self.group
        super().crop(length)
        if cut:
            self._groups = _cut(groups, slice(0, length // self.group + 1))
            self._recent = tuple(x[:, :, :0].clone() for x in self._recent)


@mutant
class QuantisesAnewAfterACrop(QuantizedKVCache):
    """Dequantises everything on a crop and quantises it again, for no reason."""

    def crop(self, length):
        if 0 < self._checked_length(length) < self._seq_len:
            k, v = self.fork().update(*(x[:, :, :1] for x in self._recent_or_zeros()))
            k, v = (torch.nextafter(x, torch.zeros(())) for x in (k[:, :, :length], v[:, :, :length]))
            self.reset()
            self.update(k, v)
        else:
            super().crop(length)

    def _recent_or_zeros(self):
        return [torch.zeros_like(x[:, :, :1]) if x.shape[2] else x.new_zeros(
            (*x.shape[:2], 1, x.shape[3])) for x in self._recent]  # fmt: skip


@mutant
class AResetKeepsTheGroups(QuantizedKVCache):
    """Forgets the recent rows on reset, and not the codes."""

    def reset(self):
        groups = self._groups
        super().reset()
        self._groups = groups


# ---- Bytes


@mutant
class StoresACodeAByte(QuantizedKVCache):
    """Never packs: codes of four bits take eight."""

    def _quantized(self, k, v):
        with mock.patch("kvlib.quantization.pack", lambda codes, bits: codes):
            return super()._quantized(k, v)

    def _dequantized(self, groups, like, num_rows):
        with mock.patch("kvlib.quantization.unpack_into", lambda out, codes, bits: out.copy_(codes)):
            return super()._dequantized(groups, like, num_rows)


@mutant
class CountsUnpackedCodes(QuantizedKVCache):
    """Counts a byte for every code, where there are two in each."""

    @property
    def held_bytes(self):
        held = super().held_bytes
        return held._replace(codes=2 * held.codes)


@mutant_of_8_bits
class ForgetsTheScales(QuantizedKVCache):
    """Counts codes and recent rows, and not the scales and zeros."""

    @property
    def held_bytes(self):
        return super().held_bytes._replace(scales_and_zeros=0)


@mutant_of_8_bits
class KeepsWideScales(QuantizedKVCache):
    """Keeps scales and zeros in float64."""

    def _quantized(self, k, v):
        return tuple(Quantized(x.codes, x.scale.double(), x.zero.double()) for x in super()._quantized(k, v))

    def _dequantized(self, groups, like, num_rows):
        if groups is not None:
            groups = [Quantized(x.codes, x.scale.to(like.dtype), x.zero.to(like.dtype)) for x in groups]
        return super()._dequantized(groups, like, num_rows)


@mutant
class KeepsADequantisedCopy(QuantizedKVCache):
    """Keeps what it dequantised for the next step, and does not count it."""

    kept = None

    def update(self, k_new, v_new):
        self.kept = super().update(k_new, v_new)
        return self.kept


@mutant
class CountsADequantisedCopy(QuantizedKVCache):
    """Keeps what it dequantised and counts it: quantised, and larger than without."""

    kept = ()

    def update(self, k_new, v_new):
        self.kept = super().update(k_new, v_new)
        return self.kept

    def reset(self):
        super().reset()
        self.kept = ()

    @property
    def held_bytes(self):
        held = super().held_bytes
        return held._replace(recent=held.recent + sum(x.nbytes for x in self.kept))


@mutant
class KeepsRecentRowsAsViews(QuantizedKVCache):
    """Keeps a slice of what it returned: all of it stays alive, and is the caller's to write to."""

    def update(self, k_new, v_new):
        k, v = super().update(k_new, v_new)
        self._recent = k[:, :, self.quantized_len :], v[:, :, self.quantized_len :]
        return k, v


@mutant
class CropsToViews(QuantizedKVCache):
    """Slices codes and rows on a crop: nbytes shrinks, the memory stays."""

    def crop(self, length):
        with mock.patch.object(quantized, "own", lambda x: x):
            super().crop(length)


@mutant_of_8_bits
class ForksWriteToOneBuffer(QuantizedKVCache):
    """Keeps recent rows in a buffer that it writes in place, and forks share it."""

    buffers = None

    def update(self, k_new, v_new):
        k, v = super().update(k_new, v_new)
        if self.buffers is None:
            size = *k.shape[:2], self.recent + self.group, k.shape[3]
            self.buffers = tuple(torch.zeros(size, dtype=k.dtype) for _ in "kv")
        self._recent = tuple(self._placed(x, b) for x, b in zip(self._recent, self.buffers))
        return k, v

    def reset(self):
        super().reset()
        self.buffers = None

    def crop(self, length):
        super().crop(length)
        if self.buffers is not None:
            self._recent = tuple(self._placed(x, b) for x, b in zip(self._recent, self.buffers))

    @staticmethod
    def _placed(rows, buffer):
        buffer[:, :, : rows.shape[2]] = rows
        return buffer[:, :, : rows.shape[2]]

    @property
    def held_bytes(self):
        return super().held_bytes._replace(recent=sum(x.nbytes for x in self.buffers or ()))


@mutant
class TakesBackByCropping(QuantizedKVCache):
    """Lets a failed step be undone by `crop`, which gives rows back that were rounded."""

    savepoint = Cache.savepoint


# ---- Options


@mutant
class TakesAnyBits(QuantizedKVCache):
    """Takes whatever number of bits it is given, and finds out at the first group."""

    def __init__(self, bits=8, **options):
        super().__init__(8 if bits != 4 else 4, **options)
        self.bits = bits


@mutant
class FindsOutLater(QuantizedKVCache):
    """Takes an odd group for 4 bits, and fails when the first one is packed."""

    def __init__(self, bits=8, *, group=32, **options):
        super().__init__(bits, group=group + 1 if bits == 4 and group % 2 else group, **options)
        self.group = group

"""Wrong latent caches and wrong latent attentions, one real bug each, named by its docstring.

Every one is judged by the laws of `latent_laws`; a wrong cache is judged by the contract, too.
"""

from __future__ import annotations

import math

import torch

from kvlib.caches.latent import LatentKVCache
from kvlib.latent_attention import LatentAttention, attend
from kvlib.rotary import rotate
from tests.caches.latent_laws import Latent

MUTANTS: dict[str, Latent] = {}


def mutant(wrong):
    """Register a wrong cache class or a wrong attention class."""
    part = "cache" if issubclass(wrong, LatentKVCache) else "attention"
    MUTANTS[wrong.__name__] = Latent(**{part: wrong})
    return wrong


# ---- Caches


@mutant
class TakesTheRopePartForTheValue(LatentKVCache):
    """Cuts the values off the wrong end of the row."""

    def _views(self, held, latent_dim):
        return held, held[..., -latent_dim:]


@mutant
class TakesTheWholeRowForTheValue(LatentKVCache):
    """Hands back the rotary key inside the value."""

    def _views(self, held, latent_dim):
        return held, held


@mutant
class KeepsTheValuesToo(LatentKVCache):
    """Keeps keys and values apart, so that every latent is stored twice."""

    values = None

    def _views(self, held, latent_dim):
        self.values = held[..., :latent_dim].clone()
        return held, self.values

    @property
    def nbytes(self):
        return super().nbytes + (0 if self.values is None else self.values.nbytes)


@mutant
class CopiesTheValues(LatentKVCache):
    """Counts one row, and makes a second one of its values at each step."""

    def _views(self, held, latent_dim):
        return held, held[..., :latent_dim].clone()


@mutant
class CountsAFactorTwo(LatentKVCache):
    """Reports bytes as if there were keys and values."""

    @property
    def nbytes(self):
        return 2 * super().nbytes


@mutant
class RoundsTheRows(LatentKVCache):
    """Stores bfloat16 and hands back the dtype it was given."""

    def update(self, latent_new, rope_new):
        parts = self._checked_parts(latent_new, rope_new)
        return super().update(*(x.bfloat16().to(x.dtype) for x in parts))


@mutant
class ForgetsTheWidths(LatentKVCache):
    """Remembers how wide a row is, and not where its latent part ends."""

    def _checked_parts(self, latent_new, rope_new):
        self._latent_dim = getattr(latent_new, "shape", [0] * 4)[-1]
        return super()._checked_parts(latent_new, rope_new)


@mutant
class PutsNewRowsFirst(LatentKVCache):
    """Concatenates the new row in front of the old ones."""

    def update(self, latent_new, rope_new):
        latent_new, rope_new = self._checked_parts(latent_new, rope_new)
        new = torch.cat([latent_new, rope_new], dim=3)
        held = new if self._held is None else torch.cat([new, self._held], dim=2)
        self._set(held, latent_new.shape[3])
        return self._views(held, self._latent_dim)


@mutant
class CropsAsAView(LatentKVCache):
    """Shows fewer rows of the same memory: what was cropped is never freed."""

    def crop(self, length):
        if self._checked_length(length) == 0:
            self.reset()
        elif length < self.seq_len:
            self._set(self._held[:, :, :length], self._latent_dim)


@mutant
class KeepsTheGradient(LatentKVCache):
    """Neither detaches nor turns autograd off."""

    def update(self, latent_new, rope_new):
        self._checked_parts(latent_new, rope_new)
        held = torch.cat([latent_new, rope_new], dim=3)
        if self._held is not None:
            held = torch.cat([self._held, held], dim=2)
        shown = self._views(held, latent_new.shape[3])
        self._set(held, latent_new.shape[3])
        return shown


@mutant
class ForksByReference(LatentKVCache):
    """Returns itself: what the fork appends, its parent holds."""

    def fork(self):
        return self


# ---- Attention


@mutant
class TurnsTheRopeTwice(LatentAttention):
    """Rotates the shared key on its way into the cache, where it had been rotated before."""

    def rows(self, x, turn):
        latent, rope = super().rows(x, turn)
        return latent, rotate(rope, turn)


@mutant
class CachesTheRopeUnturned(LatentAttention):
    """Forgets that the shared key carries a position."""

    def rows(self, x, turn):
        return super().rows(x, (torch.ones_like(turn[0]), torch.zeros_like(turn[1])))


@mutant
class KeepsARopeKeyForEachHead(LatentAttention):
    """Repeats the rotary key for every head before it is cached."""

    def rows(self, x, turn):
        latent, rope = super().rows(x, turn)
        return latent, rope.repeat(1, 1, 1, self.shape.num_heads + 1)

    def attend_expanded(self, nope_queries, rope_queries, keys, values):
        keys = keys[..., : self.shape.row_dim]
        return super().attend_expanded(nope_queries, rope_queries, keys, values)

    def attend_absorbed(self, nope_queries, rope_queries, keys, values):
        keys = keys[..., : self.shape.row_dim]
        return super().attend_absorbed(nope_queries, rope_queries, keys, values)


@mutant
class CachesTheExpandedKeys(LatentAttention):
    """Caches keys and values of all heads: right numbers, and none of the saving."""

    def rows(self, x, turn):
        latent, rope = super().rows(x, turn)
        self._parts = latent.shape[3], rope.shape[3]
        keys, values = (self._up(latent, w) for w in (self.up_keys, self.up_values))
        expanded = torch.cat([keys, values], dim=3).transpose(1, 2).flatten(2)[:, None]
        return latent, torch.cat([rope, expanded], dim=3)

    attend_expanded = KeepsARopeKeyForEachHead.attend_expanded
    attend_absorbed = KeepsARopeKeyForEachHead.attend_absorbed


@mutant
class AddsTheRopeToTheValue(LatentAttention):
    """Lets the weighted sum run over rotary numbers where the latent is wide enough to hide it."""

    def attend_absorbed(self, nope_queries, rope_queries, keys, values):
        values = keys[..., -self.shape.latent_dim :]
        return super().attend_absorbed(nope_queries, rope_queries, keys, values)


@mutant
class ScalesByTheLatentSpace(LatentAttention):
    """Divides by the root of the row's width in latent space, where the head's width belongs."""

    def attend_absorbed(self, nope_queries, rope_queries, keys, values):
        wide = math.sqrt(self.shape.row_dim) * self._scale
        return super().attend_absorbed(nope_queries / wide, rope_queries / wide, keys, values)


@mutant
class ForgetsTheNorm(LatentAttention):
    """Caches the latent before its norm, and never applies it."""

    def rows(self, x, turn):
        row = (x @ self.down.T)[:, None]
        latent, rope = row.split([self.shape.latent_dim, self.shape.rope_dim], dim=3)
        return latent, rotate(rope, turn)


@mutant
class ExpandsInBothWays(LatentAttention):
    """Absorbs in name only: the numbers are right, the work is not."""

    def attend_absorbed(self, *parts):
        return self.attend_expanded(*parts)


@mutant
class AbsorbsOneHeadForAll(LatentAttention):
    """Carries every head's query over with the first head's up-projection."""

    def attend_absorbed(self, nope_queries, rope_queries, keys, values):
        queries = torch.cat([nope_queries @ self.up_keys[:1], rope_queries], dim=3)
        latent = attend(queries, keys, values, self._scale)
        return latent @ self.up_values.transpose(1, 2)

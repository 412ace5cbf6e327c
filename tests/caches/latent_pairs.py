"""Let the suite, which hands every cache a key and a value alike in shape, drive the latent cache.

The suite's value goes in as the latent part, its key as the rotary part, and each of its heads as a
sequence of its own, since a latent row has one. What comes back is taken apart the same way.
"""

from __future__ import annotations

from torch import Tensor

from kvlib.caches.latent import LatentKVCache


class Pairs:
    """Mix into a latent cache: keys and values (B, KV, t, D) in, and all of them out."""

    num_kv_heads = 1

    def update(self, k_new, v_new):
        """Append pairs; only what the suite promises about them is checked here."""
        parts = k_new, v_new
        if all(isinstance(x, Tensor) and x.dim() == 4 for x in parts):
            if k_new.shape[3] != v_new.shape[3]:
                raise ValueError("the key and the value of a pair must be equally wide")
            if self._held is None:
                self.num_kv_heads = k_new.shape[1]
            parts = (x.flatten(0, 1).unsqueeze(1) for x in parts)  # (B KV, 1, t, D)
        k_new, v_new = parts
        return super().update(v_new, k_new)

    def fork(self):
        """Return a copy that takes the same pairs."""
        other = super().fork()
        other.num_kv_heads = self.num_kv_heads
        return other

    def _views(self, held, latent_dim):
        keys, values = super()._views(held, latent_dim)
        rope = keys[..., latent_dim:]
        return tuple(x.unflatten(0, (-1, self.num_kv_heads)).squeeze(2) for x in (rope, values))


def of_pairs(cache_class: type[LatentKVCache]) -> type[LatentKVCache]:
    """Return a latent cache class that the suite can drive."""
    return type(cache_class.__name__, (Pairs, cache_class), {"__module__": __name__})

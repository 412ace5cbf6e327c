"""The window's cache: the last `window` tokens, and for ever the first few."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from kvlib.caches.contract import Cache, Rows, own, stored
from kvlib.checks import check_whole

KEYS = "rotated", "unrotated"


class Held(NamedTuple):
    """Rows of `length` tokens, of which `dropped` are missing, all of them behind the sinks."""

    kv: tuple[Tensor, ...]  # keys and values, each (B, KV, length - dropped, D)
    dropped: int
    length: int
    before: Held | None = None  # what stood before a long chunk, for `crop`


class SlidingWindowKVCache(Cache):
    """The last `window` tokens, and for ever the first `sinks`: memory that stops growing.

    A query sees itself, the window - 1 tokens before it, and the sinks: `window` counts the current
    token, as `sliding_window` does in transformers. `update` returns
    [sinks][the window - 1 rows before the new ones][the new rows], by concatenation: a token copies
    sinks + window rows, where a buffer would write one. `visible` is the band for a chunk.
    Source: Beltagy et al. 2020, Jiang et al. 2023 (Mistral); the sinks Xiao et al. 2023 (StreamingLLM).

    A row is dropped at the update after the one that last returned it, so `crop` can always undo the last
    update, whatever its size; earlier lengths need rows that may be gone. Of a chunk longer than sinks +
    window only the last rows stay. Tensors are never written again once made, which is why a fork can
    share them.

    `keys` says what the rows are: "rotated", with their true position in them, or "unrotated",
    from before RoPE. A model asked to use the second turns them by their place in the cache, so no
    distance exceeds sinks + window - 1, however long the text.

    A batch may begin with padding only where there are no sinks: these would be padding.
    """

    def __init__(self, window: int, *, sinks: int = 0, keys: str = "rotated") -> None:
        check_whole("window", window)
        check_whole("sinks", sinks, 0)
        if keys not in KEYS:
            raise ValueError(f'keys must be "rotated" or "unrotated", not {keys!r}')
        super().__init__()
        self.window, self.sinks, self.keys = window, sinks, keys
        self._held: Held | None = None

    @stored
    def update(self, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        """Append `k_new`, `v_new` (B, KV, t, D); return the rows in sight, (B, KV, T, D).

        T is at most sinks + window - 1 + t. Do not write to the rows: they are what the cache holds.
        """
        new = self._checked(k_new, v_new)
        was, num_new = self._held, k_new.shape[2]
        dropped, length = self._dropped_at(self.seq_len), self.seq_len + num_new
        if was is None:
            shown = tuple(own(x) for x in new)
        else:
            shown = tuple(self._left(x, dropped - was.dropped, y) for x, y in zip(was.kv, new))
        held = Held(shown, dropped, length)
        if num_new > self.sinks + self.window:
            old = tuple(own(x[:, :, :-num_new]) for x in shown)
            before, stay = was and Held(old, dropped, was.length), self._dropped_at(length)
            held = Held(tuple(self._left(x, stay - dropped) for x in shown), stay, length, before)
        self._held, self._rows = held, Rows.of(k_new)
        return shown

    def visible(self, num_new: int, num_keys: int, device: torch.device) -> Tensor | None:
        """Return the band, bool (num_new, num_keys), or None where causal order is enough.

        A query sees a key fewer than `window` tokens back, itself included, and every sink.
        """
        if num_keys <= self.sinks + self.window:
            return None
        key = torch.arange(num_keys, device=device)
        distance = key[num_keys - num_new :, None] - key  # (t, T); of the sinks only its sign is right
        return (distance >= 0) & ((distance < self.window) | (key < self.sinks))

    def positions(self, length: int) -> int:
        """Say how many rotary positions a text of `length` tokens takes: bounded if unrotated."""
        return min(length, self.sinks + self.window) if self.keys == "unrotated" else length

    @property
    def takes_padding(self) -> bool:
        """Say whether padding may stand before a text: not where it would be taken for the sinks."""
        return self.sinks == 0

    def reset(self) -> None:
        """Forget every token and free the memory; the next rows may have another shape."""
        self._held, self._rows = None, None

    @stored
    def crop(self, length: int) -> None:
        """Keep the first `length` tokens.

        Raises ValueError, with nothing changed, where rows that a later query needs have left.
        The length before the last update is always possible, and so is any up to `sinks`.
        """
        held = self._held
        if self._checked_length(length) == 0:
            return self.reset()
        if held.before is not None and length <= held.before.length:
            held = held.before
        if length == held.length:
            self._held = held
            return
        dropped = held.dropped if length > self.sinks else 0
        if dropped > self._dropped_at(length):
            raise ValueError(
                f"cannot crop to {length}: the window of {self.window} has let go rows that the next "
                "token needs. Only the last update can be undone; fork before what may be undone later"
            )
        self._held = Held(tuple(own(x[:, :, : length - dropped]) for x in held.kv), dropped, length)

    def savepoint(self) -> Callable[[], None]:
        """Return what takes back any number of updates; the rows of now are held until then."""
        held, rows = self._held, self._rows

        def restore() -> None:
            self._held, self._rows = held, rows

        return restore

    def fork(self) -> Self:
        """Return an independent cache; the rows held are shared, as no one writes to them."""
        return copy.copy(self)

    @property
    def seq_len(self) -> int:
        """Tokens appended so far, which is the index of the next one."""
        return 0 if self._held is None else self._held.length

    @property
    def stored_len(self) -> int:
        """Rows held for each sequence and head, without those held only for `crop`."""
        return 0 if self._held is None else self._held.length - self._held.dropped

    @property
    def nbytes(self) -> int:
        """Bytes of the rows held, and after a long chunk of those before it."""
        held = self._held
        return 0 if held is None else sum(x.nbytes for x in held.kv + (held.before.kv if held.before else ()))

    def _dropped_at(self, length: int) -> int:
        """Count the tokens that no query from index `length` on can see."""
        return max(0, length - (self.window - 1) - self.sinks)

    def _left(self, x: Tensor, leave: int, *new: Tensor) -> Tensor:
        """Return rows without the `leave` oldest behind the sinks, followed by the new ones."""
        return torch.cat([x[:, :, : self.sinks], x[:, :, self.sinks + leave :], *new], dim=2)

"""The window's cache: the last `window` tokens, and for ever the first few."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from kvlib.caches.contract import Cache, Rows, empty_rows, stored
from kvlib.checks import check_whole

KEYS = "rotated", "unrotated"


class Block(NamedTuple):
    """What lies in the buffer from row `start` on: the sinks, then the last tokens.

    Of `length` tokens `dropped` are missing, all of them between the sinks and the rest.
    """

    start: int
    dropped: int
    length: int

    @property
    def rows(self) -> int:
        """Rows held, sinks included."""
        return self.length - self.dropped

    @property
    def end(self) -> int:
        """The buffer's row after the last one held."""
        return self.start + self.rows


class Tail(NamedTuple):
    """The last tokens of a chunk that was larger than the buffer, without the sinks."""

    k: Tensor  # (B, KV, rows, D)
    v: Tensor
    dropped: int
    length: int


class SlidingWindowKVCache(Cache):
    """The last `window` tokens, and for ever the first `sinks`: memory that stops growing.

    A query sees itself, the window - 1 tokens before it, and the sinks: `window` counts the current
    token, as `sliding_window` does in transformers. `update` returns
    [sinks][the window - 1 rows before the new ones][the new rows], one tensor in this order;
    `visible` is the band for a chunk. Source: Beltagy et al. 2020, Jiang et al. 2023 (Mistral);
    the sinks Xiao et al. 2023 (StreamingLLM).

    The buffer has 2 (sinks + window) rows, made at the first update, at a fixed address:

        [sinks][ let go ... ][sinks again][window rows][new rows][ free ]

    New rows are written after the old ones, so nothing moves; the sinks are copied in front of
    the window, over rows that have left it, so that what is returned is one slice. At the end of
    the buffer the last window - 1 rows move to its front: about one row copied for each token. A
    chunk larger than the room comes back as a tensor of its own, and only its last rows stay.

    A row leaves at the update after the one that last returned it, so the last update can always
    be undone by `crop`, whatever its size; earlier lengths need rows that may be gone.

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
        self._k: Tensor | None = None  # (B, KV, 2 (sinks + window), D)
        self._v: Tensor | None = None
        self._block = Block(sinks, 0, 0)
        self._tail: Tail | None = None  # what `_block` holds is then the state before it

    @stored
    def update(self, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        """Append `k_new`, `v_new` (B, KV, t, D); return the rows in sight, (B, KV, T, D).

        T is at most sinks + window - 1 + t. The rows are valid until the next update.
        """
        k_new, v_new = self._checked(k_new, v_new)
        if self._rows is None:
            self._allocate(k_new)
        self._take_tail()
        self._let_go()
        num_new, room = k_new.shape[2], self._k.shape[2]
        if self._block.end + num_new > room:
            front = self._block._replace(start=self.sinks)
            if front.end + num_new > room or self._block.start < self._block.rows:
                return self._append_large(k_new, v_new)
            self._move_to(front)
        block, sinks = self._block, min(self.sinks, self._block.length)
        end = block.end + num_new
        for buffer, new in ((self._k, k_new), (self._v, v_new)):
            if sinks:
                buffer[:, :, block.start : block.start + sinks] = buffer[:, :, :sinks]
            self._keep_sinks(buffer, new)
            buffer[:, :, block.end : end] = new
        held = self._k[:, :, block.start : end], self._v[:, :, block.start : end]
        self._rows = Rows.of(k_new)
        self._block = block._replace(length=block.length + num_new)  # last: an interrupt counts none
        return held

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
        """Forget every token; the buffer stays where it is."""
        self._block, self._tail = Block(self.sinks, 0, 0), None

    def release(self) -> None:
        """Forget every token and free the memory; the next rows may have another shape."""
        self.reset()
        self._k = self._v = self._rows = None

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens.

        Raises ValueError, with nothing changed, where rows that a later query needs have left.
        The length before the last update is always possible, and so is any up to `sinks`.
        """
        block = self._block
        if self._checked_length(length) == self.seq_len:
            return
        if length <= self.sinks:  # these lie in the first rows of the buffer, whatever came after
            self._block = Block(self.sinks, 0, length)
        elif length <= block.length and block.dropped <= self._dropped_at(length):
            self._block = block._replace(length=length)
        else:
            raise ValueError(
                f"cannot crop to {length}: the window of {self.window} has let go rows that the next "
                "token needs. Only the last update can be undone; fork before what may be undone later"
            )
        self._tail = None

    def savepoint(self, updates: int = 1) -> Callable[[], None]:
        """Return what takes back `updates` updates: `crop` for one, a fork where rows may leave for good."""
        length = self.seq_len
        fork = self.fork() if length and updates > 1 else None

        def restore() -> None:
            if self.seq_len > length:
                try:
                    self.crop(length)  # where it is not refused it is exact, and moves no buffer
                except ValueError:
                    if fork is None:
                        raise
                    vars(self).update(vars(fork))  # the same object for whoever holds it

        return restore

    @stored
    def fork(self) -> Self:
        """Return a copy with a buffer of its own; only the rows held are copied."""
        other = copy.copy(self)
        if self._k is not None:
            other._allocate(self._k)
            start, end, sinks = self._block.start, self._block.end, min(self.sinks, self.seq_len)
            for own, buffer in ((other._k, self._k), (other._v, self._v)):
                own[:, :, :sinks] = buffer[:, :, :sinks]
                own[:, :, start:end] = buffer[:, :, start:end]
        return other

    @property
    def seq_len(self) -> int:
        """Tokens appended so far, which is the index of the next one."""
        return (self._tail or self._block).length

    @property
    def stored_len(self) -> int:
        """Rows held for each sequence and head, the sinks counted once."""
        held = self._tail or self._block
        return held.length - held.dropped

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers, used or not, and of the rows a large chunk left outside of them."""
        held = [x for x in (self._k, self._v) if x is not None] + list((self._tail or ())[:2])
        return sum(x.nbytes for x in held)

    def _dropped_at(self, length: int) -> int:
        """Count the tokens that no query from index `length` on can see."""
        return max(0, length - (self.window - 1) - self.sinks)

    def _let_go(self) -> None:
        """Drop what the next query cannot see. Counted first, so that it is never taken for held."""
        start, dropped, length = self._block
        leave = self._dropped_at(length) - dropped
        self._block = Block(start + leave, dropped + leave, length)

    def _move_to(self, front: Block) -> None:
        """Copy the window's rows to the front, where they do not overlap what they are copied from."""
        block, sinks = self._block, self.sinks
        for buffer in (self._k, self._v):
            rows = buffer[:, :, block.start + sinks : block.end]
            buffer[:, :, front.start + sinks : front.end] = rows
        self._block = front

    def _append_large(self, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        """Append more rows than there is room for; what stood before stays in the buffer for `crop`."""
        block = self._block
        length, sinks = block.length + k_new.shape[2], min(self.sinks, block.length)
        dropped = self._dropped_at(length)
        stay = length - dropped - self.sinks
        held, tails = [], []
        for buffer, new in ((self._k, k_new), (self._v, v_new)):
            self._keep_sinks(buffer, new)
            rows = buffer[:, :, block.start + sinks : block.end]
            all_rows = torch.cat([buffer[:, :, :sinks], rows, new], dim=2)
            held.append(all_rows)
            tails.append(all_rows[:, :, all_rows.shape[2] - stay :].clone())
        self._rows = Rows.of(k_new)
        self._tail = Tail(*tails, dropped, length)
        return tuple(held)

    def _take_tail(self) -> None:
        """Move the rows that a large chunk left into the buffer, over the state before it."""
        if self._tail is None:
            return
        k, v, dropped, length = self._tail
        self._block = Block(self.sinks, 0, 0)  # gone, also if an interrupt comes now
        front = Block(self.sinks, dropped, length)
        self._k[:, :, 2 * self.sinks : front.end] = k
        self._v[:, :, 2 * self.sinks : front.end] = v
        self._block = front
        self._tail = None

    def _keep_sinks(self, buffer: Tensor, new: Tensor) -> None:
        """Write the new rows that are sinks into the first rows of the buffer, where they stay."""
        start, end = self._block.length, min(self.sinks, self._block.length + new.shape[2])
        if start < end:
            buffer[:, :, start:end] = new[:, :, : end - start]

    def _allocate(self, like: Tensor) -> None:
        self._k, self._v = empty_rows(like, 2 * (self.sinks + self.window))

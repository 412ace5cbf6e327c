"""What is right, written without any of kvlib: a loop over queries, and a list of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.caches.kinds import Kind

HEADS = [(1, 1), (4, 4), (4, 2), (9, 3), (4, 1)]  # (query heads, KV heads): MHA, GQA, MQA
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
chunk_sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@dataclass(frozen=True)
class Case:
    """One attention problem: its shape, how it is cut into chunks, and its seed."""

    batch_size: int
    heads: tuple[int, int]
    head_dim: int
    chunks: list[int]
    dtype: torch.dtype
    seed: int

    @property
    def seq_len(self) -> int:
        """Tokens over all chunks."""
        return sum(self.chunks)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw q (B, H, T, D) and k, v (B, KV, T, D) from the standard normal."""
        generator = torch.Generator().manual_seed(self.seed)
        return tuple(
            torch.randn(
                self.batch_size, n, self.seq_len, self.head_dim,
                generator=generator, dtype=torch.float64,
            ).to(self.dtype)
            for n in (self.heads[0], self.heads[1], self.heads[1])
        )  # fmt: skip


cases = st.builds(
    Case,
    batch_size=st.integers(1, 3),
    heads=st.sampled_from(HEADS),
    head_dim=st.sampled_from([1, 2, 8]),
    chunks=chunk_sizes,
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)


def attend_by_loop(
    q: Tensor, k: Tensor, v: Tensor, window: int | None = None, sinks: int = 0
) -> Tensor:
    """Attend causally in float64, one query and one head at a time; the keys end with the queries.

    Shapes: q (B, H, t, D), k and v (B, KV, T, D) -> (B, H, t, D) in float64. A query sees the
    last `window` keys, its own included, and the first `sinks`.
    """
    q, k, v = (x.detach().double().numpy() for x in (q, k, v))
    out = np.empty(q.shape)
    group_size = q.shape[1] // k.shape[1]
    for i in range(q.shape[2]):
        end = k.shape[2] - q.shape[2] + i + 1  # the query sees itself and everything before
        start = 0 if window is None else max(0, end - window)
        seen = [*range(min(sinks, start)), *range(start, end)]
        for h in range(q.shape[1]):
            keys, values = (x[:, h // group_size, seen] for x in (k, v))  # (B, n, D)
            scores = np.einsum("bd,bnd->bn", q[:, h, i], keys) / math.sqrt(q.shape[3])
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[:, h, i] = np.einsum("bn,bnd->bd", weights, values)
    return torch.from_numpy(out)


def assert_close(got: Tensor, want: Tensor, bound: float, what: str) -> None:
    """Assert that no entry differs by more than `bound`, as absolute and as relative error."""
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} is not {tuple(want.shape)}"
    got, want = got.double(), want.double()
    assert torch.isfinite(got).all(), f"{what}: not finite"
    error = ((got - want).abs() / want.abs().clamp_min(1)).max().item()
    assert error <= bound, f"{what}: off by {error:.2e}, more than {bound:.0e}"


class Shadow:
    """A cache beside the plain list of the rows it ought to hold.

    The list is the model: append, cut, clear, copy. Rows are standard normal, no two alike,
    of B = 2, KV = 2, D = 2 unless told otherwise.
    """

    def __init__(self, kind: Kind, room: int = 64, shape=(2, 2, 2), dtype=torch.float32):
        self.kind, self.cache = kind, kind.make(room)
        self.shape, self.dtype = shape, dtype
        self.rows: list[tuple[Tensor, Tensor]] = []  # of (k, v), each (B, KV, D)
        self.generator = torch.Generator().manual_seed(0)
        self.undo, self.longest = 0, 0  # the length before the last update; the most ever held
        self.largest, self.crops = 0.0, 0  # an approximate cache errs by a share of the largest entry

    def new(self, num_new: int) -> tuple[Tensor, Tensor]:
        """Draw the next rows, k and v (B, KV, t, D)."""
        batch_size, num_kv_heads, head_dim = self.shape
        size = batch_size, num_kv_heads, num_new, head_dim
        return tuple(torch.randn(size, generator=self.generator).to(self.dtype) for _ in "kv")

    def update(self, num_new: int, fill: float | None = None) -> tuple[Tensor, Tensor]:
        """Append new rows on both sides and compare what comes back with the list."""
        k, v = self.new(num_new)
        if fill is not None:
            k.fill_(fill), v.fill_(fill)
        got = self.cache.update(k, v)
        self.append(k, v)
        self.compare(got, num_new)
        return got

    def append(self, k: Tensor, v: Tensor) -> None:
        """Note copies of rows that the cache was given."""
        copies = (x.detach().clone().unbind(2) for x in (k, v))
        self.largest = max(self.largest, *(x.detach().nan_to_num().abs().max().item() for x in (k, v)))
        self.undo = len(self.rows)
        self.rows += zip(*copies, strict=True)
        self.longest = max(self.longest, len(self.rows))

    def crop(self, length: int) -> None:
        """Keep the first rows on both sides."""
        self.cache.crop(length)
        del self.rows[length:]
        self.undo = min(self.undo, length)
        self.crops += 1
        self.check_length()

    def reset(self) -> None:
        """Forget everything on both sides."""
        self.cache.reset()
        self.rows.clear()
        self.undo = self.longest = 0
        self.check_length()

    def fork(self) -> Shadow:
        """Fork the cache, copy the list."""
        other = Shadow(self.kind, shape=self.shape, dtype=self.dtype)
        other.cache, other.rows = self.cache.fork(), list(self.rows)
        other.largest, other.crops = self.largest, self.crops
        other.undo, other.longest = self.undo, self.longest
        other.generator.manual_seed(len(self.rows) + 1)
        other.check_length()
        return other

    def do(self, step: tuple[str, float]) -> None:
        """Take one drawn step: ("update", tokens), ("crop", share kept) or ("reset", 0)."""
        name, number = step
        if name == "update":
            self.update(int(number))
        elif name == "crop":
            lengths = self.lengths()
            self.crop(lengths[int(number * (len(lengths) - 1))])
        else:
            self.reset()

    def lengths(self) -> list[int]:
        """List the lengths the cache can surely be cropped to: all, until a window has let rows go."""
        if self.kind.window is not None and self.longest > self.kind.sinks + self.kind.window:
            return sorted({*self.kind.crops(len(self.rows)), self.undo})
        return list(range(len(self.rows) + 1))

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return the list as k and v (B, KV, T, D)."""
        return tuple(torch.stack(side, dim=2) for side in zip(*self.rows, strict=True))

    def compare(self, got: tuple[Tensor, Tensor], num_new: int) -> None:
        """Assert that `update` returned what the list holds, and that the lengths agree."""
        self.check_length()
        for name, rows, want in zip("kv", got, self.tensors(), strict=True):
            if self.kind.window is not None:
                old, sinks = want.shape[2] - num_new, self.kind.sinks
                start = max(min(sinks, old), old - (self.kind.window - 1))
                want = torch.cat([want[:, :, : min(sinks, old)], want[:, :, start:]], dim=2)
            assert rows.shape == want.shape, (
                f"{name} has shape {tuple(rows.shape)}, the list {tuple(want.shape)}"
            )
            assert rows.dtype == want.dtype, f"{name} came back as {rows.dtype}"
            bound = self.kind.row_bound * self.largest * (1 + self.crops)
            same = torch.allclose(rows, want, rtol=0, atol=bound, equal_nan=True)
            assert same, f"{name} differs from the rows that were appended"

    def check_length(self) -> None:
        """Assert that the cache counts as many tokens as the list."""
        got = self.cache.seq_len
        assert got == len(self.rows), f"seq_len is {got}, {len(self.rows)} tokens were kept"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.integers(1, 3)),
        st.tuples(st.just("crop"), st.floats(0, 1)),
        st.just(("reset", 0)),
    ),
    max_size=5,
)

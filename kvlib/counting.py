"""Count the work a model really does, by watching its layers rather than by a formula."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvlib.model import Model


@dataclass
class Work:
    """Hold the counts of one layer; every layer of the model does the same.

    `kv_projections` counts positions whose key and value were computed, summed over sequences:
    evaluations, not matrix-multiply launches. `passes` counts the launches.
    """

    kv_projections: int = 0
    passes: int = 0


@contextmanager
def count_work(model: Model) -> Iterator[Work]:
    """Count, inside the `with` block, the key/value projections of the model's first layer."""
    work = Work()

    def watch(module, inputs, output) -> None:
        batch_size, num_new, _ = inputs[0].shape  # what the projection was really given
        work.kv_projections += batch_size * num_new
        work.passes += 1

    handle = model.layers[0].attention.qkv.register_forward_hook(watch)
    try:
        yield work
    finally:
        handle.remove()

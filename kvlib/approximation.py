"""What a smaller cache saves and costs on a real text: `python -m kvlib.approximation`.

Each cache reads the same text. Its bytes are those of the storages it really holds, its errors those
of the rows it gives back against the rows it was given, its perplexity that of the model reading from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvlib.caches import Cache, KVCache, QuantizedKVCache
from kvlib.devices import best_device, device_name
from kvlib.model import Model
from kvlib.perplexity import Perplexity, perplexity, sample_text
from kvlib.weights import load_smollm2

CACHES: dict[str, Callable[[], Cache]] = {
    "full": KVCache,
    "int8": lambda: QuantizedKVCache(8),
    "int4": lambda: QuantizedKVCache(4),
    "int4, keys per token": lambda: QuantizedKVCache(4, key_axis="token"),
}


@dataclass(frozen=True, eq=False)
class Approximation:
    """One cache on one text: bytes claimed and found, and how far off keys and values were.

    `claimed_bytes` is what the caches say, `held_bytes` what their tensors take. Errors are of all layers
    together: the largest of any number, and the root mean square as a share of that of the rows.
    """

    perplexity: Perplexity
    claimed_bytes: int
    held_bytes: int
    key_error: float
    value_error: float
    key_error_share: float
    value_error_share: float


class Beside(KVCache):
    """A cache, and next to it the rows it was given; attention reads the cache's."""

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self.cache = cache

    def update(self, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        """Append to both; return what the cache returns."""
        got = self.cache.update(k_new, v_new)
        super().update(k_new, v_new)
        return got

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return (given back, given) for keys and for values, each (B, KV, T, D)."""
        given = self._kv
        back = self.cache.fork().update(*(x[:, :, :1] for x in given))
        if back[0].shape[2] != given[0].shape[2] + 1:
            raise ValueError("this cache has let rows go; only one that keeps every row can be compared")
        return [(x[:, :, :-1], y) for x, y in zip(back, given)]


def storage_bytes(thing: object) -> int:
    """Count the bytes behind every tensor an object holds, in attributes, lists, tuples and dicts.

    Memory that several tensors share counts once, and memory that a slice keeps alive counts whole.
    """
    storages = [x.untyped_storage() for x in _tensors(thing, set())]
    return sum({x.data_ptr(): x.nbytes() for x in storages}.values())


def approximation(
    model: Model, tokens: Sequence[int], cache: Callable[[], Cache], *, chunk_size: int = 16
) -> Approximation:
    """Let `model` read a text with a cache that keeps every row; compare the rows with the true ones.

    Raises ValueError as `perplexity` does.
    """
    made: list[Beside] = []

    def beside():
        made.append(Beside(cache()))
        return made[-1]

    read = perplexity(model, tokens, cache=beside, chunk_size=chunk_size)
    errors = [_errors([one.pairs()[side] for one in made]) for side in (0, 1)]
    return Approximation(
        perplexity=read,
        claimed_bytes=sum(one.cache.nbytes for one in made),
        held_bytes=storage_bytes([one.cache for one in made]),
        key_error=errors[0][0],
        value_error=errors[1][0],
        key_error_share=errors[0][1],
        value_error_share=errors[1][1],
    )


def _errors(pairs: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return the largest error of all layers, and the root mean square error over that of the rows."""
    largest = max((x - y).abs().max().item() for x, y in pairs)
    squares = sum((x - y).float().square().sum().item() for x, y in pairs)
    return largest, (squares / sum(y.float().square().sum().item() for _, y in pairs)) ** 0.5


def _tensors(thing: object, seen: set[int]) -> list[Tensor]:
    if isinstance(thing, Tensor):
        return [thing]
    if id(thing) in seen or isinstance(thing, (str, bytes, type)):
        return []
    seen.add(id(thing))
    if isinstance(thing, dict):
        parts = thing.values()
    elif isinstance(thing, (list, tuple, set)):
        parts = thing
    else:
        parts = getattr(thing, "__dict__", {}).values()
    return [tensor for part in parts for tensor in _tensors(part, seen)]


def main(arguments: list[str] | None = None) -> None:
    """Print the table for SmolLM2 and the course's text."""
    parser = argparse.ArgumentParser(prog="python -m kvlib.approximation", description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024, help="how much of the text to read (1024)")
    parser.add_argument("--chunk", type=int, default=16, help="tokens fed at a time; 1 is decode (16)")
    given = parser.parse_args(arguments)
    device = best_device()
    model, tokenizer = load_smollm2()
    model = model.to(device)
    tokens = tokenizer.encode(sample_text())[: given.tokens]
    numbers = 2 * model.config.num_layers * model.config.num_kv_heads * model.config.head_dim
    print(
        f"SmolLM2-135M, {model.dtype}, on {device_name(device)}: "
        f"{len(tokens)} tokens, {given.chunk} at a time"
    )
    print(
        f"{'cache':22}{'claimed':>12}{'held':>12}{'bits a number':>15}{'smaller':>9}{'perplexity':>12}"
        f"{'key error':>17}{'value error':>17}"
    )
    full = None
    for name, cache in CACHES.items():
        got = approximation(model, tokens, cache, chunk_size=given.chunk)
        full = full or got
        bits = 8 * got.held_bytes / (numbers * got.perplexity.cached_tokens)
        errors = (got.key_error, got.key_error_share), (got.value_error, got.value_error_share)
        print(
            f"{name:22}{got.claimed_bytes:12,}{got.held_bytes:12,}{bits:15.2f}"
            f"{full.held_bytes / got.held_bytes:8.2f}x{got.perplexity.value:12.4f}"
            + "".join(f"{largest:10.3f}{share:7.2%}" for largest, share in errors),
            flush=True,
        )
    print("errors: the largest of any number, and the root mean square as a share of that of the rows")


if __name__ == "__main__":
    main()

"""How well a model predicts a text when it reads its keys and values from a cache.

An exact cache changes nothing here but rounding. An approximate one does, and perplexity says by how
much on a real text: exp of the mean negative log-likelihood (nll) of each token given those before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kvlib.caches import StaticKVCache
from kvlib.caches.contract import positions_needed
from kvlib.checks import check_whole
from kvlib.model import Model


@dataclass(frozen=True, eq=False)
class Perplexity:
    """How well a text of `len(nll)` + 1 tokens was predicted, and what its cache held.

    `nll[i]` is -log p(token i + 1 | tokens 0 .. i) in nats, on the CPU; `cache_bytes` the bytes all layers
    hold at the end, for `cached_tokens` tokens, 0 without a cache.
    """

    nll: Tensor
    cache_bytes: int
    cached_tokens: int

    @property
    def value(self) -> float:
        """The perplexity: exp(mean nll), the number of equally likely tokens it amounts to."""
        return self.nll.double().mean().exp().item()


def sample_text() -> str:
    """Return the text that comes with the course: topics of Python's documentation, about 7,000 tokens."""
    path = Path(__file__).resolve().parents[1] / "assets" / "perplexity_text.txt"
    return path.read_text("utf-8")


@torch.no_grad()
def perplexity(
    model: Model,
    tokens: Sequence[int] | Tensor | np.ndarray,
    *,
    cache: Callable[[], object] | None = StaticKVCache,
    chunk_size: int = 32,
) -> Perplexity:
    """Predict each token of one text from those before it, fed `chunk_size` tokens at a time.

    `cache` is a class or factory called once for each layer, or None for one pass without a cache. An
    approximate cache gives the rows of the chunk itself back exactly, so a large chunk flatters it:
    `chunk_size` 1 is what decode sees. Logits are never held for more than a chunk. Raises
    ValueError, before anything is computed, for a text that is too short, too long or no list of tokens.
    """
    check_whole("chunk_size", chunk_size)
    text = _checked_text(model, tokens)  # (1, T)
    read, targets = text[:, :-1], text[0, 1:]  # the last token is predicted, never read
    caches = _checked_caches(model, cache, read.shape[1])
    if caches is None:
        rows = _without_cache(model, read)
        parts = (model._head(x) for x in rows.split(chunk_size, dim=1))
    else:
        parts = (model(chunk, caches) for chunk in read.split(chunk_size, dim=1))
    nll = [_nll(logits[0], wanted) for logits, wanted in zip(parts, targets.split(chunk_size))]
    return Perplexity(
        nll=torch.cat(nll).cpu(),
        cache_bytes=sum(cache.nbytes for cache in caches or ()),
        cached_tokens=caches[0].seq_len if caches else 0,
    )


def _nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -log softmax(logits)[target] for logits (t, V), in float32 or better -> (t,)."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), targets, reduction="none")


def _without_cache(model: Model, read: Tensor) -> Tensor:
    """Run the whole text in one pass and return what the head would get, (1, T, C), without its logits."""
    kept = []

    def keep(module, args, rows):
        kept.append(rows)
        return rows[:, -1:]  # the head then has one row to do

    handle = model.norm.register_forward_hook(keep)
    try:
        model(read)
    finally:
        handle.remove()
    return kept[0]


def _checked_text(model: Model, tokens) -> Tensor:
    """Return the tokens as int64 (1, T) on the model's device, or raise ValueError."""
    if isinstance(tokens, (Tensor, np.ndarray)):
        tokens = tokens[0] if tokens.ndim == 2 and len(tokens) == 1 else tokens
        if tokens.ndim != 1 or not _whole(tokens.dtype):
            raise ValueError(
                f"tokens are whole numbers in one dimension, one text; not {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}"
            )
        tokens = tokens.tolist()
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Sequence):
        raise ValueError("tokens is a list of token ids; encode the text first")
    if len(tokens) < 2:
        raise ValueError(f"a text of {len(tokens)} tokens predicts nothing; give at least two")
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int):
            raise ValueError(f"token {token!r} is not a whole number; give one flat list of ids")
        if not 0 <= token < model.config.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {model.config.vocab_size}")
    return torch.tensor([list(tokens)], device=model.device)


def _whole(dtype: torch.dtype | np.dtype) -> bool:
    """Say whether a dtype is one of whole numbers, which bool is not."""
    if isinstance(dtype, np.dtype):
        return dtype.kind in "iu"
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _checked_caches(model: Model, cache, length: int) -> list | None:
    """Return new caches with room for `length` tokens, or None, or raise ValueError."""
    if cache is StaticKVCache:
        caches = model.make_caches(lambda: StaticKVCache(max_seq_len=length))
    elif cache is None or callable(cache):
        caches = None if cache is None else model.make_caches(cache)
    else:
        raise ValueError(f"cache is a class such as KVCache, a factory, or None, not {cache!r}")
    for one in caches or ():
        if not hasattr(one, "update") or not hasattr(one, "nbytes"):
            raise ValueError(f"cache() made {one!r}, which is no cache")
        if one.seq_len:
            raise ValueError(f"cache() made a cache that holds {one.seq_len} tokens; it must be new")
    needed = positions_needed(caches, length)
    rooms = [one.max_seq_len for one in caches or () if hasattr(one, "max_seq_len")]
    if needed > model.config.max_seq_len or length > min(rooms, default=length):
        room = min([*rooms, model.config.max_seq_len])
        raise ValueError(f"{length} tokens are read and there is room for {room}; take a shorter text")
    return caches

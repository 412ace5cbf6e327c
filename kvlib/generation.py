"""From a prompt to new tokens: prefill, then decode one token at a time.

Knows tokens, never text. After a prompt of p tokens and n generated ones a cache holds
p + n - 1 rows: the last token has been chosen but not processed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlib.caches import StaticKVCache
from kvlib.caches.contract import positions_needed
from kvlib.caches.rollback import unchanged_on_failure
from kvlib.checks import check_number, token_ids, whole
from kvlib.decoding import decoder, why_not
from kvlib.model import Model


@dataclass(frozen=True)
class Step:
    """One new token: its id, the seconds it took, and the rows each layer's cache holds after it."""

    token: int
    seconds: float
    cached_tokens: int


@torch.no_grad()
def prefill(
    model: Model,
    tokens: Tensor,
    caches: Sequence,
    *,
    chunk_size: int | None = None,
    left_padding: Sequence[int] | None = None,
) -> Tensor:
    """Fill the caches with a prompt, whole or in chunks; return the logits after its last token.

    Shapes: `tokens` (B, t) int64 -> (B, V). Chunks bound the memory of a long prompt and
    change nothing else. Whatever fails, also an interrupt, leaves the caches as long as they were.
    """
    if chunk_size is not None:
        chunk_size = whole("chunk_size", chunk_size)
    if not isinstance(tokens, Tensor) or tokens.dim() != 2:
        raise ValueError("tokens must be an int64 tensor of shape (batch, new tokens)")
    if caches is None:
        raise ValueError("prefill fills caches; give one for each layer, as Model.make_caches returns them")
    length = tokens.shape[1]
    if length == 0:
        raise ValueError("the prompt is empty; give at least one token")
    chunks = tokens.split(min(chunk_size or length, length), dim=1)
    # Half a prompt is of no use, and a second try would append it again.
    with unchanged_on_failure(caches):
        for chunk in chunks:
            logits = model(chunk, caches, left_padding=left_padding, last_only=True)
    return logits[:, -1]


def generate(
    model: Model,
    prompt_ids: Sequence[int] | Sequence[Sequence[int]] | Tensor,
    max_new_tokens: int,
    *,
    cache: Callable[[], object] | Sequence | None = StaticKVCache,
    temperature: float = 0.0,
    seed: int | None = None,
    stop_ids: Sequence[int] = (),
    chunk_size: int | None = None,
    decode: str = "eager",
) -> list[int] | list[list[int]]:
    """Generate up to `max_new_tokens` tokens; return the new ones only.

    `prompt_ids` is one prompt, or a list of prompts of any lengths, run as one left-padded
    batch and answered by a list of lists. `cache` is a class (or any factory) called once for
    each layer, or a list of caches that already hold the start of the text, or None to
    recompute the whole text for every token. `temperature` 0 takes the most likely token; above 0
    it samples softmax(logits / temperature) with `seed`. A stop token ends its sequence and is
    kept. `decode` is how a step runs, one of `kvlib.decoding.WAYS`; an unavailable one falls back to
    "eager" with a warning that says why. Raises ValueError for an empty prompt, a token outside the
    vocabulary, or a text longer than the model or the cache can hold, before anything is computed; and
    for logits that are NaN or infinite, with the caches as they were before that step.
    """
    prompts, single = _checked_prompts(model, prompt_ids)
    stop_ids = set(token_ids("stop_ids", stop_ids))
    tokens = [[] for _ in prompts]
    running = set(range(len(prompts)))
    steps = _steps(
        model, prompts, max_new_tokens, cache, temperature, seed, chunk_size, decode
    )
    for new, _, _ in steps:
        for i in sorted(running):
            tokens[i].append(new[i])
            if new[i] in stop_ids:
                running.remove(i)
        if not running:
            break
    return tokens[0] if single else tokens


def stream(
    model: Model,
    prompt_ids: Sequence[int] | Tensor,
    max_new_tokens: int,
    *,
    cache: Callable[[], object] | Sequence | None = StaticKVCache,
    temperature: float = 0.0,
    seed: int | None = None,
    stop_ids: Sequence[int] = (),
    chunk_size: int | None = None,
    decode: str = "eager",
) -> Iterator[Step]:
    """Yield each new token of one prompt as it is made, with the time it took.

    Arguments as for `generate`. The first step's seconds are the time to first token (TTFT), the
    later ones inter-token latencies (ITL).
    """
    prompts, single = _checked_prompts(model, prompt_ids)
    if not single:
        raise ValueError("stream takes one prompt, a flat list of token ids; generate takes batches")
    stop_ids = set(token_ids("stop_ids", stop_ids))
    steps = _steps(
        model, prompts, max_new_tokens, cache, temperature, seed, chunk_size, decode
    )
    return _until_stop(steps, stop_ids)


def _until_stop(steps: Iterator, stop_ids: set[int]) -> Iterator[Step]:
    for (token,), seconds, cached_tokens in steps:
        yield Step(token, seconds, cached_tokens)
        if token in stop_ids:
            return


def _steps(
    model, prompts, max_new_tokens, cache, temperature, seed, chunk_size, decode
) -> Iterator:
    """Check everything now; return an iterator of (token of each sequence, seconds, rows cached)."""
    max_new_tokens = whole("max_new_tokens", max_new_tokens)
    check_number("temperature", temperature, or_zero=True)
    if chunk_size is not None:
        chunk_size = whole("chunk_size", chunk_size)
    if seed is not None:
        seed = whole("seed", seed, -(2**63))
        if seed >= 2**64:
            raise ValueError(f"seed must be below 2^64, not {seed!r:.60}")
    why_not(model, decode)  # a way that does not exist is refused before anything is computed
    longest = max(len(prompt) for prompt in prompts)
    caches = _make_caches(model, cache, longest + max_new_tokens - 1)
    held = caches[0].seq_len if caches else 0
    if isinstance(cache, Sequence) and len({len(prompt) for prompt in prompts}) > 1:
        raise ValueError(
            "a batch of unequal lengths needs caches of its own: padding in front of a prompt would "
            "be taken for text by whoever used these caches next. Give a class, such as KVCache"
        )
    rows = held + longest + max_new_tokens - 1
    rooms = [c.max_seq_len for c in caches or () if hasattr(c, "max_seq_len")]
    if positions_needed(caches, rows) > model.config.max_seq_len:
        rooms.append(model.config.max_seq_len)
    room = min(rooms, default=rows)
    if rows > room:
        raise ValueError(
            f"{held + longest} tokens and {max_new_tokens} new ones need {rows} positions; there "
            f"are {room}. Shorten the prompt, ask for fewer tokens, or take a longer cache"
        )
    padding = [longest - len(prompt) for prompt in prompts]
    padded = [[prompt[0]] * pad + list(prompt) for pad, prompt in zip(padding, prompts)]
    tokens = torch.tensor(padded, device=model.device)  # (B, p)
    generator = torch.Generator().manual_seed(seed) if seed is not None else None
    return _run(
        model, tokens, max_new_tokens, caches, padding, temperature, generator, chunk_size, decode
    )


def _run(
    model, tokens, max_new_tokens, caches, padding, temperature, generator, chunk_size, decode
):
    """Prefill, then decode; without caches, run the whole text again for every token."""
    padding = padding if any(padding) else None
    new, step = tokens, None
    for _ in range(max_new_tokens):
        began = time.perf_counter()
        # no_grad, not inference_mode: a cache must stay writable after it
        with torch.no_grad(), unchanged_on_failure(caches):
            if caches is None:
                if new is tokens and decode != "eager":
                    warnings.warn(f'Without a cache nothing can be decoded "{decode}".', stacklevel=3)
                logits = model(tokens, left_padding=padding, last_only=True)[:, -1]
            elif new is tokens:
                logits = prefill(
                    model, tokens, caches, chunk_size=chunk_size, left_padding=padding
                )
            else:
                first = step is None
                step = step or decoder(model, caches, decode, left_padding=padding)
                logits = step(new)
                if first and step.reason is not None:
                    warnings.warn(f'{step.reason} Decoding is "eager" instead.', stacklevel=3)
            new = choose(logits, temperature, generator)  # (B, 1)
            if caches is None:
                tokens = torch.cat([tokens, new], dim=1)
        chosen = new[:, 0].tolist()  # waits for the device, so the time is whole
        seconds = time.perf_counter() - began
        yield chosen, seconds, getattr(caches[0], "stored_len", caches[0].seq_len) if caches else 0


def choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Pick the next token of each sequence: argmax at temperature 0, else a sample.

    Shapes: `logits` (B, V) -> (B, 1) int64. Sampling runs on the CPU, so that a seed means the
    same on every device.
    """
    if not logits.amax(dim=-1).isfinite().all():  # NaN, +inf, or nothing but -inf
        raise ValueError(
            "the logits are NaN or infinite: the weights or the cache are broken, or float16 overflows "
            "(float32 does not)"
        )
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    logits_on_cpu = logits.double().cpu()
    behind = logits_on_cpu - logits_on_cpu.max(dim=-1, keepdim=True).values  # 0 / tiny stays 0
    scaled = behind / temperature
    return torch.multinomial(scaled.softmax(dim=-1), 1, generator=generator).to(logits.device)


def _make_caches(model: Model, cache, length: int) -> list | None:
    if cache is None:
        return None
    if cache is StaticKVCache:
        return model.make_caches(lambda: StaticKVCache(max_seq_len=length))
    if callable(cache):
        return _all_caches(model.make_caches(cache))
    if isinstance(cache, (str, bytes)) or not isinstance(cache, Sequence):
        raise ValueError(
            f"cache is a class such as KVCache, or a list of caches, one for each layer, not "
            f"{'one' if hasattr(cache, 'update') else 'a'} {type(cache).__name__}"
        )
    caches = list(cache)
    if len(caches) != model.config.num_layers:
        raise ValueError(f"{len(caches)} caches for {model.config.num_layers} layers")
    return _all_caches(caches)


def _all_caches(caches: list) -> list:
    for cache in caches:
        if isinstance(cache, type) or not (hasattr(cache, "update") and hasattr(cache, "seq_len")):
            name = getattr(cache, "__name__", f"a {type(cache).__name__}")
            raise ValueError(f"{name} is no cache: one has update and seq_len")
    return caches


def _checked_prompts(model: Model, prompt_ids) -> tuple[list[list[int]], bool]:
    """Return the prompts as lists of ints, and whether there was one; raise ValueError."""
    prompt_ids = prompt_ids.tolist() if hasattr(prompt_ids, "tolist") else prompt_ids
    if isinstance(prompt_ids, (str, bytes)) or not isinstance(prompt_ids, Sequence):
        raise ValueError("prompt_ids is a list of token ids; encode the text first")
    prompt_ids = [p.tolist() if hasattr(p, "tolist") else p for p in prompt_ids]
    single = not (prompt_ids and isinstance(prompt_ids[0], Sequence))
    prompts = [token_ids("a prompt", p) for p in ([prompt_ids] if single else prompt_ids)]
    if not all(prompts):
        raise ValueError("a prompt is empty; give at least one token")
    largest = max(map(max, prompts))
    if largest >= model.config.vocab_size:
        raise ValueError(f"token {largest} is outside the vocabulary of {model.config.vocab_size}")
    return prompts, single

"""What a cache holds after each step of a text, as plain arrays: no widgets, nothing drawn.

A step is one pass of the model: a part of the prompt (all of it, or a chunk), then one token at a
time. Step 0 is the empty cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from kvlib.lab.checks import shown, whole_between


@dataclass(frozen=True)
class Frame:
    """Hold one step of one layer; rows start .. end - 1 are new, those before are in the cache.

    q, k, v, output are (T, D) and weights (T, T), causal, of the whole text: what of it exists at
    this step is said by start and end.
    """

    step: int
    layer: int
    start: int
    end: int
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    weights: np.ndarray
    output: np.ndarray


class Filling:
    """Hold a text's words and q, k, v of each layer, and cut them into steps.

    `q`, `k`, `v` are (T, D), or (L, T, D) for L layers, of one head. `prefill` is the length of
    the prompt, or the lengths of its chunks. Raises ValueError for what does not fit together.
    """

    def __init__(self, words: Sequence[str], q, k, v, prefill: int | Sequence[int] = 1):
        if not isinstance(words, Iterable):
            raise ValueError(f"words must be a list of texts, and {shown(words)} is none.")
        self.words = [str(word) for word in words]
        try:
            arrays = [np.asarray(x, dtype=np.float64) for x in (q, k, v)]
        except (TypeError, ValueError) as error:
            raise ValueError(f"q, k, v must be arrays of numbers: {error}") from None
        arrays = [x[None] if x.ndim == 2 else x for x in arrays]
        shapes = {x.shape for x in arrays}
        if len(shapes) != 1 or arrays[0].ndim != 3 or 0 in arrays[0].shape:
            given = ", ".join(str(np.shape(x)) for x in (q, k, v))
            raise ValueError(f"q, k, v must share one shape (T, D) or (layers, T, D), not {given}.")
        self.q, self.k, self.v = arrays
        self.num_layers, self.num_tokens, self.head_dim = self.q.shape
        if len(self.words) != self.num_tokens:
            raise ValueError(f"{len(self.words)} words for {self.num_tokens} rows: give one each.")
        chunks = list(prefill) if isinstance(prefill, (Sequence, np.ndarray)) else [prefill]
        whole = all(isinstance(n, Integral) and not isinstance(n, bool) and n >= 1 for n in chunks)
        if not chunks or not whole or sum(chunks) > self.num_tokens:
            raise ValueError(
                f"prefill {shown(prefill)} must be at least 1 and at most the {self.num_tokens} tokens."
            )
        self.prompt_passes = len(chunks)
        sizes = chunks + [1] * (self.num_tokens - sum(chunks))
        self.ends = [0, *np.cumsum(sizes).tolist()]

    @property
    def last_step(self) -> int:
        """Return the number of the last step."""
        return len(self.ends) - 1

    def frame(self, step: int, layer: int = 0) -> Frame:
        """Return a step of a layer. Raises ValueError for one that does not exist."""
        step = whole_between("step", step, 0, self.last_step)
        layer = whole_between("layer", layer, 0, self.num_layers - 1)
        q, k, v = self.q[layer], self.k[layer], self.v[layer]
        weights = causal_weights(q, k)
        end = self.ends[step]
        start = self.ends[step - 1] if step else 0
        return Frame(step, layer, start, end, q, k, v, weights, weights @ v)

    def sentence(self, frame: Frame) -> str:
        """Say in words what a step does."""
        new, held = frame.end - frame.start, frame.end
        place = f" in each of the {self.num_layers} layers" if self.num_layers > 1 else ""
        if frame.step == 0:
            first = self.ends[1]
            return f"Step 0: the cache is empty{place}. The next pass runs {_count(first, 'token')}."
        kind = "decode" if frame.step > self.prompt_passes else "prefill"
        if kind == "prefill" and self.prompt_passes > 1:
            kind = f"prefill, chunk {frame.step} of {self.prompt_passes}"
        opening = f"Step {frame.step}, {kind}: {_count(new, 'token')} in one pass"
        if new == 1:
            opening = f"Step {frame.step}, {kind}: “{self.words[held - 1].strip()}” at position {held - 1}"
        row = frame.weights[held - 1, :held]
        most = int(row.argmax())
        if held == 1:
            focus = "It can attend only to itself."
        else:
            layer = f"In layer {frame.layer}, " if self.num_layers > 1 else ""
            other = f"“{self.words[most].strip()}” at position {most}"
            focus = (
                f"{layer}“{self.words[held - 1].strip()}” puts the most weight, {row[most]:.0%}, on "
                f"{'itself' if most == held - 1 else other}."
            )
        return (
            f"{opening}. {_count(new, 'new row')} of K and of V{place}, {held} in all. "
            f"{_count(new, 'query makes', 'queries make')} {_count(new, 'row')} of scores, "
            f"{f'over {held} keys, its own included' if new == 1 else 'each up to its own token'}. "
            f"{focus}"
        )


def causal_weights(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return softmax(q k^T / sqrt(D)) under a causal mask: (T, D), (T, D) -> (T, T)."""
    scores = q @ k.T / np.sqrt(q.shape[-1])
    scores[np.triu_indices(len(scores), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"

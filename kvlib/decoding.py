"""Ways to run a decode step; one function chooses and says why.

- "eager": the model as it is, PyTorch operation by operation. Works everywhere, with every cache.
- "compiled": `torch.compile` turns each layer into a few fused loops.
- "native": one C function runs the whole step (a CPU, float32, one sequence).
- "graphed": a CUDA graph, recorded once, plays all of a step's kernels in one launch.

All but the first write at fixed addresses, which only a `StaticKVCache` has. An unavailable
way says why in a sentence and falls back to "eager".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kvlib import native
from kvlib.caches import StaticKVCache
from kvlib.caches.rollback import unchanged_on_failure
from kvlib.fixed_step import FixedShapeStep, LayerWeights, layer_step
from kvlib.model import Model
from kvlib.native.step import NativeStep, misfit

WAYS = "eager", "compiled", "native", "graphed"
VECTOR_BITS = {"AVX512": 512, "AVX2": 256}  # by the name of what the processor can do
SHORTEST_GRAPH = 256  # keys; a graph is recorded for each power of two from here on


def why_not(model: Model, how: str, caches: Sequence | None = None, batch_size: int = 1) -> str | None:
    """Return why a way of decoding is unavailable, in one sentence, or None if nothing is known against it.

    `caches`, where given, are asked too. Raises ValueError for a way that does not exist.
    """
    if how not in WAYS:
        raise ValueError(f"decode is one of {', '.join(map(repr, WAYS))}, not {how!r}")
    if how == "eager":
        return None
    if any(layer.attention.attend is not None for layer in model.layers):
        return "Another attention is plugged into the model, and only the eager step calls it."
    if caches is not None:
        if reason := _no_addresses(model, caches):
            return reason
        batch_size = caches[0].buffers[0].shape[0]
    if how == "native":
        return misfit(model, batch_size) or native.why_not()
    if how == "graphed" and model.device.type != "cuda":
        return f"CUDA graphs need a CUDA device, and the model is on {model.device}."
    return None


def _no_addresses(model: Model, caches: Sequence) -> str | None:
    """Return why a step cannot write straight into these caches, or None if it can."""
    if not all(type(cache) is StaticKVCache for cache in caches):
        return "Only a StaticKVCache has the fixed addresses that this way of decoding writes to."
    if any(cache.buffers is None for cache in caches):
        return "The caches hold no prompt yet, so their buffers have no address."
    config, buffers = model.config, [x for cache in caches for x in cache.buffers]
    for x in buffers:
        rows = buffers[0].shape[0], config.num_kv_heads, x.shape[2], config.head_dim
        if x.shape != rows or x.dtype != model.dtype or x.device != model.device:
            return (
                f"A buffer of {tuple(x.shape)} in {x.dtype} on {x.device} is not one of this model, which "
                f"needs {rows} in {model.dtype} on {model.device}."
            )
        if x.stride()[2:] != (config.head_dim, 1):
            return "The rows of a buffer do not follow each other in memory."
    if len({x.data_ptr() for x in buffers}) < len(buffers):
        return "Two layers share one buffer."
    return None


def decoder(
    model: Model, caches: Sequence, how: str = "eager", *, left_padding: Sequence[int] | None = None
) -> Decoder:
    """Return a function of the next tokens (B, 1) that gives their logits (B, V) and fills the caches.

    `caches` already hold the prompt. The decoder's `how` says what runs and `reason`, where that is
    "eager" instead of what was asked for, why. Raises ValueError for a way that does not exist, and for
    anything but one cache a layer.
    """
    if not isinstance(caches, Sequence) or len(caches) != model.config.num_layers:
        raise ValueError(f"caches is a list of {model.config.num_layers} caches, one for each layer")
    reason = why_not(model, how, caches)
    if reason is None and how != "eager" and left_padding is not None and any(left_padding):
        reason = "Prompts of unequal lengths are masked, which only the eager step does."
    if how == "eager" or reason is not None:
        return Decoder(model, caches, left_padding, reason)
    return {"compiled": Compiled, "native": Native, "graphed": Graphed}[how](model, caches)


class Decoder:
    """Decode by the model itself; the base of the faster ways."""

    how = "eager"

    def __init__(self, model: Model, caches: Sequence, left_padding=None, reason: str | None = None):
        self.model, self.caches, self.left_padding, self.reason = model, caches, left_padding, reason

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """Run one new token of each sequence, (B, 1) int64, after those in the caches; return logits (B, V).

        Raises ValueError for tokens that do not fit; the caches are then as they were.
        """
        return self.model(tokens, self.caches, left_padding=self.left_padding)[:, -1]


class OnBuffers(Decoder):
    """Decode straight into the buffers of static caches, whose addresses are looked up once.

    What was looked up is checked before each step: other weights, buffers or another attention need a
    new decoder, and a ValueError says so.
    """

    def __init__(self, model: Model, caches: Sequence[StaticKVCache]) -> None:
        super().__init__(model, caches)
        self.buffers = [cache.buffers for cache in caches]
        self._weights = [
            (module._parameters, name, weight, weight.data_ptr())
            for module in model.modules()
            for name, weight in module._parameters.items()
        ]
        self._held = [weight.data for *_, weight, _ in self._weights]  # as long as addresses count

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """Check as the model does, run the step, and count the new row last."""
        position = self._checked(tokens)
        with unchanged_on_failure(self.caches):
            logits = self._run(tokens, position)
            for cache in self.caches:
                cache.advance(1)
        return logits

    def _run(self, tokens: Tensor, position: int) -> Tensor:
        raise NotImplementedError

    def _checked(self, tokens: Tensor) -> int:
        """Return the position of the new tokens, or raise ValueError."""
        position = self.model._checked_start(tokens, self.caches, None)
        if any(
            owner[name] is not weight or weight.data_ptr() != address
            for owner, name, weight, address in self._weights
        ):
            raise ValueError("the model's weights have moved since this decoder was made; make a new one")
        if any(layer.attention.attend is not None for layer in self.model.layers):
            raise ValueError(f'another attention was plugged into the model; "{self.how}" would not call it')
        if tokens.shape[1] != 1 or tokens.shape[0] != self.buffers[0][0].shape[0]:
            raise ValueError(
                f"tokens have shape {tuple(tokens.shape)}; a decode step takes "
                f"({self.buffers[0][0].shape[0]}, 1)"
            )
        for cache, (k, v) in zip(self.caches, self.buffers, strict=True):
            if cache.buffers is None or cache.buffers[0] is not k or cache.buffers[1] is not v:
                raise ValueError("a cache has other buffers than when this decoder was made; make a new one")
            if position >= cache.max_seq_len:
                raise ValueError(
                    f"{position + 1} tokens do not fit a cache of max_seq_len {cache.max_seq_len}"
                )
        return position

    def _turn(self, position: int) -> tuple[Tensor, Tensor]:
        return tuple(part[position : position + 1] for part in self.model._turns_to(position + 1))


class Compiled(OnBuffers):
    """Decode by layers that `torch.compile` has fused; the first step compiles one for all of them."""

    how = "compiled"

    def __init__(self, model: Model, caches: Sequence[StaticKVCache]) -> None:
        super().__init__(model, caches)
        self.weights = [LayerWeights.of(layer) for layer in model.layers]
        # Compiled code is kept on disk. Unless the width of a vector is named, a processor with shorter
        # ones gets what was written for longer ones, and its results are partly never written.
        bits = VECTOR_BITS.get(torch.backends.cpu.get_cpu_capability())
        self.layer = torch.compile(layer_step, fullgraph=True, options={"cpp.simdlen": bits})
        self.tried = False

    def _run(self, tokens: Tensor, position: int) -> Tensor:
        if self.how == "eager":
            return self._by_layer(layer_step, tokens, position)
        if self.tried:
            return self._by_layer(self.layer, tokens, position)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the compiler says to its developers
                logits = self._by_layer(self.layer, tokens, position)
        except Exception as error:
            self.how = "eager"
            self.reason = f"torch.compile failed here ({_first_line(error)})."
            return self._run(tokens, position)  # the same row is written again
        self.tried = True
        return logits

    def _by_layer(self, layer, tokens: Tensor, position: int) -> Tensor:
        turn, eps = self._turn(position), self.model.config.norm_eps
        x = F.embedding(tokens[:, 0], self.model.embedding)  # (B, C)
        for weights, buffers in zip(self.weights, self.buffers, strict=True):
            k, v = (x[:, :, : position + 1] for x in buffers)
            for view in (k, v):
                torch._dynamo.maybe_mark_dynamic(view, 2)  # one program for every length
            x = layer(x, weights, k, v, turn, eps)
        return self.model._logits(x)


class Native(OnBuffers):
    """Decode by the C function of `kvlib.native`."""

    how = "native"

    def __init__(self, model: Model, caches: Sequence[StaticKVCache]) -> None:
        super().__init__(model, caches)
        self.step = NativeStep(model, caches)

    def _run(self, tokens: Tensor, position: int) -> Tensor:
        return self.step(int(tokens), position, self._turn(position))


class Graphed(OnBuffers):
    """Decode by CUDA graphs, one for each power of two of keys, recorded when it is first needed."""

    how = "graphed"

    def __init__(self, model: Model, caches: Sequence[StaticKVCache]) -> None:
        super().__init__(model, caches)
        self.room = caches[0].max_seq_len
        self.step = FixedShapeStep(model, self.buffers, model._turns_to(self.room))
        self.graphs: dict[int, tuple] = {}  # keys -> (graph, the logits it writes)

    def _run(self, tokens: Tensor, position: int) -> Tensor:
        num_keys = keys_of_graph(position, self.room)
        self.step.set(tokens, position)
        if num_keys not in self.graphs:
            self.graphs[num_keys] = self._record(num_keys)
        graph, logits = self.graphs[num_keys]
        graph.replay()
        return logits.clone()

    def _record(self, num_keys: int) -> tuple:
        """Record the step; the warm-up runs write the same row that the replay writes."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step.run(num_keys)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self.step.run(num_keys)
        return graph, logits


def keys_of_graph(position: int, room: int) -> int:
    """Return how many slots the graph for a position reads: a power of two after it, within the buffer."""
    return min(room, max(SHORTEST_GRAPH, 1 << position.bit_length()))


def _first_line(error: Exception) -> str:
    """Return the first line of a message that says something: "backend='inductor' raised:" does not."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.endswith(":")]
    return lines[0].rstrip(".") if lines else type(error).__name__

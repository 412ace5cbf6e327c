"""Which query head reads which KV head, as plain numbers and sentences: no widgets, no figure."""

from __future__ import annotations

from dataclasses import dataclass

from kvlib.memory import MODELS, ModelPreset

MOST_HEADS = 71  # more squares in a row cannot be told apart
RIGHT, TILE = "h // G", "h % KV"


def sharing_presets() -> dict[str, ModelPreset]:
    """Return the presets whose heads fit into the picture, those with a window left out."""
    return {
        name: preset
        for name, preset in MODELS.items()
        if preset.kv_head_choices and preset.num_heads <= MOST_HEADS and preset.window is None
    }


def kind_of(num_heads: int, num_kv_heads: int) -> str:
    """Return MHA, GQA or MQA; one query head with its own KV head is MHA."""
    if num_kv_heads == num_heads:
        return "MHA"
    return "MQA" if num_kv_heads == 1 else "GQA"


@dataclass(frozen=True)
class Sharing:
    """What the panel shows: a shape, its KV heads, the selected query head, the order."""

    preset: ModelPreset
    num_kv_heads: int
    head: int
    order: str = RIGHT

    @property
    def num_heads(self) -> int:
        """Return how many query heads there are."""
        return self.preset.num_heads

    @property
    def group_size(self) -> int:
        """Return how many query heads share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kind(self) -> str:
        """Return MHA, GQA or MQA."""
        return kind_of(self.num_heads, self.num_kv_heads)

    def read_by(self, head: int) -> int:
        """Return the KV head that a query head reads, in the order that is selected."""
        return head // self.group_size if self.order == RIGHT else head % self.num_kv_heads

    @property
    def readers(self) -> list[int]:
        """Return all query heads that read the selected one's KV head."""
        own = self.read_by(self.head)
        return [h for h in range(self.num_heads) if self.read_by(h) == own]

    @property
    def misled(self) -> int:
        """Count the query heads that read another KV head than the right one."""
        return sum(self.read_by(h) != h // self.group_size for h in range(self.num_heads))

    @property
    def token_bytes(self) -> int:
        """Return the bytes one token takes in the cache, over all layers, at 16 bits."""
        return self.preset.with_kv_heads(self.num_kv_heads).bytes_per_token(2)

    @property
    def token_bytes_mha(self) -> int:
        """Return the same with a KV head for every query head."""
        return self.preset.with_kv_heads(self.num_heads).bytes_per_token(2)

    # Words --------------------------------------------------------------------------------------

    def title(self) -> str:
        """Return what the picture shows."""
        if self.order == TILE:
            if self.misled == 0:
                return f"{self.kind}: here h % KV equals h // G, so both orders are the same"
            return f"Tile order: {self.misled} of {self.num_heads} query heads read the wrong KV head"
        if self.kind == "MHA":
            return f"MHA: each of {_heads(self.num_heads, 'query')} reads a KV head of its own"
        if self.kind == "MQA":
            return f"MQA: all {self.num_heads} query heads read one KV head"
        return f"GQA: {self.num_heads} query heads read {self.num_kv_heads} KV heads, {self.group_size} each"

    def rule(self) -> str:
        """Return the arithmetic that finds the KV head of the selected query head."""
        own = self.read_by(self.head)
        if self.order == RIGHT:
            return f"h // G = {self.head} // {self.group_size} = {own}"
        return f"h % KV = {self.head} % {self.num_kv_heads} = {own}"

    def shapes(self) -> str:
        """Return the shapes of one decode step with the group folded into the query axis."""
        h, kv, g, d = self.num_heads, self.num_kv_heads, self.group_size, self.preset.head_dim
        return (
            f"q (1, {h}, 1, {d})  folded to  (1, {kv}, {g}, {d})   @   Kᵀ (1, {kv}, {d}, T)   =   "
            f"scores (1, {kv}, {g}, T)"
        )

    def cost(self) -> str:
        """Return the cache's bytes for a token, compared with MHA's."""
        if self.kind == "MHA":
            return f"{self.token_bytes:,} bytes of cache a token at 16 bits"
        return (
            f"{self.token_bytes:,} bytes of cache a token at 16 bits, "
            f"1/{self.group_size} of MHA's {self.token_bytes_mha:,}"
        )

    def sentence(self) -> str:
        """Return everything the picture shows in a few sentences."""
        name, own = self.preset.name, self.read_by(self.head)
        parts = [
            f"{name} with {_heads(self.num_kv_heads, 'KV')} ({self.kind}): query head {self.head} "
            f"reads KV head {own}, as {self.rule()}."
        ]
        others = [h for h in self.readers if h != self.head]
        if self.order == TILE and self.misled:
            right = self.head // self.group_size
            verdict = "it happens to give the right head" if own == right else f"the right KV head is {right}"
            parts.append(f"This is the wrong order: {verdict}.")
        elif others:
            verb = "reads" if len(others) == 1 else "read"
            parts.append(f"Query head{'s' * (len(others) > 1)} {_list(others)} {verb} it too.")
        parts.append(f"{self.cost()}.")
        if self.num_kv_heads != self.preset.num_kv_heads:
            parts.append(
                f"Arithmetic only: the trained model has {_heads(self.preset.num_kv_heads, 'KV')}."
            )
        return " ".join(parts)


def _heads(count: int, what: str) -> str:
    return f"{count} {what} head{'s' * (count != 1)}"


def _list(numbers: list[int]) -> str:
    """Write head numbers short: 3, 4 to 7."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    words = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(n) for n in run]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"

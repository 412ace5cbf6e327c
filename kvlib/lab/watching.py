"""Take the queries, keys and values of one head out of a model while it runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvlib.lab.checks import whole_between
from kvlib.model import Model, rotary_tables, rotate


def watch_attention(
    model: Model, tokens: Sequence[int], query_head: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k, v of a text in every layer, each (layers, T, D), rotated as attention uses them.

    One pass over all tokens: under a causal mask every row is the one that a step makes. k and v
    are of the KV head that `query_head` reads. Raises ValueError for a head that does not exist.
    """
    config = model.config
    query_head = whole_between("query_head", query_head, 0, config.num_heads - 1)
    kv_head = query_head // config.group_size
    heads = [query_head, config.num_heads + kv_head, config.num_heads + config.num_kv_heads + kv_head]
    turn = rotary_tables(config, len(tokens), model.device, model.dtype)
    rows = []

    def note(module, inputs, output) -> None:
        q, k, v = output[0].unflatten(-1, (-1, config.head_dim))[:, heads].unbind(1)  # each (T, D)
        rows.append(torch.stack([rotate(q, turn), rotate(k, turn), v]))

    hooks = [layer.attention.qkv.register_forward_hook(note) for layer in model.layers]
    try:
        model(torch.tensor([list(tokens)], device=model.device), last_only=True)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(torch.stack(rows, dim=1).double().cpu().numpy())  # (3, layers, T, D)

"""Rotary positions: queries and keys are rotated by position, so that a score depends on the distance.

Shapes, everywhere: x (..., t, D); a turn is (cos, sin), each (t, D) or broadcast to x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from kvlib.checks import check_number

if TYPE_CHECKING:
    from kvlib.model import ModelConfig

SCALING = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"


def check_scaling(scaling: dict) -> None:
    """Raise ValueError unless `scaling` holds the numbers of Llama 3.1's rotary scaling."""
    if not isinstance(scaling, dict) or scaling.get("rope_type", "llama3") != "llama3":
        raise ValueError(f"rope_scaling is a dict of llama3's numbers, not {scaling!r:.60}")
    for name in SCALING:
        if name not in scaling:
            raise ValueError(f"rope_scaling lacks {name}")
        check_number(name, scaling[name])
    if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise ValueError("rope_scaling needs a high_freq_factor above its low_freq_factor")


def rotary_tables(
    config: ModelConfig, length: int, device, dtype, *, exact: bool = False
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every position's angles, each (length, D).

    Pair i of D/2 turns by position * theta^(-2i/D); halves are paired, (x_i, x_{i+D/2}). Angles
    are float32, as trained models have them; `exact` ones are float64, so that two tokens at the
    same distance score the same wherever they stand. Source: Su et al. 2021 (RoFormer); Llama
    3.1's scaling slows the wavelengths that are long against the context it was first trained on.
    """
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device)
    frequency = 1.0 / config.rope_theta ** (exponent / config.head_dim)  # (D/2,)
    if config.rope_scaling is not None:
        frequency = _scaled(frequency, config.rope_scaling)
    if exact:
        frequency = frequency.cpu().double()  # not every device has float64
    position = torch.arange(length, dtype=frequency.dtype, device=frequency.device)
    angle = torch.outer(position, frequency).repeat(1, 2)  # (length, D)
    sin = angle.sin()
    sin[:, : config.head_dim // 2].neg_()  # the sign of (-x2, x1), kept in the table
    return angle.cos().to(device, dtype), sin.to(device, dtype)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs of x (..., t, D) by the angles in `turn`: x cos + (-x2, x1) sin."""
    cos, sin = turn
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


def attend_by_place(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    table: tuple[Tensor, Tensor],
    sinks: int,
    window: int,
    attend: Callable[..., Tensor],
) -> Tensor:
    """Rotate queries and keys by their position in a window's cache, then attend.

    Shapes: q (B, H, t, D) and k, v (B, KV, T, D), from before RoPE; `table`, exact, holds T places
    or more.
    Key c stands at place c and the queries at the last t places, so that keys in the window are
    at their true distance. Query i sees sink j at min(true distance, sinks + window - 1 - j), the
    same whether it comes alone or in a chunk. Source: Xiao et al. 2023 (StreamingLLM).
    """
    num_new, num_keys, head_dim = q.shape[2], k.shape[2], q.shape[3]
    cos, sin = table
    k = rotate(k, (cos[:num_keys], sin[:num_keys]))
    near = rotate(q, (cos[num_keys - num_new : num_keys], sin[num_keys - num_new : num_keys]))
    if not sinks or num_keys <= sinks + window:  # no query stands further from a sink than it may
        return attend(near, k, v, mask)
    # The later queries of a chunk look at the sinks from a nearer place than at the window: they get
    # both turns side by side, and each key is 0 where the other turn would meet it. One softmax.
    place = torch.arange(num_keys - num_new, num_keys, device=q.device)
    place = place.clamp_max(sinks + window - 1)
    far = rotate(q, (cos[place], sin[place]))
    q = torch.cat([near, far], dim=3) * math.sqrt(2)  # attend divides by sqrt(2 D)
    is_sink = torch.arange(num_keys, device=k.device)[:, None] < sinks  # (T, 1)
    k = torch.cat([k.masked_fill(is_sink, 0), k.masked_fill(~is_sink, 0)], dim=3)
    return attend(q, k, F.pad(v, (0, head_dim)), mask)[..., :head_dim]


def _scaled(frequency: Tensor, scaling: dict) -> Tensor:
    """Apply Llama 3.1's rotary scaling, by wavelength."""
    factor, low, high, context = (scaling[name] for name in SCALING)
    turns = context * frequency / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)  # 0: slow the pair, 1: leave it
    return frequency * (blend + (1 - blend) / factor)

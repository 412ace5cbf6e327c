"""Latent attention beside transformers' DeepSeek-V3 attention, on the same small random weights."""

from __future__ import annotations

import pytest
import torch

from kvlib import LatentKVCache
from kvlib.latent_attention import LatentAttention, LatentShape

transformers = pytest.importorskip("transformers")
deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")

SHAPE = LatentShape(hidden_size=40, num_heads=4, nope_dim=6, rope_dim=8, value_dim=5, latent_dim=16)
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10}
TOKENS, BATCH = 11, 2


class ExactNorm(torch.nn.Module):
    """Their RMSNorm in the precision of its input; theirs goes through float32."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def their_attention(dtype, interleave: bool):
    """Return (attention, cos, sin) of transformers, every weight random."""
    config = deepseek.DeepseekV3Config(
        hidden_size=SHAPE.hidden_size, num_attention_heads=SHAPE.num_heads,
        num_key_value_heads=SHAPE.num_heads, kv_lora_rank=SHAPE.latent_dim, q_lora_rank=None,
        qk_nope_head_dim=SHAPE.nope_dim, qk_rope_head_dim=SHAPE.rope_dim,
        v_head_dim=SHAPE.value_dim, rope_interleave=interleave, attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0}, num_hidden_layers=1,
    )  # fmt: skip
    config._attn_implementation = "sdpa"  # their eager softmax is float32 in any model
    torch.manual_seed(5)
    attention = deepseek.DeepseekV3Attention(config, layer_idx=0).to(dtype).requires_grad_(False)
    attention.eval()
    for weight in attention.parameters():
        if weight.dim() == 1:
            weight.uniform_(0.5, 1.5)
        else:
            weight.normal_(std=1.5 * weight.shape[1] ** -0.5)
    attention.kv_a_layernorm = ExactNorm(attention.kv_a_layernorm)
    rotary = deepseek.DeepseekV3RotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1, 1, 1, dtype=dtype), torch.arange(TOKENS)[None])
    return attention, cos, sin


def ours_from(theirs, interleave: bool) -> LatentAttention:
    """Copy their weights; rotary rows in interleaved pairs are brought into halves."""
    shape, own = SHAPE, LatentAttention(SHAPE, dtype=theirs.o_proj.weight.dtype)
    halves = torch.arange(shape.rope_dim)
    if interleave:
        halves = halves.view(-1, 2).T.flatten()  # 0 2 4 .. 1 3 5 ..
    q = theirs.q_proj.weight.unflatten(0, (shape.num_heads, -1)).clone()
    q[:, shape.nope_dim :] = q[:, shape.nope_dim :][:, halves]
    down = theirs.kv_a_proj_with_mqa.weight.clone()
    down[shape.latent_dim :] = down[shape.latent_dim :][halves]
    up = theirs.kv_b_proj.weight.unflatten(0, (shape.num_heads, -1))
    own.query.copy_(q.flatten(0, 1))
    own.down.copy_(down)
    own.up_keys.copy_(up[:, : shape.nope_dim])
    own.up_values.copy_(up[:, shape.nope_dim :])
    own.out.copy_(theirs.o_proj.weight)
    own.norm.copy_(theirs.kv_a_layernorm.weight)
    own.norm_eps = theirs.kv_a_layernorm.eps
    return own


def our_turn(cos, sin):
    """Bring their tables (1, T, R) into this library's form: the sign stands in the table."""
    sign = torch.ones(SHAPE.rope_dim, dtype=sin.dtype)
    sign[: SHAPE.rope_dim // 2] = -1
    return cos[0], sin[0] * sign


def our_outputs(own, x, turn, cache, split, absorbed):
    outs, start = [], 0
    for size in split:
        now = slice(start, start + size)
        outs.append(own(x[:, now], tuple(t[now] for t in turn), cache, absorbed=absorbed))
        start += size
    return torch.cat(outs, dim=1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("interleave", [True, False], ids=["interleaved", "halves"])
@pytest.mark.parametrize("absorbed", [False, True], ids=["expanded", "absorbed"])
@pytest.mark.parametrize("split", [[TOKENS], [1] * TOKENS, [6, 1, 4]], ids=str)
def test_outputs_equal_theirs(dtype, interleave, absorbed, split):
    theirs, cos, sin = their_attention(dtype, interleave)
    x = torch.randn(BATCH, TOKENS, SHAPE.hidden_size, generator=torch.Generator().manual_seed(1))
    x = x.to(dtype)
    future = torch.full((TOKENS, TOKENS), float("-inf"), dtype=dtype).triu(1)
    want = theirs(x, (cos, sin), future[None, None])[0]
    own = ours_from(theirs, interleave)
    got = our_outputs(own, x, our_turn(cos, sin), LatentKVCache(), split, absorbed)
    assert ((got - want).abs().max() / want.abs().max()).item() <= TOLERANCE[dtype]


def test_the_cached_rows_equal_theirs():
    """What transformers keeps of a token is the same latent and the same rotary key."""
    dtype = torch.float64
    theirs, cos, sin = their_attention(dtype, interleave=True)
    own, past, cache = ours_from(theirs, True), transformers.DynamicCache(), LatentKVCache()
    x = torch.randn(BATCH, TOKENS, SHAPE.hidden_size, dtype=dtype)
    future = torch.full((TOKENS, TOKENS), float("-inf"), dtype=dtype).triu(1)
    theirs(x, (cos, sin), future[None, None], past)
    keys, values = cache.update(*own.rows(x, our_turn(cos, sin)))
    kept = past.layers[0].keys, past.layers[0].values
    assert torch.allclose(values, kept[0], rtol=0, atol=1e-10)
    assert torch.allclose(keys[..., SHAPE.latent_dim :], kept[1], rtol=0, atol=1e-10)
    assert cache.nbytes == sum(x.nbytes for x in kept)


@pytest.mark.parametrize("wrong", ["scale", "pairs", "norm"])
def test_a_wrong_reading_of_the_weights_is_noticed(wrong):
    theirs, cos, sin = their_attention(torch.float64, interleave=True)
    own = ours_from(theirs, interleave=wrong != "pairs")
    if wrong == "norm":
        own.norm_eps = 1e-2
    if wrong == "scale":
        own.query.mul_(1.01)
    x = torch.randn(BATCH, TOKENS, SHAPE.hidden_size, dtype=torch.float64)
    future = torch.full((TOKENS, TOKENS), float("-inf"), dtype=torch.float64).triu(1)
    want = theirs(x, (cos, sin), future[None, None])[0]
    got = own(x, our_turn(cos, sin), LatentKVCache())
    assert (got - want).abs().max() / want.abs().max() > 1e-4

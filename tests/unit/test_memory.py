"""The numbers of lesson 04, each asserted; and the formula held against a real allocation."""

import numpy as np
import pytest
import torch

from kvlib.memory import DEVICES, GB, MODELS, GiB, ModelPreset, kv_cache_bytes

BYTES_PER_TOKEN = {
    "Llama 2 7B": 524_288,
    "Llama 2 13B": 819_200,
    "Llama 2 70B": 327_680,
    "Llama 3.1 70B": 327_680,
    "Llama 3.1 8B": 131_072,
    "Mistral 7B": 131_072,
    "Mixtral 8x7B": 131_072,
    "Llama 3.1 405B": 516_096,
    "Qwen2.5 7B": 57_344,
    "Qwen2.5 72B": 327_680,
    "Qwen3 8B": 147_456,
    "Qwen3 32B": 262_144,
    "Gemma 2 9B": 344_064,
    "Gemma 3 27B": 507_904,
    "Phi-3-mini": 393_216,
    "SmolLM2 135M": 23_040,
    "SmolLM2 360M": 40_960,
    "SmolLM2 1.7B": 196_608,
    "Falcon 7B": 8_192,
    "Falcon 40B": 122_880,
    "DeepSeek V3": 70_272,
    "GPT-2": 36_864,
}

# Counts published with the checkpoints (model cards, safetensors indexes, papers). Gemma 3: the
# text part, as its report has it (1,416M embedding and 25,600M other). Falcon: one table at both
# ends.
PUBLISHED_PARAMS = {
    "Llama 2 7B": 6_738_415_616,
    "Llama 2 13B": 13_015_864_320,
    "Llama 2 70B": 68_976_648_192,
    "Llama 3.1 8B": 8_030_261_248,
    "Llama 3.1 70B": 70_553_706_496,
    "Llama 3.1 405B": 405_853_388_800,
    "Mistral 7B": 7_248_023_552,
    "Mixtral 8x7B": 46_702_792_704,
    "Qwen2.5 7B": 7_615_616_512,
    "Qwen2.5 72B": 72_706_203_648,
    "Qwen3 8B": 8_190_735_360,
    "Qwen3 32B": 32_762_123_264,
    "Gemma 2 9B": 9_241_705_984,
    "Gemma 3 27B": 27_016_000_000,
    "Phi-3-mini": 3_821_079_552,
    "SmolLM2 135M": 134_515_008,
    "SmolLM2 360M": 361_821_120,
    "SmolLM2 1.7B": 1_711_376_384,
    "Falcon 7B": 6_921_720_704,
    "Falcon 40B": 41_303_293_952,
    "DeepSeek V3": 671_026_419_200,
    "GPT-2": 124_439_808,
}
EXACT = [name for name in PUBLISHED_PARAMS if name.startswith(("Llama", "SmolLM2", "Mistral"))]

SHAPE = dict(num_layers=2, num_kv_heads=3, head_dim=5, seq_len=7)


def test_every_preset_is_in_both_tables():
    assert set(MODELS) == set(BYTES_PER_TOKEN) == set(PUBLISHED_PARAMS)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_per_token(name):
    assert MODELS[name].bytes_per_token() == BYTES_PER_TOKEN[name]
    assert MODELS[name].bytes_per_token(4) == 2 * BYTES_PER_TOKEN[name]


@pytest.mark.parametrize("name", MODELS)
def test_parameters_agree_with_the_published_count(name):
    assert MODELS[name].num_params == pytest.approx(PUBLISHED_PARAMS[name], rel=0.01)
    assert MODELS[name].name == name


@pytest.mark.parametrize("name", [*EXACT, "Phi-3-mini", "Mixtral 8x7B"])
def test_parameters_are_exact_where_there_are_no_biases(name):
    assert MODELS[name].num_params == PUBLISHED_PARAMS[name]


def test_70b_arithmetic():
    llama = MODELS["Llama 3.1 70B"]
    one = llama.cache_bytes(32_768)
    assert one == 10_737_418_240 == 10 * GiB
    assert one / GB == pytest.approx(10.74, abs=0.005)
    assert one == kv_cache_bytes(num_layers=80, num_kv_heads=8, head_dim=128, seq_len=32_768)
    ten = llama.cache_bytes(32_768, batch_size=10)
    assert ten / GB == pytest.approx(107.4, abs=0.05)
    assert ten > 1.25 * DEVICES["H100 SXM"].memory_bytes  # eight exceed it by 0.4 percent only
    assert llama.cache_bytes(32_768, num_kv_heads=64) == 8 * one
    assert llama.with_kv_heads(1).cache_bytes(32_768) / GB == pytest.approx(1.34, abs=0.005)
    assert llama.weight_bytes(2) / GB == pytest.approx(141, abs=0.5)


def test_the_bigger_model_has_the_smaller_cache():
    small, big = MODELS["Llama 2 7B"], MODELS["Llama 3.1 70B"]
    assert big.num_params > 10 * small.num_params
    assert big.bytes_per_token() < small.bytes_per_token()


def test_hidden_size_trap_is_four_times_too_high_for_llama_3_1_8b():
    llama = MODELS["Llama 3.1 8B"]
    assert 2 * llama.num_layers * llama.hidden_size * 2 == 4 * llama.bytes_per_token()
    mha = MODELS["Llama 2 7B"]  # the trap is right here, which is why it survives
    assert 2 * mha.num_layers * mha.hidden_size * 2 == mha.bytes_per_token()


def test_head_dim_is_not_always_hidden_over_heads():
    for name in ("Qwen3 32B", "Gemma 2 9B", "Gemma 3 27B"):
        preset = MODELS[name]
        assert preset.head_dim != preset.hidden_size // preset.num_heads


@pytest.mark.parametrize(
    "name, window, windowed", [("Gemma 2 9B", 4096, 21), ("Gemma 3 27B", 1024, 52)]
)
def test_windowed_layers_hold_no_more_than_the_window(name, window, windowed):
    preset = MODELS[name]
    assert preset.windowed_layers == windowed
    assert preset.cache_bytes(window) == window * preset.bytes_per_token()
    per_layer = preset.bytes_per_token() // preset.num_layers
    full = preset.num_layers - windowed
    expected = per_layer * (full * 10 * window + windowed * window)
    assert preset.cache_bytes(10 * window) == expected


def test_latent_cache():
    deepseek = MODELS["DeepSeek V3"]
    assert deepseek.bytes_per_token() == 61 * (512 + 64) * 2 == 70_272
    assert deepseek.kv_head_choices == ()
    with pytest.raises(ValueError, match="latent"):
        deepseek.with_kv_heads(8)
    with pytest.raises(ValueError, match="latent"):
        deepseek.cache_bytes(10, num_kv_heads=128)


def test_experts_that_are_read():
    assert MODELS["Mixtral 8x7B"].num_active_params == pytest.approx(12.9e9, rel=0.01)
    assert MODELS["DeepSeek V3"].num_active_params == pytest.approx(37e9, rel=0.03)
    for preset in MODELS.values():
        assert (preset.num_active_params < preset.num_params) == (preset.experts is not None)


def test_a_step_reads_the_tied_table_and_not_the_untied_one():
    tied, untied = MODELS["SmolLM2 135M"], MODELS["Llama 3.1 8B"]
    assert tied.step_weight_bytes(4) == tied.weight_bytes(4) == pytest.approx(538e6, rel=0.001)
    assert untied.weight_bytes(2) - untied.step_weight_bytes(2) == 128_256 * 4096 * 2
    gpt2 = MODELS["GPT-2"]
    assert gpt2.weight_bytes(2) - gpt2.step_weight_bytes(2) == 1024 * 768 * 2


def test_fewer_kv_heads_mean_fewer_parameters():
    llama = MODELS["Llama 3.1 8B"]
    mqa = llama.with_kv_heads(1)
    assert llama.num_params - mqa.num_params == 32 * 2 * 4096 * 7 * 128
    assert llama.kv_head_choices == (1, 2, 4, 8, 16, 32)
    assert MODELS["SmolLM2 135M"].kv_head_choices == (1, 3, 9)
    assert mqa.group_size == 32


def test_formula_equals_the_allocator():
    for dtype in (torch.float16, torch.float32, torch.float64, torch.int8):
        kv = torch.empty(2, 3, 4, 2, 7, 5, dtype=dtype)  # (K and V, layers, B, KV, T, D)
        counted = kv_cache_bytes(
            num_layers=3, num_kv_heads=2, head_dim=5, seq_len=7, batch_size=4,
            bytes_per_element=kv.element_size(),
        )  # fmt: skip
        assert counted == kv.untyped_storage().nbytes()


def test_fractional_elements_must_fill_bytes():
    assert kv_cache_bytes(**SHAPE, bytes_per_element=0.5) == 2 * 2 * 3 * 5 * 7 // 2
    assert isinstance(kv_cache_bytes(**SHAPE, bytes_per_element=0.5), int)
    with pytest.raises(ValueError, match="whole number of bytes"):
        kv_cache_bytes(**{**SHAPE, "head_dim": 1, "num_layers": 1}, bytes_per_element=0.1)


def test_large_products_are_exact():
    huge = kv_cache_bytes(num_layers=1, num_kv_heads=1, head_dim=1, seq_len=2**60 + 1)
    assert huge == 4 * (2**60 + 1)


@pytest.mark.parametrize(
    "field", ["num_layers", "num_kv_heads", "head_dim", "seq_len", "batch_size"]
)
@pytest.mark.parametrize("bad", [-1, 1.0, 1.5, True, "8", None])
def test_bad_counts_are_named(field, bad):
    with pytest.raises(ValueError, match=field):
        kv_cache_bytes(**{**SHAPE, field: bad})


@pytest.mark.parametrize("field", ["num_layers", "num_kv_heads", "head_dim", "batch_size"])
def test_zero_is_refused_except_for_tokens(field):
    with pytest.raises(ValueError, match=field):
        kv_cache_bytes(**{**SHAPE, field: 0})
    assert kv_cache_bytes(**{**SHAPE, "seq_len": 0}) == 0


@pytest.mark.parametrize("bad", [0, -2, True, float("nan"), float("inf"), "2", None])
def test_bad_element_sizes(bad):
    with pytest.raises(ValueError, match="bytes_per_element"):
        kv_cache_bytes(**SHAPE, bytes_per_element=bad)


def test_numpy_integers_are_whole_numbers():
    assert kv_cache_bytes(**{**SHAPE, "seq_len": np.int64(7)}) == kv_cache_bytes(**SHAPE)


def test_heads_must_divide():
    with pytest.raises(ValueError, match="multiple"):
        MODELS["SmolLM2 135M"].with_kv_heads(2)
    with pytest.raises(ValueError, match="multiple"):
        MODELS["SmolLM2 135M"].cache_bytes(10, num_kv_heads=6)
    with pytest.raises(ValueError, match="multiple"):
        ModelPreset("odd", 1, 9, 2, 4, 36, 8, 10)
    with pytest.raises(ValueError, match="num_kv_heads"):
        MODELS["SmolLM2 135M"].with_kv_heads(0)


@pytest.mark.parametrize("bad", [-1, 2.5, True])
def test_cache_bytes_checks_its_counts(bad):
    with pytest.raises(ValueError, match="seq_len"):
        MODELS["Gemma 2 9B"].cache_bytes(bad)
    with pytest.raises(ValueError, match="batch_size"):
        MODELS["Gemma 2 9B"].cache_bytes(1, batch_size=bad)


def test_devices_hold_what_the_driver_reports_and_what_the_data_sheet_says():
    expected = {  # GB sold, MiB reported, GB/s
        "T4": (16, 15_360, 320), "L4": (24, 23_034, 300), "A10G": (24, 23_034, 600),
        "A100 40GB": (40, 40_960, 1555), "A100 80GB": (80, 81_920, 2039),
        "RTX 3090": (24, 24_576, 936), "RTX 4090": (24, 24_564, 1008), "RTX 5090": (32, 32_607, 1792),
        "H100 SXM": (80, 81_559, 3350), "H200": (141, 143_771, 4800), "B200": (192, 183_359, 7670),
        "MI300X": (192, 196_592, 5300),
    }  # fmt: skip
    found = {
        name: (d.datasheet_bytes / GB, d.memory_bytes / 2**20, d.bandwidth / 1e9)
        for name, d in DEVICES.items()
    }
    assert found == expected
    assert DEVICES["MI300X"].memory_bytes == 206_141_652_992
    assert DEVICES["H100 SXM"].memory_bytes / GB == pytest.approx(85.52, abs=0.005)


def test_dense_rates():
    listed = {name: d.flops / 1e12 for name, d in DEVICES.items() if d.flops is not None}
    assert listed == {
        "A100 40GB": 312, "A100 80GB": 312, "H100 SXM": 989, "H200": 989, "B200": 2250,
        "MI300X": 1307, "RTX 4090": 165, "RTX 5090": 209.5,
    }  # fmt: skip


def test_the_weights_of_70b_fit_an_h200_but_not_in_nine_tenths_of_it():
    weights, h200 = MODELS["Llama 3.1 70B"].weight_bytes(2), DEVICES["H200"].memory_bytes
    assert (h200 - weights) / GB == pytest.approx(9.6, abs=0.05)
    assert weights > 0.9 * h200 and weights > DEVICES["H200"].datasheet_bytes


def test_batch_at_which_weights_turn_compute_bound():
    for name, batch in {"A100 80GB": 153, "H100 SXM": 295, "H200": 206}.items():
        assert DEVICES[name].flops / DEVICES[name].bandwidth == pytest.approx(batch, abs=0.5)


def test_a_latent_cache_read_by_every_head_is_bound_by_arithmetic():
    deepseek, h200 = MODELS["DeepSeek V3"], DEVICES["H200"]
    flops = deepseek.step_flops(1) - deepseek.step_flops(0)
    assert flops / deepseek.bytes_per_token() == pytest.approx(242, abs=0.5)
    assert flops / deepseek.bytes_per_token() > h200.flops / h200.bandwidth


def test_shapes_that_kvlib_cannot_build_say_why():
    for name in ("DeepSeek V3", "Mixtral 8x7B", "Gemma 2 9B", "Falcon 7B", "GPT-2"):
        assert name in MODELS[name].why_not_llama()
    assert MODELS["SmolLM2 135M"].why_not_llama() is None


def test_operations_of_a_step():
    llama = MODELS["Llama 3.1 8B"]
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128_256
    assert llama.step_flops(0) == 2 * matrices
    assert llama.step_flops(100, 3) == 3 * (2 * matrices + 32 * 100 * 4 * 32 * 128)
    assert llama.with_kv_heads(1).step_flops(9) - llama.with_kv_heads(1).step_flops(8) == (
        llama.step_flops(9) - llama.step_flops(8)
    )  # fewer KV heads save bytes, not attention's arithmetic


@pytest.mark.parametrize("name, tokens", [("SmolLM2 135M", 3900), ("Llama 3.1 8B", 28_600)])
def test_context_at_which_attention_equals_the_linear_layers(name, tokens):
    preset = MODELS[name]
    attention = preset.step_flops(1) - preset.step_flops(0)
    assert preset.step_flops(0) / attention == pytest.approx(tokens, rel=0.01)


def test_operations_of_windowed_latent_and_sparse_models():
    gemma = MODELS["Gemma 3 27B"]
    assert gemma.step_flops(2048) - gemma.step_flops(1024) == 10 * 1024 * 4 * 32 * 128
    deepseek = MODELS["DeepSeek V3"]
    assert deepseek.step_flops(1) - deepseek.step_flops(0) == 61 * 2 * 128 * (576 + 512)
    assert deepseek.step_flops(0) < 2 * 38e9

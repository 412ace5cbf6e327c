"""Checkpoints that load, and every way in which one can be broken."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kvlib import load_checkpoint, load_smollm2, model_file
from kvlib.weights import load_gguf

HIDDEN, MIDDLE, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 32, 48, 4, 2, 8, 60, 2
CONFIG = {
    "model_type": "llama", "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_size": HIDDEN,
    "intermediate_size": MIDDLE, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "rope_theta": 10000.0,
    "hidden_act": "silu", "eos_token_id": [2, 5],
}  # fmt: skip


def tensors(*, tied: bool = False) -> dict[str, torch.Tensor]:
    """Random weights of CONFIG's shape under the names of a Llama checkpoint."""
    generator = torch.Generator().manual_seed(0)

    def weight(*shape):
        return torch.randn(shape, generator=generator)

    found = {
        "model.embed_tokens.weight": weight(VOCAB, HIDDEN),
        "model.norm.weight": weight(HIDDEN),
    }
    if not tied:
        found["lm_head.weight"] = weight(VOCAB, HIDDEN)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        found |= {
            at + "input_layernorm.weight": weight(HIDDEN),
            at + "self_attn.q_proj.weight": weight(HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.k_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.v_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD_DIM),
            at + "post_attention_layernorm.weight": weight(HIDDEN),
            at + "mlp.gate_proj.weight": weight(MIDDLE, HIDDEN),
            at + "mlp.up_proj.weight": weight(MIDDLE, HIDDEN),
            at + "mlp.down_proj.weight": weight(HIDDEN, MIDDLE),
        }
    return found


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))


def write_folder(folder: Path) -> Path:
    """A good checkpoint folder, to be broken."""
    save_file(tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(folder)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_folder(tmp_path)


def split(folder: Path) -> dict[str, str]:
    """Put the weights into three shards and write their index; return its weight_map."""
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for part in range(3):
        shard = f"model-0000{part + 1}-of-00003.safetensors"
        here = {name: whole[name] for name in sorted(whole)[part::3]}
        save_file(here, folder / shard)
        weight_map |= dict.fromkeys(here, shard)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def change_config(folder: Path, **changes) -> None:
    """Set fields; None removes one."""
    config = {k: v for k, v in (CONFIG | changes).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config))


def change_tensors(folder: Path, change) -> None:
    file = folder / "model.safetensors"
    found = load_file(file)
    change(found)
    save_file(found, file)


def refused(folder: Path, *words: str, **options) -> str:
    """Check that the folder is refused with a sentence that holds these words; return it."""
    with pytest.raises(ValueError) as error:
        load_checkpoint(folder, **options)
    for word in (str(folder), *words):
        assert word in str(error.value)
    return str(error.value)


# A folder


def test_a_good_folder_loads(folder):
    model, tokenizer = load_checkpoint(folder)
    assert model.dtype == torch.float32 and model.device.type == "cpu"
    assert not any(weight.requires_grad for weight in model.parameters())
    assert not any(weight.is_meta for weight in model.parameters())
    assert tokenizer.encode("t7 t59") == [7, 59] and tokenizer.eos_ids == (2, 5)
    assert torch.isfinite(model(torch.tensor([[1, 2, 3]]))).all()


def test_every_tensor_of_a_checkpoint_matters(folder):
    """None is read twice in another's place, and none is left out."""
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    before = load_checkpoint(folder)[0](tokens)
    whole = load_file(folder / "model.safetensors")
    for name in whole:
        save_file(whole | {name: whole[name] * 1.5}, folder / "model.safetensors")
        assert not torch.allclose(load_checkpoint(folder)[0](tokens), before), name


TOKENS = torch.tensor([[1, 2, 3]])


def test_weights_in_several_files_load_as_from_one(folder):
    before = load_checkpoint(folder)[0](TOKENS)
    split(folder)
    assert torch.equal(load_checkpoint(folder)[0](TOKENS), before)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "model-00002-of-00003.safetensors is missing")


def test_only_the_shards_that_the_index_names_are_read(folder):
    before = load_checkpoint(folder)[0](TOKENS)
    split(folder)
    older = {name: weight + 1 for name, weight in tensors().items()}
    save_file(older, folder / "model-00009-of-00099.safetensors")
    assert torch.equal(load_checkpoint(folder)[0](TOKENS), before)


def test_a_whole_file_goes_before_an_index_as_in_transformers(folder):
    before = load_checkpoint(folder)[0](TOKENS)
    split(folder)
    save_file(tensors(), folder / "model.safetensors")
    for shard in folder.glob("model-*"):
        shard.write_bytes(b"")
    save_file({name: weight + 1 for name, weight in tensors().items()}, folder / "adapter.safetensors")
    assert torch.equal(load_checkpoint(folder)[0](TOKENS), before)


def test_shards_without_an_index_are_not_guessed_at(folder):
    split(folder)
    (folder / "model.safetensors.index.json").unlink()
    refused(folder, "neither model.safetensors nor model.safetensors.index.json")


@pytest.mark.parametrize("change", [
    lambda names: names.pop("model.norm.weight"),
    lambda names: names.update({"model.norm.weight": names["model.embed_tokens.weight"]}),
    lambda names: names.update({"other.weight": names["model.norm.weight"]}),
])  # fmt: skip
def test_an_index_and_shards_that_disagree_are_refused(folder, change):
    names = split(folder)
    change(names)
    write_index(folder, names)
    refused(folder, "does not hold the tensors that the index names")


@pytest.mark.parametrize("weight_map", [
    None, 3, [], "x", {"a": 3}, {"a": None}, {"a": "../model.safetensors"}, {"a": "/etc/passwd"}, {"a": ""},
    {"a": ".."}, {"a": "."},
])  # fmt: skip
def test_an_index_that_names_no_files_of_the_folder_is_refused(folder, weight_map):
    split(folder)
    write_index(folder, weight_map)
    refused(folder, "model.safetensors.index.json must give for each tensor a file of this folder")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_precision_is_the_checkpoints_own_unless_asked(folder, dtype):
    change_tensors(folder, lambda found: found.update({k: v.to(dtype) for k, v in found.items()}))
    assert load_checkpoint(folder)[0].dtype == dtype
    assert load_checkpoint(folder, dtype=torch.float64)[0].dtype == torch.float64


def test_the_weights_are_views_of_one_tensor_so_a_clone_is_saved_alone(folder):
    model, _ = load_checkpoint(folder)
    weights = list(model.state_dict().values())
    assert len({x.untyped_storage().data_ptr() for x in weights}) == 1
    view, clone = io.BytesIO(), io.BytesIO()
    torch.save(weights[-1], view), torch.save(weights[-1].clone(), clone)
    assert len(view.getvalue()) >= sum(x.nbytes for x in weights)
    assert len(clone.getvalue()) < weights[-1].nbytes + 4096


def test_mixed_precisions_have_to_be_asked_for(folder):
    change_tensors(folder, lambda found: found.update(
        {"model.norm.weight": found["model.norm.weight"].half()}))  # fmt: skip
    refused(folder, "say which dtype")
    assert load_checkpoint(folder, dtype=torch.float32)[0].dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float16", torch.int8, torch.bool, torch.complex64, 16, float])
def test_a_dtype_that_no_model_has_is_refused(folder, dtype):
    with pytest.raises(ValueError, match="dtype is a torch.dtype"):
        load_checkpoint(folder, dtype=dtype)


@pytest.mark.parametrize("device", ["nowhere", "cpu:x", 3.5, "cuda:99"])
def test_a_device_that_is_not_there_is_refused(folder, device):
    with pytest.raises(ValueError, match="cannot be used here"):
        load_checkpoint(folder, device=device)


def test_weights_that_are_whole_numbers_are_not_taken_for_weights(folder):
    """Quantised ones need their scales."""
    change_tensors(folder, lambda found: found.update(
        {"model.norm.weight": torch.ones(HIDDEN, dtype=torch.int8)}))  # fmt: skip
    refused(folder, "stores weights as I8", dtype=torch.float32)


def test_a_tied_checkpoint_needs_no_head_and_may_have_a_copy(folder):
    change_config(folder, tie_word_embeddings=True)
    change_tensors(folder, lambda found: found.update(
        {"lm_head.weight": found["model.embed_tokens.weight"].clone()}))  # fmt: skip
    with_copy = load_checkpoint(folder)[0]
    change_tensors(folder, lambda found: found.pop("lm_head.weight"))
    without = load_checkpoint(folder)[0]
    assert with_copy.config.tie_embeddings and without.config.tie_embeddings
    assert torch.equal(with_copy(TOKENS), without(TOKENS))
    change_config(folder, tie_word_embeddings=False)
    refused(folder, "lacks the tensor lm_head.weight")


def test_a_head_that_differs_from_the_embedding_is_kept(folder):
    untied = load_checkpoint(folder)[0](TOKENS)
    change_config(folder, tie_word_embeddings=True)
    assert torch.equal(load_checkpoint(folder)[0](TOKENS), untied)


def test_fields_with_a_usual_value_may_be_left_out(folder):
    full = load_checkpoint(folder)[0].config
    change_config(folder, head_dim=None, rope_theta=None, hidden_act=None)
    assert load_checkpoint(folder)[0].config == full


def test_no_such_folder(tmp_path):
    refused(tmp_path / "nowhere", "config.json")


def test_a_file_is_no_folder(folder):
    refused(folder / "model.safetensors", "no checkpoint folder")


@pytest.mark.parametrize("rope", [[1], "linear", 3])
def test_rope_scaling_that_is_no_object(folder, rope):
    change_config(folder, rope_parameters=rope)
    refused(folder, "config.json", "rope scaling that is no JSON object")


def test_no_config(folder):
    (folder / "config.json").unlink()
    refused(folder, "has no config.json")


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "\x00\x01", "[1, 2]", "3", "null", "[" * 99999])
def test_config_that_is_not_a_json_object(folder, text):
    (folder / "config.json").write_text(text)
    refused(folder, "config.json", "JSON")


def test_config_that_is_not_text(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe\x80")
    refused(folder, "config.json cannot be read", "a text file")


@pytest.mark.parametrize("field", [
    "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size",
    "rms_norm_eps", "max_position_embeddings",
])  # fmt: skip
def test_config_without_a_field(folder, field):
    change_config(folder, **{field: None})
    refused(folder, "config.json", field)


@pytest.mark.parametrize("field, value", [
    ("num_hidden_layers", 0), ("num_attention_heads", "four"), ("num_attention_heads", 0),
    ("hidden_size", 2.5), ("vocab_size", -1), ("num_key_value_heads", 0), ("head_dim", 7),
    ("rms_norm_eps", "small"), ("max_position_embeddings", True), ("rope_theta", [1]),
    ("rope_theta", "10000.0"), ("rope_theta", True), ("rope_theta", 10**400), ("rms_norm_eps", "1e-5"),
    ("tie_word_embeddings", "no"), ("tie_word_embeddings", 1), ("head_dim", 0),
])  # fmt: skip
def test_config_with_an_impossible_value(folder, field, value):
    change_config(folder, **{field: value})
    refused(folder, f"config.json describes no possible model: {field} ")


@pytest.mark.parametrize("changes, words", [
    ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
    ({"head_dim": None, "num_attention_heads": 8, "hidden_size": 24}, "hidden_size // num_attention_heads 3"),
    ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters lacks factor"),
])  # fmt: skip
def test_config_with_values_that_do_not_go_together(folder, changes, words):
    change_config(folder, **changes)
    refused(folder, f"config.json describes no possible model: {words}")


@pytest.mark.parametrize("field", ["num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size"])
def test_a_size_beyond_all_memory_is_compared_before_anything_is_made(folder, field):
    change_config(folder, **{field: 10**30})
    refused(folder, "config", str(10**30))


LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip


@pytest.mark.parametrize("changes, word", [
    ({"model_type": "mistral"}, "mistral"),
    ({"model_type": "falcon", "multi_query": True}, "falcon"),
    ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "deepseek_v3"),
    ({"model_type": "gpt2", "n_layer": 12, "n_head": 12}, "gpt2"),
    ({"multi_query": True}, "multi_query"),
    ({"kv_lora_rank": 512}, "kv_lora_rank"),
    ({"n_layer": 2}, "n_layer"),
    ({"sliding_window": 16}, "sliding_window"),
    ({"layer_types": ["sliding_attention"] * 2}, "layer_types"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"rope_interleaved": True}, "rope_interleaved"),
    ({"logits_scaling": 8.0}, "logits_scaling"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"num_local_experts": 8}, "num_local_experts"),
    ({"is_causal": False}, "is_causal"),
    ({"per_layer_config": {"0": {"hidden_act": "gelu"}}}, "per_layer_config"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": LLAMA3},
     "rope_type twice"),
    ({"rope_parameters": {"rope_theta": 5e5}}, "rope_theta twice"),
    ({"rope_scaling": LLAMA3, "original_max_position_embeddings": 16}, "twice"),
    ({"rope_scaling": LLAMA3 | {"factor": "4.0"}}, "factor must be a finite number"),
    ({"rope_scaling": LLAMA3 | {"low_freq_factor": None}}, "lacks low_freq_factor"),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor above"),
    ({"rope_scaling": LLAMA3 | {"attention_factor": 1.5}}, "attention_factor"),
    ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "factor"),
    ({"model_type": None}, "None"),
    ({"hidden_act": "gelu"}, "silu"),
    ({"attention_bias": True}, "bias"),
    ({"mlp_bias": True}, "bias"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "dynamic"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
])  # fmt: skip
def test_config_that_asks_for_what_is_not_computed(folder, changes, word):
    change_config(folder, **changes)
    refused(folder, "config.json", word)


@pytest.mark.parametrize("changes", [
    {}, {"rope_scaling": LLAMA3}, {"rope_parameters": LLAMA3 | {"rope_theta": 1e4}},
    {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": LLAMA3},
    {"rope_scaling": {k: LLAMA3[k] for k in LLAMA3 if k[0] != "o"}, "original_max_position_embeddings": 32},
    {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
    {"original_max_position_embeddings": 32},
    {"rope_scaling": {("type" if k == "rope_type" else k): v for k, v in LLAMA3.items()}},
    {"rope_theta": 300, "rms_norm_eps": 0.01}, {"hidden_act": "swish"}, {"tie_word_embeddings": True},
    {"layer_types": ["full_attention"] * 2, "sliding_window": 4, "use_sliding_window": False},
    {"pretraining_tp": 2, "attention_dropout": 0.1, "use_cache": False, "temperature": 0.6},
    {"chunk_size_feed_forward": 0, "id2label": {"0": "no"}, "dtype": "float32", "problem_type": None},
], ids=str)  # fmt: skip
def test_settings_mean_what_they_mean_in_transformers(folder, changes):
    transformers = pytest.importorskip("transformers")
    change_config(folder, **changes)
    tokens = torch.arange(60)[None]
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours, _ = load_checkpoint(folder)
    expected = theirs(tokens).logits
    assert (ours(tokens) - expected).abs().max() < 1e-4 * expected.abs().max()


def test_all_settings_that_transformers_writes_are_decided_on(folder):
    """Its defaults, said in full, change nothing."""
    transformers = pytest.importorskip("transformers")
    plain = load_checkpoint(folder)[0].config
    full = transformers.LlamaConfig(**CONFIG).to_dict()
    assert len(full) > 25
    (folder / "config.json").write_text(json.dumps(full))
    assert load_checkpoint(folder)[0].config == plain


@pytest.mark.parametrize("nulls", [
    ["head_dim"], ["rope_theta", "tie_word_embeddings", "hidden_act"],
    ["sliding_window", "rope_scaling", "quantization_config", "pad_token_id"],
])  # fmt: skip
def test_a_null_is_a_setting_left_out(folder, nulls):
    full = load_checkpoint(folder)[0].config
    (folder / "config.json").write_text(json.dumps(CONFIG | dict.fromkeys(nulls)))
    assert load_checkpoint(folder)[0].config == full


def test_no_number_of_kv_heads_is_as_many_as_heads(folder):
    change_tensors(folder, lambda found: found.update(
        {name: weight.repeat(2, 1) for name, weight in found.items() if "k_proj" in name or "v_proj" in name}
    ))  # fmt: skip
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_key_value_heads": None}))
    assert load_checkpoint(folder)[0].config.num_kv_heads == HEADS


def test_the_settings_of_smollm2s_own_file_are_all_known(folder):
    change_config(folder, **{
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 1, "initializer_range": 0.041666666666666664, "is_llama_config": True,
        "mlp_bias": False, "pad_token_id": 2, "pretraining_tp": 1, "rope_interleaved": False,
        "torch_dtype": "bfloat16", "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
        "transformers_version": "4.42.3", "use_cache": True,
    })  # fmt: skip
    load_checkpoint(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "holds neither model.safetensors nor model.safetensors.index.json")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_never_opened(folder, name):
    """A pickle runs what it holds; this one would leave a mark."""
    mark = folder / "ran"
    (folder / "model.safetensors").unlink()
    code = f"cbuiltins\nopen\n(V{mark}\nVw\ntR."
    (folder / name).write_bytes(code.encode())
    refused(folder, "not opened" if name != "consolidated.00.pth" else "pickled", "run code")
    assert not mark.exists()


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, 0.99, -1])
def test_truncated_weights(folder, keep):
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[: int(keep * len(raw)) if isinstance(keep, float) else keep])
    refused(folder, "model.safetensors", "truncated or broken")


def test_weights_of_random_bytes(folder):
    (folder / "model.safetensors").write_bytes(random.Random(0).randbytes(5000))
    refused(folder, "model.safetensors", "truncated or broken")


@pytest.mark.parametrize("name", sorted(tensors()))
def test_a_missing_tensor_is_named(folder, name):
    change_tensors(folder, lambda found: found.pop(name))
    refused(folder, name, "incomplete")


@pytest.mark.parametrize("name", sorted(tensors()))
def test_a_tensor_of_another_shape_is_named(folder, name):
    change_tensors(folder, lambda found: found.update({name: found[name][:-1].contiguous()}))
    refused(folder, name, "shape")


@pytest.mark.parametrize("name", [
    "model.layers.0.self_attn.q_proj.bias", "model.layers.2.input_layernorm.weight",
    "adapter.weight",
])  # fmt: skip
def test_a_tensor_that_no_llama_has_is_named(folder, name):
    change_tensors(folder, lambda found: found.update({name: torch.zeros(32)}))
    refused(folder, name)


def test_stored_rotary_frequencies_are_known_and_skipped_whatever_their_precision(folder):
    change_tensors(folder, lambda found: found.update(
        {name: weight.half() for name, weight in found.items()}
        | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))  # fmt: skip
    assert load_checkpoint(folder)[0].dtype == torch.float16


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    refused(folder, "tokenizer.json", "copy it")


@pytest.mark.parametrize("raw", [b"", b"{", b"{}", b"[]", b"PK\x03\x04"])
def test_a_broken_tokenizer(folder, raw):
    (folder / "tokenizer.json").write_bytes(raw)
    refused(folder, "tokenizer.json", "not a readable tokenizer")


def test_a_tokenizer_that_is_not_text(folder):
    (folder / "tokenizer.json").write_bytes(b"\xff\xfe")
    refused(folder, "tokenizer.json cannot be read", "a text file")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_broken_file_beside_the_tokenizer(folder, name):
    (folder / name).write_text("{")
    refused(folder, name, "JSON")


# A GGUF file


def permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Put rows in llama.cpp's order: row i of a head's first half beside row i of its second."""
    rows, width = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, width)
    return halves.swapaxes(1, 2).reshape(rows, width)


def write_gguf(
    path: Path, *, architecture="llama", leave_out=(), change=None, metadata=None
) -> None:
    """Write tensors() as llama.cpp's converter does."""
    writer = gguf.GGUFWriter(str(path), architecture)
    fields = {
        "block_count": LAYERS, "context_length": 64, "embedding_length": HIDDEN,
        "feed_forward_length": MIDDLE, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
    }  # fmt: skip
    for name, value in fields.items():
        if name not in leave_out:
            writer.add_uint32(f"{architecture}.{name}", value)
    if "attention.layer_norm_rms_epsilon" not in leave_out:
        writer.add_layer_norm_rms_eps(1e-5)
    words = [chr(33 + i) for i in range(VOCAB - 1)] + ["!#"]
    tokenizer = {"model": "gpt2", "pre": "smollm", "tokens": words, "token_type": [1] * VOCAB,
                 "merges": ["! #"]}  # fmt: skip
    for name, value in (tokenizer | (metadata or {})).items():
        if f"tokenizer.ggml.{name}" not in leave_out:
            key = name if "." in name else f"tokenizer.ggml.{name}"
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_int32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_array(key, value)
    if "tokenizer.ggml.eos_token_id" not in leave_out:
        writer.add_eos_token_id(2)
    ends = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down"}  # fmt: skip
    found = {}
    for name, weight in tensors().items():
        stem, array = name.removesuffix(".weight"), weight.numpy()
        if stem in ends:
            found[ends[stem] + ".weight"] = array
            continue
        _, _, layer, part = stem.split(".", 3)
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(part)
        found[f"blk.{layer}.{parts[part]}.weight"] = permuted(array, heads) if heads else array
    if change is not None:
        change(found)
    for name, array in found.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def good_gguf(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "good.gguf"
    write_gguf(path)
    return path


def gguf_refused(path: Path, *words: str) -> None:
    with pytest.raises(ValueError) as error:
        load_gguf(path)
    for word in (str(path), *words):
        assert word in str(error.value)


def test_a_gguf_file_is_the_folder_it_was_made_from(good_gguf, folder):
    ours, tokenizer = load_gguf(good_gguf)
    reference, _ = load_checkpoint(folder)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    torch.testing.assert_close(ours(tokens), reference(tokens), rtol=1e-5, atol=1e-4)
    assert tokenizer.encode("!#!") == [59, 0] and tokenizer.eos_ids == (2,)


def test_a_gguf_file_without_a_head_is_tied(tmp_path):
    write_gguf(tmp_path / "tied.gguf", change=lambda found: found.pop("output.weight"))
    model, _ = load_gguf(tmp_path / "tied.gguf")
    assert model.config.tie_embeddings


def test_no_gguf_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.gguf"):
        load_gguf(tmp_path / "nowhere.gguf")


def test_a_gguf_file_truncated_anywhere(good_gguf, tmp_path):
    raw = good_gguf.read_bytes()
    path = tmp_path / "short.gguf"
    header = raw.index(b"blk.0.attn_norm.weight")
    cuts = [*range(0, header, 61), *range(header, len(raw), 4001), len(raw) - 33]
    for cut in cuts:  # the last bytes may be padding, so the last cut is 33 short
        path.write_bytes(raw[:cut])
        gguf_refused(path, "fetch it again")


def test_the_real_file_truncated(tmp_path):
    if not model_file.is_ready():
        pytest.skip("SmolLM2's file is not here; fetch it with `python -m kvlib.model_file`")
    with model_file.model_path().open("rb") as file:
        start = file.read(6_000_000)
    path = tmp_path / "short.gguf"
    for cut in (1000, len(start)):  # in the metadata, and in the tensors
        path.write_bytes(start[:cut])
        gguf_refused(path, "fetch it again")


def test_random_bytes_are_no_gguf_file(good_gguf, tmp_path):
    source, head = random.Random(0), good_gguf.read_bytes()[:24]
    path = tmp_path / "random.gguf"
    for length in (1, 3, 7, 100, 5000):
        for start in (b"", head[:4], head[:8], head):
            path.write_bytes(start + source.randbytes(length))
            gguf_refused(path, "fetch it again")


def test_flipped_bytes_are_refused_with_a_sentence_or_harmless(good_gguf, tmp_path):
    """Nothing else than ValueError comes out, whatever a byte of the metadata turns into."""
    source, raw = random.Random(2), good_gguf.read_bytes()
    header = raw.index(b"blk.0.attn_norm.weight")
    path = tmp_path / "flipped.gguf"
    num_refused = 0
    for _ in range(120):
        flipped = bytearray(raw)
        flipped[source.randrange(header)] ^= 1 << source.randrange(8)
        path.write_bytes(flipped)
        try:
            model, _ = load_gguf(path)
        except ValueError as error:
            assert str(path) in str(error)
            num_refused += 1
        else:
            assert not any(weight.is_meta for weight in model.parameters())
    assert num_refused > 60


def test_a_gguf_file_of_another_architecture(tmp_path):
    write_gguf(tmp_path / "other.gguf", architecture="gemma")
    gguf_refused(tmp_path / "other.gguf", "gemma")


@pytest.mark.parametrize("field", [
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "tokenizer.ggml.tokens", "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type",
])  # fmt: skip
def test_a_gguf_file_without_a_field(tmp_path, field):
    write_gguf(tmp_path / "poor.gguf", leave_out=(field,))
    gguf_refused(tmp_path / "poor.gguf", field)


@pytest.mark.parametrize("name", ["model", "pre"])
def test_a_gguf_file_with_another_tokenizer(tmp_path, name):
    write_gguf(tmp_path / "other.gguf", metadata={name: "llama-bpe"})
    gguf_refused(tmp_path / "other.gguf", "tokenizer", "llama-bpe")


def test_a_gguf_file_that_asks_for_rope_scaling(tmp_path):
    write_gguf(tmp_path / "long.gguf", metadata={"llama.rope.scaling.type": "yarn"})
    gguf_refused(tmp_path / "long.gguf", "sets rope.scaling.type to 'yarn'")


@pytest.mark.parametrize("name, value", [
    ("expert_count", 8), ("rope.dimension_count", 4), ("attention.value_length", 16), ("logit_scale", 0.5),
    ("attention.sliding_window", 16), ("attention.clamp_kqv", 8.0),
])  # fmt: skip
def test_a_gguf_file_that_asks_for_what_is_not_computed(tmp_path, name, value):
    write_gguf(tmp_path / "other.gguf", metadata={f"llama.{name}": value})
    gguf_refused(tmp_path / "other.gguf", name)


def test_an_error_names_a_gguf_files_own_field(tmp_path):
    write_gguf(tmp_path / "odd.gguf", metadata={"llama.attention.key_length": 7})
    gguf_refused(tmp_path / "odd.gguf", "no possible model: attention.key_length 7 is odd")


def test_a_gguf_file_says_the_usual_in_more_words(tmp_path):
    usual = {"expert_count": 0, "rope.dimension_count": 8, "attention.value_length": 8, "vocab_size": 60}
    write_gguf(tmp_path / "long.gguf", metadata={f"llama.{name}": value for name, value in usual.items()})
    load_gguf(tmp_path / "long.gguf")


@pytest.mark.parametrize("field", [
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "rope.freq_base", "vocab_size",
    "attention.key_length", "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id",
    "tokenizer.chat_template",
])  # fmt: skip
def test_a_gguf_field_of_any_type_is_harmless_or_refused(good_gguf, tmp_path, field):
    expected = load_gguf(good_gguf)[0](TOKENS)
    key = field if field.startswith("tokenizer") else f"llama.{field}"
    for value in ("x", "", [1], ["a"], [True], -0.5, -1, 0, 2**31 - 1, True, False):
        path = tmp_path / "odd.gguf"
        write_gguf(path, leave_out=(field,), metadata={key: value})
        try:
            model, tokenizer = load_gguf(path)
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            continue
        if "rope" not in field and "epsilon" not in field:
            assert torch.equal(model(TOKENS), expected)
        assert all(type(token) is int for token in tokenizer.eos_ids)
        tokenizer.decode(tokenizer.encode("!#!"))


def test_a_gguf_file_without_a_tensor(tmp_path):
    write_gguf(tmp_path / "poor.gguf", change=lambda found: found.pop("blk.1.attn_k.weight"))
    gguf_refused(tmp_path / "poor.gguf", "model.layers.1.self_attn.k_proj.weight", "incomplete")


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.2.attn_q.weight"])
def test_a_gguf_file_with_a_tensor_that_would_be_ignored(tmp_path, name):
    write_gguf(
        tmp_path / "rich.gguf",
        change=lambda found: found.update({name: np.zeros(32, dtype=np.float32)}),
    )
    gguf_refused(tmp_path / "rich.gguf", name)


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "output_norm.weight"]
)
def test_a_gguf_file_with_a_tensor_of_another_shape(tmp_path, name):
    write_gguf(
        tmp_path / "odd.gguf",
        change=lambda found: found.update({name: found[name][:-1]}),
    )
    gguf_refused(tmp_path / "odd.gguf", "shape")


# SmolLM2


@pytest.fixture
def empty_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("KVLIB_MODEL_HOME", raising=False)
    monkeypatch.setenv("KVLIB_HOME", str(tmp_path))
    return tmp_path


def test_without_the_model_the_sentence_says_which_command_fetches_it(empty_home):
    with pytest.raises(FileNotFoundError, match=r"python -m kvlib\.model_file") as error:
        load_smollm2()
    assert "course.py lab" in str(error.value)


def test_the_named_command_exists():
    done = subprocess.run(
        [sys.executable, "-m", "kvlib.model_file", "--help"],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and "SmolLM2" in done.stdout


def test_a_model_of_the_wrong_size_is_refused_before_it_is_read(empty_home):
    (empty_home / model_file.NAME).write_bytes(b"GGUF" * 100)
    with pytest.raises(ValueError, match=r"400 bytes instead of 98,362,432: delete it") as error:
        load_smollm2()
    assert model_file.NAME in str(error.value)


def test_a_model_of_the_wrong_hash_is_refused_before_it_is_read(empty_home):
    with (empty_home / model_file.NAME).open("wb") as file:
        file.truncate(model_file.SIZE)  # a file of zeros that takes no room
    with pytest.raises(ValueError, match="SHA-256.*delete it and fetch it again"):
        load_smollm2()


def test_a_folder_in_the_models_place_is_no_model(empty_home):
    (empty_home / model_file.NAME).mkdir()
    with pytest.raises(FileNotFoundError):
        load_smollm2()

"""A checkpoint, file or folder, to a model and its tokenizer.

Every format is read into tensors under the names a Llama safetensors file uses, weights
(out, in); one function then fits them into the model. No pickles are ever opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kvlib import model_file, tokenizer
from kvlib.model import Model, ModelConfig
from kvlib.pages import ask_for_large_pages


def load_smollm2(*, device=None, dtype: torch.dtype = torch.float32):
    """Load SmolLM2-135M-Instruct; return (model, tokenizer).

    The file is looked for where `kvlib.model_file` keeps it, and its hash is checked. `device` is
    the CPU where None. Raises FileNotFoundError where it is not there and ValueError where it is
    broken, each with what to do.
    """
    path = model_file.model_path()
    if not path.is_file():
        raise FileNotFoundError(
            "SmolLM2's weights are not on this machine; fetch them with "
            "`python -m kvlib.model_file` (98 MB), or start the course by `python course.py lab`"
        )
    model_file.verify(path)
    return load_gguf(path, device=device, dtype=dtype)


def load_gguf(path: str | Path, *, device=None, dtype: torch.dtype = torch.float32):
    """Load a Llama-architecture GGUF file, dequantised; return (model, tokenizer)."""
    from gguf.quants import dequantize

    path = Path(path)
    fields, quantised = _gguf_contents(path)
    if fields.get("general.architecture") != "llama":
        raise ValueError(f"{path} holds a {fields.get('general.architecture')} model, not a llama")
    config = _gguf_config(path, fields, quantised)
    extra = set(quantised) - {_gguf_name(name) for name in _names(config)}
    if extra:
        raise ValueError(f"{path} has tensors this model does not use, such as {min(extra)}")
    text = tokenizer.from_gguf_fields(path, fields)

    def read(name: str) -> Tensor:
        tensor = quantised[_gguf_name(name)]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ValueError(f"{path}: {tensor.name} has a type that cannot be read") from error
        weight = torch.tensor(values)  # a copy: the map is read-only
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
        kind = name.split(".")[-2]
        whole = kind in heads and weight.dim() == 2 and len(weight) % (2 * heads[kind]) == 0
        return _unpermuted(weight, heads[kind]) if whole else weight

    return _assemble(path, config, read, device=device, dtype=dtype), text


_LINE = 64  # elements: at least a cache line in every precision
_TOP = {
    "embedding": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_PARTS = {  # the weights of a layer, and of which tensors of a Llama each is stacked
    "attention_norm.weight": ("input_layernorm",),
    "attention.qkv.weight": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out.weight": ("self_attn.o_proj",),
    "mlp_norm.weight": ("post_attention_layernorm",),
    "mlp.gate_up.weight": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down.weight": ("mlp.down_proj",),
}


def load_checkpoint(folder: str | Path, *, device=None, dtype: torch.dtype | None = None):
    """Load a Llama-layout folder (config.json, *.safetensors, tokenizer.json).

    Returns (model, tokenizer); `dtype` is the checkpoint's own where None. Raises ValueError,
    naming the file and the fault, for a folder that is incomplete, broken, or of another
    architecture.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(folder)
    config = _folder_config(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        why = "; its pickled weights are not opened, as they can run code" if pickled else ""
        raise ValueError(f"{folder} holds no .safetensors file{why}")
    found, stored = {}, set()
    for file in files:
        try:
            with safe_open(file, framework="pt") as part:
                for name in part.keys():
                    found[name] = file
                    stored.add(part.get_slice(name).get_dtype())
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is truncated or broken; copy it again ({error})") from error
    if dtype is None:
        names = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        if len(stored) != 1 or (only := stored.pop()) not in names:
            raise ValueError(f"{folder} mixes or uses unusual precisions; say which dtype to load")
        dtype = names[only]
    tied_copy = {"lm_head.weight"} if config.tie_embeddings else set()
    extra = set(found) - set(_names(config)) - tied_copy
    extra = {name for name in extra if not name.endswith("rotary_emb.inv_freq")}
    if extra:
        raise ValueError(f"{folder} has tensors a Llama has not, such as {min(extra)}")
    text = tokenizer.from_folder(folder)

    def read(name: str) -> Tensor:
        with safe_open(found[name], framework="pt") as part:
            return part.get_tensor(name)

    return _assemble(folder, config, read, device=device, dtype=dtype), text


def _assemble(
    source: Path, config: ModelConfig, read: Callable[[str], Tensor], *, device, dtype
) -> Model:
    """Fit tensors, read by Llama name, into a new model; name what is missing or misshapen."""
    shapes = _names(config)

    def get(name: str) -> Tensor:
        try:
            weight = read(name)
        except KeyError:
            raise ValueError(
                f"{source} lacks the tensor {name}; it is incomplete, so copy it again"
            ) from None
        if tuple(weight.shape) != shapes[name]:
            raise ValueError(
                f"{source}: {name} has shape {tuple(weight.shape)}, the config asks for "
                f"{shapes[name]}; the two do not belong together"
            )
        return weight.to(device=device, dtype=dtype)

    def fused(*names: str) -> Tensor:  # each (out, in) -> (sum of outs, in)
        return torch.cat([get(name) for name in names])

    def weight(name: str) -> Tensor:  # by the name that `Model` gives it
        if name in _TOP:
            return get(_TOP[name])
        _, i, kind = name.split(".", 2)  # layers.<i>.<kind>
        return fused(*(f"model.layers.{i}.{part}.weight" for part in _PARTS[kind]))

    model = Model(config, device="meta", dtype=dtype)
    into = _views(model, device)
    for name, view in into.items():
        view.copy_(weight(name))
    model.load_state_dict(into, assign=True)
    return model.requires_grad_(False)


def _views(model: Model, device) -> dict[str, Tensor]:
    """Return room for every weight of a model on "meta": views of one tensor, in large pages.

    They lie in the order of a step, each at the start of a cache line. Clone a part before saving it
    alone: `torch.save` of a view writes the whole tensor behind it.
    """
    empty = model.state_dict()
    sizes = [-(-x.numel() // _LINE) * _LINE for x in empty.values()]
    pool = ask_for_large_pages(torch.empty(sum(sizes), device=device, dtype=model.dtype))
    return {
        name: part[: x.numel()].view(x.shape)
        for (name, x), part in zip(empty.items(), pool.split(sizes), strict=True)
    }


def _names(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor a Llama of this config has, with its shape (out, in)."""
    hidden, middle = config.hidden_size, config.intermediate_size
    width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    names: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        names["lm_head.weight"] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (width, hidden),
            "self_attn.k_proj": (kv_width, hidden),
            "self_attn.v_proj": (kv_width, hidden),
            "self_attn.o_proj": (hidden, width),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (middle, hidden),
            "mlp.up_proj": (middle, hidden),
            "mlp.down_proj": (hidden, middle),
        }
        names |= {f"model.layers.{i}.{key}.weight": shape for key, shape in layer.items()}
    return names


_GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    """Translate a Llama tensor name into llama.cpp's."""
    ends = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in ends:
        return ends[stem] + ".weight"
    parts = stem.split(".")
    return f"blk.{parts[2]}.{_GGUF_PARTS[parts[-1]]}.weight"


def _unpermuted(weight: Tensor, num_heads: int) -> Tensor:
    """Undo llama.cpp's row order of Q and K: pairs (2i, 2i+1) back to (i, i + D/2)."""
    out, width = weight.shape
    return weight.view(num_heads, out // num_heads // 2, 2, width).transpose(1, 2).reshape(out, width)


def _gguf_contents(path: Path) -> tuple[dict, dict]:
    """Return a GGUF file's metadata, and its tensors by name."""
    import numpy as np
    from gguf import GGUFReader

    class Reader(GGUFReader):
        """Read inside the file only: plain slices take what lies past its end for empty."""

        def _get(self, offset, dtype, count=1, override_order=None):
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("it ends too early")
            return super()._get(offset, dtype, count, override_order)

    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    try:
        reader = Reader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except Exception as error:  # the library trusts its input: bad bytes raise almost anything
        raise ValueError(f"{path} is truncated or no GGUF file; fetch it again ({error})") from error
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def _gguf_config(path: Path, fields: dict, quantised: dict) -> ModelConfig:
    if fields.get("llama.rope.scaling.type", "none") != "none":
        raise ValueError(f"{path} asks for rope scaling, which is not read from GGUF files")
    try:
        if fields["llama.block_count"] > len(quantised):
            raise ValueError(f"{fields['llama.block_count']} layers, {len(quantised)} tensors")
        hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
        return ModelConfig(
            num_layers=fields["llama.block_count"],
            num_heads=heads,
            num_kv_heads=fields.get("llama.attention.head_count_kv", heads),
            head_dim=fields.get("llama.attention.key_length", hidden // heads),
            hidden_size=hidden,
            intermediate_size=fields["llama.feed_forward_length"],
            vocab_size=fields.get("llama.vocab_size", len(fields["tokenizer.ggml.tokens"])),
            rope_theta=float(fields.get("llama.rope.freq_base", 10000.0)),
            norm_eps=float(fields["llama.attention.layer_norm_rms_epsilon"]),
            tie_embeddings="output.weight" not in quantised,
            max_seq_len=fields["llama.context_length"],
        )
    except KeyError as error:
        raise ValueError(f"{path} lacks the field {error.args[0]}") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path} describes no possible model: {error}") from error


def _folder_config(folder: Path) -> ModelConfig:
    """Read config.json; refuse what this model does not compute rather than guess."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ValueError(f"{folder} has no config.json; it is no checkpoint folder") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} must hold one JSON object, {{...}}")
    if raw.get("model_type") != "llama":
        raise ValueError(f"{path} describes a {raw.get('model_type')} model; llama is supported")
    if raw.get("hidden_act", "silu") != "silu" or raw.get("attention_bias") or raw.get("mlp_bias"):
        raise ValueError(f"{path} asks for biases or an activation other than silu: not supported")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"{path} has rope scaling that is no JSON object: {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(f"{path} asks for rope scaling '{kind}'; default and llama3 are supported")
    if kind == "llama3":
        needs = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        if lacks := [name for name in needs if name not in rope]:
            raise ValueError(f"{path} lacks the field {lacks[0]} of its llama3 rope scaling")
    try:
        heads = raw["num_attention_heads"]
        return ModelConfig(
            num_layers=raw["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads", heads),
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            vocab_size=raw["vocab_size"],
            rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
            norm_eps=float(raw["rms_norm_eps"]),
            tie_embeddings=raw.get("tie_word_embeddings", False),
            max_seq_len=raw["max_position_embeddings"],
            rope_scaling=rope if kind == "llama3" else None,
        )
    except KeyError as error:
        raise ValueError(f"{path} lacks the field {error.args[0]}") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path} describes no possible model: {error}") from error

"""A checkpoint, file or folder, to a model and its tokenizer.

Every format is read into tensors under the names a Llama safetensors file uses, weights
(out, in); one function then fits them into the model. No pickles are ever opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from kvlib import model_file, tokenizer
from kvlib.config_file import folder_config, model_config, read_object, refuse_unknown
from kvlib.model import Model, ModelConfig
from kvlib.pages import ask_for_large_pages

_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


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

    _check_target(device, dtype)
    path = Path(path)
    fields, quantised = _gguf_contents(path)
    if fields.get("general.architecture") != "llama":
        raise ValueError(f"{path} holds a {fields.get('general.architecture')} model, not a llama")
    config = _gguf_config(path, fields, quantised)
    gguf_names = {name: _gguf_name(name) for name in _names(path, config, len(quantised))}
    llama_names = {gguf: name for name, gguf in gguf_names.items()}
    shapes = {  # llama.cpp counts dimensions from the innermost
        llama_names.get(name, name): tuple(int(size) for size in reversed(tensor.shape))
        for name, tensor in quantised.items()
    }
    _check_shapes(path, config, shapes)
    text = tokenizer.from_gguf_fields(path, fields)

    def read(name: str) -> Tensor:
        tensor = quantised[gguf_names[name]]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ValueError(f"{path}: {tensor.name} has a type that cannot be read") from error
        weight = torch.tensor(values)  # a copy: the map is read-only
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        return _unpermuted(weight, heads) if heads else weight

    return _assemble(config, read, device=device, dtype=dtype), text


def load_checkpoint(folder: str | Path, *, device=None, dtype: torch.dtype | None = None):
    """Load a Llama-layout folder (config.json, safetensors, tokenizer.json).

    Weights are taken from model.safetensors or, where there is none, from the shards that
    model.safetensors.index.json names; other files are left alone. generation_config.json gives the
    stop tokens only. A head that differs from an embedding it should be tied to is kept, as
    transformers does.
    Returns (model, tokenizer); `dtype` is the checkpoint's own where None. Raises ValueError,
    naming the file and the fault, for a folder that is incomplete, broken, or of another
    architecture.
    """
    from safetensors import safe_open

    _check_target(device, dtype)
    folder = Path(folder)
    config = folder_config(folder)
    files, shapes, kinds = _safetensors_contents(folder)

    def read(name: str) -> Tensor:
        with safe_open(files[name], framework="pt") as part:
            return part.get_tensor(name)

    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    if config.tie_embeddings and head in files and embedding in files:
        if kinds[head] == kinds[embedding] and torch.equal(read(head), read(embedding)):
            del shapes[head], kinds[head]  # a copy
        else:
            config = replace(config, tie_embeddings=False)
    _check_shapes(folder, config, shapes)
    stored = set(kinds.values())
    if strange := stored - _DTYPES.keys():
        raise ValueError(f"{folder} stores weights as {min(strange)}; supported: {', '.join(_DTYPES)}")
    if dtype is None and len(stored) > 1:
        raise ValueError(f"{folder} mixes precisions; say which dtype to load")
    text = tokenizer.from_folder(folder)
    return _assemble(config, read, device=device, dtype=dtype or _DTYPES[stored.pop()]), text


def _check_target(device, dtype) -> None:
    """Raise ValueError for a precision or a device that no model can have here."""
    if dtype is not None and dtype not in _DTYPES.values():
        raise ValueError(f"dtype is a torch.dtype: float16, bfloat16, float32 or float64, not {dtype!r}")
    try:
        torch.empty(0, device=device)
    except Exception as error:  # which one depends on the device
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {device!r} cannot be used here: {reason}") from error


def _safetensors_contents(folder: Path) -> tuple[dict[str, Path], dict[str, tuple], dict[str, str]]:
    """Return of every tensor of a folder its file, its shape, and its precision as safetensors says it."""
    from safetensors import SafetensorError, safe_open

    files, shapes, kinds = {}, {}, {}
    for file, expected in _weight_files(folder).items():
        try:
            with safe_open(file, framework="pt") as part:
                slices = {name: part.get_slice(name) for name in part.keys()}
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is missing, truncated or broken; copy it again ({error})") from error
        if expected is not None and slices.keys() != expected:
            raise ValueError(f"{file} does not hold the tensors that the index names; copy both again")
        for name, part in slices.items():
            if not name.endswith("rotary_emb.inv_freq"):  # old checkpoints have it; it is computed here
                files[name], shapes[name], kinds[name] = file, tuple(part.get_shape()), part.get_dtype()
    return files, shapes, kinds


def _weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """Return the files that hold the weights, each with the names the index gives it, if there is one."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return {single: None}
    if not index.exists():
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        why = "; its pickled weights are not opened, as they can run code" if pickled else ""
        raise ValueError(f"{folder} holds neither {single.name} nor {index.name}{why}")
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) and Path(file).name == file not in ("", "..") for file in weight_map.values()
    ):
        raise ValueError(f"{index} must give for each tensor a file of this folder, as its weight_map")
    files: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        files.setdefault(folder / file, set()).add(name)
    return files


def _check_shapes(source: Path, config: ModelConfig, shapes: dict[str, tuple]) -> None:
    """Raise ValueError unless the tensors are exactly those of a Llama of this config."""
    needed = _names(source, config, len(shapes))
    if missing := needed.keys() - shapes.keys():
        raise ValueError(
            f"{source} lacks the tensor {min(missing)}; it is incomplete, so copy it again"
        )
    if extra := shapes.keys() - needed.keys():
        raise ValueError(f"{source} has tensors that this model does not use, such as {min(extra)}")
    for name, shape in needed.items():
        if shapes[name] != shape:
            raise ValueError(
                f"{source}: {name} has shape {shapes[name]}, the config asks for {shape}; "
                "the two do not belong together"
            )


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


def _assemble(config: ModelConfig, read: Callable[[str], Tensor], *, device, dtype) -> Model:
    """Fit tensors, read by Llama name, into a new model."""

    def get(name: str) -> Tensor:
        return read(name).to(device=device, dtype=dtype)

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


def _names(source: Path, config: ModelConfig, num_tensors: int) -> dict[str, tuple[int, ...]]:
    """Return every tensor a Llama of this config has, with its shape (out, in).

    Raises ValueError where the file has so few that the config's layers cannot be in it.
    """
    if config.num_layers > num_tensors:
        raise ValueError(
            f"{source} has {num_tensors} tensors for {config.num_layers} layers; it is incomplete or the "
            "config is wrong"
        )
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


_GGUF_FIELDS = {  # a ModelConfig's field: what llama.cpp calls it
    "num_layers": "block_count", "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "vocab_size": "vocab_size", "rope_theta": "rope.freq_base",
    "norm_eps": "attention.layer_norm_rms_epsilon", "max_seq_len": "context_length",
}  # fmt: skip
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
    found = {key.removeprefix("llama."): fields[key] for key in fields if key.startswith("llama.")}
    if not isinstance(tokens := fields.get("tokenizer.ggml.tokens"), list):
        raise ValueError(f"{path} lacks the field tokenizer.ggml.tokens, a list")
    left_out = {"vocab_size": len(tokens), "rope.freq_base": 10000.0}
    tied = "output.weight" not in quantised
    config = model_config(path, left_out | found, _GGUF_FIELDS, tie_embeddings=tied)
    refuse_unknown(path, found, _GGUF_FIELDS.values(), {
        "attention.value_length": (config.head_dim,), "rope.dimension_count": (config.head_dim,),
        "rope.scaling.type": ("none",), "attention.causal": (True,),
    })  # fmt: skip
    return config

"""A checkpoint's settings: its JSON files, and config.json as a `ModelConfig`.

Every setting is used, known to change nothing here, or refused; none is ignored in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

from kvlib.checks import check_whole
from kvlib.model import ModelConfig
from kvlib.rotary import SCALING

_FIELDS = {  # a ModelConfig's field: what config.json calls it
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size", "vocab_size": "vocab_size", "norm_eps": "rms_norm_eps",
    "max_seq_len": "max_position_embeddings", "tie_embeddings": "tie_word_embeddings",
}  # fmt: skip
_USED = {
    *_FIELDS.values(), "model_type", "rope_parameters", "rope_scaling", "rope_theta",
    "original_max_position_embeddings", "eos_token_id",
}  # fmt: skip
_ONLY = {  # settings of which the model computes one value
    "hidden_act": ("silu", "swish"),  # two names of one function
    "attention_bias": (False,), "mlp_bias": (False,), "is_causal": (True,), "partial_rotary_factor": (1,),
}  # fmt: skip
_WINDOWS = ("layer_types", "sliding_window", "use_sliding_window")  # of layers that have none
_HARMLESS = {  # about training, text, sampling, or the program that saved or will run the model
    "initializer_range", "attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop",
    "pretraining_tp", "use_cache", "bos_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
    "tokenizer_class", "architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path",
    "name_or_path", "_commit_hash", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "_flash_attn_2_enabled", "output_attentions",
    "output_hidden_states", "return_dict", "torchscript", "id2label", "label2id", "num_labels",
    "problem_type", "finetuning_task", "task_specific_params", "do_sample", "temperature", "top_k",
    "top_p", "typical_p", "min_length", "max_length", "num_beams", "num_beam_groups",
    "num_return_sequences", "length_penalty", "diversity_penalty", "repetition_penalty",
    "is_llama_config", "transformers.js_config", "unsloth_version", "unsloth_fixed",
    "max_window_layers",
}  # fmt: skip


def read_text(path: Path) -> str | None:
    """Return a file's text, None where there is no such file; ValueError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); is it a text file?") from error


def read_object(path: Path) -> dict:
    """Return the JSON object in a file, without its nulls; {} where there is no such file.

    Raises ValueError, naming the file, for anything else than one object.
    """
    text = read_text(path)
    try:
        raw = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); copy it again") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} must hold one JSON object, {{...}}")
    return {name: value for name, value in raw.items() if value is not None}


def refuse_unknown(path: Path, settings: dict, known: Collection[str], only: dict[str, tuple]) -> None:
    """Raise ValueError for a setting of something that this model does not compute.

    `only` lists the supported values of some settings. One in neither must be off: false, 0 or empty.
    """
    for name in only.keys() & settings.keys():
        if settings[name] not in only[name]:
            supported = " and ".join(map(repr, only[name]))
            raise ValueError(f"{path} sets {name} to {settings[name]!r:.60}; supported: {supported}")
    for name, value in settings.items():
        if value and name not in known and name not in only:
            raise ValueError(
                f"{path} sets {name}, which is not supported; remove it if the model computes the same "
                "without it"
            )


def folder_config(folder: Path) -> ModelConfig:
    """Read config.json; refuse what this model does not compute rather than guess."""
    path = folder / "config.json"
    raw = read_object(path)
    if not raw:
        raise ValueError(f"{folder} has no config.json, or an empty one; it is no checkpoint folder")
    if raw.get("model_type") != "llama":
        raise ValueError(f"{path} describes a {raw.get('model_type')!r:.60} model; llama is supported")
    windows = raw.get("use_sliding_window", True) and raw.get("sliding_window")
    if not windows and set(raw.get("layer_types", ())) <= {"full_attention"}:  # no window, said in full
        raw = {name: value for name, value in raw.items() if name not in _WINDOWS}
    refuse_unknown(path, raw, _USED | _HARMLESS, _ONLY)
    rope = _rope(path, raw)
    scaling = {
        "rope_theta": rope.get("rope_theta", 10000.0),
        "rope_scaling": rope if rope.get("rope_type") == "llama3" else None,
    }
    names = _FIELDS if "rope_scaling" in raw else _FIELDS | {"rope_scaling": "rope_parameters"}
    return model_config(path, {"tie_word_embeddings": False} | raw, names, **scaling)


def model_config(path: Path, given: dict, names: dict[str, str], **more) -> ModelConfig:
    """Build a config of what a file gives; `names` are its names for our fields, in errors too.

    Where the file leaves them out, there are as many KV heads as heads, which divide the hidden size.
    """
    try:
        hidden, heads = given[names["hidden_size"]], given[names["num_heads"]]
        check_whole("hidden_size", hidden)
        check_whole("num_heads", heads)
        given = {names["num_kv_heads"]: heads} | given
        if names["head_dim"] not in given:
            quotient = f"{names['hidden_size']} // {names['num_heads']}"
            given, names = given | {quotient: hidden // heads}, names | {"head_dim": quotient}
        fields = {name: given[theirs] for name, theirs in names.items() if name not in more}
        return ModelConfig(**fields, **more)
    except KeyError as error:
        raise ValueError(f"{path} lacks the field {error.args[0]}") from None
    except (TypeError, ValueError) as error:
        said = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
        raise ValueError(f"{path} describes no possible model: {said}") from error


def _rope(path: Path, raw: dict) -> dict:
    """Merge what a config says of rotary positions, in up to three places, which must agree."""
    top = {name: raw[name] for name in ("rope_theta", SCALING[-1]) if name in raw}
    rope: dict = {}
    for part in (top, raw.get("rope_parameters", {}), raw.get("rope_scaling", {})):
        if not isinstance(part, dict):
            raise ValueError(f"{path} has rope scaling that is no JSON object: {part!r:.60}")
        for name, value in part.items():
            name = "rope_type" if name == "type" else name  # the older name
            if value is not None and rope.setdefault(name, value) != value:
                raise ValueError(
                    f"{path} gives {name} twice, as {rope[name]!r:.60} and {value!r:.60}; keep the one "
                    "that is meant"
                )
    known = {"rope_theta", SCALING[-1], *(SCALING if rope.get("rope_type") == "llama3" else ())}
    refuse_unknown(path, rope, known, {"rope_type": ("default", "llama3"), "partial_rotary_factor": (1,)})
    return rope

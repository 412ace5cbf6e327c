"""Any file of a checkpoint folder broken in any way: the same logits, or one sentence."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvlib import load_checkpoint
from kvlib.tokenizer import Tokenizer, from_folder
from tests.unit.test_weights import CONFIG, LLAMA3, split, write_folder

TOKENS = torch.arange(40)[None]
BESIDE = {
    "config.json": CONFIG | {"rope_scaling": LLAMA3, "architectures": ["LlamaForCausalLM"]},
    "generation_config.json": {"eos_token_id": [2, 5], "temperature": 0.6},
    "tokenizer_config.json": {
        "bos_token": "t1", "eos_token": {"content": "t2", "lstrip": False}, "add_bos_token": True,
        "additional_special_tokens": ["<x>"],
        "added_tokens_decoder": {"60": {"content": "<y>", "special": True, "lstrip": False}},
        "chat_template": [{"name": "default", "template": "{{ bos_token }} {{ messages[0].content }}"}],
    },
    "special_tokens_map.json": {"pad_token": {"content": "t0"}},
}  # fmt: skip
OF_TEXT = {*BESIDE, "tokenizer.json"} - {"config.json"}
# Numbers that another model may have as well: nothing tells such a change from what was meant.
FREE = {"rope_theta", "rms_norm_eps", "max_position_embeddings", *LLAMA3} - {"rope_type"}


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = write_folder(tmp_path_factory.mktemp("good"))
    split(folder)
    for name, value in BESIDE.items():
        (folder / name).write_text(json.dumps(value))
    return folder


@pytest.fixture(scope="module")
def logits(good) -> torch.Tensor:
    return load_checkpoint(good)[0](TOKENS)


@pytest.fixture
def folder(good, tmp_path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "broken"))


def is_sentence(error: Exception, folder: Path) -> bool:
    text = str(error)
    return str(folder) in text and len(text) > len(str(folder)) + 15 and "\n" not in text


def loads_alike_or_says_why(file: Path, logits: torch.Tensor, change="") -> bool:
    """Return whether the file's folder was refused, in a sentence; fail for anything but the same logits."""
    try:
        if file.name in OF_TEXT:  # of no weight to the model, and much faster
            tokenizer = from_folder(file.parent)
        else:
            model, tokenizer = load_checkpoint(file.parent)
            assert torch.equal(model(TOKENS), logits), change
    except (ValueError, OSError) as error:
        assert is_sentence(error, file.parent), repr(error)
        return True
    use(tokenizer)
    return False


def use(tokenizer: Tokenizer) -> None:
    """Whatever was read of a tokenizer works, or says why it does not."""
    assert all(type(token) is int for token in tokenizer.eos_ids)
    for work in (
        lambda: tokenizer.encode("t7 t59 \u00e9"), lambda: tokenizer.decode([7, 2, 59]),
        lambda: list(tokenizer.stream([7, 2, 59])), lambda: tokenizer.chat("t7"),
    ):  # fmt: skip
        try:
            work()
        except ValueError as error:
            assert "\n" not in str(error) and len(str(error)) > 15


def places(value, path=()) -> Iterator[tuple]:
    """Yield the path of every value in a JSON document, of long objects the first and last ones."""
    yield path
    if isinstance(value, dict):
        keys = list(value) if len(value) < 20 else [*list(value)[:2], list(value)[-1]]
        for key in keys:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from places(inner, (*path, i))


REMOVED = object()


def others(value) -> list:
    """Values to stand in another's place, of every type."""
    return [
        REMOVED, None, True, False, 0, -1, 7, 1.5, float("nan"), float("inf"), 10**30, "", "x", "a/../b",
        str(value), [], {}, [value], {"a": value}, [[[value]]], [None], {"": None},
    ]  # fmt: skip


def changed(document, path: tuple, value):
    document = copy.deepcopy(document)
    if not path:
        return {} if value is REMOVED else value
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    if value is REMOVED:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return document


def means_another_model(path: tuple, value) -> bool:
    """Say whether a change leaves a config that is sound, of a model that computes something else."""
    if path == ("rope_scaling",):
        return value is REMOVED or value in (None, {}, {"": None})
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return bool(path) and path[-1] in FREE and number


@pytest.mark.parametrize("name", [*BESIDE, "model.safetensors.index.json", "tokenizer.json"])
def test_any_value_of_a_json_file_may_be_anything(folder, logits, name):
    file = folder / name
    document = json.loads(file.read_text())
    refused = total = 0
    for path in places(document):
        held = document
        for key in path:
            held = held[key]
        for value in others(held):
            if means_another_model(path, value):
                continue
            file.write_text(json.dumps(changed(document, path, value)))
            refused += loads_alike_or_says_why(file, logits, (path, value))
            total += 1
    assert refused > total / 8


FILES = [*BESIDE, "model.safetensors.index.json", "tokenizer.json", "model-00002-of-00003.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_any_file_may_be_something_else(folder, logits, name):
    file = folder / name
    good = file.read_bytes()
    source = random.Random(1)
    contents = [
        b"", b"\0", b"\n", b"{", b"[]", b"{}", b"null", b"3", b'"text"', b"[" * 100_000, b"\xff\xfe",
        b'{"a":' * 100_000, b"1" * 10_000, good + b"x", good[1:], good * 2, b"\xef\xbb\xbf" + good,
        good.decode("latin1").encode("utf-16"), source.randbytes(3000), b"\0" * 3000, b"PK\x03\x04" + good,
    ]  # fmt: skip
    for content in contents:
        file.write_bytes(content)
        loads_alike_or_says_why(file, logits)
    file.unlink()
    loads_alike_or_says_why(file, logits)
    file.symlink_to(file)  # cannot be opened by anybody
    loads_alike_or_says_why(file, logits)
    file.unlink()
    file.mkdir()
    loads_alike_or_says_why(file, logits)


@pytest.mark.parametrize("name", FILES)
def test_any_file_may_be_truncated_or_have_a_byte_flipped(folder, logits, name):
    """The weights themselves apart, and the digits of a number: no file says what they were."""
    file = folder / name
    good = file.read_bytes()
    is_weights = name.endswith(".safetensors")
    end = 8 + int.from_bytes(good[:8], "little") if is_weights else len(good)
    source = random.Random(2)
    for cut in source.sample(range(end), min(end, 40)):
        file.write_bytes(good[:cut])
        loads_alike_or_says_why(file, logits)
    for place in [source.randrange(end) for _ in range(150)]:
        if good[place] in b"0123456789.-+" and not is_weights:
            continue
        flipped = bytearray(good)
        flipped[place] ^= 1 << source.randrange(8)
        file.write_bytes(flipped)
        loads_alike_or_says_why(file, logits)

"""Text to ids and back, streamed pieces, and chat templates, without any real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from kvlib.tokenizer import Tokenizer, from_folder, from_gguf_fields

TEMPLATE = (
    "{% for m in messages %}\n"
    "    {% if m['role'] not in ('user', 'assistant') %}{{ raise_exception('no ' + m['role']) }}"
    "{% endif %}\n"
    "<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_alphabet() -> dict[str, int]:
    return {piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def byte_level(**options) -> Tokenizer:
    """One token a byte, and </s> as number 256."""
    backend = Backend(models.BPE(vocab=byte_alphabet(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>"])
    return Tokenizer(backend, **options)


@pytest.mark.parametrize("text", ["", "abc", "é😀漢", "a</s>b", "  \n\t ", "\x00"])
def test_text_comes_back_without_special_tokens(text):
    tokenizer = byte_level()
    ids = tokenizer.encode(text)
    assert all(type(token) is int for token in ids)
    assert tokenizer.decode(ids) == text.replace("</s>", "")
    assert tokenizer.decode(iter(ids)) == text.replace("</s>", "")


def test_a_special_token_is_one_id():
    assert byte_level().encode("</s></s>") == [256, 256]


@pytest.mark.parametrize("text", ["abc", "é", "a😀b漢字", "Größe 👩‍👧!", "x</s>y"])
def test_streamed_pieces_are_whole_characters_and_join_to_the_text(text):
    tokenizer = byte_level()
    ids = tokenizer.encode(text)
    pieces = list(tokenizer.stream(iter(ids)))
    assert len(pieces) == len(ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_piece_comes_with_the_last_byte_of_its_character():
    tokenizer = byte_level()
    assert list(tokenizer.stream(tokenizer.encode("a😀b"))) == ["a", "", "", "", "😀", "b"]


def test_the_stream_waits_for_no_later_id():
    tokenizer = byte_level()
    given = []

    def ids():
        for token in tokenizer.encode("abc"):
            given.append(token)
            yield token

    pieces = tokenizer.stream(ids())
    assert next(pieces) == "a" and len(given) == 1


def test_chat_renders_the_template():
    tokenizer = byte_level(chat_template=TEMPLATE, special={"eos_token": "</s>"})
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"},
                {"role": "user", "content": "{{ 1 + 1 }}"}]  # fmt: skip
    expected = "<user>hi</s><assistant>yes</s><user>{{ 1 + 1 }}</s><assistant>"
    assert tokenizer.chat(messages) == tokenizer.encode(expected)
    assert tokenizer.chat(tuple(messages)) == tokenizer.encode(expected)
    assert tokenizer.chat("hi") == tokenizer.encode("<user>hi</s><assistant>")


def test_no_chat_template_is_said():
    with pytest.raises(ValueError, match="no chat template; use encode"):
        byte_level().chat("hi")


def test_a_template_can_refuse_a_conversation():
    tokenizer = byte_level(chat_template=TEMPLATE)
    with pytest.raises(ValueError, match="refuses this conversation: no robot"):
        tokenizer.chat([{"role": "robot", "content": "hi"}])


def test_a_template_runs_in_a_sandbox():
    """It comes with a download: it may not reach into Python."""
    from jinja2.exceptions import SecurityError

    tokenizer = byte_level(chat_template="{{ messages.__class__.__base__.__subclasses__() }}")
    with pytest.raises(SecurityError):
        tokenizer.chat("hi")
    tokenizer = byte_level(chat_template="{{ messages.append(1) }}")
    with pytest.raises(SecurityError):
        tokenizer.chat("hi")


# From a folder


@pytest.fixture
def folder(tmp_path) -> Path:
    byte_level().backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder: Path, name: str, **fields) -> None:
    (folder / name).write_text(json.dumps(fields))


def test_a_bare_tokenizer_file_is_enough(folder):
    tokenizer = from_folder(folder)
    assert tokenizer.decode(tokenizer.encode("hé")) == "hé"
    assert tokenizer.eos_ids == () and tokenizer.chat_template is None


def test_stop_ids_come_from_the_generation_config_before_the_config(folder):
    write(folder, "config.json", eos_token_id=7)
    assert from_folder(folder).eos_ids == (7,)
    write(folder, "generation_config.json", eos_token_id=[256, 9])
    assert from_folder(folder).eos_ids == (256, 9)
    write(folder, "generation_config.json", temperature=1.0)
    assert from_folder(folder).eos_ids == (7,)


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>", "lstrip": False}])
def test_special_tokens_reach_the_template_written_either_way(folder, eos):
    write(folder, "tokenizer_config.json", eos_token=eos, chat_template=TEMPLATE, bos_token=None)
    tokenizer = from_folder(folder)
    assert tokenizer.chat("hi") == tokenizer.encode("<user>hi</s><assistant>")


def test_a_template_may_stand_in_a_file_of_its_own(folder):
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("{{ eos_token }}", "é"))
    tokenizer = from_folder(folder)
    assert tokenizer.chat("hi") == tokenizer.encode("<user>hié<assistant>")


# From the metadata of a GGUF file


def fields(**changes) -> dict:
    alphabet = list(byte_alphabet())
    found = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*alphabet, "12", "ab", "<|end|>"],
        "tokenizer.ggml.token_type": [1] * 258 + [3],
        "tokenizer.ggml.merges": ["1 2", "a b"],
        "tokenizer.ggml.eos_token_id": 258, "tokenizer.chat_template": "{{ eos_token }}",
    }  # fmt: skip
    found |= {f"tokenizer.{key}": value for key, value in changes.items()}
    return {key: value for key, value in found.items() if value is not None}


def test_metadata_becomes_a_tokenizer():
    tokenizer = from_gguf_fields("x.gguf", fields())
    assert tokenizer.encode("ab") == [257]
    assert tokenizer.encode("ab<|end|>") == [257, 258]
    assert tokenizer.chat("hi") == [258] and tokenizer.eos_ids == (258,)
    assert tokenizer.decode([257, 258]) == "ab"


def test_only_smollms_splitting_parts_digits():
    assert len(from_gguf_fields("x", fields()).encode("12")) == 2
    assert from_gguf_fields("x", fields(**{"ggml.pre": "gpt-2"})).encode("12") == [256]
    assert from_gguf_fields("x", fields(**{"ggml.pre": None})).encode("12") == [256]


@pytest.mark.parametrize("key", ["ggml.tokens", "ggml.merges", "ggml.token_type"])
def test_a_lacking_field_is_named_with_the_file(key):
    with pytest.raises(ValueError, match=f"x.gguf lacks the field tokenizer.{key}"):
        from_gguf_fields("x.gguf", fields(**{key: None}))


@pytest.mark.parametrize("changes", [
    {"ggml.model": "llama"}, {"ggml.model": None}, {"ggml.pre": "llama-bpe"},
    {"ggml.merges": ["never seen"]}, {"ggml.merges": ["one"]}, {"ggml.tokens": [1, 2]},
    {"ggml.eos_token_id": 999},
])  # fmt: skip
def test_a_tokenizer_that_cannot_be_built_is_refused_with_the_file(changes):
    with pytest.raises(ValueError, match="x.gguf has no readable tokenizer"):
        from_gguf_fields("x.gguf", fields(**changes))


def test_no_stop_token_is_no_stop_token():
    assert from_gguf_fields("x", fields(**{"ggml.eos_token_id": None})).eos_ids == ()

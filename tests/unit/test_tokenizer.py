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

    for text in ("{{ messages.__class__.__base__.__subclasses__() }}", "{{ messages.append(1) }}"):
        with pytest.raises(ValueError, match="the chat template fails") as refused:
            byte_level(chat_template=text).chat("hi")
        assert isinstance(refused.value.__cause__, SecurityError)


TEMPLATES = {
    "date": "{{ strftime_now('%Y') }} {%- if strftime_now is defined %}!{% endif %}",
    "tools": "{% if tools is not none %}tools{% endif %}{% if documents is not none %}docs{% endif %}",
    "loop controls": "{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}{{ m }}{% endfor %}",
    "json": "{{ messages | tojson }}{{ {'b': '<é>', 'a': 1} | tojson(indent=2) }}",
    "training marks": "a{% generation %}\n{% set x = 1 %}b{{ x }}{% endgeneration %}{{ x }}",
    "namespace": "{% set n = namespace(x=1) %}{% for m in messages %}{% set n.x = 2 %}{% endfor %}{{ n.x }}",
    "a message without content": "{{ messages[-1].content is defined }}{{ messages[0]['content'] | trim }}",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ sep_token }}",
    "blocks on lines": "  {% if true %}\n  x\n  {% endif %}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_in_transformers(folder, name):
    transformers = pytest.importorskip("transformers")
    write(folder, "config.json", model_type="llama")
    write(folder, "tokenizer_config.json", chat_template=TEMPLATES[name], bos_token="<s>",
          eos_token={"__type": "AddedToken", "content": "</s>"},
          tokenizer_class="PreTrainedTokenizerFast")  # fmt: skip
    write(folder, "special_tokens_map.json", pad_token="<pad>", bos_token="<S>")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": " hé "}, {"role": "tool", "content": None}]
    ours = from_folder(folder)
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.chat(messages) == ours.encode(text)


@pytest.mark.parametrize("template, words", [
    ("{{ 1 / 0 }}", "division by zero"), ("{% if %}", "Expected an expression"),
    ("{{ undefined_function() }}", "undefined_function"), ("{{ messages[0].a.b }}", "no attribute 'a'"),
    ("{{ raise_exception('only users') }}", "conversation: only users"),
    ("{% include 'x' %}", "no loader"), ("{{ range(10**9) | list }}", "range"),
])  # fmt: skip
def test_a_template_that_fails_is_a_sentence(template, words):
    with pytest.raises(ValueError, match=f"the chat template fails or refuses.*{words}"):
        byte_level(chat_template=template).chat("hi")


@pytest.mark.parametrize("messages", [5, None, [1], [["user", "hi"]], {"role": "user"}, [None], b"hi"])
def test_what_is_no_conversation_is_refused(messages):
    with pytest.raises(ValueError, match="messages must be"):
        byte_level(chat_template=TEMPLATE).chat(messages)


@pytest.mark.parametrize("text", [5, None, ["a"], b"a", "\ud800"])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(ValueError, match="text"):
        byte_level().encode(text)


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


def added(text: str, **flags) -> dict:
    return {"__type": "AddedToken", "content": text, "normalized": False} | flags


@pytest.mark.parametrize("settings", [
    {"eos_token": "<END>"}, {"eos_token": "a"}, {"bos_token": "</s>"},
    {"pad_token": added("<pad>", special=True), "unk_token": "<unk>", "mask_token": "<END>"},
    {"additional_special_tokens": ["<END>", "<x>"]}, {"extra_special_tokens": {"image": "<x>"}},
    {"added_tokens_decoder": {"256": added("</s>"), "257": added("<x>", special=True, lstrip=True)}},
    {"added_tokens_decoder": {"258": added("<pad>"), "257": added("<x>")}, "eos_token": "<END>"},
])  # fmt: skip
def test_tokens_named_beside_the_tokenizer_are_one_id_as_in_transformers(folder, settings):
    transformers = pytest.importorskip("transformers")
    write(folder, "config.json", model_type="llama")
    write(folder, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", **settings)
    text = "ab <END> <x></s><pad> <unk>a"
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), from_folder(folder)
    ids = ours.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("settings", [
    {"added_tokens_decoder": {"300": added("<x>")}}, {"added_tokens_decoder": {"5": added("</s>")}},
    {"added_tokens_decoder": {"x": added("<x>")}}, {"added_tokens_decoder": [3]}, {"eos_token": 3},
    {"added_tokens_decoder": {"257": "<x>"}}, {"additional_special_tokens": [3]}, {"eos_token": {"a": 1}},
    {"added_tokens_decoder": {"257": added("<x>", special="yes")}}, {"extra_special_tokens": 5},
])  # fmt: skip
def test_tokens_named_wrongly_are_refused(folder, settings):
    write(folder, "tokenizer_config.json", **settings)
    with pytest.raises(ValueError, match="tokenizer_config.json names tokens wrongly"):
        from_folder(folder)


def test_a_template_may_stand_in_a_file_of_its_own(folder):
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("{{ eos_token }}", "é"))
    tokenizer = from_folder(folder)
    assert tokenizer.chat("hi") == tokenizer.encode("<user>hié<assistant>")


def test_a_template_file_goes_before_the_config_as_in_transformers(folder):
    write(folder, "tokenizer_config.json", chat_template="config")
    (folder / "chat_template.jinja").write_text("file")
    assert from_folder(folder).chat("hi") == from_folder(folder).encode("file")


def test_of_named_templates_the_default_is_taken(folder):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    write(folder, "tokenizer_config.json", chat_template=named)
    tokenizer = from_folder(folder)
    assert tokenizer.chat("hi") == tokenizer.encode("plain")
    write(folder, "tokenizer_config.json", chat_template=named[1:])
    with pytest.raises(ValueError, match="templates are tool_use, and none is the default"):
        from_folder(folder).chat("hi")


@pytest.mark.parametrize("template", [[], {}, None])
def test_an_empty_list_of_templates_is_none(folder, template):
    write(folder, "tokenizer_config.json", chat_template=template)
    with pytest.raises(ValueError, match="this checkpoint has no chat template; use encode on plain text$"):
        from_folder(folder).chat("hi")


@pytest.mark.parametrize("template", [
    3, [3], [{"name": "default"}], [{"name": 1, "template": "x"}], {"default": 3}, [["name", "x"]], True,
])  # fmt: skip
def test_a_chat_template_that_is_no_text_is_refused(folder, template):
    write(folder, "tokenizer_config.json", chat_template=template)
    with pytest.raises(ValueError, match="tokenizer_config.json holds a chat_template"):
        from_folder(folder)


@pytest.mark.parametrize("eos", ["</s>", [1.5], -1, {"id": 2}, [[2]], True])
def test_stop_ids_that_are_none_are_refused(folder, eos):
    write(folder, "generation_config.json", eos_token_id=eos)
    with pytest.raises(ValueError, match="generation_config.json is wrong: eos_token_id must"):
        from_folder(folder)


def test_what_a_file_says_of_truncation_and_padding_belongs_to_whoever_saved_it(folder):
    backend = byte_level().backend
    backend.enable_truncation(4)
    backend.enable_padding(length=12)
    backend.save(str(folder / "tokenizer.json"))
    assert len(from_folder(folder).encode("one token a byte")) == 16
    assert len(from_folder(folder).encode("one")) == 3


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


def test_a_user_defined_token_is_one_id_and_is_shown():
    changed = fields()
    changed["tokenizer.ggml.tokens"].append("<think>")
    changed["tokenizer.ggml.token_type"].append(4)
    tokenizer = from_gguf_fields("x", changed)
    assert tokenizer.encode("a<think>b<|end|>") == [*tokenizer.encode("a"), 259, *tokenizer.encode("b"), 258]
    assert tokenizer.decode([259, 258]) == "<think>"


@pytest.mark.parametrize("key", ["ggml.tokens", "ggml.merges", "ggml.token_type"])
def test_a_lacking_field_is_named_with_the_file(key):
    with pytest.raises(ValueError, match=f"x.gguf lacks the field tokenizer.{key}"):
        from_gguf_fields("x.gguf", fields(**{key: None}))


@pytest.mark.parametrize("changes", [
    {"ggml.model": "llama"}, {"ggml.model": None}, {"ggml.pre": "llama-bpe"},
    {"ggml.merges": ["never seen"]}, {"ggml.merges": ["one"]}, {"ggml.tokens": [1, 2]},
    {"ggml.eos_token_id": 999}, {"ggml.eos_token_id": -1}, {"ggml.bos_token_id": True},
    {"ggml.token_type": [1]}, {"ggml.eos_token_id": "2"},
    {"ggml.tokens": [*byte_alphabet(), "a", "b", "<|end|>"]},
])  # fmt: skip
def test_a_tokenizer_that_cannot_be_built_is_refused_with_the_file(changes):
    with pytest.raises(ValueError, match="x.gguf has no readable tokenizer"):
        from_gguf_fields("x.gguf", fields(**changes))


@pytest.mark.parametrize("template", [0, ["x"], True, 1.5])
def test_metadata_with_a_chat_template_that_is_no_text_is_refused(template):
    with pytest.raises(ValueError, match="x.gguf holds a chat_template that is no text"):
        from_gguf_fields("x.gguf", fields(chat_template=template))


def test_no_stop_token_is_no_stop_token():
    assert from_gguf_fields("x", fields(**{"ggml.eos_token_id": None})).eos_ids == ()

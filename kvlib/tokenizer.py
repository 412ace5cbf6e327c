"""Text to token ids and back, for the checkpoints that `kvlib.weights` loads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from kvlib.checks import token_ids
from kvlib.config_file import read_object, read_text

_NAMED = "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"


class Tokenizer:
    """Text to token ids and back; `backend` is a `tokenizers.Tokenizer`.

    `chat_template` is a Jinja template, or several by name; `special` are the tokens it can name.
    """

    def __init__(self, backend, *, eos_ids: Sequence[int] = (),
                 chat_template: str | Mapping[str, str] | None = None,
                 special: dict[str, str] | None = None) -> None:  # fmt: skip
        self.backend = backend
        self.eos_ids = tuple(eos_ids)
        self.chat_template = chat_template
        self.special = special or {}

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, with nothing put before or after it.

        Raises ValueError for what is no text, or not one that this vocabulary can express.
        """
        if not isinstance(text, str):
            raise ValueError(f"text must be a string, not {text!r:.60}")
        try:
            return self.backend.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(f"this text cannot be encoded ({error})") from error

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        return self._decode(token_ids("ids", ids))

    def _decode(self, ids: list[int]) -> str:
        try:
            return self.backend.decode(ids, skip_special_tokens=True)
        except Exception as error:
            raise ValueError(f"these token ids cannot be decoded ({error})") from error

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield for each id the text it completes: '' while a character is still in parts.

        Joined, the pieces are what `decode` gives; a last piece holds what never became a character.
        """
        from tokenizers.decoders import DecodeStream

        step = DecodeStream(skip_special_tokens=True).step
        held: list[int] = []
        waiting: list[int] = []
        length = 0
        for token in ids:
            if type(token) is not int or token < 0:
                (token,) = token_ids("ids", [token])
            held.append(token)
            is_byte = (self.backend.id_to_token(token) or "").startswith("<0x")  # one by its number
            if is_byte or (waiting and not self._decode([token])):
                waiting.append(token)  # bytes in a row become characters together, or none of them does
                yield ""
                continue
            piece = step(self.backend, [*waiting, token]) or ""
            waiting = []
            length += len(piece)
            yield piece
        if tail := self._decode(held)[length:]:
            yield tail

    def chat(self, messages: str | Sequence[Mapping[str, object]]) -> list[int]:
        """Return the ids of a conversation, ready for the assistant's next words.

        `messages` is a list of {"role": ..., "content": ...}, or one string that the user says.
        Raises ValueError where the checkpoint brought no chat template, or one that fails or refuses
        the conversation. Of several templates the one named "default" is taken.
        """
        template = self.chat_template
        if isinstance(template, Mapping):
            if "default" not in template:
                raise ValueError(
                    f"this checkpoint's chat templates are {', '.join(template)}, and none is the default; "
                    "set the tokenizer's chat_template to one of them"
                )
            template = template["default"]
        if template is None:
            raise ValueError("this checkpoint has no chat template; use encode on plain text")
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
            raise ValueError('messages must be a string or a list of {"role": ..., "content": ...}')
        messages = [{key: m[key] for key in m if m[key] is not None} for m in messages]
        try:
            text = _render(template, messages, self.special)
        except Exception as error:  # a template can fail in any way that a program can
            raise ValueError(
                f"the chat template fails or refuses this conversation: {_first_line(error)}"
            ) from error
        return self.encode(text)


def _render(template: str, messages: list[dict], special: dict[str, str]) -> str:
    """Render a chat template in the environment that transformers gives it."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # templates are untrusted text

    class Generation(Extension):
        """Show what stands in {% generation %}, which marks an assistant's words for training."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True), lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, **{"ensure_ascii": False} | options
    )
    return environment.from_string(template).render(
        messages=messages, tools=None, documents=None, add_generation_prompt=True,
        raise_exception=raise_exception, strftime_now=lambda form: datetime.now().strftime(form),
        **special,
    )  # fmt: skip


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def from_gguf_fields(path, fields: dict) -> Tokenizer:
    """Build the tokenizer that the GGUF file at `path` carries in its metadata (byte-level BPE).

    Raises ValueError, naming the file, where the metadata lacks one or has one of another kind.
    """
    template = _template(path, fields.get("tokenizer.chat_template"))
    try:
        return _byte_level(fields, template)
    except KeyError as error:
        raise ValueError(f"{path} lacks the field {error.args[0]} of its tokenizer") from None
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"{path} has no readable tokenizer: {_first_line(error)}") from error


def _byte_level(fields: dict, template) -> Tokenizer:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in ("smollm", "gpt-2", None):
        raise ValueError(f"its kind ({kind}, {pre}) is not one this library can build")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ValueError("its tokens are not each named once and given a type")
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    backend.decoder = decoders.ByteLevel()
    for number, add in (3, backend.add_special_tokens), (4, backend.add_tokens):  # control, user defined
        whole = [t for t, kind in zip(tokens, kinds) if kind == number]
        add([AddedToken(t, special=number == 3, normalized=False) for t in whole])
    ids = {
        f"{name}_token": token_ids(key, [fields[key]])
        for name in ("bos", "eos")
        if (key := f"tokenizer.ggml.{name}_token_id") in fields
    }
    special = {name: tokens[number] for name, (number,) in ids.items()}
    return Tokenizer(backend, eos_ids=ids.get("eos_token", ()), chat_template=template, special=special)


def from_folder(folder: Path) -> Tokenizer:
    """Build the tokenizer of a checkpoint folder: tokenizer.json and what stands beside it.

    Raises ValueError, naming the file, for one that is missing, broken or holds something else.
    """
    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    text = read_text(path)
    if text is None:
        raise ValueError(f"{folder} has no tokenizer.json; copy it from the checkpoint")
    try:
        backend = Backend.from_str(text)
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"{path} is not a readable tokenizer: {_first_line(error)}") from error
    backend.no_truncation()  # both belong to whoever saved the file
    backend.no_padding()
    extra = read_object(folder / "tokenizer_config.json")
    settings = read_object(folder / "config.json") | read_object(folder / "generation_config.json")
    eos = settings.get("eos_token_id", [])
    try:
        eos_ids = token_ids("eos_token_id", eos if isinstance(eos, list) else [eos])
    except ValueError as error:
        raise ValueError(f"{folder}: config.json or generation_config.json is wrong: {error}") from None
    template = read_text(folder / "chat_template.jinja")
    if template is None:
        template = _template(folder / "tokenizer_config.json", extra.get("chat_template"))
    extra |= read_object(folder / "special_tokens_map.json")
    try:
        special = {name: _content(extra[name]) for name in _NAMED if name in extra}
        _add_named(backend, extra, special)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise ValueError(f"{folder / 'tokenizer_config.json'} names tokens wrongly ({error!r})") from error
    return Tokenizer(backend, eos_ids=eos_ids, chat_template=template, special=special)


def _content(token: str | dict) -> str:
    """Return a token's text, which may be written with its settings."""
    text = token["content"] if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise TypeError(f"{text!r:.60} is no text")
    return text


def _add_named(backend, settings: dict, special: dict[str, str]) -> None:
    """Make one id of every token that stands beside tokenizer.json only, as transformers does."""
    from tokenizers import AddedToken

    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = settings.get("added_tokens_decoder", {})
    for number in sorted(listed, key=int):
        text, flags = _content(listed[number]), dict(listed[number])
        if text not in known:
            flags = {key: flags[key] for key in flags.keys() - {"__type", "content"}}
            backend.add_tokens([AddedToken(text, **flags)])
        if backend.token_to_id(text) != int(number):
            raise ValueError(f"{text!r:.60} is not number {int(number)} in tokenizer.json")
    extra = settings.get("extra_special_tokens", settings.get("additional_special_tokens", []))
    texts = [*special.values(), *map(_content, extra.values() if isinstance(extra, dict) else extra)]
    known |= {_content(token) for token in listed.values()}
    backend.add_special_tokens([text for text in texts if text not in known])


def _template(path: Path, template) -> str | dict[str, str] | None:
    """Return a chat template, or several by name where they are a list of names and templates."""
    if template in (None, [], {}):
        return None
    try:
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}
        texts = template.items() if isinstance(template, dict) else [("", template)]
        if not all(isinstance(text, str) for pair in texts for text in pair):
            raise TypeError
    except (TypeError, KeyError):
        raise ValueError(f"{path} holds a chat_template that is no text and no list of named ones") from None
    return template

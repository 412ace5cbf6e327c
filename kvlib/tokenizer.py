"""Text to token ids and back, for the checkpoints that `kvlib.weights` loads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Tokenizer:
    """Encode and decode text; `backend` is a `tokenizers.Tokenizer`."""

    def __init__(self, backend, *, eos_ids: Sequence[int] = (), chat_template: str | None = None,
                 special: dict[str, str] | None = None) -> None:  # fmt: skip
        self.backend = backend
        self.eos_ids = tuple(eos_ids)
        self.chat_template = chat_template
        self.special = special or {}

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, with nothing put before or behind it."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        return self.backend.decode(list(ids), skip_special_tokens=True)

    def stream(self, ids: Iterable[int]) -> Iterable[str]:
        """Yield for each id the text it completes: '' while a character is still in parts."""
        held: list[int] = []
        shown = ""
        for token in ids:
            held.append(token)
            text = self.decode(held)
            if text.endswith("\ufffd"):
                yield ""
                continue
            yield text[len(shown) :]
            shown = text

    def chat(self, messages: str | Sequence[dict[str, str]]) -> list[int]:
        """Return the ids of a conversation, ready for the assistant's next words.

        `messages` is a list of {"role": ..., "content": ...}, or one string that the user says.
        Raises ValueError where the checkpoint brought no chat template.
        """
        if self.chat_template is None:
            raise ValueError("this checkpoint has no chat template; use encode on plain text")
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # templates are untrusted text

        def refuse(message: str) -> None:
            raise ValueError(f"the chat template refuses this conversation: {message}")

        template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
            self.chat_template
        )
        text = template.render(
            messages=list(messages), add_generation_prompt=True, raise_exception=refuse,
            **self.special,
        )  # fmt: skip
        return self.encode(text)


def from_gguf_fields(path, fields: dict) -> Tokenizer:
    """Build the tokenizer that the GGUF file at `path` carries in its metadata (byte-level BPE).

    Raises ValueError, naming the file, where the metadata lacks one or has one of another kind.
    """
    try:
        return _byte_level(fields)
    except KeyError as error:
        raise ValueError(f"{path} lacks the field {error.args[0]} of its tokenizer") from None
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"{path} has no readable tokenizer: {error}") from error


def _byte_level(fields: dict) -> Tokenizer:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in ("smollm", "gpt-2", None):
        raise ValueError(f"its kind ({kind}, {pre}) is not one this library can build")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    backend.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"]) if kind == 3]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    named = {
        f"{name}_token": tokens[fields[key]]
        for name in ("bos", "eos")
        if (key := f"tokenizer.ggml.{name}_token_id") in fields
    }
    eos = fields.get("tokenizer.ggml.eos_token_id")
    return Tokenizer(
        backend,
        eos_ids=() if eos is None else (eos,),
        chat_template=fields.get("tokenizer.chat_template"),
        special=named,
    )


def from_folder(folder) -> Tokenizer:
    """Build the tokenizer of a checkpoint folder: tokenizer.json and what stands beside it."""
    import json

    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{folder} has no tokenizer.json; copy it from the checkpoint")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"{path} is not a readable tokenizer: {error}") from error

    def read(name: str) -> dict:
        file = folder / name
        try:
            return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise ValueError(f"{file} is not valid JSON ({error}); copy it again") from error

    config, extra = read("config.json"), read("tokenizer_config.json")
    eos = read("generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    template = extra.get("chat_template")
    if template is None and (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    named = {
        key: value["content"] if isinstance(value, dict) else value
        for key in ("bos_token", "eos_token")
        if (value := extra.get(key))
    }
    eos_ids = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    return Tokenizer(backend, eos_ids=eos_ids, chat_template=template, special=named)

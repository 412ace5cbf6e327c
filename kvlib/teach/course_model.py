"""The model the lessons run: SmolLM2 where it is there, else a small random one that says so."""

import codecs
import functools

from kvlib.tokenizer import Tokenizer

NOTE_RANDOM = (
    "This lesson runs on a small model with random weights, so its text is noise; every count, "
    "shape and comparison holds all the same. To get the real model, SmolLM2-135M-Instruct "
    "(98 MB), run `python course.py lab` with a network, or `python kvlib/model_file.py --from "
    "FOLDER` with a folder that holds its file."
)


@functools.cache
def course_model():
    """Return (model, tokenizer, note).

    The note is "" for the real model; else it says what stands in for it, why, and how to get the
    real one. Loaded once a process. Nothing is raised where the real model cannot be had.
    """
    from kvlib import model_file

    if not model_file.is_ready():
        return random_model(), ByteTokenizer(), NOTE_RANDOM
    try:
        from kvlib.weights import load_smollm2

        model, tokenizer = load_smollm2()
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        note = f"SmolLM2 could not be loaded ({error}). {NOTE_RANDOM}"
        return random_model(), ByteTokenizer(), note
    return model, tokenizer, ""


def random_model():
    """Return a Llama-style model of about a million random weights, the same ones every time."""
    import torch

    from kvlib.model import Model, ModelConfig

    config = ModelConfig(
        num_layers=4, num_heads=9, num_kv_heads=3, head_dim=16, hidden_size=144,
        intermediate_size=384, vocab_size=ByteTokenizer.vocab_size, tie_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model(config)


class ByteTokenizer(Tokenizer):
    """One token a byte of UTF-8, and one more that ends a turn."""

    vocab_size = 257

    def __init__(self):
        super().__init__(None, eos_ids=(256,))

    def encode(self, text: str) -> list[int]:
        """Return the text's bytes."""
        return list(text.encode("utf-8"))

    def decode(self, ids) -> str:
        """Return the text of the bytes; what is not UTF-8 shows as a replacement mark."""
        return bytes(int(i) for i in ids if int(i) < 256).decode("utf-8", errors="replace")

    def stream(self, ids):
        """Yield for each byte the text it completes, at the end what never became a character."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for i in ids:
            yield decoder.decode(bytes([int(i)]) if int(i) < 256 else b"")
        if tail := decoder.decode(b"", final=True):
            yield tail

    def chat(self, messages) -> list[int]:
        """Return the tokens of a conversation, ready for the assistant's next words."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant: ")

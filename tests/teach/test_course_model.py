"""The lessons' model: the real one where it is, else a small random one that says what it is."""

import pytest
import torch

from kvlib import generate, model_file
from kvlib.teach import course_model


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("KVLIB_MODEL_HOME", str(tmp_path / "no-model"))
    course_model.cache_clear()
    yield
    course_model.cache_clear()


def test_without_the_file_a_random_model_runs_and_says_so():
    model, tokenizer, note = course_model()
    assert "random weights" in note and "course.py lab" in note
    prompt = tokenizer.chat([{"role": "user", "content": "Hello"}])
    assert prompt == tokenizer.chat("Hello")
    tokens = generate(model, prompt, 5)
    assert tokens == generate(model, prompt, 5, cache=None)
    assert isinstance(tokenizer.decode(tokens), str)
    assert course_model()[0] is model


def test_the_random_model_is_the_same_every_time_and_leaves_the_seed_alone():
    torch.manual_seed(7)
    first = course_model()[0]
    drawn = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(1))
    course_model.cache_clear()
    second = course_model()[0]
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_byte_tokenizer_gives_text_back():
    tokenizer = course_model()[1]
    text = "Key, value: naïve, 漢字."
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([*tokenizer.encode("end"), *tokenizer.eos_ids]) == "end"
    ids = [*tokenizer.encode(text), 256, *b"a\xff\xe6\xbc"]
    for end in range(len(ids) + 1):
        assert "".join(tokenizer.stream(iter(ids[:end]))) == tokenizer.decode(ids[:end])
    assert list(tokenizer.stream(tokenizer.encode("aé"))) == ["a", "", "é"]


def test_a_file_that_cannot_be_loaded_is_said_and_replaced(monkeypatch):
    monkeypatch.setattr(model_file, "is_ready", lambda: True)

    def broken():
        raise ValueError("damaged")

    monkeypatch.setattr("kvlib.weights.load_smollm2", broken)
    _, _, note = course_model()
    assert note.startswith("SmolLM2 could not be loaded (damaged).")


def test_the_real_model_comes_without_a_note(monkeypatch):
    monkeypatch.setattr(model_file, "is_ready", lambda: True)
    monkeypatch.setattr("kvlib.weights.load_smollm2", lambda: ("model", "tokenizer"))
    assert course_model() == ("model", "tokenizer", "")

"""Streamed pieces of text against decode, for any ids and every kind of vocabulary."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from kvlib.tokenizer import Tokenizer


def byte_level() -> Backend:
    """One token a byte, as GPT-2's kind has them."""
    alphabet = {piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def byte_fallback() -> Backend:
    """Llama 2's kind: pieces with a sign for the space, and bytes by number for what is in no piece."""
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "▁a", "a", "▁▁", "é", "<0x", "\ufffd"]
    backend = Backend(
        models.BPE({p: i for i, p in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def words() -> Backend:
    return Backend(models.WordLevel({f"t{i}": i for i in range(20)}, unk_token="t0"))


def metaspace() -> Backend:
    backend = Backend(models.BPE({p: i for i, p in enumerate(["▁", "▁a", "b", "▁▁", "é"])}, []))
    backend.decoder = decoders.Metaspace()
    return backend


def complete(make) -> Tokenizer:
    backend = make()
    backend.add_special_tokens(["</s>"])
    backend.add_tokens([AddedToken("<think>", special=False), AddedToken("x\ufffd", special=False)])
    return Tokenizer(backend)


KINDS = {make.__name__: complete(make) for make in (byte_level, byte_fallback, words, metaspace)}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_joined_pieces_are_what_decode_gives_for_any_ids(kind, data):
    tokenizer = KINDS[kind]
    size = tokenizer.backend.get_vocab_size()
    near_the_end = st.integers(max(0, size - 10), size + 1)  # also ids that no token has
    ids = data.draw(st.lists(st.integers(0, size - 1) | near_the_end, max_size=14))
    text = tokenizer.decode(ids)
    pieces = list(tokenizer.stream(iter(ids)))
    assert "".join(pieces) == text
    assert len(pieces) in (len(ids), len(ids) + 1)


@pytest.mark.parametrize("text", ["a😀b", "é", "\ufffd", "漢\ufffd字", "x</s>é"])
def test_joined_pieces_are_the_text_cut_at_every_byte(text):
    tokenizer = KINDS["byte_level"]
    ids = tokenizer.encode(text)
    for end in range(len(ids) + 1):
        assert "".join(tokenizer.stream(ids[:end])) == tokenizer.decode(ids[:end])


def test_a_tail_that_is_no_character_is_not_swallowed():
    tokenizer = KINDS["byte_level"]
    assert list(tokenizer.stream(tokenizer.encode("aé")[:2])) == ["a", "", "\ufffd"]


def test_the_time_for_a_token_does_not_grow_with_the_text():
    """Each token decoded with all before it would take sixteen times as long for four times the text."""
    tokenizer = KINDS["byte_level"]

    def seconds(length: int) -> float:
        ids = tokenizer.encode("a" * length)
        took = []
        for _ in range(3):
            began = time.perf_counter()
            list(tokenizer.stream(ids))
            took.append(time.perf_counter() - began)
        return min(took)

    assert seconds(8000) < 10 * seconds(2000)


@pytest.mark.parametrize("bad", [-1, 1.0, True, "a", None, [1]])
def test_what_is_no_token_id_is_refused(bad):
    tokenizer = KINDS["byte_level"]
    with pytest.raises(ValueError, match="ids must"):
        list(tokenizer.stream([65, bad]))
    with pytest.raises(ValueError, match="ids must"):
        tokenizer.decode([65, bad])


def test_tensors_and_arrays_are_ids():
    import numpy as np
    import torch

    tokenizer = KINDS["byte_level"]
    ids = tokenizer.encode("héllo")
    for given_ids in (torch.tensor(ids), np.array(ids), [torch.tensor(i) for i in ids]):
        assert tokenizer.decode(given_ids) == "".join(tokenizer.stream(given_ids)) == "héllo"

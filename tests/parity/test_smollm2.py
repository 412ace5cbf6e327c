"""The real model computes what transformers computes from the same file.

Every tolerance is relative to the largest logit of the reference. In float32 the two differ only in
the order of sums: on the machine these tests were written on by 0 to 3e-6.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvlib import KVCache, StaticKVCache, generate, model_file, weights
from kvlib.generation import prefill

TOLERANCE = 2e-5
NUM_NEW = 12

QUESTION = "In one sentence, what is a key-value cache in a language model?"
ANSWER = "A key-value cache in a language model is a data structure that stores and retrieves"
TEXTS = {
    "prose": "The capital of France is",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "digits": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "unicode": "Größe und naïveté: 漢字, ру́сский, 😀. Now in English:",
    "one token": "The",
}


def disagreement(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of logits, relative to the largest logit of the reference."""
    assert ours.shape == theirs.shape and torch.isfinite(ours).all()
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float = TOLERANCE) -> None:
    assert disagreement(ours, theirs) <= tolerance
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.fixture(scope="module")
def prompts(smollm2) -> dict[str, list[int]]:
    _, tokenizer = smollm2
    return {name: tokenizer.encode(text) for name, text in TEXTS.items()} | {
        "chat": tokenizer.chat(QUESTION)
    }


@pytest.fixture(scope="module")
def answers(theirs, prompts) -> dict[str, tuple[list[int], float]]:
    """What transformers answers greedily, and the smallest lead of a chosen token over the next."""
    found = {}
    for name, prompt in prompts.items():
        made = theirs.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=NUM_NEW, do_sample=False, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        best = torch.cat(made.logits).topk(2).values
        lead = (best[:, 0] - best[:, 1]).min().item()
        found[name] = made.sequences[0, len(prompt) :].tolist(), lead
    return found


@pytest.mark.parametrize("name", [*TEXTS, "chat"])
def test_logits_of_every_position_equal_transformers(smollm2, theirs, prompts, name):
    model, _ = smollm2
    tokens = torch.tensor([prompts[name]])
    assert_same(model(tokens), theirs(tokens).logits)


def test_logits_far_into_a_long_text_equal_transformers_when_prefilled_in_chunks(smollm2, theirs):
    """Positions 1,437 to 1,500: rotary angles, masks and cache rows of a later part of the text."""
    model, tokenizer = smollm2
    words = "The old lighthouse keeper counted {} ships before the storm came in from the west. "
    text = "".join(words.format(n) for n in range(100))
    tokens = torch.tensor([tokenizer.encode(text)[:1500]])
    assert tokens.shape == (1, 1500)
    reference = theirs(tokens, logits_to_keep=64).logits
    caches = model.make_caches(lambda: StaticKVCache(max_seq_len=1500))
    prefill(model, tokens[:, :1436], caches, chunk_size=500)
    assert_same(model(tokens[:, 1436:], caches), reference, 1e-4)


def test_skipping_the_unpermutation_of_queries_and_keys_is_noticed(
    smollm2, theirs, prompts, monkeypatch
):
    monkeypatch.setattr(weights, "_unpermuted", lambda weight, num_heads: weight)
    mutant, _ = weights.load_gguf(model_file.model_path())
    tokens = torch.tensor([prompts["chat"]])
    assert disagreement(mutant(tokens), theirs(tokens).logits) > 1000 * TOLERANCE


def test_no_prompt_here_sits_on_a_tie(answers):
    """Greedy text can only be the same where no choice hangs on the last bits of a float."""
    assert {name: lead for name, (_, lead) in answers.items() if lead < 1e-2} == {}


@pytest.mark.parametrize("cache", [KVCache, StaticKVCache], ids=["KVCache", "StaticKVCache"])
@pytest.mark.parametrize("name", [*TEXTS, "chat"])
def test_greedy_tokens_equal_transformers(smollm2, prompts, answers, name, cache):
    model, tokenizer = smollm2
    ours = generate(model, prompts[name], NUM_NEW, cache=cache, stop_ids=tokenizer.eos_ids)
    assert ours == answers[name][0]


@pytest.mark.filterwarnings("ignore:.*Decoding is .eager. instead")
@pytest.mark.parametrize("decode", ["native", "compiled"])
@pytest.mark.parametrize("name", ["prose", "chat"])
def test_greedy_tokens_of_every_way_to_decode_equal_transformers(
    smollm2, prompts, answers, name, decode
):
    model, tokenizer = smollm2
    ours = generate(model, prompts[name], NUM_NEW, decode=decode, stop_ids=tokenizer.eos_ids)
    assert ours == answers[name][0]


@pytest.mark.parametrize("name", ["prose", "code", "chat"])
def test_greedy_tokens_without_a_cache_equal_transformers(smollm2, prompts, answers, name):
    """Everything recomputed for every token: the definition that each cache has to keep to."""
    model, tokenizer = smollm2
    ours = generate(model, prompts[name], 5, cache=None, stop_ids=tokenizer.eos_ids)
    assert ours == answers[name][0][:5]


@pytest.mark.parametrize("name", ["prose", "chat"])
def test_transformers_static_cache_gives_the_same_tokens(theirs, prompts, answers, quiet, name):
    from transformers import StaticCache

    prompt = torch.tensor([prompts[name]])
    cache = StaticCache(config=theirs.config, max_cache_len=prompt.shape[1] + NUM_NEW)
    with quiet():
        made = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NUM_NEW,
            do_sample=False, cache=cache, disable_compile=True,
        )  # fmt: skip
    assert made[0, prompt.shape[1] :].tolist() == answers[name][0]


def test_a_batch_of_unequal_prompts_answers_as_each_prompt_alone(smollm2, prompts, answers):
    model, tokenizer = smollm2
    names = ["prose", "chat", "one token"]
    ours = generate(model, [prompts[name] for name in names], 8, stop_ids=tokenizer.eos_ids)
    assert ours == [answers[name][0][:8] for name in names]


def test_the_answer_starts_as_documented(smollm2, answers):
    _, tokenizer = smollm2
    assert ANSWER.startswith(tokenizer.decode(answers["chat"][0]))
    assert len(tokenizer.decode(answers["chat"][0])) > 45


def test_the_model_has_the_documented_shape(smollm2, theirs):
    config, reference = smollm2[0].config, theirs.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (
        30, 9, 3, 64,
    )  # fmt: skip
    assert config.max_seq_len == reference.max_position_embeddings == 8192
    assert config.vocab_size == reference.vocab_size == 49152
    assert config.rope_theta == reference.rope_parameters["rope_theta"]
    assert config.norm_eps == reference.rms_norm_eps
    ours = sum(p.numel() for p in smollm2[0].parameters())
    assert ours == sum(p.numel() for p in theirs.parameters()) == 134_515_008

"""SmolLM2 twice, in this library and in transformers, loaded once for all of these tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kvlib import load_smollm2, model_file


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence what transformers says while it loads; its progress bars too."""
    from transformers.utils import logging

    was = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(was)
        logging.enable_progress_bar()


@pytest.fixture(scope="session")
def smollm2():
    """This library's (model, tokenizer)."""
    if not model_file.is_ready():
        pytest.skip("SmolLM2's file is not here; fetch it with `python -m kvlib.model_file`")
    return load_smollm2()


@pytest.fixture(scope="session")
def theirs(smollm2):
    """The same file as transformers' LlamaForCausalLM reads it."""
    with quiet_transformers():
        from transformers import AutoModelForCausalLM

        path = model_file.model_path()
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def their_tokenizer(smollm2):
    """The same file's tokenizer as transformers builds it."""
    with quiet_transformers():
        from transformers import AutoTokenizer

        path = model_file.model_path()
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="session")
def quiet():
    """The context manager that silences transformers, `with quiet():`."""
    return quiet_transformers

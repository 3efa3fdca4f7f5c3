"""Saves the model that commands are run with."""

import dataclasses

import pytest

from jaxspec.checkpoints.orbax import save
from tests._fixtures import text_models, tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A small random model, saved with its tokenizer."""
    tokenizer = text_models.byte_level()
    model = dataclasses.replace(tiny.transformer(3, vocab=tokenizer.vocab_size), tokenizer=tokenizer)
    path = tmp_path_factory.mktemp("cli") / "model"
    save(model, path)
    return str(path)

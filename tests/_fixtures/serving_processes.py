"""Several processes with one engine, each of which runs `serving_worker`."""

import dataclasses

import jaxspec
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import text_models
from tests._fixtures.processes import started


def save_model(folder):
    tokenizer = text_models.byte_level()
    model = dataclasses.replace(wide_transformer(0, vocab=tokenizer.vocab_size), tokenizer=tokenizer)
    jaxspec.save(model, folder / "model")


def workers(folder, count, what, requests=0):
    save_model(folder)
    module = ("-m", "tests._fixtures.serving_worker")
    return started(folder, count, lambda at, who: [*module, at, str(count), str(who), str(folder), what, str(requests)])

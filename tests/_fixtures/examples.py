"""The names that every example in a public docstring may use without making them."""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from tests._fixtures import text_models, tiny


@functools.cache
def models() -> tuple[jaxspec.LanguageModel, jaxspec.LanguageModel]:
    """A target of three layers with a tokenizer, and a draft model of one layer with its vocabulary."""
    tokenizer = text_models.byte_level()
    make = functools.partial(tiny.transformer, vocab=text_models.VOCAB)
    target, draft = make(0, layers=3), make(1, layers=1)
    with_tokenizer = lambda model: jaxspec.LanguageModel(model.module, model.params, tokenizer)
    return with_tokenizer(target), with_tokenizer(draft)


def names(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the names that an example starts with; `folder` is empty, and belongs to the example."""
    target, draft = models()
    prompt = jnp.asarray([[5, 6, 7, 5, 6], [9, 8, 7, 9, 8]], jnp.int32)
    return {
        "jaxspec": jaxspec,
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "target": target,
        "draft": draft,
        "prompt": prompt,
        "key": jax.random.key(0),
        "folder": folder,
    }

"""Asserts that a model's passes give each token the same bits, whatever is fed with it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec


@jax.jit
def _pass(model, tokens, cache):
    output = model(tokens, cache)
    return output.logits[0], cache.append(output.entries)


def logits_of(model: jaxspec.LanguageModel, text: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """Feeds a text in passes of these widths, and returns the logits after each token."""
    cache, found, at = model.init_cache(1, len(text)), [], 0
    for width in widths:
        logits, cache = _pass(model, jnp.asarray(text[None, at : at + width], jnp.int32), cache)
        found.append(np.asarray(logits))
        at += width
    assert at == len(text)
    return np.concatenate(found)


def assert_same_bits(model: jaxspec.LanguageModel, text: np.ndarray, each: Sequence[Sequence[int]]) -> None:
    """Compares passes of widths with one token at a time, each list of widths in turn."""
    alone = logits_of(model, text, [1] * len(text))
    for widths in each:
        found = logits_of(model, text, widths)
        np.testing.assert_array_equal(found.view(np.int32), alone.view(np.int32), err_msg=f"{widths[:5]}...")

"""Answers that the draft writes itself, for it to learn where it goes wrong (2310.08461, section 3; 2306.13649)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxspec.core.model import Model
from jaxspec.core.sampling import Sampling
from jaxspec.decoding.generate import generate
from jaxspec.training.batching import Batch


def rewritten(draft: Model, batch: Batch, key: Array, ends: tuple[int, ...]) -> Batch:
    """Each conversation up to its first answer, and from there on as the draft goes on, at temperature 1.

    It writes as much as stood there at most. Rows without an answer, or with nothing before it, stay as they are.

    Args:
      draft: the model that writes.
      batch: conversations.
      key: of the draws.
      ends: tokens that end an answer.
    """
    tokens, length, answer = (np.asarray(x) for x in (batch.tokens, batch.length, batch.answer))
    first = np.argmax(answer, axis=1)
    budget = np.where(first > 0, length - first, 0).astype(np.int32)
    result = generate(
        draft,
        None,
        jnp.asarray(tokens),
        prompt_length=jnp.asarray(np.maximum(first, 1), jnp.int32),
        key=key,
        sampling=Sampling(temperature=1.0),
        max_new_tokens=jnp.asarray(budget),
        stop_tokens=ends,
        capacity=2 * tokens.shape[1],
    )
    written, count = np.asarray(result.tokens), np.asarray(result.length)
    place = np.arange(tokens.shape[1])[None] - first[:, None]
    fresh = (place >= 0) & (place < count[:, None])
    kept = np.where((budget == 0)[:, None], answer, fresh)
    moved = np.take_along_axis(written, np.clip(place, 0, written.shape[1] - 1), axis=1)
    length = np.where(budget == 0, length, first + count).astype(np.int32)
    text = np.where(fresh, moved, np.where(np.arange(tokens.shape[1])[None] < length[:, None], tokens, 0))
    return jax.tree.map(jnp.asarray, Batch(text.astype(np.int32), length, kept))

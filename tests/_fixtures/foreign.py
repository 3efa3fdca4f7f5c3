"""Eight rows of other lengths, and the greedy tokens of a foreign model's own forward pass over whole texts."""

import jax
import jax.numpy as jnp
import numpy as np

LENGTHS = jnp.asarray([9, 5, 7, 3, 1, 2, 8, 6], jnp.int32)
PROMPT = jnp.asarray(np.random.default_rng(0).integers(0, 29, (8, 9)), jnp.int32)


def greedy(logits_of, new, prompt=PROMPT, lengths=LENGTHS):
    """Tokens `[rows, new]`; `logits_of(tokens)` are causal logits of `[rows, length]` tokens."""
    rows, width = prompt.shape
    texts, logits_of = np.zeros((rows, width + new), np.int32), jax.jit(logits_of)
    texts[:, :width], ends = prompt, np.asarray(lengths)
    for step in range(new):
        logits = np.asarray(logits_of(jnp.asarray(texts)), np.float32)
        at = ends + step
        texts[np.arange(rows), at] = logits[np.arange(rows), at - 1].argmax(axis=-1)
    return np.stack([text[end : end + new] for text, end in zip(texts, ends, strict=True)])

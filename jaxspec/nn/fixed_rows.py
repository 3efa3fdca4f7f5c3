"""Fills passes up to a fixed number of tokens, so that every product has one shape."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.model import ModelOutput


def fill(
    rows: int, tokens: Int[Array, "b t"], mask: Bool[Array, "b t t"] | None, positions: Int[Array, "b t"] | None
) -> tuple[Int[Array, "b rows"], Bool[Array, "b rows rows"] | None, Int[Array, "b rows"] | None]:
    """Appends tokens that no other sees, `rows` in all; of a chain those behind are not seen anyway.

    They repeat the first: a token that no text here has might have weights that are no numbers.
    """
    count = tokens.shape[1]
    after = ((0, 0), (0, rows - count))
    if mask is not None:
        # Each sees itself: a softmax over nothing is no number.
        behind = jnp.diag(jnp.arange(rows, dtype=jnp.int32) >= count)
        mask = jnp.pad(mask, (*after, after[1])) | behind[None]
    if positions is not None:
        positions = jnp.pad(positions, after, mode="edge")
    filler = jnp.broadcast_to(tokens[:, :1], (tokens.shape[0], rows - count))
    return jnp.concatenate([tokens, filler], axis=1), mask, positions


def first(count: int, output: ModelOutput) -> ModelOutput:
    """Returns the output of the first tokens alone, which was computed with the others."""
    # Without the barrier the compiler may leave out what is cut off, and with it the shape of the products.
    logits, entries, hidden = jax.lax.optimization_barrier((output.logits, output.entries, output.hidden))
    nodes = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (logits.shape[0], count))
    return ModelOutput(logits[:, :count], entries.keep_path(nodes), tuple(x[:, :count] for x in hidden))

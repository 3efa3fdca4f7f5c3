"""Applies the target's logits processors to drafts, so that they are drawn from tokens that the target may emit.

A drafter without this is still lossless, but has fewer drafts accepted.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.state import Context

Chosen = tuple[Int[Array, "b t"], Float[Array, "b t n"], Float[Array, "b t n"] | None]


def process_part(
    context: Context,
    logits: Float[Array, "b t n"],
    path: Int[Array, "b t d"] | None,
    expand: Callable[[Float[Array, "b t n"]], Float[Array, "b t v"]],
    ids: Int[Array, "n"] | None,
) -> Float[Array, "b t n"]:
    """Applies the target's logits processors to logits over a part of the vocabulary.

    Args:
      context: the text, and the policy.
      logits: the logits of the tokens `ids`.
      path: the drafts above each position, as in `Context.process`.
      expand: scatters logits into the whole vocabulary.
      ids: the tokens; `None` means all of them.
    """
    if not context.processors:
        return logits
    if ids is None:
        return context.process(logits, path)
    return context.process(expand(logits), path)[..., ids]


def choose_in_order(
    context: Context,
    logits: Float[Array, "b k n"],
    expand: Callable[[Float[Array, "b t n"]], Float[Array, "b t v"]],
    ids: Int[Array, "n"] | None,
    choose: Callable[[Float[Array, "b t n"], Int[Array, "t"]], Chosen],
) -> Chosen:
    """Chooses the drafts of a chain whose logits are all known in advance.

    With processors they are chosen one by one, as each position is processed given the drafts before it; otherwise all
    at once.

    Args:
      context: the text, and the policy.
      logits: the logits of each draft, over the tokens `ids`.
      expand: as in `process_part`.
      ids: as in `process_part`.
      choose: `choose(logits, offsets)` returns the chosen indices, the logits, and the log-probabilities that they were
        drawn from, or `None` if they were not drawn.

    Returns:
      The results of `choose` for all drafts.
    """
    batch, k, _ = logits.shape
    offsets = jnp.arange(k, dtype=jnp.int32)
    if not context.processors:
        return choose(logits, offsets)
    path, found = jnp.full((batch, 1, k), -1, jnp.int32), []
    for i in range(k):
        chosen = choose(process_part(context, logits[:, i : i + 1], path, expand, ids), offsets[i : i + 1])
        path = path.at[:, 0, i].set(chosen[0][:, 0] if ids is None else ids[chosen[0][:, 0]])
        found.append(chosen)
    places, processed, log_probs = zip(*found, strict=True)
    joined = None if log_probs[0] is None else jnp.concatenate(log_probs, axis=1)
    return jnp.concatenate(places, axis=1), jnp.concatenate(processed, axis=1), joined

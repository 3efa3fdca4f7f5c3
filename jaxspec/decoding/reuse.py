"""Begins a prompt with what another row holds of the same text."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.core.model import Cache, Model
from jaxspec.core.prefill import in_chunks
from jaxspec.core.validate import to_int32
from jaxspec.decoding.feeding import Feeding
from jaxspec.drafters.base import Drafter, least_held


def reuse(target: Model, feeding: Feeding, cache: Cache, drafter_state: Any, chunks: Int[Array, ""] | int) -> Feeding:
    """Begins a prompt with chunks that another row has read. Pure; the other row stays valid.

    Args:
      target: the model that `feeding` was created with; its caches must rewind.
      feeding: the result of `begin_feeding`. Its drafter must read chunk by chunk, or no captured states.
      cache: the target's cache of a row, of the same slots, whose text begins with these chunks and the token after.
      drafter_state: the drafter's state of that row; `held_tokens` says for how many tokens both are valid.
      chunks: the number of chunks, fewer than are missing. Another whole chunk must fit into the width that prompts are
        padded to.

    Example:
        >>> text, options = jnp.ones((1, 300), jnp.int32), dict(capacity=384, max_new_tokens=3)
        >>> row = jaxspec.serving.feed(target, None, text, **options)
        >>> feeding = jaxspec.serving.begin_feeding(target, None, text, **options)
        >>> feeding = jaxspec.serving.reuse(target, feeding, row.cache, row.drafter_state, 2)
        >>> int(feeding.left), feeding.row.cache.length.tolist()
        (1, [256])
    """
    row, count = feeding.row, to_int32(chunks)
    # Copied, as the result may be donated.
    cache, drafter_state = jax.tree.map(jnp.copy, (cache, drafter_state))
    _, size = in_chunks(target, row.tokens[:, : feeding.width])
    context = dataclasses.replace(row.context, cache=cache.truncate(jnp.broadcast_to(count * size, row.length.shape)))
    return dataclasses.replace(
        feeding,
        row=dataclasses.replace(row, context=context, drafter_state=drafter_state),
        fed=count,
        left=feeding.left - count,
        reused=count * size,
    )


def held_tokens(drafter: Drafter, cache: Cache, drafter_state: Any) -> Int[Array, "b"]:
    """Returns how many tokens of each row's text both caches hold.

    Example:
        >>> row = jaxspec.serving.feed(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> drafter = jaxspec.drafters.NoDrafter()
        >>> jaxspec.serving.held_tokens(drafter, row.cache, row.drafter_state).tolist()
        [4]
    """
    held = least_held(cache.length, drafter.held(drafter_state))
    assert held is not None
    return held

"""Begins a prompt with what another row holds of the same text."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.core import validate
from jaxspec.core.model import Cache, Model
from jaxspec.core.prefill import in_chunks
from jaxspec.core.typed import typed
from jaxspec.core.validate import is_concrete, to_int32
from jaxspec.decoding.feeding import Feeding
from jaxspec.drafters.base import Drafter, least_held


@typed()
def reuse(target: Model, feeding: Feeding, cache: Cache, drafter_state: Any, chunks: Int[Array, ""] | int) -> Feeding:
    """Begins a prompt with chunks that another row has read. Pure; the other row stays valid.

    Args:
      target: the model that `feeding` was created with; its caches must rewind.
      feeding: the result of `begin_feeding`. Its drafter must read chunk by chunk, or no captured states.
      cache: the target's cache of a row, of the same slots, whose text begins with these chunks and the token after.
      drafter_state: the drafter's state of that row; `held_tokens` says for how many tokens both are valid.
      chunks: the number of chunks, fewer than are missing. Another whole chunk must fit into the width that prompts are
        padded to.

    Raises:
      TypeError, ValueError: an argument has the wrong type, or a state another structure or other shapes.

    Example:
        >>> text, options = jnp.ones((1, 300), jnp.int32), dict(capacity=384, max_new_tokens=3)
        >>> row = jaxspec.serving.feed(target, None, text, **options)
        >>> feeding = jaxspec.serving.begin_feeding(target, None, text, **options)
        >>> feeding = jaxspec.serving.reuse(target, feeding, row.cache, row.drafter_state, 2)
        >>> int(feeding.left), feeding.row.cache.length.tolist()
        (1, [256])
    """
    if is_concrete(chunks):
        validate.integers("reuse", chunks=(int(chunks), 0, feeding.width))
    row, count = feeding.row, to_int32(chunks)
    for name, given, own in (("cache", cache, row.cache), ("drafter_state", drafter_state, row.drafter_state)):
        if _kinds(given) != _kinds(own):
            raise ValueError(
                f"{name} of reuse must have the structure, shapes and types of the row's own; pass that of a row with "
                "the same target, drafter and capacity"
            )
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


@typed()
def held_tokens(drafter: Drafter, cache: Cache, drafter_state: Any) -> Int[Array, "b"]:
    """Returns how many tokens of each row's text both caches hold.

    Raises:
      TypeError: an argument has the wrong type.

    Example:
        >>> row = jaxspec.serving.feed(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> drafter = jaxspec.drafters.NoDrafter()
        >>> jaxspec.serving.held_tokens(drafter, row.cache, row.drafter_state).tolist()
        [4]
    """
    if any(shape is None for shape, _ in _kinds(drafter_state)[1]):
        raise TypeError(
            "drafter_state of held_tokens must be the state of a row of this drafter; pass row.drafter_state"
        )
    held = least_held(cache.length, drafter.held(drafter_state))
    assert held is not None
    return held


def _kinds(state: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """Returns the structure of a state, and the shape and type of each leaf; `None` for what is no array."""
    leaves, structure = jax.tree.flatten(state)
    return structure, [(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]

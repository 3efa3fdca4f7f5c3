"""Gives each prompt several answers: the prompt is fed once, and its row then stands for all of them.

prompts    a b c     rows 0 and 1 are fed      rows  0 0 1 1    then every row goes its own way
           d e                                 keys  0 1 0 1    folded into the prompt's own
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from jaxspec.core.random import answer_keys
from jaxspec.core.state import GenerationState
from jaxspec.decoding.arguments import Arguments

_Tree = TypeVar("_Tree")


def start_each(make: Callable[[Arguments], GenerationState], arguments: Arguments) -> GenerationState:
    """Returns the state before the first round, with `arguments.answers` rows for each prompt, next to each other.

    What of a state is a row's own is found by working out its shapes for as many prompts too: a cache may have its rows
    in any axis.

    Args:
      make: returns the state for one answer of each prompt.
      arguments: those of the call.
    """
    count, batch = arguments.answers, arguments.rows.prompt.shape[0]
    if count == 1:
        return make(arguments)
    _check_policy(arguments)
    one = dataclasses.replace(arguments, answers=1)
    many = dataclasses.replace(one, rows=_repeat_rows(one.rows, count))
    # Their states have the rows first, and they may have been made for no other number of them.
    bare = dataclasses.replace(many, processors=(), rows=dataclasses.replace(many.rows, processors=()))
    state, wide = make(one), jax.eval_shape(lambda bare: _shared_out(make(bare)), bare)
    return dataclasses.replace(
        jax.tree.map(lambda x, like: _repeat_like(x, like.shape, count, batch), _shared_out(state), wide),
        sampling=many.sampling,
        processed=_repeat_rows(state.processed, count),
        keys=answer_keys(state.keys, count),
    )


def _check_policy(arguments: Arguments) -> None:
    """Raises `ValueError` for a policy of one's own that has a value a row, which it alone knows how to repeat."""
    policy = arguments.policy
    if policy is None:
        return
    rows = arguments.answers * arguments.rows.prompt.shape[0]
    logits = jax.ShapeDtypeStruct((rows, 1, arguments.target.vocab_size), jnp.float32)
    try:
        jax.eval_shape(lambda policy, logits: policy.log_probs(logits), policy, logits)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"sampling={type(policy).__name__} does not take the {rows} rows of n={arguments.answers} answers; give it "
            "values that all rows share, or leave n out and repeat the prompts"
        ) from error


def _shared_out(state: GenerationState) -> Any:
    """Returns a state without what is made by itself."""
    return dataclasses.replace(state, sampling=None, processed=(), keys=None)


def _repeat_rows(tree: _Tree, count: int) -> _Tree:
    return jax.tree.map(lambda x: _repeat(x, 0, count), tree)


def _repeat_like(x: Array, shape: tuple[int, ...], count: int, rows: int) -> Array:
    """Repeats the entries of the axis that is longer in `shape`: that of the rows.

    Raises:
      ValueError: if it is not theirs alone.
    """
    axes = [axis for axis, (size, more) in enumerate(zip(x.shape, shape, strict=True)) if size != more]
    if not axes:
        return x
    if len(axes) > 1 or x.shape[axes[0]] != rows:
        raise ValueError(
            "several answers of a prompt need caches and states with an axis of the rows alone, got an array "
            f"{x.shape} for {rows} rows that is {shape} for {rows * count}; leave n out, and repeat the prompts"
        )
    return _repeat(x, axes[0], count)


def _repeat(x: Array, axis: int, count: int) -> Array:
    """Repeats each entry of an axis; by broadcasting, so that rows stay on their devices."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    wide = jnp.broadcast_to(jnp.expand_dims(x, axis + 1), (*before, size, count, *after))
    return wide.reshape(*before, size * count, *after)

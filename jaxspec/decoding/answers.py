"""Generates several answers for each prompt: the prompt is fed once, and its row is then repeated.

prompts    a b c     rows 0 and 1 are fed      rows  0 0 1 1    from here on, rows are independent
           d e                                 keys  0 1 0 1    folded into the prompt's key
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.random import answer_keys
from jaxspec.core.rows import RowAxes, row_axes
from jaxspec.core.state import GenerationState
from jaxspec.decoding.options import Arguments

_Make = Callable[[Arguments], GenerationState]


def start_each(make: _Make, arguments: Arguments) -> GenerationState:
    """Returns the state before the first round, with `options.answers` adjacent rows for each prompt.

    Args:
      make: returns the state for one answer of each prompt.
      arguments: the arguments of the call.
    """
    count = arguments.options.answers
    if count == 1:
        return make(arguments)
    _check_policy(arguments)
    one = dataclasses.replace(arguments, options=dataclasses.replace(arguments.options, answers=1))
    state = make(one)
    wide = state_axes(make, one).repeat(state, count)
    return dataclasses.replace(wide, keys=answer_keys(state.keys, count))


def state_axes(make: _Make, arguments: Arguments) -> RowAxes:
    """Returns which axis of each array of a call's state holds the rows.

    Args:
      make: returns the state.
      arguments: the arguments of a call for one answer of each prompt.
    """
    # JAX keeps what it finds for each call of `eval_shape` with the same function.
    leaves, tree = jax.tree.flatten(jax.eval_shape(lambda arguments: arguments, arguments))
    return _axes(make, tree, tuple(leaves))


@functools.lru_cache(maxsize=64)
def _axes(make: _Make, tree: Any, leaves: tuple[Any, ...]) -> RowAxes:
    arguments: Arguments = jax.tree.unflatten(tree, leaves)
    # Processors may only work for their own number of rows, but which of their arrays have rows is known.
    bare = dataclasses.replace(arguments, processors=(), rows=dataclasses.replace(arguments.rows, processors=()))
    found = row_axes(_of_rows, jax.tree_util.Partial(make), bare)
    axes = jax.tree.unflatten(found.tree, [-1 if axis is None else axis for axis in found.axes])
    shared = lambda tree: jax.tree.map(lambda _: -1, tree)  # noqa: E731
    first = lambda tree: jax.tree.map(lambda _: 0, tree)  # noqa: E731
    known = dataclasses.replace(
        arguments,
        policy=shared(arguments.policy),
        processors=shared(arguments.processors),
        rows=first(arguments.rows),
    )
    processed = first(jax.eval_shape(make, arguments).context.processed)
    context = dataclasses.replace(axes.context, sampling=known.sampling, processed=processed)
    return RowAxes.of(dataclasses.replace(axes, context=context))


def _of_rows(batch: int, make: _Make, arguments: Arguments) -> GenerationState:
    """Returns a state of `batch` rows, each equal to the first."""
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], (batch, *x.shape[1:])), arguments.rows)
    return make(dataclasses.replace(arguments, rows=rows))


def _check_policy(arguments: Arguments) -> None:
    """Raises `ValueError` for a custom policy with one value for each row, which cannot be repeated."""
    policy = arguments.policy
    if policy is None:
        return
    rows = arguments.options.answers * arguments.rows.prompt.shape[0]
    logits = jax.ShapeDtypeStruct((rows, 1, arguments.target.vocab_size), jnp.float32)
    try:
        jax.eval_shape(lambda policy, logits: policy.log_probs(logits), policy, logits)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"sampling={type(policy).__name__} does not take the {rows} rows of answers={arguments.options.answers}; "
            "give it values that all rows share, or leave answers out and repeat the prompts"
        ) from error

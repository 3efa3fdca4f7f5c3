"""Folds `jax.vmap` over `generate` into the batch.

Mapped naively, a `lax.cond` becomes a select that runs both branches, and a `while_loop` whose
rows end at different times copies its whole state each round. Rows of a batch already end and
accept independently, so a mapped axis becomes more rows.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from jaxspec.decoding.arguments import Arguments

Result = TypeVar("Result")


def fold_rows_under_vmap(function: Callable[[Arguments], Result]) -> Callable[[Arguments], Result]:
    """Makes the function fold a mapped axis of `arguments.rows` into their first axis.

    Every leaf of them and of the result has the rows as its first axis. If anything else in the arguments is
    mapped, calls run one after the other instead.
    """
    wrapped = jax.custom_batching.custom_vmap(function)

    @wrapped.def_vmap
    def rule(axis_size, in_batched, arguments):
        (mapped,) = in_batched
        if any(jax.tree.leaves(dataclasses.replace(mapped, rows=None))):
            result = _one_after_the_other(wrapped, axis_size, mapped, arguments)
        else:
            rows = jax.tree.map(lambda x, own: x if own else _repeat(x, axis_size), arguments.rows, mapped.rows)
            rows = jax.tree.map(lambda x: x.reshape(axis_size * x.shape[1], *x.shape[2:]), rows)
            folded = wrapped(dataclasses.replace(arguments, rows=rows))
            result = jax.tree.map(lambda x: x.reshape(axis_size, x.shape[0] // axis_size, *x.shape[1:]), folded)
        return result, jax.tree.map(lambda _: True, result)

    return wrapped


def _repeat(x, count: int):
    return jnp.broadcast_to(x[None], (count, *x.shape))


def _one_after_the_other(wrapped, axis_size, mapped, arguments):
    leaves, tree = jax.tree.flatten(arguments)
    owned = jax.tree.leaves(mapped)

    def call(index):
        chosen = [x[index] if own else x for x, own in zip(leaves, owned, strict=True)]
        return wrapped(jax.tree.unflatten(tree, chosen))

    return jax.lax.map(call, jnp.arange(axis_size, dtype=jnp.int32))

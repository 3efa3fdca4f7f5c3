"""Folds `jax.vmap` over `generate` into the batch.

Mapped naively, a `lax.cond` becomes a select that runs both branches, and a `while_loop` whose
rows end at different times copies its whole state each round. Rows of a batch already end and
accept independently, so a mapped axis becomes more rows.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def fold_rows_under_vmap(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Makes `function(models, rows)` fold a mapped axis of `rows` into their first axis.

    Every leaf of `rows` and of the result has the rows as its first axis. If `models` (target,
    drafter, verifier, policy) are mapped, calls run one after the other instead.
    """
    wrapped = jax.custom_batching.custom_vmap(function)

    @wrapped.def_vmap
    def rule(axis_size, in_batched, models, rows):
        models_mapped, rows_mapped = in_batched
        if any(jax.tree.leaves(models_mapped)):
            result = _one_after_the_other(wrapped, axis_size, in_batched, models, rows)
        else:
            rows = jax.tree.map(lambda x, mapped: x if mapped else _repeat(x, axis_size), rows, rows_mapped)
            folded = wrapped(models, jax.tree.map(lambda x: x.reshape(axis_size * x.shape[1], *x.shape[2:]), rows))
            result = jax.tree.map(lambda x: x.reshape(axis_size, x.shape[0] // axis_size, *x.shape[1:]), folded)
        return result, jax.tree.map(lambda _: True, result)

    return wrapped


def _repeat(x, count: int):
    return jnp.broadcast_to(x[None], (count, *x.shape))


def _one_after_the_other(wrapped, axis_size, in_batched, models, rows):
    leaves, tree = jax.tree.flatten((models, rows))
    mapped = jax.tree.leaves(in_batched)

    def call(index):
        chosen = [x[index] if is_mapped else x for x, is_mapped in zip(leaves, mapped, strict=True)]
        return wrapped(*jax.tree.unflatten(tree, chosen))

    return jax.lax.map(call, jnp.arange(axis_size, dtype=jnp.int32))

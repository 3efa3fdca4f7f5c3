"""Compares the entries in caches with those of a fresh pass over each row's text."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.model import Cache
from jaxspec.core.prefill import prefill
from jaxspec.core.rows import changed_axes
from jaxspec.core.state import Context
from jaxspec.drafters import bounded

# Tokens after the text, so that a fresh state has all entries that a running one may have.
_MORE = 2


def check_caches(target, drafter, state, rows, *, atol=2e-5) -> int:
    """Compares all valid entries in the caches of target and drafter for these rows; returns their number."""
    np.testing.assert_array_equal(state.cache.length, state.length - 1)
    fresh = _fresh(target, drafter, state)
    shapes = [_shapes(target, drafter, state, *sizes) for sizes in ((2, 0), (3, 0), (2, 512))]
    caches = [_caches(tree) for tree in ((state.cache, state.drafter_state), fresh, *shapes)]
    return sum(_compare(one[0], one[1], one[2], one[3], one[4], rows, atol) for one in zip(*caches, strict=True))


@jax.jit
def _fresh(target, drafter, state):
    return _started(
        target, drafter, state.context.sampling, jnp.pad(state.tokens, ((0, 0), (0, _MORE))), state.length + _MORE
    )


def _shapes(target, drafter, state, rows, more):
    tokens, length = jnp.zeros((rows, state.tokens.shape[1] + more), jnp.int32), jnp.ones(rows, jnp.int32)
    return jax.eval_shape(lambda: _started(target, drafter, state.context.sampling, tokens, length))


def _started(target, drafter, sampling, tokens, length):
    """Returns the target's cache and the drafter's state after the texts."""
    slots = tokens.shape[1]
    prefilled = prefill(target, tokens, length, target.init_cache(tokens.shape[0], slots), drafter.capture)
    context = Context(target, prefilled.cache, tokens, length, jnp.zeros(length.shape, jnp.bool_), sampling)
    return prefilled.cache, bounded.init(drafter, context, prefilled, slots)


def _caches(tree):
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Cache))
    return [x for x in found if isinstance(x, Cache)]


def _compare(held, fresh, two_rows, three_rows, longer, rows, atol) -> int:
    """Compares the leaves of a cache that have slots, up to the length of each row."""
    lengths, at_least = (np.asarray(cache.length).reshape(-1, cache.length.shape[-1]) for cache in (held, fresh))
    assert (lengths[:, rows] <= at_least[:, rows]).all()
    for x, expected, *shapes in zip(*map(jax.tree.leaves, (held, fresh, two_rows, three_rows, longer)), strict=True):
        two, three, more = (shape.shape for shape in shapes)
        if not (slot := changed_axes(two, more)):
            continue
        order = (*changed_axes(two, three), *slot)
        # Several models may share one cache, with the models as its first axis.
        x, expected = (np.moveaxis(np.asarray(y), order, (-2, -1)) for y in (x, expected))
        x, expected = (y if len(lengths) > 1 else y[None] for y in (x, expected))
        for model, length in enumerate(lengths):
            for row in rows:
                one, other = (y[model, ..., row, : length[row]] for y in (x, expected))
                np.testing.assert_allclose(one, other, atol=atol)
    return int(lengths[:, rows].sum())

"""Runs two tokens through a foreign model, and says what it ignores."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# Of what an ignored part would change, more than this is no rounding.
_MOST = 0.25
_CAUSES = {
    "tree": "the mask or the positions are ignored: each of two siblings must see itself alone. Turn off kernels that "
    "take no mask (flash or splash attention), or pass cache_index='scalar'",
    "next": "a token does not see what was fed before it as it does in one pass: the index, the mask or the returned "
    "cache is ignored",
    "ragged": "rows of other lengths do not keep apart: the index is one for all rows, or the mask is ignored; pass "
    "the cache_index that fits",
}


def check_by_running(model: Any) -> None:
    """Compares passes over two tokens that must agree.

    Raises:
      ValueError: they do not.
    """
    found, effect, rounding = jax.device_get(jax.jit(_differences)(model))
    for name in ("tree", "next", "ragged"):
        if name in found and not found[name] <= max(_MOST * effect, rounding):
            raise ValueError(
                f"{_CAUSES[name]}. Logits differ by {found[name]:.3g}, where the token before changes them by "
                f"{effect:.3g}; check=False goes on all the same"
            )


def _differences(model: Any) -> tuple[dict[str, Array], Array, Array]:
    """Returns how far passes differ that must not, what a token before changes, and what rounding may."""
    pair = jnp.asarray([0, model.vocab_size - 1], jnp.int32)
    both, ahead = jnp.stack([pair, pair[::-1]]), pair[::-1, None]
    empty = model.init_cache(2, 4)
    together, first = model(both, empty), model(pair[:, None], empty)
    held, alone = empty.append(first.entries), first.logits[:, 0]
    expected = together.logits[:, 1]
    found = {"next": _distance(model(ahead, held).logits[:, 0], expected)}
    # Two tokens behind one: a mask that counts them from the first slot leaves them without their past.
    behind = jnp.concatenate([ahead, both[:, :1]], axis=1)
    whole = model(jnp.concatenate([both[:, :1], behind], axis=1), empty).logits[:, 1:]
    found["next"] = jnp.maximum(found["next"], _distance(model(behind, held).logits, whole))
    ragged = model(ahead, held.truncate(jnp.asarray([1, 0], jnp.int32))).logits[:, 0]
    found["ragged"] = _distance(ragged, jnp.stack([expected[0], alone[0]]))
    if model.takes_trees:
        siblings = jnp.broadcast_to(jnp.eye(2, dtype=jnp.bool_)[None], (2, 2, 2))
        tree = model(both, empty, mask=siblings, positions=jnp.zeros((2, 2), jnp.int32)).logits
        found["tree"] = _distance(tree, jnp.stack([alone, alone[::-1]]))
    exact = all(x.dtype == jnp.float32 for x in empty.leaves if jnp.issubdtype(x.dtype, jnp.floating))
    rounding = (2.0**-14 if exact else 2.0**-6) * jnp.max(jnp.abs(expected))
    return found, _distance(expected, alone[::-1]), rounding


def _distance(x: Array, y: Array) -> Array:
    return jnp.max(jnp.abs(x - y))

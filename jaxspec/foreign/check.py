"""Runs a few tokens through a foreign model in several ways that must agree, to detect what it ignores."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.validate import is_concrete

# A difference above this fraction of what an ignored input would change is not rounding.
_MOST = 0.25
# Logits beyond this are those of tokens that a model excludes.
_EXCLUDED = 1e4
# How far texts are moved within the slots: farther than most windows reach.
_FAR = 1024
_CAUSES = {
    "tree": "the mask or the positions are ignored: each of two siblings must see only itself. Turn off kernels that "
    "take no mask (flash or splash attention), or pass cache_index='scalar'",
    "next": "a token does not see what was fed before it as it does in one pass: the index, the mask or the returned "
    "cache is ignored",
    "ragged": "rows of different lengths interfere: the index is one for all rows, or the mask is ignored; pass the "
    "cache_index that fits",
    "pending": "tokens are not written at the index: a node of a tree does not see its parent, in slots before it. "
    "Write at fed.index, or pass cache_index='scalar'",
    "long": "the mask or the positions are ignored in passes of many tokens: turn off kernels that take no mask (flash "
    "or splash attention), which may depend on the length",
    "far": "attention depends on slot numbers, as in a window of slots: a text's slots are not its positions. Use only "
    "the mask and fed.positions, or pass cache_index='scalar'",
}


def check_by_running(model: Any) -> None:
    """Compares passes that must agree: over two tokens, a tree, many tokens, ragged rows and moved slots.

    Raises:
      ValueError: they do not agree, or the weights are traced.
    """
    if not is_concrete(*jax.tree.leaves(model.params)):
        raise ValueError(
            "the weights are traced, so the model cannot be run to check it; wrap it once outside of jit, or pass "
            "check=False inside"
        )
    found, effect, rounding = jax.device_get(_differences(model))
    if not np.isfinite(rounding):
        raise ValueError("the model's logits are not finite; check its weights and dtype, or pass check=False")
    for name in _CAUSES:
        if name in found and not found[name] <= max(_MOST * effect, rounding):
            raise ValueError(
                f"{_CAUSES[name]}. Logits differ by {found[name]:.3g}, where the token before changes them by "
                f"{effect:.3g}; check=False skips this check"
            )


@jax.jit
def _run(model: Any, tokens: Int[Array, "b t"], cache: Any, given: dict[str, Any]) -> Any:
    return model(tokens, cache, **given)


@jax.jit
def _append(cache: Any, entries: Any) -> Any:
    return cache.append(entries)


def _pass(model: Any, tokens: Int[Array, "b t"], cache: Any, mask: Any = None, positions: Any = None) -> Any:
    """Runs a pass, with a mask if the model takes one, so that passes of one width share a program."""
    if not model.traits.takes_trees:
        return _run(model, tokens, cache, {})
    batch, count = tokens.shape
    causal = jnp.broadcast_to(jnp.tril(jnp.ones((count, count), jnp.bool_))[None], (batch, count, count))
    rising = cache.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
    mask, positions = causal if mask is None else mask, rising if positions is None else positions
    return _run(model, tokens, cache, {"mask": mask, "positions": positions})


def _differences(model: Any) -> tuple[dict[str, Array], Array, Array]:
    """Returns differences between passes that must agree, the effect of the token before, and a bound on rounding."""
    pair = jnp.asarray([0, model.vocab_size - 1], jnp.int32)
    both, ahead = jnp.stack([pair, pair[::-1]]), pair[::-1, None]
    empty = model.init_cache(2, 4)
    together, first = _pass(model, both, empty), _pass(model, pair[:, None], empty)
    held, alone = _append(empty, first.entries), first.logits[:, 0]
    expected = together.logits[:, 1]
    second = _pass(model, ahead, held)
    # Two tokens after one: a mask that counts from the first slot hides their history.
    third = _pass(model, both[:, :1], _append(held, second.entries))
    pair_after = _pass(model, jnp.concatenate([ahead, both[:, :1]], axis=1), held)
    found = {
        "next": jnp.maximum(
            _distance(second.logits[:, 0], expected),
            _distance(pair_after.logits, jnp.stack([expected, third.logits[:, 0]], axis=1)),
        )
    }
    ragged = _pass(model, ahead, held.truncate(jnp.asarray([1, 0], jnp.int32))).logits[:, 0]
    found["ragged"] = _distance(ragged, jnp.stack([expected[0], alone[0]]))
    if model.traits.takes_trees:
        siblings = jnp.broadcast_to(jnp.eye(2, dtype=jnp.bool_)[None], (2, 2, 2))
        tree = _pass(model, both, empty, siblings, jnp.zeros((2, 2), jnp.int32)).logits
        found["tree"] = _distance(tree, jnp.stack([alone, alone[::-1]]))
        found |= _of_trees(model, both, first, expected)
    exact = all(x.dtype == jnp.float32 for x in empty.leaves if jnp.issubdtype(x.dtype, jnp.floating))
    real = jnp.max(jnp.where(_is_real(expected), jnp.abs(expected), 0.0))
    rounding = (2.0**-14 if exact else 2.0**-6) * real
    none = ~jnp.any(_is_real(expected)) | jnp.any(jnp.isnan(expected))
    return found, _distance(expected, alone[::-1]), jnp.where(none, jnp.nan, rounding)


def _of_trees(
    model: Any, both: Int[Array, "2 2"], first: Any, expected: Float[Array, "2 v"]
) -> dict[str, Float[Array, ""]]:
    """Returns differences between passes that only models with a mask can run."""
    ahead, found = both[:, 1:], {}
    given = {
        "mask": jnp.ones((2, 1, 2), jnp.bool_),
        "positions": jnp.broadcast_to(jnp.arange(2, dtype=jnp.int32)[None], (2, 2)),
        "pending": first.entries,
    }
    if model.scratch >= 2:
        found["pending"] = _distance(_run(model, ahead, model.init_cache(2, 4), given).logits[:, 0], expected)
    count = model.traits.prompt_chunk
    if count > 2:
        # The last of many tokens sees only the first one and itself.
        tokens = jnp.concatenate([jnp.repeat(both[:, :1], count - 1, axis=1), ahead], axis=1)
        numbers = jnp.arange(count, dtype=jnp.int32)
        mask = jnp.tril(jnp.ones((count, count), jnp.bool_)).at[-1].set((numbers == 0) | (numbers == count - 1))
        positions = jnp.broadcast_to(numbers.at[-1].set(1)[None], (2, count))
        mask = jnp.broadcast_to(mask[None], (2, count, count))
        long = _pass(model, tokens, model.init_cache(2, count), mask, positions)
        found["long"] = _distance(long.logits[:, -1], expected)
    if model.cache_index == "shared":
        far = _FAR if model.context_length is None else min(_FAR, max(model.context_length - 4, 0))
        moved = model.init_cache(2, 4 + far)
        moved = _append(dataclasses.replace(moved, first=moved.first + far), first.entries)
        found["far"] = _distance(_pass(model, ahead, moved).logits[:, 0], expected)
    return found


def _is_real(logits: Float[Array, "*any"]) -> Array:
    """Returns which logits are finite, and not those of excluded tokens."""
    return jnp.isfinite(logits) & (jnp.abs(logits) < _EXCLUDED)


def _distance(found: Float[Array, "*any"], expected: Float[Array, "*any"]) -> Float[Array, ""]:
    """Returns the largest difference; infinite if only one of two logits is excluded, or `found` is NaN."""
    both = _is_real(found) & _is_real(expected)
    gap = jnp.where(both, jnp.abs(jnp.where(both, found - expected, 0.0)), jnp.inf)
    return jnp.max(jnp.where(~_is_real(found) & ~_is_real(expected) & ~jnp.isnan(found), 0.0, gap))

"""Runs the causal language models of KerasHub, on Keras' JAX backend."""

import dataclasses
import importlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Int

from jaxspec.foreign.model import CachedModel, Fed, from_cached


def from_keras_hub(
    lm: Any,
    *,
    context_length: int | None = None,
    scratch: int = 64,
    tokenizer: Any = None,
    check: bool = True,
) -> CachedModel:
    """Makes a `Model` of a KerasHub `CausalLM`, mapped over rows: its drafts are chains. Its arrays are shared.

    For new weights of the same `lm` replace `params` of what is returned by `[v.value for v in lm.variables]`: an `lm`
    that is wrapped anew is compiled anew.

    Args:
      lm: one whose `call_with_cache` takes tokens, a cache and an index.
      context_length: the longest text; `None` is without bound, or by `scratch` less than a model has positions.
      scratch: how many tokens a pass may feed.
      tokenizer: of its vocabulary, for the text interface.
      check: run a few tokens through it.

    Raises:
      TypeError: it is none of these.
      ValueError: Keras has another backend, the text may outgrow learned positions, or what the check finds.

    Example:
        >>> def tokens_of(lm, prompt):  # keras_hub.models.CausalLM.from_preset(...)
        ...     target = jaxspec.foreign.from_keras_hub(lm)
        ...     return jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=64).tokens
    """
    indexed = "cache_update_index" in inspect.signature(getattr(lm, "call_with_cache", lambda: None)).parameters
    if not indexed or not all(hasattr(lm, name) for name in ("_build_cache", "backbone", "variables")):
        raise TypeError(f"lm must be a CausalLM of keras_hub whose cache has an index, got {type(lm).__name__}")
    keras = importlib.import_module("keras")
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"Keras must run on JAX, got {keras.backend.backend()}; set KERAS_BACKEND=jax before its import"
        )
    params = [variable.value for variable in lm.variables]
    return from_cached(
        _Call(lm),
        _cache_of(lm, params),
        params,
        vocab_size=lm.backbone.vocabulary_size,
        cache_index="scalar",
        context_length=_longest(lm, context_length, scratch),
        scratch=scratch,
        tokenizer=tokenizer,
        check=check,
    )


def _longest(lm: Any, asked: int | None, scratch: int) -> int | None:
    """Returns the longest text whose every pass has positions of its own: a slice of learned ones would shift."""
    learned = getattr(lm.backbone, "max_sequence_length", None)
    most = None if learned is None else learned - scratch + 1
    if most is None or (asked is not None and asked <= most):
        return asked
    if asked is not None or most < 1:
        raise ValueError(
            f"a text of {asked or 1} tokens and a pass of scratch={scratch} outgrow {learned} positions; pass a "
            "smaller scratch or context_length"
        )
    return most


def _values(lm: Any, params: Any) -> Any:
    """Makes the variables of an `lm` hold these values while the context lasts."""
    keras = importlib.import_module("keras")
    return keras.StatelessScope(state_mapping=list(zip(lm.variables, params, strict=True)))


@dataclasses.dataclass(frozen=True)
class _Call:
    """Calls an `lm` as a function of its variables' values."""

    lm: Any

    def __call__(self, params: Any, tokens: Int[jax.Array, "b t"], cache: Any, fed: Fed) -> tuple[Any, ...]:
        with _values(self.lm, params):
            logits, _, cache = self.lm.call_with_cache(tokens, cache, fed.index)
        return logits, cache


@dataclasses.dataclass(frozen=True)
class _Cache:
    """Makes an empty cache; `slots` are the axes that grow with the capacity, one each or none."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    slots: tuple[tuple[int, ...], ...]
    tree: Any

    def __call__(self, batch: int, capacity: int) -> Any:
        made = []
        for shape, dtype, slots in zip(self.shapes, self.dtypes, self.slots, strict=True):
            sizes = [batch, *shape[1:]]
            for axis in slots:
                sizes[axis] = capacity
            made.append(jnp.zeros(sizes, dtype))
        return jax.tree.unflatten(self.tree, made)


def _cache_of(lm: Any, params: Any) -> _Cache:
    """Describes the cache that a model would fill for a prompt, by its shapes for two lengths."""
    # What else it may ask for belongs to images.
    others = [None] * (len(inspect.signature(lm._build_cache).parameters) - 1)

    def filled(count: int) -> Any:
        with _values(lm, params):
            return lm._build_cache(jnp.zeros((1, count), jnp.int32), *others)[-1]

    short, long = (jax.eval_shape(lambda count=count: filled(count)) for count in (3, 5))
    leaves, tree = jax.tree.flatten(long)
    slots = tuple(
        tuple(axis for axis, (few, many) in enumerate(zip(x.shape, y.shape, strict=True)) if few != many)
        for x, y in zip(jax.tree.leaves(short), leaves, strict=True)
    )
    return _Cache(tuple(x.shape for x in leaves), tuple(x.dtype for x in leaves), slots, tree)

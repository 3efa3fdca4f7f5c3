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
    """Makes a `Model` from a KerasHub `CausalLM`, and shares its arrays. Mapped over rows, so drafts must be chains.

    To use new weights, replace `params` of the result with `[v.value for v in lm.variables]`: wrapping the `lm` again
    compiles it again.

    Args:
      lm: a model whose `call_with_cache` takes tokens, a cache and an index.
      context_length: the longest text; `None` means unbounded; with learned positions, `scratch - 1` fewer than these.
      scratch: the number of tokens that a pass may feed.
      tokenizer: the tokenizer of the vocabulary, for the text interface.
      check: whether to run a few tokens through the model to check it.

    Raises:
      TypeError: `lm` is of another kind.
      ValueError: Keras has another backend, the text may exceed the learned positions, or the check fails.

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


def _longest(lm: Any, context_length: int | None, scratch: int) -> int | None:
    """Returns the longest text whose passes stay within learned positions: a slice beyond them would shift."""
    learned = getattr(lm.backbone, "max_sequence_length", None)
    most = None if learned is None else learned - scratch + 1
    if most is None or (context_length is not None and context_length <= most):
        return context_length
    if context_length is not None or most < 1:
        raise ValueError(
            f"a text of {context_length or 1} tokens and a pass of scratch={scratch} exceed {learned} positions; pass "
            "a smaller scratch or context_length"
        )
    return most


def _values(lm: Any, params: Any) -> Any:
    """Returns a context in which the variables of an `lm` have these values."""
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
    """Makes an empty cache; `slots` has the axes of each leaf that grow with the capacity, at most one."""

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
    """Describes the cache that a model fills for a prompt, by its shapes for two lengths."""
    # Its other arguments are for images.
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

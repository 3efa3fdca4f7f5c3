"""Supports custom processors: a function of logits and counts, and a base class for processors with a small state."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import validate
from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class FromCounts(Processor):
    """Processes logits with a pure function of a position's logits and the count of each token in the answer.

    Attributes:
      function: maps `logits [v]` and int32 `counts [v]` to logits `[v]`. Reuse one function instead of passing a new
        lambda in each call: each new function is compiled again.

    Raises:
      TypeError, ValueError: in a call, if `function` is not callable so, or returns something else.

    Example:
        >>> def once(logits, counts):
        ...     return jnp.where(counts > 0, -jnp.inf, logits)
        >>> policy = jaxspec.Greedy(processors=(jaxspec.processors.FromCounts(once),))
        >>> tokens = jaxspec.generate(target, None, prompt, sampling=policy, max_new_tokens=8).tokens
        >>> len(set(tokens[0].tolist()))
        8
    """

    function: Callable[[Array, Array], Array] = dataclasses.field(metadata={"static": True})

    def check(self, batch: int, vocab_size: int) -> None:
        validate.takes("FromCounts.function", self.function, "logits, counts")

    def init(self, prompt: Prompt) -> Int[Array, "b v"]:
        return jnp.zeros((prompt.tokens.shape[0], prompt.vocab_size), jnp.int32)

    def __call__(self, logits, state: Int[Array, "b v"], path) -> Float[Array, "b n v"]:
        counts = jax.vmap(lambda counts, path: jax.vmap(lambda one: _plus(counts, one))(path))(state, path)
        return jax.vmap(jax.vmap(_checked("FromCounts.function", self.function)))(logits, counts)

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]) -> Int[Array, "b v"]:
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return jax.vmap(_plus)(state, jnp.where(new, tokens, -1))


def _checked(name: str, process: Callable[..., Any]) -> Callable[..., Array]:
    """Returns a function of logits and more that checks the logits that `process` returns."""
    return lambda logits, *more: validate.logits(name, process(logits, *more), logits.shape)


# The kind of dtype that holds a Python number.
_HOLDS: dict[type, Any] = {bool: np.generic, int: np.number, float: np.inexact}


def _check_alike(name: str, found: Any, state: Any) -> None:
    """Raises `TypeError` unless a function returned a state with the structure, shapes and dtypes of the old one."""
    validate.arrays(name, found)
    kinds = []
    for tree in (state, found):
        leaves, structure = jax.tree.flatten(tree)
        kinds.append(f"{structure} of shapes {[jnp.shape(x) for x in leaves]}")
    if kinds[0] != kinds[1]:
        raise TypeError(f"{name} must return a state like the one it gets, {kinds[0]}, got {kinds[1]}")
    for new, old in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        # A Python number takes the dtype of the old state, if that holds it.
        dtype = jnp.result_type(old)
        fits = new.dtype == dtype if hasattr(new, "dtype") else jnp.issubdtype(dtype, _HOLDS[type(new)])
        if not fits:
            got = getattr(new, "dtype", type(new).__name__)
            raise TypeError(f"{name} must keep the dtype of its state, {dtype}, got {got}")


def _plus(counts: Int[Array, "v"], tokens: Int[Array, "m"]) -> Int[Array, "v"]:
    """Adds tokens to the counts; -1 is ignored."""
    return counts.at[jnp.where(tokens < 0, counts.shape[0], tokens)].add(1, mode="drop")


class StatefulProcessor(Processor):
    """Processes logits with a state that each token advances. Its methods are written for one row and one position.

    A subclass is a frozen dataclass decorated with `jaxspec.core.register_dataclass`; all rows share its arrays. The
    state at a drafted position is its parent's state, advanced by the drafted token.

    Example:
        >>> import dataclasses
        >>> @jaxspec.core.register_dataclass
        ... @dataclasses.dataclass(frozen=True)
        ... class EvenThenOdd(jaxspec.processors.StatefulProcessor):
        ...     '''Allows even tokens after odd ones, and odd ones after even ones.'''
        ...     def start(self, prompt, length):
        ...         return prompt[length - 1] % 2
        ...     def advance(self, state, token):
        ...         return token % 2
        ...     def process(self, logits, state):
        ...         return jnp.where(jnp.arange(logits.shape[0]) % 2 == state, -jnp.inf, logits)
        >>> policy = jaxspec.Greedy(processors=(EvenThenOdd(),))
        >>> tokens = jaxspec.generate(target, None, prompt, sampling=policy, max_new_tokens=4).tokens
        >>> bool((tokens[:, 1:] % 2 != tokens[:, :-1] % 2).all())
        True
    """

    @abc.abstractmethod
    def start(self, prompt: Int[Array, "t"], length: Int[Array, ""]) -> Any:
        """Returns the state before the first token of an answer, a pytree of arrays.

        Args:
          prompt: `[t]` token ids, padded: the row's prompt is `prompt[:length]`.
          length: int32 scalar, the length of the prompt.
        """

    @abc.abstractmethod
    def advance(self, state: Any, token: Int[Array, ""]) -> Any:
        """Returns the state after one more token, with unchanged shapes and dtypes; others are a `TypeError`."""

    @abc.abstractmethod
    def process(self, logits: Float[Array, "v"], state: Any) -> Float[Array, "v"]:
        """Returns the processed logits of the next token."""

    def init(self, prompt: Prompt) -> Any:
        return jax.vmap(self.start)(prompt.tokens, prompt.length)

    def __call__(self, logits, state, path):
        after = lambda logits, state, path: self.process(logits, self._after(state, path))  # noqa: E731
        at_node = _checked(f"{type(self).__name__}.process", after)
        return jax.vmap(jax.vmap(at_node, in_axes=(0, None, 0)))(logits, state, path)

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]):
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return jax.vmap(self._after)(state, jnp.where(new, tokens, -1))

    def _after(self, state: Any, tokens: Int[Array, "m"]) -> Any:
        """Returns the state after `tokens`; -1 is ignored."""
        if tokens.shape[0] == 0:
            return state

        def step(state, token):
            advanced = self.advance(state, jnp.maximum(token, 0))
            _check_alike(f"{type(self).__name__}.advance", advanced, state)
            return jax.tree.map(lambda new, old: jnp.where(token < 0, old, new), advanced, state), None

        return jax.lax.scan(step, state, tokens)[0]

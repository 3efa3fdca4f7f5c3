"""Defines the base of processors of one's own that carry a small state, such as an automaton's."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.processing import Processor, Prompt


class StatefulProcessor(Processor):
    """Processes by a state that each token advances. Written for one row; all positions of a round are made of it.

    A subclass is a frozen dataclass under `jaxspec.core.register_dataclass`; its arrays are the same for all rows. The
    state of a drafted position is its parent's, advanced by its token.

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
          prompt: the row's prompt is `prompt[:length]`.
          length: its length.
        """

    @abc.abstractmethod
    def advance(self, state: Any, token: Int[Array, ""]) -> Any:
        """Returns the state after one more token, of the same shapes and dtypes."""

    @abc.abstractmethod
    def process(self, logits: Float[Array, "v"], state: Any) -> Float[Array, "v"]:
        """Returns the processed logits of the token that comes next."""

    def init(self, prompt: Prompt) -> Any:
        return jax.vmap(self.start)(prompt.tokens, prompt.length)

    def __call__(self, logits, state, path):
        at_node = lambda logits, state, path: self.process(logits, self._after(state, path))  # noqa: E731
        return jax.vmap(jax.vmap(at_node, in_axes=(0, None, 0)))(logits, state, path)

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]):
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return jax.vmap(self._after)(state, jnp.where(new, tokens, -1))

    def _after(self, state: Any, tokens: Int[Array, "m"]) -> Any:
        """Returns the state after tokens; -1 is none."""
        if tokens.shape[0] == 0:
            return state

        def step(state, token):
            advanced = self.advance(state, jnp.maximum(token, 0))
            return jax.tree.map(lambda new, old: jnp.where(token < 0, old, new), advanced, state), None

        return jax.lax.scan(step, state, tokens)[0]

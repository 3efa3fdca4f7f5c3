"""Calls a function of one's own of logits and the counts of tokens."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class FromCounts(Processor):
    """Processes by a pure function of a position's logits and of how often the answer has each token.

    Attributes:
      function: `function(logits [v], counts [v])` returns logits `[v]`. Pass the same function again, and not a new
        lambda: another function is another program.

    Example:
        >>> def once(logits, counts):
        ...     return jnp.where(counts > 0, -jnp.inf, logits)
        >>> policy = jaxspec.Greedy(processors=(jaxspec.processors.FromCounts(once),))
        >>> tokens = jaxspec.generate(target, None, prompt, sampling=policy, max_new_tokens=8).tokens
        >>> len(set(tokens[0].tolist()))
        8
    """

    function: Callable[[Array, Array], Array] = dataclasses.field(metadata={"static": True})

    def init(self, prompt: Prompt) -> Int[Array, "b v"]:
        return jnp.zeros((prompt.tokens.shape[0], prompt.vocab_size), jnp.int32)

    def __call__(self, logits, state: Int[Array, "b v"], path) -> Float[Array, "b n v"]:
        counts = jax.vmap(lambda counts, path: jax.vmap(lambda one: _plus(counts, one))(path))(state, path)
        return jax.vmap(jax.vmap(self.function))(logits, counts)

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]) -> Int[Array, "b v"]:
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return jax.vmap(_plus)(state, jnp.where(new, tokens, -1))


def _plus(counts: Int[Array, "v"], tokens: Int[Array, "m"]) -> Int[Array, "v"]:
    """Returns the counts with more tokens; -1 is none."""
    return counts.at[jnp.where(tokens < 0, counts.shape[0], tokens)].add(1, mode="drop")

"""Keeps a text from ending too early."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.values import to_int32
from jaxspec.processors import ids, values

_LARGEST = 2**31 - 2


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MinNewTokens(Processor):
    """Excludes the stop tokens of the call until a row has so many new tokens.

    Attributes:
      count: the fewest new tokens before one that ends the row, one number or one a row.

    Example:
        >>> policy = jaxspec.Greedy(processors=(jaxspec.processors.MinNewTokens(3),))
        >>> answer = jaxspec.generate(target, None, prompt, sampling=policy, max_new_tokens=8, stop_tokens=range(300))
        >>> bool((answer.length > 3).all())
        True
    """

    by_row: ClassVar[bool] = True
    count: Int[Array, "*b"] | int

    def check(self, batch: int, vocab_size: int) -> None:
        values.check("MinNewTokens.count", self.count, batch, 0, _LARGEST, "an integer >= 0")
        dtype = getattr(self.count, "dtype", None)
        if not (isinstance(self.count, int) if dtype is None else jnp.issubdtype(dtype, jnp.integer)):
            raise TypeError(f"MinNewTokens.count must be an integer >= 0, got {self.count!r}")

    def in_range(self, vocab_size: int) -> Any:
        return jnp.asarray(self.count) >= 0

    def spread(self, batch: int) -> "MinNewTokens":
        return MinNewTokens(jnp.broadcast_to(to_int32(self.count), (batch,)))

    def init(self, prompt: Prompt) -> tuple[Bool[Array, "b v"], Int[Array, "b"]]:
        """Returns which tokens are excluded, and how many each row has to write yet."""
        return ids.listed(prompt.stop_tokens, prompt.vocab_size), to_int32(self.count)

    def __call__(self, logits, state, path):
        stops, left = state
        early = jnp.sum(path >= 0, axis=2, dtype=jnp.int32) < left[:, None]
        return jnp.where(stops[:, None] & early[..., None], -jnp.inf, logits)

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]):
        stops, left = state
        return stops, jnp.maximum(left - count, 0)

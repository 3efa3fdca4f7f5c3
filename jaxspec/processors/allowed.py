"""Excludes all tokens but some."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.processors import ids


@register_dataclass
@dataclasses.dataclass(frozen=True)
class AllowedTokens(Processor):
    """Excludes every token that is not among these. Stop tokens are no exception: name them, if a text may end.

    Attributes:
      tokens: `[n]` ids, or `[b, n]`; -1 pads. A row without any allows all.

    Example:
        >>> policy = jaxspec.Greedy(processors=(jaxspec.processors.AllowedTokens([4, 9]),))
        >>> tokens = jaxspec.generate(target, None, prompt, sampling=policy, max_new_tokens=4).tokens
        >>> set(tokens.ravel().tolist()) <= {4, 9}
        True
    """

    by_row: ClassVar[bool] = True
    tokens: ids.Ids

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", ids.kept(self.tokens))

    def check(self, batch: int, vocab_size: int) -> None:
        ids.check("AllowedTokens.tokens", self.tokens, batch, vocab_size)

    def in_range(self, vocab_size: int) -> Any:
        return ids.in_range(self.tokens, vocab_size)

    def spread(self, batch: int) -> "AllowedTokens":
        return AllowedTokens(ids.spread(self.tokens, batch))

    def init(self, prompt: Prompt) -> Bool[Array, "b v"]:
        none = jnp.all(jnp.asarray(self.tokens) < 0, axis=1, keepdims=True)
        return ids.listed(self.tokens, prompt.vocab_size) | none

    def __call__(self, logits, state: Bool[Array, "b v"], path):
        return jnp.where(state[:, None], logits, -jnp.inf)

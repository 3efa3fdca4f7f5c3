"""Adds a bias to the logits of given tokens."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.values import is_concrete
from jaxspec.processors import ids


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LogitBias(Processor):
    """Adds a bias to the logits of tokens; -inf excludes one.

    Attributes:
      tokens: `[n]` ids, or `[b, n]`; -1 pads. The biases of an id that is there twice are added.
      bias: what is added to each, of the same shape.

    Raises:
      ValueError: if an id is not in the vocabulary, or a bias is NaN or +inf.

    Example:
        >>> policy = jaxspec.Sampling(processors=(jaxspec.processors.LogitBias.of({5: 4.0, 7: -100.0}),))
        >>> jaxspec.generate(target, None, prompt, key=key, sampling=policy, max_new_tokens=4).tokens.shape
        (2, 4)
    """

    by_row: ClassVar[bool] = True
    tokens: ids.Ids
    bias: Array | np.ndarray | Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", ids.kept(self.tokens))
        if isinstance(self.bias, list | tuple):
            object.__setattr__(self, "bias", np.asarray(self.bias, np.float32))

    @classmethod
    def of(cls, biases: Any) -> Self:
        """Makes it from a mapping of token ids to biases, for all rows."""
        if not isinstance(biases, Mapping):
            raise TypeError(f"biases must map token ids to numbers, got {biases!r}; pass {{token_id: bias}}")
        for token, bias in biases.items():
            if isinstance(token, bool) or not isinstance(token, int | np.integer) or token < 0:
                raise ValueError(f"LogitBias needs token ids, got {token!r}; pass {{token_id: bias}}")
            if isinstance(bias, bool) or not isinstance(bias, int | float | np.number):
                raise TypeError(f"LogitBias needs a number as the bias of token {token}, got {bias!r}")
        return cls(np.asarray(list(biases), dtype=np.int64).reshape(-1), np.asarray(list(biases.values()), np.float32))

    def check(self, batch: int, vocab_size: int) -> None:
        ids.check("LogitBias.tokens", self.tokens, batch, vocab_size)
        if np.shape(self.tokens) != np.shape(self.bias):
            raise ValueError(
                f"LogitBias needs a bias for each token, got shapes {np.shape(self.tokens)} and {np.shape(self.bias)}"
            )
        if is_concrete(self.bias) and not np.all(np.asarray(self.bias, np.float64) < np.inf):
            raise ValueError(f"LogitBias.bias must be numbers or -inf, got {np.asarray(self.bias).tolist()}")

    def in_range(self, vocab_size: int) -> Any:
        return ids.in_range(self.tokens, vocab_size) & jnp.all(jnp.asarray(self.bias) < jnp.inf, axis=1)

    def spread(self, batch: int) -> "LogitBias":
        tokens = ids.spread(self.tokens, batch)
        return LogitBias(tokens, jnp.broadcast_to(jnp.asarray(self.bias, jnp.float32), tokens.shape))

    def init(self, prompt: Prompt) -> Float[Array, "b v"]:
        tokens = jnp.asarray(self.tokens)
        rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
        places = jnp.where(tokens < 0, prompt.vocab_size, tokens)
        none = jnp.zeros((tokens.shape[0], prompt.vocab_size), jnp.float32)
        return none.at[rows, places].add(jnp.asarray(self.bias), mode="drop")

    def __call__(self, logits, state: Float[Array, "b v"], path):
        return logits + state[:, None].astype(logits.dtype)

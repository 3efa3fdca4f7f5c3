"""Adds biases to the logits of given tokens."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxspec.core import validate
from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.validate import is_concrete
from jaxspec.processors import ids


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LogitBias(Processor):
    """Adds biases to the logits of given tokens; -inf excludes a token.

    Attributes:
      tokens: `[n]` or `[b, n]` token ids; -1 pads. The biases of a repeated id are summed.
      bias: the bias of each token, of the shape of `tokens`.

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
        object.__setattr__(self, "bias", ids.kept(self.bias, np.float32))

    @classmethod
    def of(cls, biases: Any) -> Self:
        """Makes a processor from a mapping of token ids to biases, for all rows."""
        if not isinstance(biases, Mapping):
            raise TypeError(
                f"biases must map token ids to numbers, got {validate.shown(biases)}; pass {{token_id: bias}}"
            )
        for token, bias in biases.items():
            if not ids.is_id(token):
                raise ValueError(f"LogitBias needs token ids, got {validate.shown(token)}; pass {{token_id: bias}}")
            if isinstance(bias, bool) or not isinstance(bias, int | float | np.integer | np.floating):
                raise TypeError(f"LogitBias needs a number as the bias of token {token}, got {validate.shown(bias)}")
        return cls(list(biases), list(biases.values()))

    def check(self, batch: int, vocab_size: int) -> None:
        ids.check("LogitBias.tokens", self.tokens, batch, vocab_size)
        bias = validate.numbers("LogitBias.bias", self.bias, "numbers or -inf")
        if np.shape(self.tokens) != bias.shape:
            raise ValueError(
                f"LogitBias needs a bias for each token, got shapes {np.shape(self.tokens)} and {bias.shape}"
            )
        if is_concrete(bias) and not np.all(np.asarray(bias, np.float64) < np.inf):
            raise ValueError(f"LogitBias.bias must be numbers or -inf, got {np.asarray(bias).tolist()}")

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

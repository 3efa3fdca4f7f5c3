"""Excludes phrases: the token that would complete one."""

import dataclasses
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.values import is_concrete
from jaxspec.processors import ids


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BannedPhrases(Processor):
    """Excludes the last token of a phrase wherever the text, prompt included, ends with the others.

    A phrase of one token is never written.

    Attributes:
      phrases: `[n, m]` ids, or `[b, n, m]`, padded **on the left** with -1.

    Example:
        >>> policy = jaxspec.Greedy(processors=(jaxspec.processors.BannedPhrases.of([[5], [3, 8]]),))
        >>> tokens = jaxspec.generate(target, None, prompt, sampling=policy, max_new_tokens=8).tokens
        >>> 5 in tokens.ravel().tolist()
        False
    """

    by_row: ClassVar[bool] = True
    phrases: ids.Ids

    def __post_init__(self) -> None:
        object.__setattr__(self, "phrases", ids.kept(self.phrases))

    @classmethod
    def of(cls, phrases: Any) -> Self:
        """Makes it from phrases of different lengths, for all rows.

        Raises:
          TypeError, ValueError: if they are no lists of ids, or one is empty.
        """
        if not isinstance(phrases, list | tuple) or not all(isinstance(one, list | tuple) for one in phrases):
            raise TypeError(f"phrases must be lists of token ids, got {phrases!r}; pass [[7], [5, 6]], say")
        if any(len(one) == 0 for one in phrases):
            raise ValueError(f"a phrase must have a token, got {phrases!r}; leave empty ones out")
        longest = max(map(len, phrases), default=1)
        return cls(np.asarray([[-1] * (longest - len(one)) + list(one) for one in phrases]).reshape(-1, longest))

    def check(self, batch: int, vocab_size: int) -> None:
        ids.check("BannedPhrases.phrases", self.phrases, batch, vocab_size, axes=2)
        if is_concrete(self.phrases):
            padding = np.asarray(self.phrases) < 0
            if np.any(padding[..., 1:] & ~padding[..., :-1]):
                raise ValueError(
                    f"BannedPhrases.phrases has -1 behind a token, got {np.asarray(self.phrases).tolist()!r:.80}; pad "
                    "on the left, or use BannedPhrases.of"
                )

    def in_range(self, vocab_size: int) -> Any:
        return ids.in_range(self.phrases, vocab_size)

    def spread(self, batch: int) -> "BannedPhrases":
        return BannedPhrases(ids.spread(self.phrases, batch, axes=2))

    def init(self, prompt: Prompt) -> Int[Array, "b m_less_1"]:
        """Returns the last tokens of the text, as many as come before the end of the longest phrase; -1 pads."""
        most = np.shape(self.phrases)[2] - 1
        at = prompt.length[:, None] - most + jnp.arange(most, dtype=jnp.int32)[None]
        last = jnp.take_along_axis(prompt.tokens, jnp.maximum(at, 0), axis=1)
        return jnp.where(at >= 0, last, -1).astype(jnp.int32)

    def __call__(self, logits, state, path):
        phrases, most = jnp.asarray(self.phrases), state.shape[1]
        last = jnp.broadcast_to(state[:, None], (*path.shape[:2], most))
        at = jnp.sum(path >= 0, axis=2, dtype=jnp.int32)[..., None] + jnp.arange(most, dtype=jnp.int32)[None, None]
        last = jnp.take_along_axis(jnp.concatenate([last, path], axis=2), at, axis=2)
        before = phrases[:, None, :, :-1]
        ends = jnp.all((before < 0) | (before == last[:, :, None]), axis=3)
        token = phrases[:, None, :, -1]
        places = jnp.where(ends & (token >= 0), token, logits.shape[2])
        row = jnp.arange(path.shape[0], dtype=jnp.int32)[:, None, None]
        node = jnp.arange(path.shape[1], dtype=jnp.int32)[None, :, None]
        return logits.at[row, node, places].set(-jnp.inf, mode="drop")

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]):
        at = count[:, None] + jnp.arange(state.shape[1], dtype=jnp.int32)[None]
        return jnp.take_along_axis(jnp.concatenate([state, tokens], axis=1), at, axis=1)

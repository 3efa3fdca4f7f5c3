"""Excludes tokens: all but an allowed set, those that complete a banned phrase, stop tokens that come too early."""

import dataclasses
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.validate import is_concrete, shown, to_int32
from jaxspec.processors import ids


@register_dataclass
@dataclasses.dataclass(frozen=True)
class AllowedTokens(Processor):
    """Excludes every token that is not listed. This includes stop tokens: list them if the text may end.

    Attributes:
      tokens: `[n]` or `[b, n]` token ids; -1 pads. In `[b, n]`, a row without ids allows every token.

    Raises:
      TypeError, ValueError: in a call, if they are not token ids of the vocabulary, or `[n]` has none.

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
        if np.ndim(self.tokens) == 1 and is_concrete(self.tokens) and not np.any(np.asarray(self.tokens) >= 0):
            raise ValueError(
                "AllowedTokens has no tokens, which would allow every token; pass token ids, or leave the processor out"
            )

    def in_range(self, vocab_size: int) -> Any:
        return ids.in_range(self.tokens, vocab_size)

    def spread(self, batch: int) -> "AllowedTokens":
        return AllowedTokens(ids.spread(self.tokens, batch))

    def init(self, prompt: Prompt) -> Bool[Array, "b v"]:
        none = jnp.all(jnp.asarray(self.tokens) < 0, axis=1, keepdims=True)
        return ids.listed(self.tokens, prompt.vocab_size) | none

    def __call__(self, logits, state: Bool[Array, "b v"], path):
        return jnp.where(state[:, None], logits, -jnp.inf)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BannedPhrases(Processor):
    """Excludes the last token of a phrase wherever the text, including the prompt, ends with the tokens before it.

    A phrase of one token is never emitted.

    Attributes:
      phrases: `[n, m]` or `[b, n, m]` token ids, padded **on the left** with -1.

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
        """Makes a processor from phrases of different lengths, for all rows.

        Raises:
          TypeError, ValueError: if the phrases are not lists of ids, or one is empty.
        """
        if not isinstance(phrases, list | tuple) or not all(isinstance(one, list | tuple) for one in phrases):
            raise TypeError(f"phrases must be lists of token ids, got {shown(phrases)}; pass [[7], [5, 6]], say")
        if any(len(one) == 0 for one in phrases):
            raise ValueError(f"a phrase must have a token, got {shown(phrases)}; leave empty ones out")
        if wrong := [token for one in phrases for token in one if not ids.is_id(token)]:
            raise TypeError(f"phrases must be lists of token ids, got {wrong[0]!r:.80} in one; pass [[7], [5, 6]], say")
        longest = max(map(len, phrases), default=1)
        return cls(np.asarray([[-1] * (longest - len(one)) + list(one) for one in phrases]).reshape(-1, longest))

    def check(self, batch: int, vocab_size: int) -> None:
        ids.check("BannedPhrases.phrases", self.phrases, batch, vocab_size, axes=2)
        if np.shape(self.phrases)[-1] == 0:
            raise ValueError("BannedPhrases.phrases has phrases without tokens; leave them, or the processor, out")
        if is_concrete(self.phrases):
            padding = np.asarray(self.phrases) < 0
            if np.any(padding[..., 1:] & ~padding[..., :-1]):
                raise ValueError(
                    f"BannedPhrases.phrases has -1 after a token, got {np.asarray(self.phrases).tolist()!r:.80}; pad "
                    "on the left, or use BannedPhrases.of"
                )

    def in_range(self, vocab_size: int) -> Any:
        return ids.in_range(self.phrases, vocab_size)

    def spread(self, batch: int) -> "BannedPhrases":
        return BannedPhrases(ids.spread(self.phrases, batch, axes=2))

    def init(self, prompt: Prompt) -> Int[Array, "b m_less_1"]:
        """Returns the last `m - 1` tokens of the text, for phrases of up to `m` tokens; -1 pads."""
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


_LARGEST = 2**31 - 2


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MinNewTokens(Processor):
    """Excludes the call's stop tokens until a row has at least `count` new tokens.

    Attributes:
      count: the minimum number of new tokens before a stop token, one integer or `[b]`.

    Example:
        >>> policy = jaxspec.Greedy(processors=(jaxspec.processors.MinNewTokens(3),))
        >>> answer = jaxspec.generate(target, None, prompt, sampling=policy, max_new_tokens=8, stop_tokens=range(300))
        >>> bool((answer.length > 3).all())
        True
    """

    by_row: ClassVar[bool] = True
    count: Int[Array, "*b"] | int

    def check(self, batch: int, vocab_size: int) -> None:
        ids.check_values("MinNewTokens.count", self.count, batch, 0, _LARGEST, "an integer >= 0", whole=True)

    def in_range(self, vocab_size: int) -> Any:
        return jnp.asarray(self.count) >= 0

    def spread(self, batch: int) -> "MinNewTokens":
        return MinNewTokens(jnp.broadcast_to(to_int32(self.count), (batch,)))

    def init(self, prompt: Prompt) -> tuple[Bool[Array, "b v"], Int[Array, "b"]]:
        """Returns the mask of stop tokens, and the number of tokens that each row must still emit."""
        return ids.listed(prompt.stop_tokens, prompt.vocab_size), to_int32(self.count)

    def __call__(self, logits, state, path):
        stops, left = state
        early = jnp.sum(path >= 0, axis=2, dtype=jnp.int32) < left[:, None]
        return jnp.where(stops[:, None] & early[..., None], -jnp.inf, logits)

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]):
        stops, left = state
        return stops, jnp.maximum(left - count, 0)

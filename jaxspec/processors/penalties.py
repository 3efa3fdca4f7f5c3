"""Penalizes tokens that are already in the text."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.processors import ids

_LARGEST = 1e4


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Penalties(Processor):
    """Penalizes repeated tokens: by a factor, by a fixed amount, or by an amount per occurrence.

    As in `transformers` and vLLM, repetition considers prompt and answer; presence and frequency, the answer alone.

    Attributes:
      repetition: divides positive logits of tokens in the text and multiplies negative ones; above 0. 1 changes
        nothing, and values below 1 favor repetition. For all three attributes, `None` costs nothing.
      presence: subtracted once from the logits of tokens in the answer; negative values favor these tokens.
      frequency: subtracted from a token's logit for each occurrence in the answer.

    Each is one value or `[b]`, one per row.

    References:
      CTRL: Keskar et al. (2019), arXiv:1909.05858, section 4.1 (repetition).

    Example:
        >>> policy = jaxspec.Greedy(processors=(jaxspec.processors.Penalties(repetition=1.2, frequency=0.5),))
        >>> jaxspec.generate(target, jaxspec.NGramDrafter(k=2), prompt, sampling=policy, max_new_tokens=4).tokens.shape
        (2, 4)
    """

    by_row: ClassVar[bool] = True
    repetition: Float[Array, "*b"] | float | None = None
    presence: Float[Array, "*b"] | float | None = None
    frequency: Float[Array, "*b"] | float | None = None

    def check(self, batch: int, vocab_size: int) -> None:
        if self.repetition is not None:
            smallest, expected = 1 / _LARGEST, "above 0, and at least 0.0001; 1 changes nothing"
            ids.check_values("Penalties.repetition", self.repetition, batch, smallest, _LARGEST, expected)
        for name in ("presence", "frequency"):
            if (value := getattr(self, name)) is not None:
                expected = "between -10000 and 10000; 0 changes nothing"
                ids.check_values(f"Penalties.{name}", value, batch, -_LARGEST, _LARGEST, expected)

    def in_range(self, vocab_size: int) -> Any:
        good = jnp.ones((), jnp.bool_)
        if self.repetition is not None:
            repetition = jnp.asarray(self.repetition)
            good = good & (repetition >= 1 / _LARGEST) & (repetition <= _LARGEST)
        for value in (self.presence, self.frequency):
            good = good if value is None else good & (jnp.abs(value) <= _LARGEST)
        return good

    def spread(self, batch: int) -> "Penalties":
        each = (self.repetition, self.presence, self.frequency)
        return Penalties(*(None if value is None else ids.spread_values(value, batch) for value in each))

    def init(self, prompt: Prompt) -> tuple[Bool[Array, "b v"], Int[Array, "b v"]]:
        """Returns the mask of the prompt's tokens, and the count of each token in the answer."""
        batch, width = prompt.tokens.shape
        rows = jnp.arange(batch, dtype=jnp.int32)[:, None]
        used = jnp.arange(width, dtype=jnp.int32)[None] < prompt.length[:, None]
        places = jnp.where(used, prompt.tokens, prompt.vocab_size)
        none = jnp.zeros((batch, prompt.vocab_size), jnp.int32)
        seen = none.astype(jnp.bool_)
        return (seen if self.repetition is None else seen.at[rows, places].set(True, mode="drop")), none

    def __call__(self, logits, state, path):
        seen, counts = state
        processed = self._penalized(logits, seen[:, None], counts[:, None])
        if path.shape[2] == 0:
            return processed
        # The drafts before a position change the logits of a few tokens only; the others depend on the text alone.
        tokens = jnp.maximum(path, 0)
        again = jnp.sum(path[..., None] == path[..., None, :], axis=-1, dtype=jnp.int32)
        row = jnp.arange(path.shape[0], dtype=jnp.int32)[:, None, None]
        node = jnp.arange(path.shape[1], dtype=jnp.int32)[None, :, None]
        at = self._penalized(logits[row, node, tokens], seen[row, tokens], counts[row, tokens] + again)
        places = jnp.where(path < 0, logits.shape[2], path)
        return processed.at[row, node, places].set(at, mode="drop")

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]):
        seen, counts = state
        rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return seen, counts.at[rows, jnp.where(new, tokens, counts.shape[1])].add(1, mode="drop")

    def _penalized(
        self, logits: Float[Array, "b n *c"], seen: Bool[Array, "b #n *c"], counts: Int[Array, "b #n *c"]
    ) -> Float[Array, "b n *c"]:
        """Returns penalized logits, given which tokens the prompt has and their counts in the answer."""
        present = counts > 0
        shaped = lambda value: ids.meet(value, logits)  # noqa: E731
        if self.repetition is not None:
            factor = shaped(self.repetition)
            logits = jnp.where(seen | present, jnp.where(logits < 0, logits * factor, logits / factor), logits)
        if self.frequency is not None:
            # `where` keeps compilers from fusing product and difference, which would round once, in some programs only.
            amount = shaped(self.frequency) * counts.astype(logits.dtype)
            logits = logits - jnp.where(present, amount, jnp.zeros((), logits.dtype))
        if self.presence is not None:
            logits = logits - jnp.where(present, shaped(self.presence), jnp.zeros((), logits.dtype))
        return logits

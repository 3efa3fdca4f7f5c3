"""Lowers the logits of tokens that the text has already."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.processors import values

_LARGEST = 1e4


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Penalties(Processor):
    """Penalizes repetition: by a factor, by an amount, or by an amount for each time.

    As in `transformers` and vLLM, repetition counts prompt and answer, presence and frequency the answer alone.

    Attributes:
      repetition: positive logits of tokens that are there are divided by it, others multiplied; above 0. Of 1 nothing
        changes, below 1 repetition is favored. `None` costs nothing, in each of the three.
      presence: is subtracted once from the logits of tokens that the answer has; negative ones favor them.
      frequency: is subtracted for each time that the answer has a token.

    Each is one value or one a row.

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
            values.check("Penalties.repetition", self.repetition, batch, smallest, _LARGEST, expected)
        for name in ("presence", "frequency"):
            if (value := getattr(self, name)) is not None:
                expected = "between -10000 and 10000; 0 changes nothing"
                values.check(f"Penalties.{name}", value, batch, -_LARGEST, _LARGEST, expected)

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
        return Penalties(*(None if value is None else values.spread(value, batch) for value in each))

    def init(self, prompt: Prompt) -> tuple[Bool[Array, "b v"], Int[Array, "b v"]]:
        """Returns which tokens the prompt has, and how often the answer has each."""
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
        # What the drafts above a position add concerns a few tokens: the others' logits are those of the text.
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
        """Returns logits of tokens that were seen in the prompt, or are so many times in the answer."""
        there = counts > 0
        shaped = lambda value: values.meet(value, logits)  # noqa: E731
        if self.repetition is not None:
            factor = shaped(self.repetition)
            logits = jnp.where(seen | there, jnp.where(logits < 0, logits * factor, logits / factor), logits)
        if self.frequency is not None:
            # Chosen, so that no compiler rounds product and difference at once, in one program and not in another.
            amount = shaped(self.frequency) * counts.astype(logits.dtype)
            logits = logits - jnp.where(there, amount, jnp.zeros((), logits.dtype))
        if self.presence is not None:
            logits = logits - jnp.where(there, shaped(self.presence), jnp.zeros((), logits.dtype))
        return logits

"""Earlier outputs, kept on the device to copy from."""

import dataclasses
from typing import Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.core import validate
from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TextStore:
    """The newest `n` texts of up to `w` tokens each; a new one takes the place of the oldest.

    Its shape never changes, so a drafter whose store has grown runs the same compiled program.

    Attributes:
      tokens: one text a row; -1 pads.
      oldest: the row that is written next.

    Example:
      >>> drafter = jaxspec.SuffixDrafter(store=jaxspec.TextStore.empty(256, 512))
      >>> result = jaxspec.generate(target, drafter, prompt, max_new_tokens=512)
      >>> store = drafter.store.add(result.tokens, result.length)
      >>> drafter = dataclasses.replace(drafter, store=store)
    """

    tokens: Int[Array, "n w"]
    oldest: Int[Array, ""]

    @classmethod
    def empty(cls, texts: int, width: int) -> Self:
        """A store without text.

        Raises:
          TypeError, ValueError: `texts` or `width` is no integer of at least 1.
        """
        validate.counts("TextStore", texts=texts, width=width)
        return cls(jnp.full((texts, width), -1, jnp.int32), jnp.int32(0))

    def add(self, tokens: Int[Array, "b t"], length: Int[Array, "b"]) -> Self:
        """The store with more texts in it, of which row `b` is `tokens[b, :length[b]]`.

        Runs inside `jax.jit` too. Of a text longer than the store is wide the end is cut off.

        Raises:
          ValueError: there are more texts than the store has rows.
        """
        rows, width = self.tokens.shape
        batch, time = tokens.shape
        if batch > rows:
            raise ValueError(f"the store holds {rows} texts, got {batch} at once; make it larger, or add them in parts")
        positions = jnp.arange(time, dtype=jnp.int32)[None]
        kept = jnp.where(positions < length[:, None], tokens.astype(jnp.int32), -1)[:, :width]
        kept = jnp.pad(kept, ((0, 0), (0, width - kept.shape[1])), constant_values=-1)
        at = (self.oldest + jnp.arange(batch, dtype=jnp.int32)) % rows
        return dataclasses.replace(self, tokens=self.tokens.at[at].set(kept), oldest=(self.oldest + batch) % rows)

    def in_a_row(self) -> Int[Array, "d"]:
        """All texts one after the other, the newest last, with -1 after each."""
        oldest_first = jnp.roll(self.tokens, -self.oldest, axis=0)
        return jnp.pad(oldest_first, ((0, 0), (0, 1)), constant_values=-1).reshape(-1)

"""Speculative and plain decoding of the same prompts, side by side."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.model import placement_of
from jaxspec.core.prefill import prefill
from jaxspec.text.decoder import SpeculativeDecoder
from jaxspec.text.result import TextResult


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first place where the tokens of one prompt differ.

    Attributes:
      row: which prompt, from 0.
      place: which new token, from 0.
      speculative: the token's text there, or "" where the row had ended.
      plain: the same without speculation.
      logit_gap: between the target's two best logits at that place.
    """

    row: int
    place: int
    speculative: str
    plain: str
    logit_gap: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Both speeds, after compilation, in tokens a second, and where tokens differ, a row each."""

    speculative: float
    plain: float
    sampled: bool
    differences: tuple[Difference | None, ...]

    @property
    def ratio(self) -> float:
        """How many times as fast speculation was."""
        return self.speculative / self.plain if self.plain else 0.0


def compare_results(
    decoder: SpeculativeDecoder,
    speculative: list[TextResult],
    plain: list[TextResult],
    prompts: Sequence[Sequence[int]],
) -> Comparison:
    """Compares two results of the same prompts and the same key."""
    rows = zip(speculative, plain, prompts, strict=True)
    return Comparison(
        speculative[0].tokens_per_second,
        plain[0].tokens_per_second,
        speculative[0].seed is not None,
        tuple(_first_difference(decoder, index, *row) for index, row in enumerate(rows)),
    )


def _first_difference(decoder, row: int, speculative: TextResult, plain: TextResult, prompt) -> Difference | None:
    ours, theirs = speculative.token_ids, plain.token_ids
    if ours == theirs:
        return None
    shorter = min(len(ours), len(theirs))
    place = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
    text = lambda ids: decoder.tokenizer.decode(ids[place : place + 1], skip_special_tokens=False)  # noqa: E731
    gap = _logit_gap(decoder.target, [*prompt, *theirs[:place]])
    return Difference(row, place, text(ours), text(theirs), gap)


def _logit_gap(target, ids: list[int]) -> float:
    """The gap between the two best logits after a text."""
    tokens = jnp.asarray([ids], jnp.int32)
    best = np.sort(np.asarray(_last_logits(target, tokens)))[-2:]
    return float(best[1] - best[0])


@jax.jit
def _last_logits(target, tokens):
    length = jnp.full(1, tokens.shape[1], jnp.int32)
    cache = prefill(target, tokens, length, target.init_cache(1, tokens.shape[1])).cache
    return placement_of(target).replicate(target(tokens[:, -1:], cache).logits[0, 0])

"""Compares speculative with plain decoding of the same prompts."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import Model
from jaxspec.core.prefill import prefill, room_for
from jaxspec.text.decoder import SpeculativeDecoder
from jaxspec.text.detokenizer import token_text
from jaxspec.text.result import TextResult

_WIDTH = 64


@dataclasses.dataclass(frozen=True)
class Difference:
    """Describes the first position at which the tokens of one prompt differ.

    Attributes:
      row: index of the prompt.
      position: index of the new token.
      speculative: text of the speculative token there; "" after the end of the row.
      plain: text of the token of plain decoding there; "" after the end of the row.
      logit_gap: difference between the target's two largest logits there.
    """

    row: int
    position: int
    speculative: str
    plain: str
    logit_gap: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Compares speculative with plain decoding, both measured after compilation.

    Attributes:
      speculative: tokens per second with speculation.
      plain: tokens per second without speculation.
      sampled: whether tokens were sampled.
      differences: first difference of each prompt; `None` if its tokens are equal.
    """

    speculative: float
    plain: float
    sampled: bool
    differences: tuple[Difference | None, ...]

    @property
    def ratio(self) -> float:
        """Speed of speculative decoding divided by that of plain decoding."""
        return self.speculative / self.plain if self.plain else 0.0


def compare_results(
    decoder: SpeculativeDecoder,
    speculative: list[TextResult],
    plain: list[TextResult],
    prompts: Sequence[Sequence[int]],
) -> Comparison:
    """Compares speculative with plain results for one set of prompts and one seed.

    Args:
      decoder: decoder that gives the target and the tokenizer.
      speculative: one result per prompt, with speculation.
      plain: one result per prompt, without speculation.
      prompts: token ids of each prompt.
    """
    rows = zip(speculative, plain, prompts, strict=True)
    return Comparison(
        speculative[0].tokens_per_second,
        plain[0].tokens_per_second,
        speculative[0].seed is not None,
        tuple(_first_difference(decoder, index, *row) for index, row in enumerate(rows)),
    )


def _first_difference(
    decoder: SpeculativeDecoder, row: int, speculative: TextResult, plain: TextResult, prompt: Sequence[int]
) -> Difference | None:
    fast, slow = speculative.token_ids, plain.token_ids
    if (position := first_difference(fast, slow)) is None:
        return None
    largest = np.sort(next_logits(decoder.target, [*prompt, *slow[:position]]))[-2:]
    gap = float(largest[1] - largest[0])
    return Difference(row, position, _text_at(decoder, fast, position), _text_at(decoder, slow, position), gap)


def _text_at(decoder: SpeculativeDecoder, ids: Sequence[int], position: int) -> str:
    return "".join(token_text(decoder.tokenizer, index) for index in ids[position : position + 1])


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Returns the first index where two sequences differ, possibly the end of the shorter; `None` if equal."""
    if list(one) == list(other):
        return None
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)


def next_logits(target: Model, ids: Sequence[int]) -> np.ndarray:
    """Returns the target's logits after a text, shape `[v]`; texts of similar lengths share a compiled program."""
    tokens = np.zeros((1, -(-len(ids) // _WIDTH) * _WIDTH), np.int32)
    tokens[0, : len(ids)] = ids
    return np.asarray(_logits_after(target, tokens, np.array([len(ids)], np.int32)))


@jax.jit
def _logits_after(target: Model, tokens: Int[Array, "1 t"], length: Int[Array, "1"]) -> Float[Array, "v"]:
    cache = prefill(target, tokens, length, target.init_cache(1, room_for(target, tokens.shape[1]))).cache
    last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)
    return target.traits.placement.replicate(target(last, cache).logits[0, 0])

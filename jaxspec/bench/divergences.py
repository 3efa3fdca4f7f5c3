"""Finds the first divergence of two answers, and how near the target was to a tie there.

A pass over one token and a pass over five round differently, so a tie within rounding may fall either way.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.records import Divergence
from jaxspec.core.random import PositionNoise, row_keys
from jaxspec.core.sampling import Policy
from jaxspec.text.comparison import first_difference, next_logits

# Two tokens within so many nats of each other are a tie.
NEAR = 1e-3

# Of the text up to a place: the scores whose argmax is the next token, `[v]`.
Score = Callable[[Sequence[int]], np.ndarray]


def divergence(plain: Sequence[int], other: Sequence[int], score: Score) -> Divergence | None:
    """Finds the first place where two answers differ, and how far the worse token there is below the best.

    Returns:
      `None` where they are equal. The distance is `None` where one answer goes on behind the end of the other, which
      no tie explains.
    """
    if (place := first_difference(plain, other)) is None:
        return None
    if place == min(len(plain), len(other)):
        return place, None
    scores = score(plain[:place])
    return place, float(scores.max() - min(scores[plain[place]], scores[other[place]]))


def score_of(target, prompt: Sequence[int], row: int, rows: int, policy: Policy, key: jax.Array) -> Score:
    """Returns the function whose argmax plain decoding takes with this key, after the prompt and some new tokens.

    Args:
      target: the model.
      prompt: token ids.
      row: index of the row in a batch of `rows`.
      rows: size of the batch.
      policy: the sampling policy.
      key: as `jaxspec.generate` takes it.
    """

    def score(answer: Sequence[int]) -> np.ndarray:
        logits = next_logits(target, [*prompt, *answer])
        if policy.greedy:
            return logits
        length = jnp.asarray([len(prompt) + len(answer)], jnp.int32)
        noise = PositionNoise(row_keys(key, rows)[row][None], length).token_noise(1, target.vocab_size)
        return np.asarray((policy.log_probs(jnp.asarray(logits)[None, None]) + noise)[0, 0])

    return score

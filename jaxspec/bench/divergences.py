"""Finds the first divergence of two answers, and how near the target was to a tie there.

A pass over one token and a pass over five round differently, so a tie within rounding may fall either way.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.records import Divergence
from jaxspec.core.prefill import prefill
from jaxspec.core.random import PositionNoise, row_keys
from jaxspec.core.sampling import Policy

# Two tokens within so many nats of each other are a tie.
NEAR = 1e-3
_WIDTH = 64

# Of the text up to a place: the scores whose argmax is the next token, `[v]`.
Score = Callable[[Sequence[int]], np.ndarray]


def divergence(plain: Sequence[int], other: Sequence[int], score: Score) -> Divergence | None:
    """Finds the first place where two answers differ, and how far the worse token there is below the best.

    Returns:
      `None` where they are equal. The distance is `None` where one answer goes on behind the end of the other, which
      no tie explains.
    """
    plain, other = list(plain), list(other)
    if plain == other:
        return None
    shared = min(len(plain), len(other))
    place = next((i for i in range(shared) if plain[i] != other[i]), shared)
    if place == shared:
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
        text = [*prompt, *answer]
        tokens = np.zeros((1, -(-len(text) // _WIDTH) * _WIDTH), np.int32)
        tokens[0, : len(text)] = text
        length = jnp.asarray([len(text)], jnp.int32)
        logits = _logits_after(target, tokens, length)
        if policy.greedy:
            return np.asarray(logits)
        noise = PositionNoise(row_keys(key, rows)[row][None], length).token_noise(1, target.vocab_size)
        return np.asarray((policy.log_probs(logits[None, None]) + noise)[0, 0])

    return score


@jax.jit
def _logits_after(target, tokens, length):
    cache = prefill(target, tokens, length, target.init_cache(1, tokens.shape[1])).cache
    last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)
    return target(last, cache).logits[0, 0]

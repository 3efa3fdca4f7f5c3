"""Finds where two runs diverge, and how close the two best candidates were there.

A pass over one token and a pass over five round differently, so that a tie within rounding may
fall either way. Such places are counted and shown; any other difference is an error.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

MARGIN = 1e-3


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first place where a row of two runs differs, and the gap of the two best scores there."""

    row: int
    place: int
    margin: float


def divergences(plain, other, prompts, lengths, score):
    """Every row's first difference.

    Args:
      plain, other: two `Generation`s for the same prompts.
      prompts: `[b, t]` ids, `lengths` of which count.
      score: `score(tokens, row) -> [v]`, what the next token is the argmax of.
    """
    found = []
    for row in range(len(lengths)):
        ours, theirs = (np.asarray(run.tokens[row, : int(run.length[row])]) for run in (plain, other))
        shared = min(len(ours), len(theirs))
        different = np.flatnonzero(ours[:shared] != theirs[:shared])
        if not different.size:
            assert len(ours) == len(theirs), f"row {row} has the same tokens but another end"
            continue
        place = int(different[0])
        text = np.concatenate([prompts[row, : lengths[row]], ours[:place]])
        best = np.sort(np.asarray(score(text, row)))[-2:]
        found.append(Divergence(row, place, float(best[1] - best[0])))
    return found


@jax.jit
def _logits_after(model, tokens, length):
    cache = model.init_cache(1, tokens.shape[1])
    logits = model(tokens, cache).logits
    return jnp.take_along_axis(logits, length[:, None, None] - 1, axis=1)[0, 0]


def next_logits(model, text) -> jax.Array:
    """The target's logits `[v]` after a text, from one pass over all of it."""
    padded = np.zeros((1, -(-len(text) // 64) * 64), np.int32)
    padded[0, : len(text)] = text
    return _logits_after(model, jnp.asarray(padded), jnp.asarray([len(text)], jnp.int32))

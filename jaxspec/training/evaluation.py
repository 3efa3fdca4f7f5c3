"""Measures the true mean acceptance length by decoding conversations that were not trained on."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.core.sampling import Greedy, Policy, Sampling
from jaxspec.core.typed import typed
from jaxspec.decoding.generate import generate
from jaxspec.drafters.base import Drafter


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Holds prompts to measure acceptance on.

    Attributes:
      rows: the token ids of each prompt.
      max_new_tokens: the number of tokens to decode after each.
      batch: the number of prompts to decode at once.

    Raises:
      ValueError: there is no prompt, one is empty, or a number is out of range.

    Example:
      >>> jaxspec.training.Prompts(((5, 6, 7), (9, 8)), max_new_tokens=16).batch
      16
    """

    rows: tuple[tuple[int, ...], ...]
    max_new_tokens: int = 64
    batch: int = 16

    def __post_init__(self):
        validate.instance("rows", self.rows, Sequence, "pass ((5, 6, 7), (9, 8)), say")
        if not self.rows or any(np.size(row) == 0 for row in self.rows):
            raise ValueError("rows must have at least one prompt, and each at least one token")
        for row in self.rows:
            if validate.numbers("rows", row, "token ids of each prompt", whole=True).ndim != 1:
                raise ValueError(f"rows must have a list of token ids for each prompt, got {validate.shown(row)}")
        validate.counts("Prompts", max_new_tokens=self.max_new_tokens, batch=self.batch)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Holds the statistics of decoded prompts.

    Attributes:
      mean_acceptance_length: the mean number of tokens emitted a round, over all rows.
      by_position: the share of rounds that accepted the draft at each position.
      rounds: the number of rounds.
      tokens: the number of tokens emitted.
    """

    mean_acceptance_length: float
    by_position: tuple[float, ...]
    rounds: int
    tokens: int


def prompts_of(tokens: np.ndarray, answer: np.ndarray) -> tuple[int, ...]:
    """Returns a conversation up to its first answer, or all of it if it has none.

    Args:
      tokens: token ids, `[n]`.
      answer: whether each token is part of an answer, `[n]`.
    """
    starts = np.flatnonzero(answer)
    return tuple(int(token) for token in tokens[: starts[0] if len(starts) else None])


@typed("drafter", "prompts", seed=(0, 2**32 - 1))
def evaluate(target: Model, drafter: Drafter, prompts: Prompts, *, seed: int = 0) -> dict[str, Measured]:
    """Decodes every prompt greedily and at temperature 1.

    Args:
      target: the model to decode from.
      drafter: the drafter.
      prompts: the prompts to continue.
      seed: the seed of sampling at temperature 1.

    Returns:
      The statistics by "greedy" and "sampled".

    Example:
      >>> prompts = jaxspec.training.Prompts(((5, 6, 7), (9, 8)), max_new_tokens=8)
      >>> found = jaxspec.training.evaluate(target, jaxspec.NGramDrafter(k=2), prompts)
      >>> found["greedy"].tokens
      16
    """
    policies = {"greedy": Greedy(), "sampled": Sampling(temperature=1.0)}
    return {name: _measure(target, drafter, prompts, policy, seed) for name, policy in policies.items()}


def _measure(target: Model, drafter: Drafter, prompts: Prompts, policy: Policy, seed: int) -> Measured:
    # Rows of similar length are decoded together, as each batch is padded to its longest prompt.
    rows = sorted(prompts.rows, key=len)
    keys = jax.random.split(jax.random.key(seed), len(rows))
    rounds, emitted, accepted = 0, 0, np.zeros(drafter.max_drafts, np.int64)
    for start in range(0, len(rows), prompts.batch):
        group = rows[start : start + prompts.batch]
        missing = min(prompts.batch, len(rows)) - len(group)
        padded, length = _padded([*group, *[group[-1]] * missing])
        # Rows that only fill up the batch, to avoid another compilation, emit nothing.
        budget = np.where(np.arange(len(padded)) < len(group), prompts.max_new_tokens, 0).astype(np.int32)
        indices = np.minimum(start + np.arange(len(padded)), len(rows) - 1)
        result = generate(
            target,
            drafter,
            padded,
            prompt_length=length,
            key=keys[indices],
            sampling=policy,
            max_new_tokens=jnp.asarray(budget),
        )
        rounds += int(np.sum(result.stats.rounds))
        emitted += int(np.sum(result.stats.emitted))
        accepted += np.sum(np.asarray(result.stats.accepted_at), axis=0)
    return Measured(emitted / max(rounds, 1), tuple((accepted / max(rounds, 1)).tolist()), rounds, emitted)


def _padded(rows: list[tuple[int, ...]]) -> tuple[Int[Array, "b t"], Int[Array, "b"]]:
    """Pads prompts on the right; returns their lengths too."""
    length = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), length.max()), np.int32)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    return jnp.asarray(tokens), jnp.asarray(length)

"""Measures the true mean acceptance length: the real loop, on conversations that were not trained on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from jaxspec.core.model import Model
from jaxspec.core.sampling import Greedy, Policy, Sampling
from jaxspec.decoding.generate import generate
from jaxspec.drafters.base import Drafter


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Holds prompts to measure acceptance on.

    Attributes:
      rows: the token ids of each prompt.
      max_new_tokens: tokens to decode after each.
      batch: prompts to decode at once.

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
        if not self.rows or not all(self.rows):
            raise ValueError("there must be at least one prompt, and each of at least one token")
        for name in ("max_new_tokens", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class Measured:
    """Counts what a run of the loop emitted and accepted.

    Attributes:
      mean_acceptance_length: emitted tokens a round, over all rows.
      by_position: the share of rounds that accepted the draft at each position.
      rounds: how many there were.
      tokens: how many were emitted.
    """

    mean_acceptance_length: float
    by_position: tuple[float, ...]
    rounds: int
    tokens: int


def prompts_of(tokens: np.ndarray, answer: np.ndarray) -> tuple[int, ...]:
    """Cuts a conversation before its first answer; returns all of it if it has none.

    Args:
      tokens: `[n]` token ids.
      answer: `[n]`, which of them are a part of an answer.
    """
    starts = np.flatnonzero(answer)
    return tuple(int(token) for token in tokens[: starts[0] if len(starts) else None])


def evaluate(target: Model, drafter: Drafter, prompts: Prompts, *, seed: int = 0) -> dict[str, Measured]:
    """Decodes every prompt greedily and at temperature 1.

    Args:
      target: the model to decode from.
      drafter: what drafts.
      prompts: what to continue.
      seed: of sampling at temperature 1.

    Returns:
      The counts by "greedy" and "sampled".

    Example:
      >>> prompts = jaxspec.training.Prompts(((5, 6, 7), (9, 8)), max_new_tokens=8)
      >>> found = jaxspec.training.evaluate(target, jaxspec.NGramDrafter(k=2), prompts)
      >>> found["greedy"].tokens
      16
    """
    policies = {"greedy": Greedy(), "sampled": Sampling(temperature=1.0)}
    return {name: _measure(target, drafter, prompts, policy, seed) for name, policy in policies.items()}


def _measure(target: Model, drafter: Drafter, prompts: Prompts, policy: Policy, seed: int) -> Measured:
    """Decodes every prompt with one policy."""
    # Rows of similar width stand together: each batch is padded to its widest.
    rows = sorted(prompts.rows, key=len)
    keys = jax.random.split(jax.random.key(seed), len(rows))
    tokenizer = getattr(target, "tokenizer", None)
    stop = () if tokenizer is None else tokenizer.eos_token_ids
    rounds, emitted, accepted = 0, 0, np.zeros(drafter.max_drafts, np.int64)
    for start in range(0, len(rows), prompts.batch):
        group = rows[start : start + prompts.batch]
        missing = min(prompts.batch, len(rows)) - len(group)
        padded, length = _padded([*group, *[group[-1]] * missing])
        # Rows that only fill the batch, so that no other program is compiled, emit nothing.
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
            stop_tokens=stop,
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

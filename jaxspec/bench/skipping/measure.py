"""How often a draft without some blocks is accepted: one pass over texts, the same program for every set of blocks."""

import dataclasses
import math
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from jaxspec.bench.skipping.search import ATTENTION, MLP, Block, Blocks
from jaxspec.bench.skipping.texts import Texts
from jaxspec.bench.workload import weight_bytes
from jaxspec.model import LanguageModel
from jaxspec.nn.products import project
from jaxspec.nn.skipping import run_where
from jaxspec.sampling import Policy
from jaxspec.training.losses import acceptance


@dataclasses.dataclass(frozen=True)
class Measure:
    """The mean over a text's places of the sum over the vocabulary of min(target, draft), each given the text before.

    Under a greedy policy that is how often both name the same token.

    Attributes:
      target: the model.
      policy: what tokens are drawn with.
      texts: where it is looked at.
      states: the target's own last states of them.
    """

    target: LanguageModel
    policy: Policy
    texts: Texts
    states: Float[Array, "n t d"]

    @classmethod
    def of(cls, target: LanguageModel, policy: Policy, texts: Texts) -> Self:
        """Runs the whole target once.

        Raises:
          FloatingPointError: its states are not finite.
        """
        everything = jnp.ones(target.module.config.num_layers, jnp.bool_)
        states = _states(target, texts.tokens, everything, everything)
        if not np.isfinite(states).all():
            raise FloatingPointError("the target's states are not finite; load it in another dtype")
        return cls(target, policy, texts, states)

    def __call__(self, skipped: Blocks) -> float:
        """Of a draft without these blocks."""
        layers = self.target.module.config.num_layers
        attends, feeds = (
            jnp.asarray([(kind, layer) not in skipped for layer in range(layers)]) for kind in (ATTENTION, MLP)
        )
        return float(_acceptance(self.target, self.policy, self.texts, self.states, attends, feeds))


def costs(target: LanguageModel) -> dict[Block, float]:
    """Of each attention and MLP block, with its norms, the share of the bytes of weights that a step reads."""
    total, found = weight_bytes(target), {}
    for layer in range(target.module.config.num_layers):
        for name, part in target.params[f"layer_{layer}"].items():
            block = (MLP if name.startswith("mlp") else ATTENTION, layer)
            size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(part))
            found[block] = found.get(block, 0.0) + size / total
    return found


@jax.jit
def _states(
    target: LanguageModel, tokens: Array, attends: Bool[Array, "l"], feeds: Bool[Array, "l"]
) -> Float[Array, "n t d"]:
    return jax.lax.map(lambda row: _of_row(target, row, attends, feeds)[0], tokens)


@jax.jit
def _acceptance(
    target: LanguageModel,
    policy: Policy,
    texts: Texts,
    states: Float[Array, "n t d"],
    attends: Bool[Array, "l"],
    feeds: Bool[Array, "l"],
) -> Float[Array, ""]:
    """One text after the other: laws over a whole vocabulary never stand in memory for all."""

    def of_row(row) -> Float[Array, ""]:
        tokens, counts, own = row
        last = (own[None], _of_row(target, tokens, attends, feeds))
        laws = (project(target.normalise(x), target.head).astype(jnp.float32) for x in last)
        accepted = acceptance(*(policy.log_probs(law) for law in laws))[0]
        return jnp.sum(jnp.where(counts, accepted, 0.0))

    sums = jax.lax.map(of_row, (texts.tokens, texts.counts, states))
    return jnp.sum(sums) / jnp.sum(texts.counts, dtype=jnp.float32)


def _of_row(target, tokens, attends, feeds) -> Float[Array, "1 t d"]:
    return run_where(target.module, target.params, attends, feeds, tokens[None], target.init_cache(1, 0))

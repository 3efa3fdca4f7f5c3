"""Accepts drafts at given rates, regardless of the models, for measurements; lossy."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.core.validate import shown
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.relaxed import check_number, register_unchecked
from jaxspec.verifiers.tree_walk import DraftTree, TreeWalk, earlier


@register_unchecked
@dataclasses.dataclass(frozen=True)
class SyntheticVerifier(Verifier):
    """Accepts drafts at given rates, regardless of the models, to simulate a drafter of that quality. Lossy.

    The passes are those of real decoding, so that overhead, draft lengths and costs can be measured without a trained
    draft model. Draft `i` is accepted with probability `acceptance[i]` if those before it were, also under greedy
    policies. In a tree, the first child is tried at each depth. The token after the accepted drafts is the target's.

    vLLM's `synthetic_acceptance_rates` are the cumulative products of these: (0.8, 0.6) there is (0.8, 0.75) here.

    `Verdict.deviation` is conditional on the draft: `acceptance * (1 - target(x))`.

    Attributes:
      acceptance: rates between 0 and 1, one per position, may be traced; later positions use the last rate.

    Raises:
      TypeError: if `acceptance` is not a sequence of numbers.
      ValueError: if it is empty, or a rate is out of range.

    Example:
        >>> from jaxspec.bench import SyntheticVerifier
        >>> half = SyntheticVerifier((1.0, 0.0))
        >>> options = dict(verifier=half, lossy=True, max_new_tokens=8)
        >>> found = jaxspec.generate(target, jaxspec.NGramDrafter(k=3), jnp.asarray([[7, 7, 7, 7]]), **options)
        >>> found.lossless, found.stats.acceptance_by_position.round(2).tolist()[1:]
        (False, [0.0, 0.0])
    """

    acceptance: Sequence[Any] | Float[Array, "n"]

    lossless: ClassVar[bool] = False
    trees: ClassVar[bool] = True

    def __post_init__(self):
        rates, advice = self.acceptance, "pass one rate per position, such as (0.8, 0.6)"
        several = isinstance(rates, Sequence | np.ndarray | Array) and not isinstance(rates, str)
        if not several or getattr(rates, "ndim", 1) == 0:
            raise TypeError(f"SyntheticVerifier needs a sequence of rates, got {shown(rates)}; {advice}")
        if len(rates) == 0:
            raise ValueError(f"SyntheticVerifier needs at least one rate, got none; {advice}")
        for rate in rates:
            check_number("SyntheticVerifier", "rates", rate, "between 0 and 1", lambda x: 0 <= x <= 1)
        object.__setattr__(self, "acceptance", tuple(rates))

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        tree = DraftTree.of(proposal)
        rows = jnp.arange(tree.tokens.shape[0], dtype=jnp.int32)[:, None]
        walk, deviation = self._walk(rng, tree, jnp.exp(target_log_probs[rows, tree.parents + 1, tree.tokens]))
        log_probs = walk.log_probs(target_log_probs)
        return _verdict(proposal, walk, rng.next_token(log_probs), deviation)

    def verify_greedy(self, rng: RoundKeys, proposal: Proposal, target_tokens: Int[Array, "b n_plus_1"]) -> Verdict:
        tree = DraftTree.of(proposal)
        same = jnp.take_along_axis(target_tokens, tree.parents + 1, axis=1) == tree.tokens
        walk, deviation = self._walk(rng, tree, same.astype(jnp.float32))
        next_token = jnp.take_along_axis(target_tokens, walk.row()[:, None], axis=1)[:, 0]
        return _verdict(proposal, walk, next_token, deviation)

    def _walk(
        self, rng: RoundKeys, tree: DraftTree, target_probs: Float[Array, "b n"]
    ) -> tuple[TreeWalk, Float[Array, "b depth"]]:
        """Walks down to the last accepted draft, and also returns the deviation at each tested depth."""
        walk, uniforms = TreeWalk.start(tree), rng.uniforms(tree.depth)
        deviation = jnp.zeros_like(uniforms)
        for level in range(tree.depth):
            rate = jnp.asarray(self.acceptance[min(level, len(self.acceptance) - 1)], jnp.float32)
            first = _first(walk.candidates(tree) & walk.going[:, None])
            lost = jnp.sum(jnp.where(first, 1.0 - target_probs, 0.0), axis=1)
            deviation = deviation.at[:, level].set(rate * lost)
            # Strict, with a uniform in (0, 1): a rate of 0 accepts no draft, a rate of 1 all drafts.
            walk = walk.advance(tree, first & (uniforms[:, level : level + 1] < rate))
        return walk, deviation


def _first(flags: Bool[Array, "b n"]) -> Bool[Array, "b n"]:
    return flags & ~earlier(flags)


def _verdict(
    proposal: Proposal, walk: TreeWalk, next_token: Int[Array, "b"], deviation: Float[Array, "b depth"]
) -> Verdict:
    return Verdict(walk.accepted, next_token, None if proposal.parents is None else walk.path, deviation)

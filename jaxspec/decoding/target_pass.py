"""Reads a verification pass: the distributions that a verifier sees, and the log-probabilities of what is emitted."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import processing
from jaxspec.core.argmax import argmax
from jaxspec.core.at_drafts import AtDrafts
from jaxspec.core.bit_exact import by_position, rows_of
from jaxspec.core.parts import parts_of
from jaxspec.core.random import Rng
from jaxspec.core.report import Report, Reported, top
from jaxspec.core.sampling import Sampling, one_hot_log
from jaxspec.core.split_sampling import Chain
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.sums import log_sum_exp
from jaxspec.verifiers.base import Verifier


@dataclasses.dataclass(frozen=True)
class Distributions:
    """Holds the target's distributions after the committed text and each draft.

    Attributes:
      logits: as the model gave them.
      processed: as the policy's processors leave them; the same, if it has none.
      normalizer: the logarithms of the model's sums of exponentials.
      next_log_probs: of the policy; `None` is one-hot, for a greedy one.
      chain: what was looked up of a chain's drafts together with what normalizes them, on a mesh; else `None`.
    """

    logits: Float[Array, "b n_plus_1 v"]
    processed: Float[Array, "b n_plus_1 v"]
    normalizer: Float[Array, "b n_plus_1"]
    next_log_probs: Float[Array, "b n_plus_1 v"] | None
    chain: Chain | None = None

    @classmethod
    def of(cls, context: Context, logits: Float[Array, "b n_plus_1 v"], proposal: Proposal) -> "Distributions":
        """Computes them for a round of this context."""
        policy, fixed = context.sampling, rows_of(context.target)
        split = fixed is None and proposal.parents is None and parts_of(logits) > 1
        if type(policy) is Sampling and split and not context.processors:
            chain = Chain.of(policy, logits, proposal.tokens, proposal.log_probs)
            return cls(logits, logits, chain.normalizer, chain.log_probs, chain)
        normalizer, processed = by_position(log_sum_exp, logits, fixed), logits
        if context.processors:
            path = processing.paths(proposal.tokens, proposal.parents, proposal.depth)
            processed = context.process(logits, path)
        warped = None if policy.greedy else by_position(policy.log_probs, processed, fixed)
        return cls(logits, processed, normalizer, warped)

    def verdict(self, verifier: Verifier, rng: Rng, proposal: Proposal) -> Verdict:
        """Returns the verifier's verdict."""
        if self.next_log_probs is None:
            return verifier.verify_greedy(rng, proposal, argmax(self.processed))
        if self.chain is not None:
            at_drafts = AtDrafts(self.chain.target, self.chain.draft, self.logits)
            proposal = dataclasses.replace(proposal, at_drafts=at_drafts)
        return verifier.verify(rng, proposal, self.next_log_probs)

    def emitted(
        self, verdict: Verdict, rows: Int[Array, "b n_path"], tokens: Int[Array, "b n_path"]
    ) -> tuple[Float[Array, "b n_path"], Float[Array, "b n_path"]]:
        """Returns the log-probabilities of the emitted tokens, before and after warping (0 for a greedy policy).

        After it is -inf for tokens that the policy's processors exclude, which are emitted only where none is left.

        Args:
          verdict: what is emitted.
          rows: the row of logits that each is drawn from.
          tokens: the accepted drafts, then the next token; the rest is never read.
        """
        if self.chain is not None and verdict.at_next is not None:
            return _emitted(self.chain, verdict.accepted, *verdict.at_next)
        log_probs = _at(self.logits, rows, tokens) - jnp.take_along_axis(self.normalizer, rows, axis=1)
        warped = jnp.zeros_like(log_probs) if self.next_log_probs is None else _at(self.next_log_probs, rows, tokens)
        if self.processed is not self.logits:
            warped = jnp.where(jnp.isfinite(_at(self.processed, rows, tokens)), warped, -jnp.inf)
        return log_probs, warped

    def reported(self, rows: Int[Array, "b n_path"], report: Report) -> Reported:
        """Returns what is asked for of the rows of logits that tokens are drawn from."""
        of_rows = lambda x: jnp.take_along_axis(x, rows[..., None], axis=1)  # noqa: E731
        logits, normalizer = of_rows(self.logits), jnp.take_along_axis(self.normalizer, rows, axis=1)
        if self.next_log_probs is not None:
            return top(logits, normalizer, of_rows(self.next_log_probs), report)
        return top(logits, normalizer, one_hot_log(argmax(of_rows(self.processed)), logits.shape[-1]), report)


def _emitted(
    chain: Chain, accepted: Int[Array, "b"], logit: Float[Array, "b"], warped: Float[Array, "b"]
) -> tuple[Float[Array, "b n_path"], Float[Array, "b n_path"]]:
    """Returns what `Distributions.emitted` does, given the next token's logit and warped log-probability."""
    next_at = jnp.arange(chain.normalizer.shape[1], dtype=jnp.int32)[None] == accepted[:, None]
    both = ((chain.logits, logit), (chain.target, warped))
    logits, log_probs = (jnp.where(next_at, new[:, None], jnp.pad(drafts, ((0, 0), (0, 1)))) for drafts, new in both)
    return logits - chain.normalizer, log_probs


def _at(
    values: Float[Array, "b n v"], rows: Int[Array, "b n_path"], tokens: Int[Array, "b n_path"]
) -> Float[Array, "b n_path"]:
    """Returns the values of tokens in given rows."""
    batch = jnp.arange(values.shape[0], dtype=jnp.int32)[:, None]
    return values[batch, rows, tokens]

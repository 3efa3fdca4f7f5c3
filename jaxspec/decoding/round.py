"""Runs one round: propose, verify, commit.

before     tokens  a b c d e          length 5, e is unfed: the cache holds a b c d
propose            . . . . . x y z    three drafts
verify     feed            [e x y z]  one pass gives the distribution after each
verdict    x accepted, y rejected, w drawn instead
commit     tokens  a b c d e x w      length 7, w is unfed: the cache holds a b c d e x

The drafts of a tree are fed in one pass too, each seeing its own ancestors; only the cache entries of the accepted path
are stored.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import processing
from jaxspec.core.bit_exact import by_position, check_whole
from jaxspec.core.compiler import traced_for
from jaxspec.core.leading import count_leading
from jaxspec.core.model import Model, ModelOutput, ResumableModel, check_entries, only
from jaxspec.core.native_sampling import log_sum_exp
from jaxspec.core.parts import argmax, parts_of
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.results import Report, Reported, top
from jaxspec.core.sampling import Greedy, Sampling, best_log_prob, one_hot_log
from jaxspec.core.split_sampling import AtDrafts, Chain
from jaxspec.core.state import Context, GenerationState, Proposal, RoundInfo, Verdict
from jaxspec.core.tree import ancestors, depths, verification_mask
from jaxspec.decoding.commit import Verified, commit, widen
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter
from jaxspec.verifiers.base import Verifier

_Carry = TypeVar("_Carry")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Round:
    """Advances rows by one round: `propose`, `verify`, `commit`.

    Attributes:
      target: scores the drafts in one pass.
      drafter: proposes them.
      verifier: decides which are accepted.
      report: selects the optional results.
    """

    target: Model
    drafter: Drafter
    verifier: Verifier
    report: Report = dataclasses.field(default=Report(), metadata={"static": True})

    def run(self, state: GenerationState) -> tuple[GenerationState, RoundInfo]:
        """Advances every live row by at least one token, unless its logits are not finite."""
        with traced_for(self.target):
            rng, proposal, state = self.propose(state)
            score = functools.partial(self._score, rng)
            if len(self.drafter.lengths) == 1 or self.drafter.lengths[0] > 0:
                return score(proposal, self.lengths(state), state)
            # If no row drafts, arrays are not padded to the width of a round of drafts, which takes time with many
            # rows. Rounds with drafts come first, since the cache that drafting read must be used before it is written.
            drafted, nothing = jnp.any(proposal.valid), RoundInfo.empty(state.length, self.drafter.max_drafts)
            with jax.named_scope("with_drafts"):
                round_ = _if(drafted, lambda now: score(proposal, self.drafter.lengths[1:], now[0]), (state, nothing))
            with jax.named_scope("without_drafts"):
                return _if(~drafted, lambda now: score(proposal.first(0), (0,), now[0]), round_)

    def step(self, state: GenerationState) -> tuple[GenerationState, RoundInfo]:
        """Runs a round whose emitted tokens and finished rows are replicated for every host to read."""
        state, info = self.run(state)
        replicate = self.target.traits.placement.replicate
        return state.with_done(replicate(state.done)), replicate(info)

    def lengths(self, state: GenerationState) -> tuple[int, ...]:
        """Returns the numbers of drafts that verification is compiled for."""
        limited = state.context.max_drafts is not None
        return bounded.lengths(self.drafter, state.tokens.shape[1], limited=limited)

    def propose(self, state: GenerationState) -> tuple[Rng, Proposal, GenerationState]:
        """Drafts tokens; returns the round's `rng`, the proposal, and the state with the drafter's new state."""
        drafter, vocab_size = self.drafter, self.target.vocab_size
        rng = self.verifier.rng(state.keys, state.length)
        # If rounds may be shorter than k, most of the stored noise of k drafts would not be read.
        if not drafter.deterministic and len(drafter.lengths) == 1:
            rng = rng.shared(drafter.max_drafts + 1, vocab_size)
        with jax.named_scope("propose"):
            proposal, own = bounded.propose(drafter, rng, state.drafter_state, state.context.of(self.target))
        return rng, _submitted(proposal, state.done, vocab_size), dataclasses.replace(state, drafter_state=own)

    def verify(self, rng: Rng, proposal: Proposal, lengths: tuple[int, ...], context: Context) -> Verified:
        """Scores and verifies a proposal, with the shortest pass of `lengths` that holds every row's valid drafts.

        The target's cache is only read here, and new entries are returned, so that no branch copies the cache.
        """
        most = min(lengths[-1], self.drafter.max_drafts)

        def verified(n: int) -> Verified:
            first = proposal.first(n)
            return self.judge(rng, first, self.feed(first, context), context, most)

        if len(lengths) == 1:
            return verified(lengths[0])
        numbers = jnp.arange(1, proposal.valid.shape[1] + 1, dtype=jnp.int32)[None]
        needed = jnp.max(jnp.where(proposal.valid, numbers, 0))
        index = jnp.sum(jnp.asarray(lengths, jnp.int32) < needed, dtype=jnp.int32)
        return jax.lax.switch(index, [functools.partial(verified, n) for n in lengths])

    def feed(self, proposal: Proposal, context: Context) -> ModelOutput:
        """Runs the target over the last committed token and the drafts, resuming any partial passes of the drafter.

        This part of verification does not need the processors.
        """
        target = context.target
        options = {"capture": self.drafter.capture, **_tree_options(proposal, context.length)}
        if proposal.partial is not None:
            assert isinstance(target, ResumableModel), "a drafter of partial passes checks that the target resumes them"
            check_whole(target)
            return target.resume(proposal.partial, context.cache, **options)
        live = jnp.concatenate([context.active[:, None], proposal.valid], axis=1)
        tokens = jnp.concatenate([context.last, proposal.tokens], axis=1)
        return target(only(target, live, tokens), context.cache, **options)

    def judge(self, rng: Rng, proposal: Proposal, output: ModelOutput, context: Context, most: int) -> Verified:
        """Verifies a proposal given the pass over it; pads the results to `most` drafts."""
        check_entries(output.entries, *(("pad",) if proposal.parents is None else ("pad", "keep_path")))
        proposal = proposal.dense()
        distributions = Distributions.of(context, output.logits, proposal)
        verdict = distributions.verdict(self.verifier, rng, proposal)
        rows = _path_rows(proposal, verdict)
        tokens = _emitted(proposal, verdict, rows)
        log_probs, warped = distributions.emitted(verdict, rows, tokens)
        pad = functools.partial(widen, to=most + 1)
        entries, hidden = output.entries, output.hidden
        if proposal.parents is not None:
            entries = entries.keep_path(rows)
            hidden = tuple(jnp.take_along_axis(x, rows[..., None], axis=1) for x in hidden)
            verdict = dataclasses.replace(verdict, path=widen(rows[:, 1:] - 1, most))
        if verdict.deviation is not None:
            verdict = dataclasses.replace(verdict, deviation=pad(verdict.deviation))
        return Verified(
            dataclasses.replace(verdict, at_next=None),
            pad(tokens),
            pad(log_probs),
            pad(warped),
            count_leading(jnp.isfinite(jnp.take_along_axis(distributions.normalizer, rows, axis=1))),
            _count_drawn(self.verifier, warped, verdict.accepted),
            entries.pad(most + 1),
            tuple(pad(x) for x in hidden),
            None if self.report == Report() else jax.tree.map(pad, distributions.reported(rows, self.report, context)),
        )

    def commit(
        self, proposal: Proposal, verified: Verified, state: GenerationState
    ) -> tuple[GenerationState, RoundInfo]:
        """Commits the verified tokens, and updates the drafter's state."""
        drafter, before = self.drafter, state.context.of(self.target)
        with jax.named_scope("commit"):
            committed, info = commit(state, drafter.max_drafts, proposal, verified)
            verdict = dataclasses.replace(verified.verdict, count=info.count)
            own = bounded.observe(drafter, state.drafter_state, before, verdict, verified.hidden)
            return dataclasses.replace(committed, drafter_state=own), info

    def _score(
        self, rng: Rng, proposal: Proposal, lengths: tuple[int, ...], state: GenerationState
    ) -> tuple[GenerationState, RoundInfo]:
        with jax.named_scope("verify"):
            verified = self.verify(rng, proposal, lengths, state.context.of(self.target))
        return self.commit(proposal, verified, state)


@dataclasses.dataclass(frozen=True)
class Distributions:
    """Holds the target's distributions after the committed text and after each draft.

    Attributes:
      logits: the model's logits.
      processed: the logits after the policy's processors; the same array if there are no processors.
      normalizer: the log-sum-exp of the model's logits.
      next_log_probs: the policy's log-probabilities; `None`, that is, one-hot, for a greedy policy.
      chain: on a mesh, the values gathered at a chain's drafts along with the normalizers; else `None`.
    """

    logits: Float[Array, "b n_plus_1 v"]
    processed: Float[Array, "b n_plus_1 v"]
    normalizer: Float[Array, "b n_plus_1"]
    next_log_probs: Float[Array, "b n_plus_1 v"] | None
    chain: Chain | None = None

    @classmethod
    def of(cls, context: Context, logits: Float[Array, "b n_plus_1 v"], proposal: Proposal) -> "Distributions":
        """Computes the distributions of a round."""
        policy, fixed = context.sampling, context.target.traits.pass_tokens
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

        The latter are -inf for tokens that the policy's processors exclude, which are emitted only if none is left.

        Args:
          verdict: the verifier's verdict.
          rows: the row of logits that each token is drawn from.
          tokens: the accepted drafts, then the next token; the rest is ignored.
        """
        if self.chain is not None and verdict.at_next is not None:
            chain, (logit, warped) = self.chain, verdict.at_next
            next_at = jnp.arange(chain.normalizer.shape[1], dtype=jnp.int32)[None] == verdict.accepted[:, None]
            logits, log_probs = (
                jnp.where(next_at, new[:, None], jnp.pad(drafts, ((0, 0), (0, 1))))
                for drafts, new in ((chain.logits, logit), (chain.target, warped))
            )
            return logits - chain.normalizer, log_probs
        log_probs = _at(self.logits, rows, tokens) - jnp.take_along_axis(self.normalizer, rows, axis=1)
        warped = jnp.zeros_like(log_probs) if self.next_log_probs is None else _at(self.next_log_probs, rows, tokens)
        if self.processed is not self.logits:
            warped = jnp.where(jnp.isfinite(_at(self.processed, rows, tokens)), warped, -jnp.inf)
        return log_probs, warped

    def reported(self, rows: Int[Array, "b n_path"], report: Report, context: Context) -> Reported:
        """Returns the optional results for the rows of logits that tokens are drawn from."""
        of_rows = lambda x: jnp.take_along_axis(x, rows[..., None], axis=1)  # noqa: E731
        logits, normalizer = of_rows(self.logits), jnp.take_along_axis(self.normalizer, rows, axis=1)
        if self.next_log_probs is None:
            warped = one_hot_log(argmax(of_rows(self.processed)), logits.shape[-1])
        else:
            warped = of_rows(self.next_log_probs)
        kept = None
        if report.kept_mass:
            policy = context.sampling
            assert isinstance(policy, Greedy | Sampling), "other policies are refused before"
            best = functools.partial(best_log_prob, policy)
            best = by_position(best, of_rows(self.processed), context.target.traits.pass_tokens)
            kept = jnp.minimum(best - jnp.max(warped, axis=-1), 0)
        return top(logits, normalizer, warped, report, kept)


def _if(condition: Bool[Array, ""], function: Callable[[_Carry], _Carry], carry: _Carry) -> _Carry:
    """Returns `function(carry)` if the condition holds, else `carry`.

    Equivalent to `lax.cond(condition, function, identity, carry)`, written as a 0- or 1-trip `while_loop` so that XLA
    updates the cache in place: a branch that wrote to it would receive a copy.
    """
    once = lambda now: (jnp.zeros((), jnp.bool_), function(now[1]))  # noqa: E731
    return jax.lax.while_loop(lambda now: now[0], once, (condition, carry))[1]


def _submitted(proposal: Proposal, done: Bool[Array, "b"], vocab_size: int) -> Proposal:
    """Withdraws drafts of finished rows, so that they do not lengthen the others' pass, and ids out of range.

    An id outside the vocabulary was not drawn from the distribution that the drafter reports. So it is withdrawn before
    verification, with all drafts that follow it, instead of being rejected.
    """
    tokens, parents = proposal.tokens, proposal.parents
    known = (tokens >= 0) & (tokens < vocab_size)
    if parents is None:
        whole = jnp.cumprod(known, axis=1, dtype=jnp.int32) > 0
    else:
        whole = jnp.all(known[:, None] | ~ancestors(parents, proposal.depth), axis=2)
    valid = proposal.valid & whole & ~done[:, None]
    return dataclasses.replace(proposal, tokens=jnp.where(known, tokens, 0), valid=valid)


def _count_drawn(verifier: Verifier, warped: Float[Array, "b n"], accepted: Int[Array, "b"]) -> Int[Array, "b"]:
    """Counts the tokens before the first with a probability of 0 or NaN under the policy.

    A lossy verifier may accept drafts that the policy excludes.
    """
    drawn = jnp.isfinite(warped)
    if not verifier.lossless:
        drawn = drawn | (jnp.arange(warped.shape[1], dtype=jnp.int32)[None] < accepted[:, None])
    return count_leading(drawn)


def _tree_options(proposal: Proposal, length: Int[Array, "b"]) -> dict[str, Any]:
    """Returns the target's arguments for a tree: the mask of ancestors, and the positions by depth."""
    if proposal.parents is None:
        return {}
    depth = jnp.pad(depths(proposal.parents, proposal.depth), ((0, 0), (1, 0)))
    return {
        "mask": verification_mask(proposal.parents, proposal.depth),
        "positions": length[:, None] - 1 + depth,
    }


def _path_rows(proposal: Proposal, verdict: Verdict) -> Int[Array, "b n_path"]:
    """Returns the row of logits that each emitted token is drawn from; row 0 follows the last committed token."""
    batch, n = proposal.tokens.shape
    if proposal.parents is None:
        return jnp.broadcast_to(jnp.arange(n + 1, dtype=jnp.int32)[None], (batch, n + 1))
    if verdict.path is None:
        raise ValueError("the verdict of a tree has no path; return Verdict(accepted, next_token, path)")
    return jnp.pad(verdict.path[:, : proposal.depth] + 1, ((0, 0), (1, 0)))


def _emitted(proposal: Proposal, verdict: Verdict, rows: Int[Array, "b n"]) -> Int[Array, "b n"]:
    """Returns the accepted drafts, then the next token; the rest is arbitrary."""
    tokens = jnp.take_along_axis(jnp.pad(proposal.tokens, ((0, 0), (1, 0))), rows, axis=1)
    tokens = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    return jnp.where(index == verdict.accepted[:, None], verdict.next_token[:, None], tokens)


def _at(
    values: Float[Array, "b n v"], rows: Int[Array, "b n_path"], tokens: Int[Array, "b n_path"]
) -> Float[Array, "b n_path"]:
    batch = jnp.arange(values.shape[0], dtype=jnp.int32)[:, None]
    return values[batch, rows, tokens]

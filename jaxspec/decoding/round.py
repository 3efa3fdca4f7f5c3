"""Runs one round: propose, verify, commit.

before     tokens  a b c d e          length 5, e is unfed: the cache holds a b c d
propose            . . . . . x y z    three drafts
verify     feed            [e x y z]  one pass gives the distribution after each
verdict    x accepted, y rejected, w drawn in its place
commit     tokens  a b c d e x w      length 7, w is unfed: the cache holds a b c d e x

The drafts of a tree are fed in one pass too, each seeing its own ancestors; only the cache
entries of the accepted path are stored.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.bit_exact import check_whole
from jaxspec.core.kernels import kernels_of
from jaxspec.core.layout import placement_of
from jaxspec.core.model import Model, ModelOutput, ResumableModel, check_entries
from jaxspec.core.parts import over_devices
from jaxspec.core.random import Rng
from jaxspec.core.report import Report
from jaxspec.core.rows import count_leading
from jaxspec.core.state import Context, GenerationState, Proposal, RoundInfo, Verdict
from jaxspec.core.tree import ancestors, depths, verification_mask
from jaxspec.decoding.commit import Verified, commit, widen
from jaxspec.decoding.target_pass import Distributions
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter
from jaxspec.verifiers.base import Verifier

_Carry = TypeVar("_Carry")


def run_round(
    target: Model, drafter: Drafter, verifier: Verifier, state: GenerationState
) -> tuple[GenerationState, RoundInfo]:
    """Advances every live row by at least one token, unless its logits are not finite."""
    with over_devices(placement_of(target)), kernels_of(target):
        return _run_round(target, drafter, verifier, state)


def propose(
    target: Model, drafter: Drafter, verifier: Verifier, state: GenerationState
) -> tuple[Rng, Proposal, GenerationState]:
    """Drafts tokens; returns the round's `rng`, what is submitted, and the state with the drafter's own after it."""
    rng = verifier.rng(state.keys, state.length)
    # If rounds may be shorter than k, most of the noise stored for k drafts would go unread.
    if not drafter.deterministic and len(drafter.lengths) == 1:
        rng = rng.shared(drafter.max_drafts + 1, target.vocab_size)
    with jax.named_scope("propose"):
        proposal, drafter_state = bounded.propose(drafter, rng, state.drafter_state, _context(target, state))
    proposal = _submitted(proposal, state.done, target.vocab_size)
    return rng, proposal, dataclasses.replace(state, drafter_state=drafter_state)


def _run_round(
    target: Model, drafter: Drafter, verifier: Verifier, state: GenerationState
) -> tuple[GenerationState, RoundInfo]:
    rng, proposal, state = propose(target, drafter, verifier, state)
    score = functools.partial(_score, target, drafter, verifier, rng)
    if len(drafter.lengths) == 1 or drafter.lengths[0] > 0:
        limited = state.max_drafts is not None
        return score(proposal, bounded.lengths(drafter, state.tokens.shape[1], limited=limited), state)
    # Where no row drafts, nothing is made as wide as a round of drafts: with many rows that takes time. Rounds with
    # drafts come first: what drafting read of a cache must be used before anything is written to it.
    drafted, wait = jnp.any(proposal.valid), (state, _no_tokens(drafter, state))
    with jax.named_scope("with_drafts"):
        round_ = _if(drafted, lambda now: score(proposal, drafter.lengths[1:], now[0]), wait)
    with jax.named_scope("without_drafts"):
        return _if(~drafted, lambda now: score(proposal.first(0), (0,), now[0]), round_)


def _if(condition: Bool[Array, ""], function: Callable[[_Carry], _Carry], carry: _Carry) -> _Carry:
    """Returns `function(carry)` where the condition holds, else `carry`.

    Like `lax.cond(condition, function, identity, carry)`, written as a 0- or 1-trip `while_loop` so that XLA updates
    the cache in place: a branch that wrote to it would be given a copy.
    """
    once = lambda now: (jnp.zeros((), jnp.bool_), function(now[1]))  # noqa: E731
    return jax.lax.while_loop(lambda now: now[0], once, (condition, carry))[1]


def _no_tokens(drafter: Drafter, state: GenerationState) -> RoundInfo:
    """Returns the outcome of a round in which no row emits anything."""
    none = jnp.zeros_like(state.length)
    return RoundInfo(jnp.zeros((none.shape[0], drafter.max_drafts + 1), jnp.int32), none, none, none)


def _context(target: Model, state: GenerationState) -> Context:
    given = {name: getattr(state, name) for name in ("processed", "max_drafts", "predicted")}
    return Context(target, state.cache, state.tokens, state.length, state.done, state.sampling, **given)


def _score(
    target: Model,
    drafter: Drafter,
    verifier: Verifier,
    rng: Rng,
    proposal: Proposal,
    lengths: tuple[int, ...],
    state: GenerationState,
) -> tuple[GenerationState, RoundInfo]:
    """Verifies a proposal by the shortest pass of `lengths` that holds it, and commits the accepted drafts."""
    with jax.named_scope("verify"):
        verified = _verify(lengths, drafter, verifier, rng, proposal, _context(target, state), state.report)
    return _commit(target, drafter, proposal, verified, state)


def _commit(
    target: Model, drafter: Drafter, proposal: Proposal, verified: Verified, state: GenerationState
) -> tuple[GenerationState, RoundInfo]:
    """Commits what was verified; the drafter takes it in."""
    with jax.named_scope("commit"):
        context = _context(target, state)
        drafter_state = bounded.observe(drafter, state.drafter_state, context, verified.verdict, verified.hidden)
        return commit(state, drafter.max_drafts, proposal, verified, drafter_state)


def run_pass(target: Model, drafter: Drafter, proposal: Proposal, state: GenerationState) -> ModelOutput:
    """Runs the target over the last committed token and the drafts: the part of a round that needs no processors."""
    return _target_pass(drafter, proposal, _context(target, state))


def judge(
    target: Model,
    drafter: Drafter,
    verifier: Verifier,
    rng: Rng,
    proposal: Proposal,
    output: ModelOutput,
    state: GenerationState,
) -> tuple[GenerationState, RoundInfo]:
    """Verifies a proposal by the pass over it, and commits the accepted drafts: what follows `run_pass`."""
    context = _context(target, state)
    verified = _judge(drafter.max_drafts, drafter, verifier, rng, proposal, output, context, state.report)
    return _commit(target, drafter, proposal, verified, state)


def _submitted(proposal: Proposal, done: Bool[Array, "b"], vocab_size: int) -> Proposal:
    """Withdraws the drafts of finished rows, so that they do not lengthen the others' pass, and those of no token.

    A drafter that gives an id outside of the vocabulary has not drawn it from the distribution that it reports, so that
    the draft is withdrawn before it is looked at, with all that follow it, and not rejected.
    """
    tokens, parents = proposal.tokens, proposal.parents
    known = (tokens >= 0) & (tokens < vocab_size)
    if parents is None:
        whole = jnp.cumprod(known, axis=1, dtype=jnp.int32) > 0
    else:
        whole = jnp.all(known[:, None] | ~ancestors(parents, proposal.depth), axis=2)
    valid = proposal.valid & whole & ~done[:, None]
    return dataclasses.replace(proposal, tokens=jnp.where(known, tokens, 0), valid=valid)


def _verify(
    lengths: tuple[int, ...],
    drafter: Drafter,
    verifier: Verifier,
    rng: Rng,
    proposal: Proposal,
    context: Context,
    report: Report,
) -> Verified:
    """Runs the shortest compiled pass that holds every row's valid drafts.

    The target's cache is only read in here, and fresh entries come out, so the branches copy
    no cache.
    """
    most = min(lengths[-1], drafter.max_drafts)

    def branch(n: int):
        return lambda: _verify_drafts(most, drafter, verifier, rng, proposal.first(n), context, report)

    if len(lengths) == 1:
        return branch(lengths[0])()
    numbers = jnp.arange(1, proposal.valid.shape[1] + 1, dtype=jnp.int32)[None]
    needed = jnp.max(jnp.where(proposal.valid, numbers, 0))
    index = jnp.sum(jnp.asarray(lengths, jnp.int32) < needed, dtype=jnp.int32)
    return jax.lax.switch(index, [branch(n) for n in lengths])


def _verify_drafts(
    most: int, drafter: Drafter, verifier: Verifier, rng: Rng, proposal: Proposal, context: Context, report: Report
) -> Verified:
    """Scores and verifies one proposal; the results are padded to `most` drafts."""
    return _judge(most, drafter, verifier, rng, proposal, _target_pass(drafter, proposal, context), context, report)


def _judge(
    most: int,
    drafter: Drafter,
    verifier: Verifier,
    rng: Rng,
    proposal: Proposal,
    output: ModelOutput,
    context: Context,
    report: Report,
) -> Verified:
    """Verifies a proposal by the pass over it."""
    check_entries(output.entries, *(("pad",) if proposal.parents is None else ("pad", "keep_path")))
    distributions = Distributions.of(context, output.logits, proposal)
    verdict = distributions.verdict(verifier, rng, proposal)
    rows = _path_rows(proposal, verdict)
    tokens = _emitted(proposal, verdict, rows)
    log_probs, warped = distributions.emitted(verdict, rows, tokens)
    drawn = _count_drawn(verifier, warped, verdict.accepted)
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
        drawn,
        entries.pad(most + 1),
        tuple(pad(x) for x in hidden),
        None if report == Report() else jax.tree.map(pad, distributions.reported(rows, report)),
    )


def _count_drawn(verifier: Verifier, warped: Float[Array, "b n"], accepted: Int[Array, "b"]) -> Int[Array, "b"]:
    """Counts the tokens before the first that the policy did not leave: where it leaves none, or makes NaN.

    A lossy verifier may accept drafts that the policy leaves out.
    """
    drawn = jnp.isfinite(warped)
    if not verifier.lossless:
        drawn = drawn | (jnp.arange(warped.shape[1], dtype=jnp.int32)[None] < accepted[:, None])
    return count_leading(drawn)


def _target_pass(drafter: Drafter, proposal: Proposal, context: Context) -> ModelOutput:
    """Runs the target over the last committed token and the drafts, from where drafting stopped if it began."""
    target = context.target
    options = {"capture": drafter.capture, **_tree_options(proposal, context.length)}
    if proposal.partial is not None:
        assert isinstance(target, ResumableModel), "a drafter of partial passes checks that the target resumes them"
        check_whole(target)
        return target.resume(proposal.partial, context.cache, **options)
    return target(jnp.concatenate([context.last, proposal.tokens], axis=1), context.cache, **options)


def _tree_options(proposal: Proposal, length: Int[Array, "b"]) -> dict[str, Any]:
    """Returns the target's arguments for a tree: the mask of ancestors, and positions by depth."""
    if proposal.parents is None:
        return {}
    depth = jnp.pad(depths(proposal.parents, proposal.depth), ((0, 0), (1, 0)))
    return {
        "mask": verification_mask(proposal.parents, proposal.depth),
        "positions": length[:, None] - 1 + depth,
    }


def _path_rows(proposal: Proposal, verdict: Verdict) -> Int[Array, "b n_path"]:
    """Returns the row of logits that each emitted token is drawn from; row 0 is the last committed one's."""
    batch, n = proposal.tokens.shape
    if proposal.parents is None:
        return jnp.broadcast_to(jnp.arange(n + 1, dtype=jnp.int32)[None], (batch, n + 1))
    if verdict.path is None:
        raise ValueError("the verdict of a tree has no path; return Verdict(accepted, next_token, path)")
    return jnp.pad(verdict.path[:, : proposal.depth] + 1, ((0, 0), (1, 0)))


def _emitted(proposal: Proposal, verdict: Verdict, rows: Int[Array, "b n"]) -> Int[Array, "b n"]:
    """Returns the accepted drafts, then the next token; the rest is never read."""
    tokens = jnp.take_along_axis(jnp.pad(proposal.tokens, ((0, 0), (1, 0))), rows, axis=1)
    tokens = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    return jnp.where(index == verdict.accepted[:, None], verdict.next_token[:, None], tokens)

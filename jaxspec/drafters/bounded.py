"""Calls drafters with texts that fit their contexts alone: a draft model may take shorter texts than its target.

context 8      row 0   a b c d e . . . . .    five tokens: at most three more are drafted
               row 1   f g h i j k l m n .    has outgrown the context: the drafter sees a row that ended as `f`

A text never shrinks, so nothing is ever drafted again for a row that has outgrown the context, and what the drafter
holds of it does not matter. Its cache thus has slots for its context and a round, however long the text becomes.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.prefill import Prefilled
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.tree import depths
from jaxspec.drafters.base import Drafter


def init(drafter: Drafter, context: Context, prefilled: Prefilled, slots: int) -> Any:
    """Returns the state of a drafter before the first round, as `Drafter.init` does."""
    if _holds(drafter, slots):
        return drafter.init(context, prefilled, slots)
    most = _slots(drafter, slots)
    hidden = tuple(x[:, :most] for x in prefilled.hidden)
    return drafter.init(_seen(drafter, context, slots), dataclasses.replace(prefilled, hidden=hidden), most)


def propose(drafter: Drafter, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Any]:
    """Drafts as `Drafter.propose` does, in each row as many tokens as its context has room for."""
    slots = context.tokens.shape[1]
    proposal, state = drafter.propose(rng, state, _seen(drafter, context, slots))
    if _holds(drafter, slots) and context.max_drafts is None:
        return proposal, state
    # How many are submitted depends on the committed text alone, so no distribution changes.
    return dataclasses.replace(proposal, valid=proposal.valid & _within(proposal, room(drafter, context))), state


def observe(drafter: Drafter, state: Any, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> Any:
    """Returns the state of a drafter after a round, as `Drafter.observe` does."""
    return drafter.observe(state, _seen(drafter, context, context.tokens.shape[1]), verdict, hidden)


def room(drafter: Drafter, context: Context) -> Int[Array, "b"]:
    """Counts the drafts that a row may have: as many as fit into the drafter's context, and as the caller allows."""
    return context.at_most(_fitting(drafter, context))


def lengths(drafter: Drafter, slots: int, *, limited: bool) -> tuple[int, ...]:
    """Returns the numbers of drafts of the target's passes: where all rows may rest, none is one of them.

    Args:
      drafter: whose drafts are verified.
      slots: of the text.
      limited: whether the caller limits the drafts of rows.
    """
    if drafter.tree or drafter.lengths[0] == 0 or (_holds(drafter, slots) and not limited):
        return drafter.lengths
    return (0, *drafter.lengths)


def _fitting(drafter: Drafter, context: Context) -> Int[Array, "b"]:
    """Counts the drafts that fit into a drafter's context behind each row's text; 0 where the drafter rests."""
    most = jnp.full_like(context.length, drafter.max_drafts)
    if drafter.context_length is None:
        return most
    return jnp.clip(drafter.context_length - context.length, 0, most)


def _holds(drafter: Drafter, slots: int) -> bool:
    """Returns whether texts of so many slots, a round's drafts included, fit the drafter's context."""
    return drafter.context_length is None or slots <= drafter.context_length


def _slots(drafter: Drafter, slots: int) -> int:
    """Returns how many slots the drafter's own text has: drafts that do not count may lie beyond its context."""
    return slots if drafter.context_length is None else min(slots, drafter.context_length + drafter.max_drafts + 1)


def _seen(drafter: Drafter, context: Context, slots: int) -> Context:
    """Returns the context as the drafter sees it; rows without room have ended with their first token."""
    if _holds(drafter, slots):
        return context
    rests = _fitting(drafter, context) == 0
    return dataclasses.replace(
        context,
        tokens=context.tokens[:, : _slots(drafter, slots)],
        length=jnp.where(rests, 1, context.length),
        done=context.done | rests,
    )


def _within(proposal: Proposal, most: Int[Array, "b"]) -> Bool[Array, "b n"]:
    """Returns which drafts stand in the first `most` places behind each row's text."""
    if proposal.parents is None:
        places = 1 + jnp.arange(proposal.tokens.shape[1], dtype=jnp.int32)[None]
    else:
        places = depths(proposal.parents, proposal.depth)
    return places <= most[:, None]

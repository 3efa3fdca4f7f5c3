"""Keeps drafters within their context lengths, where a draft model reads shorter texts than its target.

context 8      row 0   a b c d e . . . . .    five tokens: at most three more are drafted
               row 1   f g h i j k l m n .    has outgrown the context: the drafter sees a finished row, `f`

Texts never shrink, so a row that has outgrown the context is never drafted for again, and the drafter's state for it
does not matter. Hence the drafter's cache needs slots only for its context and one round, however long the text is.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.core.prefill import Prefilled
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.tree import depths
from jaxspec.drafters.base import Drafter


def init(drafter: Drafter, context: Context, prefilled: Prefilled, slots: int) -> Any:
    """Returns a drafter's state before the first round, as `Drafter.init` does."""
    if _holds(drafter, slots):
        return drafter.init(context, prefilled, slots)
    most = _slots(drafter, slots)
    hidden = tuple(x[:, :most] for x in prefilled.hidden)
    return drafter.init(_seen(drafter, context, slots), dataclasses.replace(prefilled, hidden=hidden), most)


def extend(drafter: Drafter, state: Any, context: Context, prefilled: Prefilled, start: Int[Array, "b"]) -> Any:
    """Returns a drafter's state for another text with a shared prefix, as `Drafter.extend` does.

    Raises:
      NotImplementedError: the drafter cannot continue a text, or reads captured states of texts that may outgrow it.
    """
    slots = context.tokens.shape[1]
    if _holds(drafter, slots):
        return drafter.extend(state, context, prefilled, start)
    if prefilled is not None and prefilled.hidden:  # from `start` on, there may be more states than slots
        raise NotImplementedError(
            f"{type(drafter).__name__} cannot continue a text that may outgrow its context of "
            f"{drafter.info.context_length} tokens; feed the whole text and call init"
        )
    seen = _seen(drafter, context, slots)
    return drafter.extend(state, seen, prefilled, jnp.minimum(start, seen.length - 1))


def propose(drafter: Drafter, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Any]:
    """Drafts as `Drafter.propose` does, limiting each row to the room in the drafter's context."""
    slots = context.tokens.shape[1]
    proposal, state = drafter.propose(rng, state, _seen(drafter, context, slots))
    if _holds(drafter, slots) and context.max_drafts is None:
        return proposal, state
    # The limit depends on the committed text alone, so no distribution changes.
    most = room(drafter, context)
    if proposal.parents is None:
        places = 1 + jnp.arange(proposal.tokens.shape[1], dtype=jnp.int32)[None]
    else:
        places = depths(proposal.parents, proposal.depth)
    return dataclasses.replace(proposal, valid=proposal.valid & (places <= most[:, None])), state


def observe(drafter: Drafter, state: Any, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> Any:
    """Returns a drafter's state after a round, as `Drafter.observe` does."""
    return drafter.observe(state, _seen(drafter, context, context.tokens.shape[1]), verdict, hidden)


def room(drafter: Drafter, context: Context) -> Int[Array, "b"]:
    """Returns each row's limit on drafts, from the drafter's context and from the caller."""
    return context.at_most(_fitting(drafter, context))


def lengths(drafter: Drafter, slots: int, *, limited: bool) -> tuple[int, ...]:
    """Returns the numbers of drafts that verification is compiled for, including 0 if all rows may have no drafts.

    Args:
      drafter: the drafter.
      slots: the number of cache slots a row.
      limited: whether the caller limits the drafts of rows.
    """
    if drafter.tree or drafter.lengths[0] == 0 or (_holds(drafter, slots) and not limited):
        return drafter.lengths
    return (0, *drafter.lengths)


def _fitting(drafter: Drafter, context: Context) -> Int[Array, "b"]:
    """Returns how many drafts fit into the drafter's context after each row's text; 0 if the row is not drafted for."""
    most = jnp.full_like(context.length, drafter.max_drafts)
    bound = drafter.info.context_length
    return most if bound is None else jnp.clip(bound - context.length, 0, most)


def _holds(drafter: Drafter, slots: int) -> bool:
    """Returns whether texts of `slots` tokens, one round's drafts included, fit the drafter's context."""
    bound = drafter.info.context_length
    return bound is None or slots <= bound


def _slots(drafter: Drafter, slots: int) -> int:
    """Returns the drafter's number of slots; drafts that are masked out may be beyond its context."""
    bound = drafter.info.context_length
    return slots if bound is None else min(slots, bound + drafter.max_drafts + 1)


def _seen(drafter: Drafter, context: Context, slots: int) -> Context:
    """Returns the context as the drafter sees it; rows without room appear done, with one token."""
    if _holds(drafter, slots):
        return context
    rests = _fitting(drafter, context) == 0
    return dataclasses.replace(
        context,
        tokens=context.tokens[:, : _slots(drafter, slots)],
        length=jnp.where(rests, 1, context.length),
        done=context.done | rests,
    )

"""Runs rounds whose processors the host takes part in: it works between the passes, while the device runs them.

device     propose            pass over the drafts ............   verdict, commit
host               reads the drafts, finds out what may follow each
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxspec.core.kernels import kernels_of
from jaxspec.core.layout import placement_of
from jaxspec.core.model import Model, ModelOutput
from jaxspec.core.parts import over_devices
from jaxspec.core.random import Rng
from jaxspec.core.state import GenerationState, Proposal, RoundInfo
from jaxspec.decoding import round as rounds
from jaxspec.decoding.flattened import jit_of
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter
from jaxspec.verifiers.base import Verifier

# From a proposal on the host, its tokens, validity and parents (`None` of a chain), to the state with what may follow.
Informed = Callable[[GenerationState, np.ndarray, np.ndarray, np.ndarray | None], GenerationState]


class HostRounds:
    """Runs rounds of three models, for which the host puts into the state what the processors need at each draft."""

    def __init__(self, target: Model, drafter: Drafter, verifier: Verifier) -> None:
        models = (target, drafter, verifier)
        self._drafter = drafter
        # A tree's state is larger between drafting and verdict, so that its buffers are of no use to either.
        own = () if drafter.tree else ("drafter_state",)
        self._propose = jit_of(_propose, models, donate=own)
        self._pass = jit_of(_pass, models, static=("count",))
        self._judge = jit_of(_judge, models, donate=("state", *own), static=("count",))

    def run(self, state: GenerationState, inform: Informed) -> tuple[GenerationState, RoundInfo]:
        """Runs one round; the state is consumed: keep no reference to it."""
        rng, proposal, drafter_state = self._propose(**_split(state))
        tokens, valid, parents = jax.device_get((proposal.tokens, proposal.valid, proposal.parents))
        lengths = bounded.lengths(self._drafter, state.tokens.shape[1], limited=state.max_drafts is not None)
        needed = int(np.max(np.where(valid, np.arange(1, valid.shape[1] + 1), 0), initial=0))
        count = next(length for length in lengths if length >= needed)
        output = self._pass(proposal=proposal, state=_split(state)["state"], count=count)
        # The pass runs meanwhile: nothing of it has been asked for.
        state = inform(state, tokens[:, :count], valid[:, :count], None if parents is None else parents[:, :count])
        state = dataclasses.replace(state, drafter_state=drafter_state)
        return self._judge(rng=rng, proposal=proposal, output=output, count=count, **_split(state))


def _split(state: GenerationState) -> dict[str, Any]:
    """Returns a state as two arguments: that of the drafter is one of its own."""
    return {"state": dataclasses.replace(state, drafter_state=()), "drafter_state": state.drafter_state}


def _propose(target: Model, drafter: Drafter, verifier: Verifier, state: GenerationState, drafter_state: Any) -> Any:
    state = dataclasses.replace(state, drafter_state=drafter_state)
    with over_devices(placement_of(target)), kernels_of(target):
        rng, proposal, state = rounds.propose(target, drafter, verifier, state)
    return rng, proposal, state.drafter_state


def _pass(
    target: Model, drafter: Drafter, verifier: Verifier, proposal: Proposal, state: GenerationState, count: int
) -> ModelOutput:
    del verifier
    with over_devices(placement_of(target)), kernels_of(target):
        return rounds.run_pass(target, drafter, proposal.first(count), state)


def _judge(
    target: Model,
    drafter: Drafter,
    verifier: Verifier,
    rng: Rng,
    proposal: Proposal,
    output: ModelOutput,
    state: GenerationState,
    drafter_state: Any,
    count: int,
) -> tuple[GenerationState, RoundInfo]:
    state = dataclasses.replace(state, drafter_state=drafter_state)
    with over_devices(placement_of(target)), kernels_of(target):
        state, info = rounds.judge(target, drafter, verifier, rng, proposal.first(count), output, state)
        return state, placement_of(target).replicate(info)

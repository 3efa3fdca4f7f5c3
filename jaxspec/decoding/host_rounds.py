"""Runs rounds whose processors the host takes part in: it works between the passes, while the device runs them.

device     propose            pass over the drafts ............   verdict, commit
host               reads the drafts, finds out what may follow each
"""

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
        self._propose = jit_of(_propose, models, donate="state")
        self._pass = jit_of(_pass, models, static="count")
        self._judge = jit_of(_judge, models, donate="state", static="count")

    def run(self, state: GenerationState, inform: Informed) -> tuple[GenerationState, RoundInfo]:
        """Runs one round; the state is consumed: keep no reference to it."""
        rng, proposal, state = self._propose(state=state)
        tokens, valid, parents = jax.device_get((proposal.tokens, proposal.valid, proposal.parents))
        lengths = bounded.lengths(self._drafter, state.tokens.shape[1], limited=state.max_drafts is not None)
        needed = int(np.max(np.where(valid, np.arange(1, valid.shape[1] + 1), 0), initial=0))
        count = next(length for length in lengths if length >= needed)
        output = self._pass(proposal=proposal, state=state, count=count)
        # The pass runs meanwhile: nothing of it has been asked for.
        state = inform(state, tokens[:, :count], valid[:, :count], None if parents is None else parents[:, :count])
        return self._judge(rng=rng, proposal=proposal, output=output, state=state, count=count)


def _propose(target: Model, drafter: Drafter, verifier: Verifier, state: GenerationState) -> Any:
    with over_devices(placement_of(target)), kernels_of(target):
        return rounds.propose(target, drafter, verifier, state)


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
    count: int,
) -> tuple[GenerationState, RoundInfo]:
    with over_devices(placement_of(target)), kernels_of(target):
        state, info = rounds.judge(target, drafter, verifier, rng, proposal.first(count), output, state)
        return state, placement_of(target).replicate(info)

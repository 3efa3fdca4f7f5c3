"""Runs rounds whose processors the host takes part in: it works between the passes, while the device runs them.

device     propose            pass over the drafts ............   verdict, commit
host               reads the drafts, finds out what may follow each
"""

import functools
from collections.abc import Callable

import jax
import numpy as np

from jaxspec.core.kernels import kernels_of
from jaxspec.core.layout import placement_of
from jaxspec.core.model import Model, ModelOutput
from jaxspec.core.parts import over_devices
from jaxspec.core.random import Rng
from jaxspec.core.state import GenerationState, Proposal, RoundInfo
from jaxspec.decoding import round as rounds
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter
from jaxspec.verifiers.base import Verifier

# From a proposal on the host, its tokens, validity and parents (`None` of a chain), to the state with what may follow.
Informed = Callable[[GenerationState, np.ndarray, np.ndarray, np.ndarray | None], GenerationState]


def run_round(
    target: Model, drafter: Drafter, verifier: Verifier, state: GenerationState, inform: Informed
) -> tuple[GenerationState, RoundInfo]:
    """Runs one round, for which `inform` puts into the state what the processors need at each drafted position.

    The state is consumed: keep no reference to it.
    """
    rng, proposal, state = _propose(target, drafter, verifier, state)
    tokens, valid, parents = jax.device_get((proposal.tokens, proposal.valid, proposal.parents))
    lengths = bounded.lengths(drafter, state.tokens.shape[1], limited=state.max_drafts is not None)
    needed = int(np.max(np.where(valid, np.arange(1, valid.shape[1] + 1), 0), initial=0))
    count = next(length for length in lengths if length >= needed)
    output = _pass(target, drafter, proposal, state, count)
    # The pass runs meanwhile: nothing of it has been asked for.
    state = inform(state, tokens[:, :count], valid[:, :count], None if parents is None else parents[:, :count])
    return _judge(target, drafter, verifier, rng, proposal, output, state, count)


@functools.partial(jax.jit, donate_argnames="state")
def _propose(
    target: Model, drafter: Drafter, verifier: Verifier, state: GenerationState
) -> tuple[Rng, Proposal, GenerationState]:
    with over_devices(placement_of(target)), kernels_of(target):
        return rounds.propose(target, drafter, verifier, state)


@functools.partial(jax.jit, static_argnames="count")
def _pass(target: Model, drafter: Drafter, proposal: Proposal, state: GenerationState, count: int) -> ModelOutput:
    with over_devices(placement_of(target)), kernels_of(target):
        return rounds.run_pass(target, drafter, proposal.first(count), state)


@functools.partial(jax.jit, static_argnames="count", donate_argnames="state")
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

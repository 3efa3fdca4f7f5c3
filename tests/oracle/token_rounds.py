"""What `TokenVerifier` emits, enumerated exactly through its own arithmetic in float64."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.state import Proposal
from jaxspec.verifiers import token
from tests.oracle.tables import Table, Text

Guess = Callable[[Text, int], int]


@dataclasses.dataclass(frozen=True)
class Round:
    """Everything that can happen in one round after one text; `i` runs over possible drafts.

    Attributes:
      drafts: `[i, k]`.
      chance: `[i]`, how likely each is to be drafted.
      accept: `[i, k]`, with which probability each drafted token is kept.
      next_laws: `[i, k + 1, v]`, the law of the token after so many kept ones.
    """

    drafts: np.ndarray
    chance: np.ndarray
    accept: np.ndarray
    next_laws: np.ndarray


def enumerate_round(target: Table, draft: Table | Guess, text: Text, k: int, valid: int) -> Round:
    """All drafts of `k` tokens after `text`, of which the first `valid` are submitted.

    `draft` is a table for drafts that are drawn, or a function for drafts that are certain.
    """
    stochastic = isinstance(draft, Table)
    if stochastic:
        drafts = np.array(list(itertools.product(range(target.vocab), repeat=k)), np.int32).reshape(target.vocab**k, k)
    else:
        drafts = np.array([[draft(text, i) for i in range(k)]], np.int32).reshape(1, k)
    # Only laws along the draft matter; a table holds no rows for texts that are too long.
    along = lambda table, count: np.array(
        [[table.law(text + tuple(d[:i].tolist())) for i in range(count)] for d in drafts]
    ).reshape(len(drafts), count, target.vocab)
    draft_laws = along(draft, k) if stochastic else None
    accept, next_laws = _arithmetic(drafts, along(target, k + 1), draft_laws, valid)
    chance = np.ones(len(drafts))
    if stochastic and k:
        chance = np.prod(np.take_along_axis(draft_laws, drafts[..., None], axis=-1)[..., 0], axis=1)
    return Round(drafts, chance, accept, next_laws)


def outcomes(round_: Round, valid: int) -> dict[Text, float]:
    """The law of what one round emits."""
    law: dict[Text, float] = {}
    for drafts, chance, accept, next_laws in zip(*dataclasses.astuple(round_), strict=True):
        if chance == 0:
            continue
        reached = chance
        for accepted in range(valid + 1):
            kept = accept[accepted] if accepted < valid else 0.0
            for token_id, share in enumerate(next_laws[accepted]):
                emitted = (*drafts[:accepted].tolist(), token_id)
                law[emitted] = law.get(emitted, 0.0) + reached * (1 - kept) * share
            reached *= kept
    return law


def extend(law: dict[Text, float], target: Table, length: int) -> dict[Text, float]:
    """The law of the first `length` tokens, where the target continues what is shorter."""
    done: dict[Text, float] = {}
    pending = list(law.items())
    while pending:
        text, chance = pending.pop()
        if len(text) >= length:
            done[text[:length]] = done.get(text[:length], 0.0) + chance
        elif chance > 0:
            pending += [((*text, t), chance * share) for t, share in enumerate(target.law(text))]
    return done


def expected_accepted(target: Table, draft: Table, k: int) -> float:
    """Leviathan et al.: the sum over `i` of the expected product of `min(1, target / draft)`."""
    total = 0.0
    for count in range(1, k + 1):
        for text in itertools.product(range(target.vocab), repeat=count):
            terms = [min(draft.law(text[:i])[text[i]], target.law(text[:i])[text[i]]) for i in range(count)]
            total += float(np.prod(terms))
    return total


def _arithmetic(drafts, target_laws, draft_laws, valid):
    """`log_acceptance` and `next_law` of the package, as probabilities."""
    with jax.enable_x64(True), np.errstate(divide="ignore"):
        target = jnp.asarray(np.log(target_laws))
        draft = None if draft_laws is None else jnp.asarray(np.log(draft_laws))
        accept, next_laws = _jitted(jnp.asarray(drafts), target, draft, valid)
        assert next_laws.dtype == jnp.float64
        accept, next_laws = np.exp(np.asarray(accept)), np.exp(np.asarray(next_laws))
    # A draft that could not have been drawn has no acceptance; its chance is zero.
    return np.nan_to_num(accept), next_laws / next_laws.sum(axis=-1, keepdims=True)


@functools.partial(jax.jit, static_argnums=3)
def _jitted(drafts, target, draft, valid):
    rows, k = drafts.shape
    mask = jnp.broadcast_to((jnp.arange(k, dtype=jnp.int32) < valid)[None], drafts.shape)
    proposal = Proposal(drafts, mask, draft)
    accept = token.log_acceptance(proposal, target)
    accepted = (jnp.full(rows, i, jnp.int32) for i in range(k + 1))
    return accept, jnp.stack([token.next_law(proposal, target, i) for i in accepted], axis=1)

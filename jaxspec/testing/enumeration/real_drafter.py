"""Computes the distribution of several rounds with a real drafter: its state, choices and reported distributions.

Deterministic noise forces each possible draft, one per row:

    round 1    propose with (0, 0), (0, 1), ... (2, 2) forced    tokens, valid, reported distributions, new states
               every outcome of the verifier for each of these   new texts; `observe` with each verdict
    round 2    repeats this from each of them

If the submission of a draft, or the distribution of the others, depends on the draft itself, the probabilities of a
round do not add up to 1, or the emitted distribution is not the target's.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.sampling import Sampling
from jaxspec.core.state import Context, Verdict
from jaxspec.testing.enumeration.drafting import Drafts, chain
from jaxspec.testing.enumeration.rounds import Rule, extend
from jaxspec.testing.enumeration.tables import Table, Text, total_variation
from jaxspec.testing.history_models import HistoryModel, history_probs

SLOTS = 24
NOTHING: Any = None  # an argument that no drafter here reads


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Forced(RoundKeys):
    """Provides noise that forces a given token at each offset."""

    tokens: jax.Array | None = None

    def draft_noise(self, offset, vocab_size: int, ids=None):
        token = jax.lax.dynamic_index_in_dim(self.tokens, offset, axis=1)
        ids = jnp.arange(vocab_size, dtype=jnp.int32) if ids is None else ids
        return jnp.where(token == ids[None], 1e9, 0.0)


@dataclasses.dataclass
class Histories:
    """Holds texts with the drafter's state after each (`[i, ...]`) and the probability of each."""

    texts: list[Text]
    chances: list[float]
    state: Any


def deviation(target, drafter, rule: Rule, prompt: Text, *, rounds: int, length: int, saw: Callable) -> float:
    """Returns the total variation between the first `length` new tokens and the target's distribution of them.

    `saw(proposal, state)` is called with every round's proposals.
    """
    start = _context(target, [prompt])
    begun = jax.jit(drafter.init, static_argnums=2)(start, Prefilled(NOTHING, ()), SLOTS)
    histories = Histories([prompt], [1.0], begun)
    for _ in range(rounds):
        histories = _one_round(target, drafter, rule, histories, saw)
    probs: dict[Text, float] = {}
    for text, chance in zip(histories.texts, histories.chances, strict=True):
        new = text[len(prompt) :]
        probs[new] = probs.get(new, 0.0) + chance
    prefixes = (new for n in range(length) for new in itertools.product(range(target.vocab_size), repeat=n))
    continued = Table(target.vocab_size, {new: probs_after(target, prompt + new) for new in prefixes})
    return total_variation(extend(probs, continued, length), continued.text_probs(length))


def _one_round(target, drafter, rule: Rule, histories: Histories, saw: Callable) -> Histories:
    forced = list(itertools.product(range(target.vocab_size), repeat=drafter.max_drafts))
    rows = np.repeat(np.arange(len(histories.texts)), len(forced))
    texts = [histories.texts[row] for row in rows]
    tokens = np.tile(np.array(forced, np.int32), (len(histories.texts), 1))
    proposal, state = _batched(_propose, drafter, target, texts, _take(histories.state, rows), tokens)
    saw(proposal, state)
    kept = _distinct(rows, proposal)
    drafts = _drafts(target, [texts[i] for i in kept], jax.tree.map(lambda x: x[kept], proposal))
    chances = np.bincount(rows[kept], drafts.chance)
    np.testing.assert_allclose(chances, 1, atol=1e-5, err_msg="a draft is looked at before it is drawn")
    ends = [
        (i, leaf.path, leaf.chance() * share, token)
        for i, leaves in enumerate(rule(drafts))
        for leaf in leaves
        for token, share in enumerate(leaf.next_probs.tolist())
        if leaf.chance() * share > 0
    ]
    at = np.array([kept[i] for i, *_ in ends])
    verdict = np.array([(len(path), token) for _, path, _, token in ends], np.int32)
    after = _batched(_observe, drafter, target, [texts[row] for row in at], _take(state, at), verdict)
    return Histories(
        [
            (*texts[row], *drafts.tokens[i, list(path)].tolist(), token)
            for row, (i, path, _, token) in zip(at, ends, strict=True)
        ],
        [
            histories.chances[rows[row]] * drafts.chance[i] * chance
            for row, (i, _, chance, _) in zip(at, ends, strict=True)
        ],
        after,
    )


def _distinct(rows, proposal) -> np.ndarray:
    """Selects one row per distinct proposal of a history: copied drafts ignore the forced tokens."""
    keys = np.column_stack([rows, np.where(proposal.valid, proposal.tokens, -1)])
    return np.sort(np.unique(keys, axis=0, return_index=True)[1])


def _drafts(target, texts: list[Text], proposal) -> Drafts:
    """Returns the proposals to enumerate, with the probability of each under the reported distributions."""
    probs = np.exp(np.asarray(proposal.log_probs, np.float64))
    probs = probs / probs.sum(axis=-1, keepdims=True)
    of_tokens = np.take_along_axis(probs, proposal.tokens[..., None], axis=-1)[..., 0]
    after = [
        [probs_after(target, (*text, *tokens[:i].tolist())) for i in range(len(tokens) + 1)]
        for text, tokens in zip(texts, proposal.tokens, strict=True)
    ]
    chance = np.where(proposal.valid, of_tokens, 1).prod(axis=1)
    parents = chain(proposal.tokens.shape[1])
    return Drafts(parents, proposal.tokens, chance, proposal.valid, probs, np.array(after))


def probs_after(target: HistoryModel, text: Text) -> np.ndarray:
    """Returns the target's distribution after a text, cached."""
    return _probs_after(target.a.tobytes() + target.b.tobytes(), target.vocab_size, text)


@functools.cache
def _probs_after(weights: bytes, vocab: int, text: Text) -> np.ndarray:
    a, b = np.frombuffer(weights, np.float32).reshape(2, vocab, vocab)
    return history_probs(HistoryModel(jnp.asarray(a), jnp.asarray(b)), text)


def _batched(function, drafter, target, texts: list[Text], state, argument: np.ndarray):
    """Runs `function` for all rows, padded to a power of four so that few programs are compiled."""
    count = len(texts)
    fill = np.minimum(np.arange(4 ** int(np.ceil(np.log(count) / np.log(4)))), count - 1)
    context = _context(target, [texts[i] for i in fill])
    found = function(drafter, context, _take(state, fill), jnp.asarray(argument[fill]))
    return jax.tree.map(lambda x: x[:count], jax.device_get(found))


@jax.jit
def _propose(drafter, context, state, tokens):
    proposal, state = drafter.propose(Forced(NOTHING, context.length, tokens=tokens), state, context)
    return proposal.dense(), state


@jax.jit
def _observe(drafter, context, state, verdict):
    return drafter.observe(state, context, Verdict(verdict[:, 0], verdict[:, 1]), ())


def _take(state, rows):
    return jax.tree.map(lambda x: np.asarray(x)[rows], state)


def _context(target, texts: list[Text]) -> Context:
    tokens = np.zeros((len(texts), SLOTS), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    length = jnp.array([len(text) for text in texts], jnp.int32)
    return Context(target, NOTHING, jnp.asarray(tokens), length, jnp.zeros(len(texts), jnp.bool_), Sampling())

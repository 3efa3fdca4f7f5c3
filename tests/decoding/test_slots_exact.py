"""The joint distribution of three requests in two slots, exactly: every draw of every round of each.

turn        1           2           3           4
slot 0      a begins    a           c begins    c       c takes the slot of a
slot 1      .           b begins    b           .
"""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.testing import chain, chain_rule, drawn, enumerate_round, first_failure
from jaxspec.testing.enumeration.tables import Table, total_variation
from jaxspec.testing.history_models import history_model, history_probs, nearby
from jaxspec.verifiers import TokenVerifier, log_acceptance, next_log_probs

VOCAB, NEW, CAPACITY = 2, 2, 16
PROMPTS = ((1, 0, 0), (0, 1), (1, 1, 0, 1, 0))
LENGTHS = np.array([len(prompt) for prompt in PROMPTS])
KEYS = jax.random.split(jax.random.key(3), len(PROMPTS))
TARGET = history_model(2, vocab=VOCAB)
DRAFT = nearby(TARGET, 1.0)
DRAFTER, SAMPLING = jaxspec.ModelDrafter(DRAFT, k=1), jaxspec.Sampling(temperature=1.0)
RULE = chain_rule(log_acceptance, next_log_probs, first_failure)
# The draws of a round: the draft, its uniform, and the next token.
NEVER = (0, 0.5, 0)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Given(RoundKeys):
    """Draws what it is given, `[b, 3]`."""

    draws: jax.Array | None = None

    def draft_noise(self, offset, vocab_size, ids=None):
        return 1e9 * jax.nn.one_hot(self.draws[:, 0].astype(jnp.int32), vocab_size)

    def uniforms(self, count):
        return jnp.broadcast_to(self.draws[:, 1:2], (self.draws.shape[0], count))

    def next_noise(self, vocab_size):
        return 1e9 * jax.nn.one_hot(self.draws[:, 2].astype(jnp.int32), vocab_size)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GivenVerifier(TokenVerifier):
    """Finds the draws of a row by its key, and those of a round by the row's length; `[request, NEW, 3]`."""

    draws: jax.Array

    def rng(self, keys, length):
        same = jnp.all(jax.random.key_data(keys)[:, None] == jax.random.key_data(KEYS)[None], axis=-1)
        request = jnp.argmax(same, axis=1)
        at = length - jnp.asarray(LENGTHS, jnp.int32)[request]
        known = jnp.any(same, axis=1) & (at >= 0) & (at < NEW)
        draws = jnp.where(known[:, None], self.draws[request, jnp.clip(at, 0, NEW - 1)], jnp.asarray(NEVER))
        return Given(keys, length, draws=draws)


def table(model, prompt) -> Table:
    news = (new for count in range(2 * NEW + 1) for new in itertools.product(range(VOCAB), repeat=count))
    return Table(VOCAB, {new: history_probs(model, (*prompt, *new)) for new in news})


def outcomes(prompt):
    """Yields the probability, the draws `[NEW, 3]` and the new tokens of everything that can happen to a request."""
    target, drafter = table(TARGET, prompt), drawn(chain(1), table(DRAFT, prompt))
    pending = [(1.0, (), {})]
    while pending:
        chance, text, draws = pending.pop()
        if len(text) >= NEW:
            yield chance, [draws.get(at, NEVER) for at in range(NEW)], text[:NEW]
            continue
        round_ = enumerate_round(target, drafter, RULE, text)
        for draft, leaves in enumerate(round_.leaves):
            for leaf in (leaf for leaf in leaves if leaf.chance() > 0):
                ((low, high),) = [comparison.interval() for comparison in leaf.comparisons]
                for token in np.flatnonzero(leaf.next_probs):
                    share = round_.drafts.chance[draft] * leaf.chance() * leaf.next_probs[token]
                    drawn_now = (round_.drafts.tokens[draft, 0], (low + high) / 2, token)
                    longer = text + round_.emitted(draft, leaf, int(token))
                    pending.append((chance * share, longer, {**draws, len(text): drawn_now}))


def begin(index):
    return jaxspec.serving.feed(
        TARGET,
        DRAFTER,
        [PROMPTS[index]],
        capacity=CAPACITY,
        max_new_tokens=NEW,
        key=KEYS[index : index + 1],
        sampling=SAMPLING,
    )


def serve(draws):
    """Returns the new tokens of the three requests, `[3, NEW]`, and how many rounds each took."""
    verifier, serving = GivenVerifier(draws), jaxspec.serving
    slots = serving.slots(TARGET, DRAFTER, 2, capacity=CAPACITY, sampling=SAMPLING)
    slots = serving.insert(slots, begin(0), jnp.int32(0))
    slots, _ = serving.advance(TARGET, DRAFTER, verifier, slots, rounds=1)
    slots = serving.insert(slots, begin(1), jnp.int32(1))
    slots, _ = serving.advance(TARGET, DRAFTER, verifier, slots, rounds=1)
    first = serving.take(slots, jnp.int32(0))
    slots = serving.insert(serving.release(slots, jnp.asarray([True, False])), begin(2), jnp.int32(0))
    slots, _ = serving.advance(TARGET, DRAFTER, verifier, slots, rounds=2)
    ended = [first, serving.take(slots, jnp.int32(1)), serving.take(slots, jnp.int32(0))]
    results = [jaxspec.finish(state, lossless=True) for state in ended]
    return jnp.stack([result.tokens[0, :NEW] for result in results]), jnp.stack([x.stats.rounds[0] for x in results])


@pytest.mark.slow
def test_requests_in_two_slots_have_the_joint_distribution_of_lone_calls():
    each = [list(outcomes(prompt)) for prompt in PROMPTS]
    joint = list(itertools.product(*each))
    draws = np.array([[draws for _, draws, _ in one] for one in joint], np.float32)
    tokens, rounds = jax.device_get(jax.jit(jax.vmap(serve))(draws))
    assert {tuple(row) for row in rounds.tolist()} == set(itertools.product((1, 2), repeat=len(PROMPTS)))
    found, expected = {}, {}
    for one, emitted in zip(joint, tokens.tolist(), strict=True):
        text = tuple(itertools.chain(*emitted))
        found[text] = found.get(text, 0.0) + math.prod(float(chance) for chance, _, _ in one)
    targets = [table(TARGET, prompt).text_probs(NEW) for prompt in PROMPTS]
    for texts in itertools.product(*targets):
        chances = [probs[new] for probs, new in zip(targets, texts, strict=True)]
        expected[tuple(itertools.chain(*texts))] = math.prod(chances)
    assert total_variation(found, expected) < 1e-9

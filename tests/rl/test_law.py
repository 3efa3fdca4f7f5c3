"""The distribution of two epochs, enumerated: answers of the first are drafts of the second, under another policy.

Both epochs are one text of twice the length, and every draw has the key that `Rollouts` gives it. Fresh keys leave the
two independent, each with its own policy's distribution; keys that repeat do not, which is why they are refused.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.random import PositionNoise
from jaxspec.decoding.options import after_the_prompt
from jaxspec.rl import History, Rollouts
from jaxspec.testing.enumeration.drafting import chain, guessed
from jaxspec.testing.enumeration.leaves import Leaf
from jaxspec.testing.enumeration.several_rounds import KeyNames, key_names, recorded_keys, several_rounds
from jaxspec.testing.enumeration.tables import Table, make_table, total_variation
from tests._fixtures.rules import token_rule

VOCAB, NEW, K = 3, 2, 2
PROMPT = [2, 1]
KEY = jax.random.key(3)


@functools.cache
def policies():
    """The distributions of both epochs: of the second, only its own tokens count."""
    rng = np.random.default_rng(1)
    first, second = (make_table(VOCAB, NEW + K + 1, lambda: rng.dirichlet(np.ones(VOCAB))) for _ in range(2))
    whole = make_table(VOCAB, 2 * NEW + K + 1, lambda: np.ones(VOCAB))
    return second, Table(
        VOCAB, {text: first.probs(text) if len(text) < NEW else second.probs(text[NEW:]) for text in whole.rows}
    )


@jax.jit
def guess(history, text, length):
    prompt, start = jnp.asarray([PROMPT], jnp.int32), jnp.asarray([len(PROMPT)], jnp.int32)
    known = after_the_prompt(history, prompt, start)
    drafter = jaxspec.NGramDrafter(k=1, min_ngram=1)
    return drafter.guess(jnp.concatenate([known, text], axis=1), length + known.shape[1]).tokens[0, 0]


@functools.cache
def draft_after(text):
    """The next draft of the second epoch, as the drafter finds it in the store."""
    history, own = History(answers=1), [*PROMPT, *text[NEW:]]
    history.add(PROMPT, text[:NEW])
    padded = jnp.zeros((1, 8), jnp.int32).at[0, : len(own)].set(jnp.asarray(own, jnp.int32))
    return int(
        guess(jnp.asarray(history.pack([PROMPT], max_new_tokens=NEW)), padded, jnp.asarray([len(own)], jnp.int32))
    )


def key_of_call(call):
    rollouts = Rollouts()
    rollouts.calls = call
    return rollouts._keys(KEY, 1)[0]


def enumerated(names, rule):
    """The distribution of both epochs; the first one drafts nothing."""
    drafter = guessed(
        chain(K),
        lambda place: draft_after(place.prefix) if len(place.text) >= NEW else 0,
        VOCAB,
        submitted=lambda place: len(place.text) >= NEW,
    )
    return several_rounds(policies()[1], drafter, rule, length=2 * NEW, names=names)


def of_epoch(names_of):
    """Names the keys of a round by its epoch and its length."""
    return lambda calls: lambda start: names_of(key_of_call(calls[start // NEW]), len(PROMPT) + start % NEW)


def second_epoch(probs):
    found = {}
    for text, chance in probs.items():
        found[text[NEW:]] = found.get(text[NEW:], 0.0) + chance
    return found


rejecting = of_epoch(lambda key, length: key_names(jaxspec.TokenVerifier(), key, length, K))


@of_epoch
def coupled(key, length):
    """Every token is the target's own draw at its position, for any drafts (tests/verifiers/test_coupled.py)."""
    with recorded_keys() as seen:
        PositionNoise(key[None], jnp.full(1, length, jnp.int32)).draft_noise(0, VOCAB)
    return KeyNames(((),) * K, (), seen[0])


def accepts_nothing(drafts):
    return [[Leaf((), (), row[0])] for row in drafts.target_probs]


WAYS = {"rejection": (rejecting, token_rule), "coupled": (coupled, accepts_nothing)}


@pytest.mark.parametrize("way", [pytest.param("rejection", marks=pytest.mark.slow), "coupled"])
def test_fresh_keys_keep_the_law_of_both_epochs(way):
    names, rule = WAYS[way]
    probs = enumerated(names((0, 1)), rule)
    assert total_variation(probs, policies()[1].text_probs(2 * NEW)) < 1e-9


def test_the_drafts_are_the_answers_of_the_first_epoch():
    assert [draft_after((0, 1)), draft_after((0, 1, 0)), draft_after((2, 2)), draft_after((2, 2, 2))] == [0, 1, 2, 2]


@pytest.mark.slow
def test_repeated_keys_bias_rejection_and_only_tie_the_epochs_of_coupling():
    second, _ = policies()
    expected = second.text_probs(NEW)
    assert total_variation(second_epoch(enumerated(rejecting((0, 0)), token_rule)), expected) > 0.01
    tied = enumerated(coupled((0, 0)), accepts_nothing)
    assert total_variation(second_epoch(tied), expected) < 1e-9
    assert total_variation(tied, policies()[1].text_probs(2 * NEW)) > 0.01

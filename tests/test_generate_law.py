"""The joint law of the first tokens through the whole of `generate`, against exact products.

Monte Carlo with fixed seeds; `statistics.FALSE_ALARM` over all tests here states how often a
correct program would fail under new ones.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from tests import tiny
from tests.oracle.statistics import FALSE_ALARM, independence, same_law

VOCAB, ROWS, LENGTH, TESTS = 4, 60_000, 3, 10
TARGET = tiny.history_model(2, vocab=VOCAB)
MODEL = jaxspec.ModelDrafter(tiny.nearby(TARGET, 0.7), k=2)
NGRAM = jaxspec.NGramDrafter(k=2, min_ngram=1)
TEXT = (1, 0, 2, 1, 0)
TEMPERATURE = 0.7


def generate(target, drafter, verifier, *, seed=0, **options):
    return jaxspec.generate(
        target,
        drafter,
        jnp.broadcast_to(jnp.array(TEXT, jnp.int32), (ROWS, len(TEXT))),
        key=jax.random.key(seed),
        sampling=jaxspec.Sampling(TEMPERATURE),
        verifier=verifier,
        max_new_tokens=LENGTH,
        **options,
    )


def joint_law(target) -> np.ndarray:
    law = [
        np.prod([tiny.history_law(target, TEXT + text[:i], TEMPERATURE)[text[i]] for i in range(LENGTH)])
        for text in itertools.product(range(VOCAB), repeat=LENGTH)
    ]
    return np.array(law)


def counts(tokens) -> np.ndarray:
    return np.bincount(np.asarray(tokens) @ VOCAB ** np.arange(LENGTH - 1, -1, -1), minlength=VOCAB**LENGTH)


@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [
        pytest.param(MODEL, jaxspec.TokenVerifier(), id="model, token"),
        pytest.param(NGRAM, jaxspec.TokenVerifier(), id="ngram, token"),
        pytest.param(MODEL, jaxspec.CoupledVerifier(), id="model, coupled"),
    ],
)
def test_the_joint_law_of_three_tokens(drafter, verifier):
    result = generate(TARGET, drafter, verifier)
    same_law(joint_law(TARGET), counts(result.tokens), tests=TESTS)
    assert 0 < result.stats.acceptance_rate() < 1


def test_a_draft_whose_support_the_target_excludes():
    """Nothing is ever accepted, and the law is right."""
    low, high = jnp.array([0, 0, -jnp.inf, -jnp.inf]), jnp.array([-jnp.inf, -jnp.inf, 0, 0])
    target = tiny.HistoryModel(TARGET.a + low[None], TARGET.b)
    draft = jaxspec.ModelDrafter(tiny.HistoryModel(TARGET.a + high[None], TARGET.b), k=2)
    result = generate(target, draft, jaxspec.TokenVerifier())
    assert result.stats.accepted.sum() == 0
    same_law(joint_law(target), counts(result.tokens), tests=TESTS)


def test_rounds_and_rows_are_independent():
    """Where every token has one law, the firsts of two rounds, and of two rows, are independent."""
    flat = lambda seed: tiny.HistoryModel(
        jnp.broadcast_to(tiny.history_model(seed, vocab=VOCAB).a[:1], (VOCAB, VOCAB)), jnp.zeros((VOCAB, VOCAB))
    )
    target, drafter = flat(0), jaxspec.ModelDrafter(flat(1), k=2)
    prompt = jnp.zeros((ROWS, 1), jnp.int32)
    start = jax.jit(
        lambda: jaxspec.init(
            target, drafter, prompt, key=jax.random.key(3), sampling=jaxspec.Sampling(), max_new_tokens=16
        )
    )
    state, first = jaxspec.jit_step(donate=True)(target, drafter, jaxspec.TokenVerifier(), start())
    _, second = jaxspec.jit_step(donate=True)(target, drafter, jaxspec.TokenVerifier(), state)
    ones, twos = np.asarray(first.tokens[:, 0]), np.asarray(second.tokens[:, 0])
    last = np.asarray(first.tokens)[np.arange(ROWS), np.asarray(first.count) - 1]
    for a, b in ((ones, twos), (last, twos), (ones[:-1], ones[1:]), (ones * 3 + np.asarray(first.accepted), twos)):
        table = np.zeros((a.max() + 1, b.max() + 1))
        np.add.at(table, (a, b), 1)
        assert independence(table) > FALSE_ALARM / TESTS
    law = tiny.history_law(target, [0])
    same_law(law, np.bincount(twos, minlength=VOCAB), tests=TESTS)

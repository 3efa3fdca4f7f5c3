"""Rows that come and go in slots have the tokens of separate calls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.processors import AllowedTokens, Penalties
from tests.golden.token_cases import cases

CAPACITY, ROUNDS, COUNT = 48, 3, 3
KINDS = ("default | greedy", "coupled | sampled", "default | sampled")
CASES = {
    name: case
    for name, *case in cases()
    if name.partition(" | ")[2] in KINDS and not name.startswith("model, adaptive")
}
QUICK = ("ngram | default | greedy",)

feed = functools.partial(jaxspec.serving.feed, capacity=CAPACITY)
insert = jax.jit(jaxspec.serving.insert, donate_argnums=0)
release = jax.jit(jaxspec.serving.release, donate_argnums=0)
advance = jax.jit(functools.partial(jaxspec.serving.advance, lossy=True), static_argnames="rounds", donate_argnums=3)


def requests(count, vocab_size, seed=0):
    """Prompts and options of rows: lengths, budgets, keys and, for every other row, stop tokens."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(0, vocab_size, (1, rng.integers(1, 20))),
            {
                "max_new_tokens": int(rng.integers(1, 24)),
                "key": jax.random.key(index),
                "stop_tokens": [index % 2 * rng.integers(0, vocab_size)] if index % 2 else [-1],
            },
        )
        for index in range(count)
    ]


def text_of(result):
    return np.asarray(result.tokens)[0, : int(result.length[0])].tolist()


def serve(target, drafter, verifier, asked, policy_of, seed=0):
    """Runs requests through slots, with arrivals and numbers of rounds at random, and returns each one's result."""
    rng = np.random.default_rng(seed)
    slots = jaxspec.serving.slots(target, drafter, COUNT, capacity=CAPACITY, sampling=policy_of(0), stop_tokens=[-1])
    waiting, live, results = list(enumerate(asked)), {}, {}
    while waiting or live:
        for slot in set(range(COUNT)) - live.keys():
            if waiting and rng.random() < 0.7:
                index, (prompt, options) = waiting.pop(0)
                row = jaxspec.serving.feed(
                    target, drafter, prompt, capacity=CAPACITY, sampling=policy_of(index), **options
                )
                slots, live[slot] = insert(slots, row, slot), (index, [])
        most, until_end = int(rng.integers(1, ROUNDS + 1)), bool(rng.integers(2))
        slots, found = advance(target, drafter, verifier, slots, rounds=ROUNDS, most=most, until_end=until_end)
        found = jax.device_get(found)
        for slot, (index, emitted) in list(live.items()):
            for tokens, count in zip(found.rounds.tokens[:, slot], found.rounds.count[:, slot], strict=True):
                emitted += tokens[:count].tolist()
            if found.done[slot]:
                results[index] = jaxspec.finish(jaxspec.serving.take(slots, slot))
                assert text_of(results[index]) == emitted
                slots = release(slots, jnp.arange(COUNT) == slot)
                del live[slot]
    return [results[index] for index in range(len(asked))]


def check(target, drafter, verifier, policy_of, count=9):
    asked = requests(count, target.vocab_size)
    found = serve(target, drafter, verifier, asked, policy_of)
    for index, ((prompt, options), result) in enumerate(zip(asked, found, strict=True)):
        alone = jaxspec.generate(
            target,
            drafter,
            prompt,
            capacity=CAPACITY,
            sampling=policy_of(index),
            verifier=verifier,
            lossy=True,
            **options,
        )
        assert text_of(result) == text_of(alone)
        assert int(result.stop_reason[0]) == int(alone.stop_reason[0])
        np.testing.assert_array_equal(result.stats.rounds, alone.stats.rounds)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES]
)
def test_rows_have_the_tokens_of_a_lone_call(name):
    target, drafter, verifier, policy = CASES[name]
    temperatures = 0.4 + 0.2 * np.arange(9)
    sampled = isinstance(policy, jaxspec.Sampling)
    check(
        target,
        drafter,
        verifier,
        lambda index: jaxspec.Sampling(temperatures[index], top_p=0.9) if sampled else jaxspec.Greedy(),
    )


@pytest.mark.slow
def test_processors_of_a_row_stay_with_it():
    target, drafter, _, _ = CASES["ngram | default | greedy"]
    allowed = [[(index + n) % target.vocab_size for n in range(5)] for index in range(9)]
    check(
        target,
        drafter,
        None,
        lambda index: jaxspec.Greedy(processors=(Penalties(1 + index / 5), AllowedTokens(allowed[index]))),
    )


def test_a_row_that_was_cancelled_emits_nothing_more():
    target, drafter, verifier, _ = CASES["ngram | default | greedy"]
    slots = jaxspec.serving.slots(target, drafter, COUNT, capacity=CAPACITY, stop_tokens=[-1])
    for slot, (prompt, _) in enumerate(requests(COUNT, target.vocab_size)):
        row = feed(target, drafter, prompt, max_new_tokens=20, stop_tokens=[-1])
        slots = insert(slots, row, slot)
    cancel = jnp.asarray([True, False, False])
    _, found = jax.jit(jaxspec.serving.advance, static_argnames="rounds")(
        target, drafter, verifier, slots, rounds=1, cancel=cancel
    )
    assert found.rounds.count[:, 0].tolist() == [0] and (found.rounds.count[:, 1:] >= 1).all()
    assert found.done.tolist() == [True, False, False]


def test_a_released_slot_is_free():
    """It looks like one that never held a row, to the lengths of its caches; the others keep theirs."""
    target, drafter, _, _ = CASES["ngram | default | greedy"]
    empty = jaxspec.serving.slots(target, drafter, COUNT, capacity=CAPACITY, stop_tokens=[-1])
    row = feed(target, drafter, [[1, 2, 3]], max_new_tokens=20, stop_tokens=[-1])
    slots = jaxspec.serving.insert(jaxspec.serving.insert(empty, row, 0), row, 2)
    state = jaxspec.serving.release(slots, jnp.asarray([True, False, False])).state
    assert state.length.tolist() == [1, 1, 3] and state.done.tolist() == [True, True, False]
    assert state.limit.tolist() == [1, 1, 23] and state.cache.length.tolist() == [0, 0, 2]


def test_rows_of_another_kind_are_refused():
    target, drafter, _, _ = CASES["ngram | default | greedy"]
    slots = jaxspec.serving.slots(target, drafter, 2, capacity=CAPACITY)
    sampled = feed(target, drafter, [[1]], max_new_tokens=4, key=jax.random.key(0), sampling=jaxspec.Sampling())
    wider = jaxspec.serving.feed(target, drafter, [[1]], capacity=2 * CAPACITY, max_new_tokens=4)
    for row in (sampled, wider):
        with pytest.raises(ValueError, match="the row does not fit the slots"):
            jaxspec.serving.insert(slots, row, 0)
    with pytest.raises(ValueError, match="one prompt, got 2"):
        feed(target, drafter, [[1], [2]], max_new_tokens=4)
    with pytest.raises(ValueError, match="the prompt has 60 tokens, but the slots have a capacity of 48"):
        feed(target, drafter, [[1] * 60], max_new_tokens=4)
    with pytest.raises(ValueError, match="slot between 0 and 1, got 2"):
        jaxspec.serving.take(slots, 2)
    with pytest.raises(TypeError, match="max_new_tokens, which each row has for itself"):
        jaxspec.serving.slots(target, drafter, 2, capacity=CAPACITY, max_new_tokens=4)

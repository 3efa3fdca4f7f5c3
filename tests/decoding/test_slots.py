"""Rows that come and go in slots have the tokens of separate calls."""

import functools

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.processors import AllowedTokens, Penalties
from tests._fixtures.served import CAPACITY, CASES, COUNT, check, insert, policies, requests

QUICK = ("ngram | default | greedy",)

feed = functools.partial(jaxspec.serving.feed, capacity=CAPACITY)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES]
)
def test_rows_have_the_tokens_of_a_lone_call(name):
    target, drafter, verifier, policy = CASES[name]
    check(target, drafter, verifier, policies(policy))


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


def test_a_row_brings_all_that_it_has():
    """To a slot in which another row ended; the others keep theirs."""
    target, drafter, _, _ = CASES["model | default | sampled"]
    options = {"sampling": jaxspec.Sampling(), "stop_tokens": [-1]}
    rows = [
        feed(target, drafter, prompt, max_new_tokens=9, key=jax.random.key(index), **options)
        for index, prompt in enumerate(([[1, 2, 3]], [[4, 5, 6, 7, 8]], [[9, 10]]))
    ]
    slots = jaxspec.serving.slots(target, drafter, COUNT, capacity=CAPACITY, **options)
    for slot, row in ((0, rows[0]), (1, rows[2]), (1, rows[1])):
        slots = insert(slots, row, slot)
    for slot in range(2):
        found, expected = (jax.tree.leaves(row) for row in (jaxspec.serving.take(slots, slot), rows[slot]))
        for one, other in zip(found, expected, strict=True):
            assert jnp.array_equal(one, other)


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
    with pytest.raises(ValueError, match=r"which must be a flag for each of 2 slots, got shape \(3,\)"):
        jaxspec.serving.release(slots, jnp.ones(3) > 0)
    with pytest.raises(ValueError, match=r"cancel must be a flag for each of 2 slots, got shape \(1,\)"):
        jaxspec.serving.advance(target, drafter, None, slots, rounds=1, cancel=jnp.ones(1) > 0)
    with pytest.raises(TypeError, match="max_new_tokens, which each row has for itself"):
        jaxspec.serving.slots(target, drafter, 2, capacity=CAPACITY, max_new_tokens=4)

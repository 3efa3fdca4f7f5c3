"""Prompts that are fed in chunks give the rows of prompts that are fed at once."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.decoding.feeding import begin_feeding, feed_some, ready
from tests._fixtures import tiny
from tests._fixtures.chunked import chunked
from tests._fixtures.eagle import eagle_head
from tests._fixtures.recurrent import recurrent_model
from tests._fixtures.served import CAPACITY, CASES, check, policies, requests

CHUNK = 3
# Of each drafter in the table of recorded tokens.
EACH = [name for name in CASES if name.endswith("default | sampled")]
some = jax.jit(feed_some, donate_argnums=2)


def feed(target, drafter, prompt, **options):
    """Feeds a prompt with `feed_some`, by one, two or three chunks at a time."""
    feeding, count = begin_feeding(target, drafter, prompt, **options), 0
    assert int(feeding.left) == -(-(prompt.shape[1] - 1) // CHUNK)
    while int(feeding.left):
        feeding, count = some(target, drafter, feeding, 1 + count % 3), count + 1
    return ready(target, drafter, feeding)


def compare(target, drafter):
    """Compares the caches of both kinds of rows to the bit, and all counts of the drafter's state."""
    for prompt, _ in requests(4, target.vocab_size):
        options = {"capacity": CAPACITY, "max_new_tokens": 4}
        rows = feed(target, drafter, prompt, **options), jaxspec.serving.feed(target, drafter, prompt, **options)
        assert jax.tree.structure(rows[0]) == jax.tree.structure(rows[1])
        fed = prompt.shape[1] - 1
        for one, other in zip(*(jax.tree.leaves(row.cache) for row in rows), strict=True):
            slots = [axis for axis, size in enumerate(one.shape) if size > CAPACITY]
            some = tuple(slice(fed) if axis in slots else slice(None) for axis in range(one.ndim))
            np.testing.assert_array_equal(one[some], other[some])
        for one, other in zip(*(jax.tree.leaves(row.drafter_state) for row in rows), strict=True):
            assert one.shape == other.shape and (one.ndim > 1 or one.tolist() == other.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_rows_have_the_tokens_of_a_lone_call(name):
    target, drafter, verifier, policy = CASES[name]
    check(chunked(target, CHUNK), chunked(drafter, CHUNK), verifier, policies(policy), feed=feed)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name.startswith("model |") else pytest.mark.slow) for name in EACH]
)
def test_caches_are_those_of_a_prompt_that_is_fed_at_once(name):
    target, drafter, _, _ = CASES[name]
    compare(chunked(target, CHUNK), chunked(drafter, CHUNK))


def test_prompts_of_all_lengths_share_a_program():
    target, drafter, _, _ = CASES["ngram | default | greedy"]
    target, program = chunked(target, 2), jax.jit(lambda *args: feed_some(*args), donate_argnums=2)
    for width in (2, 5, 11):
        feeding = begin_feeding(target, drafter, np.ones((1, width), int), capacity=CAPACITY, max_new_tokens=4)
        for chunks in (1, 7):
            feeding = program(target, drafter, feeding, jnp.int32(chunks))
        assert (int(feeding.left), feeding.row.cache.length.tolist()) == (0, [width - 1])
    assert program._cache_size() == 1


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Counting(jaxspec.Drafter):
    """Keeps the number of the prompt's tokens, and cannot continue a text; drafts that number, always."""

    max_drafts, deterministic = 1, True

    def init(self, context, prefilled, slots):
        return context.length

    def propose(self, rng, state, context):
        return jaxspec.core.Proposal(state[:, None] % 11, ~context.done[:, None]), state


def test_a_drafter_that_cannot_continue_reads_the_prompt_at_the_end():
    target = chunked(CASES["ngram | default | greedy"][0], CHUNK)
    assert not begin_feeding(target, Counting(), [[1, 2, 3]], capacity=CAPACITY, max_new_tokens=4).by_chunk
    compare(target, Counting())


@pytest.mark.slow
def test_a_head_that_texts_outgrow_reads_the_prompt_at_the_end():
    target = chunked(tiny.transformer(3, layers=3), CHUNK)
    head = eagle_head(0, target=target)
    short = dataclasses.replace(head.module.config, context_length=16)
    head = dataclasses.replace(head, module=dataclasses.replace(head.module, config=short))
    drafter = jaxspec.EagleDrafter(head, k=3)
    assert not begin_feeding(target, drafter, [[1, 2, 3]], capacity=CAPACITY, max_new_tokens=4).by_chunk
    compare(target, drafter)
    check(target, drafter, None, policies(jaxspec.Greedy()), feed=feed)


@pytest.mark.slow
def test_a_recurrence_is_fed_each_token_once():
    check(recurrent_model(), jaxspec.NGramDrafter(k=3, min_ngram=1), None, policies(jaxspec.Greedy()), feed=feed)


def test_a_row_of_which_chunks_are_missing_is_refused():
    target, drafter, _, _ = CASES["ngram | default | greedy"]
    feeding = functools.partial(begin_feeding, chunked(target, 2), drafter, capacity=CAPACITY, max_new_tokens=4)
    with pytest.raises(ValueError, match="3 chunks of the prompt are missing"):
        ready(target, drafter, feeding([[1] * 6]))
    with pytest.raises(ValueError, match="chunks"):
        feed_some(target, drafter, feeding([[1] * 6]), 0)
    with pytest.raises(ValueError, match="but the slots have a capacity of 48"):
        feeding([[1] * 60])

"""Prompts that begin with what another row holds give the tokens of prompts that are fed from their first token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.decoding.feeding import begin_feeding, feed_some, ready
from jaxspec.decoding.reuse import held_tokens, reuse
from tests._fixtures.chunked import chunked
from tests._fixtures.served import CAPACITY, CASES, advance, check, insert, policies

CHUNK, NEW, MORE = 3, 12, 9
# Of each drafter in the table of recorded tokens.
EACH = [name for name in CASES if name.endswith("default | sampled")]
some = jax.jit(feed_some, donate_argnums=2)


def ended(target, drafter, verifier, policy):
    """A row after its end, and its text."""
    prompt = np.random.default_rng(1).integers(0, target.vocab_size, (1, 10))
    options = {"capacity": CAPACITY, "sampling": policy, "stop_tokens": [-1]}
    slots = jaxspec.serving.slots(target, drafter, 1, **options)
    row = jaxspec.serving.feed(target, drafter, prompt, max_new_tokens=NEW, key=jax.random.key(5), **options)
    slots, done = insert(slots, row, 0), False
    while not done:
        slots, found = advance(target, drafter, verifier, slots, rounds=3)
        done = bool(found.done[0])
    row = jaxspec.serving.take(slots, 0)
    return row, np.asarray(row.tokens)[0, : int(row.length[0])]


def asked_of(text, vocab_size):
    """Requests whose prompts begin like the text: with all of it, up to its last tokens, its middle, its prompt."""
    rng = np.random.default_rng(2)
    for index, alike in enumerate((len(text), len(text) - 2, 15, 9, 5)):
        others = (text[alike : alike + 1] + 1) % vocab_size
        prompt = np.concatenate([text[:alike], others, rng.integers(0, vocab_size, index)])
        yield prompt[None], {"max_new_tokens": MORE, "key": jax.random.key(index), "stop_tokens": [-1]}


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_rows_have_the_tokens_of_a_lone_call(name):
    target, drafter, verifier, policy = CASES[name]
    target, drafter = chunked(target, CHUNK), chunked(drafter, CHUNK)
    kept, text = ended(target, drafter, verifier, policies(policy)(0))
    taken = []

    def feed(target, drafter, prompt, **options):
        feeding = begin_feeding(target, drafter, prompt, **options)
        assert feeding.by_chunk
        held, same = jaxspec.drafters.NoDrafter() if drafter is None else drafter, min(len(text), prompt.shape[1])
        held = int(held_tokens(held, kept.cache, kept.drafter_state)[0])
        alike = int(np.sum(np.cumprod(prompt[0, :same] == text[:same])))
        chunks = min(alike - 1, prompt.shape[1] - 2, held) // CHUNK
        feeding = reuse(target, feeding, kept.cache, kept.drafter_state, chunks)
        taken.append(chunks)
        while int(feeding.left):
            feeding = some(target, drafter, feeding, 2)
        assert feeding.row.cache.length.tolist() == [prompt.shape[1] - 1]
        return ready(target, drafter, feeding)

    check(target, drafter, verifier, policies(policy), list(asked_of(text, target.vocab_size)), feed)
    assert min(taken) >= 1 and max(taken) >= 5


@dataclasses.dataclass(frozen=True)
class Lagging(jaxspec.drafters.NoDrafter):
    """Says that it has read three tokens."""

    def held(self, state):
        return jnp.asarray([3])


def test_what_a_head_has_not_read_is_not_held():
    target = CASES["ngram | default | greedy"][0]
    cache = target.init_cache(1, CAPACITY).truncate(jnp.asarray([7], jnp.int32))
    assert held_tokens(jaxspec.drafters.NoDrafter(), cache, ()).tolist() == [7]
    assert held_tokens(Lagging(), cache, ()).tolist() == [3]


def test_the_other_row_stays_valid():
    """The row that begins with its chunks is donated."""
    target, drafter, _, _ = CASES["ngram | default | greedy"]
    target, options = chunked(target, CHUNK), {"capacity": CAPACITY, "max_new_tokens": 4}
    row = jaxspec.serving.feed(target, drafter, [[1] * 9], **options)
    feeding = begin_feeding(target, drafter, [[1] * 9], **options)
    some(target, drafter, reuse(target, feeding, row.cache, row.drafter_state, 1), 2)
    assert not any(x.is_deleted() for x in jax.tree.leaves((row.cache, row.drafter_state)))

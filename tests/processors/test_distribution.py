"""Distributions under processors and grammars through the whole of `generate`, against exact ones.

Monte Carlo with fixed seeds; `statistics.FALSE_ALARM` over all tests here states how often a correct program would
fail under new ones.
"""

import collections
import dataclasses
import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import processing
from jaxspec.drafters.base import Drafter
from jaxspec.grammar import Grammar
from jaxspec.testing.history_models import history_logits, history_model, nearby
from jaxspec.testing.statistics import FALSE_ALARM, independence, same_distribution
from jaxspec.verifiers.rejection import TokenVerifier
from tests._fixtures import examples, processed

TESTS, VOCAB, LENGTH, ROWS, TEMPERATURE = 20, 4, 3, 40_000, 0.75
PROMPT = (1, 2)
TARGET = history_model(2, vocab=VOCAB)
DRAFT = nearby(TARGET, 0.7)
CASE = "automaton and penalties"
processors = processed.CASES["penalties"][0] + processed.CASES["automaton"][0]


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class Careless(Drafter):
    """Draws from a model that knows no processors, so that it drafts what they exclude."""

    inner: Any
    tree: bool = dataclasses.field(default=False, metadata={"static": True})
    max_drafts = property(lambda self: self.inner.max_drafts)
    lengths = property(lambda self: self.inner.lengths)
    deterministic = property(lambda self: self.inner.deterministic)

    def _unprocessed(self, context):
        policy = jaxspec.Sampling(jnp.ones(context.length.shape))
        return dataclasses.replace(context, sampling=policy, processed=())

    def init(self, context, prefilled, slots):
        return self.inner.init(self._unprocessed(context), prefilled, slots)

    def propose(self, rng, state, context):
        return self.inner.propose(rng, state, self._unprocessed(context))

    def observe(self, state, context, verdict, hidden):
        return self.inner.observe(state, self._unprocessed(context), verdict, hidden)


def probs_after(new) -> np.ndarray:
    logits = history_logits(TARGET, PROMPT + new)
    scores = processed.automaton(processed.penalties(logits, PROMPT, new), PROMPT, new) / TEMPERATURE
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


MODEL = jaxspec.ModelDrafter(DRAFT, k=2)
SAMPLED = jaxspec.TreeDrafter(DRAFT, jaxspec.Tree((-1, -1, 0, 0)), draw=jaxspec.drafters.WithoutReplacement())
PAIRS = {
    "careless, token": (Careless(MODEL), TokenVerifier()),
    "careless, block": (Careless(MODEL), jaxspec.BlockVerifier()),
    "careless tree, recursive": (Careless(SAMPLED, tree=True), jaxspec.verifiers.MultiDraftVerifier()),
    "model, block": (MODEL, jaxspec.BlockVerifier()),
    "tree, traversal": (SAMPLED, jaxspec.verifiers.TraversalVerifier()),
    "n-gram, token": (jaxspec.NGramDrafter(k=2, min_ngram=1), TokenVerifier()),
}
QUICK = ("careless, token",)


@pytest.mark.parametrize("pair", [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in PAIRS])
def test_the_joint_distribution_of_three_tokens(pair):
    """A draft that the policy excludes is submitted and refused: one that left it out would emit others too often."""
    drafter, verifier = PAIRS[pair]
    result = jaxspec.generate(
        TARGET,
        drafter,
        jnp.broadcast_to(jnp.asarray(PROMPT, jnp.int32), (ROWS, 2)),
        key=jax.random.key(0),
        sampling=jaxspec.Sampling(TEMPERATURE, processors=processors),
        verifier=verifier,
        max_new_tokens=LENGTH,
    )
    places = VOCAB ** np.arange(LENGTH - 1, -1, -1)
    counts = np.bincount(np.asarray(result.tokens) @ places, minlength=VOCAB**LENGTH)
    texts = itertools.product(range(VOCAB), repeat=LENGTH)
    probs = np.array([np.prod([probs_after(new[:i])[new[i]] for i in range(LENGTH)]) for new in texts])
    assert (probs == 0).any()
    same_distribution(probs, counts, tests=TESTS)
    if "careless" in pair:
        assert np.asarray(result.stats.drafted).sum() > 1.5 * np.asarray(result.stats.rounds).sum()


WRITER, WRITER_DRAFT = examples.models()
TOKENIZER, STOP = WRITER.tokenizer, WRITER.tokenizer.eos_token_ids[0]
GRAMMAR, ASK = Grammar.choices(["the sea", "there", "a", "ab"]), [5, 6, 7]


def spellings(table):
    """All texts of the grammar, token by token, with the stop token."""
    prompt = processing.Prompt(jnp.asarray([ASK]), jnp.asarray([3]), jnp.asarray([[STOP]]), WRITER.vocab_size)
    state = table.init(prompt)
    found, open_ = [], [()]
    while open_:
        new = open_.pop()
        path = jnp.asarray([[[*new, *[-1] * (9 - len(new))]]], jnp.int32)
        left = np.flatnonzero(np.isfinite(table(jnp.zeros((1, 1, WRITER.vocab_size)), state, path))[0, 0])
        found += [(*new, STOP)] if STOP in left else []
        open_ += [(*new, int(token)) for token in left if token != STOP]
    return found


def exact(policy, texts) -> np.ndarray:
    width = max(map(len, texts))
    rows = [[*ASK, *text, *[0] * (width - len(text))] for text in texts]
    lengths = [3 + len(text) for text in texts]
    scores = jaxspec.score(WRITER, rows, length=lengths, prompt_length=3, sampling=policy, stop_tokens=[STOP])
    return np.exp(np.asarray(scores.warped_log_probs, np.float64)[:, 3:].sum(axis=1))


WAYS = {
    "plain": None,
    "n-gram": jaxspec.NGramDrafter(k=3, min_ngram=1),
    "model": jaxspec.ModelDrafter(WRITER_DRAFT, k=3),
    "tree": jaxspec.TreeDrafter(WRITER_DRAFT, jaxspec.Tree((-1, -1, 0, 0))),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_texts_of_a_grammar(way):
    """Their frequencies are those of the target's own masked distribution, for any drafter."""
    table, rows = GRAMMAR.table(TOKENIZER, WRITER.vocab_size), 3000
    texts = spellings(table)
    policy = jaxspec.Sampling(3.0, processors=(table,))
    probs = exact(policy, texts)
    assert abs(probs.sum() - 1) < 1e-4 and len(texts) > 10 and np.max(probs) < 0.9
    options = {"stop_tokens": [STOP], "max_new_tokens": 12, "key": jax.random.key(2)}
    found = jaxspec.generate(WRITER, WAYS[way], [ASK] * rows, sampling=policy, **options)
    same_distribution(probs, counted(found.tokens, found.length, texts), tests=TESTS)


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way != "plain"])
def test_the_texts_of_a_grammar_that_the_host_follows(way):
    """As often with drafts as without."""
    plain, found = by_host(None, seed=2), by_host(WAYS[way], seed=3)
    assert plain.keys() | found.keys() <= set(spellings(GRAMMAR.table(TOKENIZER, WRITER.vocab_size)))
    texts = [text for text in plain.keys() | found.keys() if plain[text] + found[text] > 20]
    assert len(texts) > 5
    assert independence(np.array([[plain[text], found[text]] for text in texts])) > FALSE_ALARM / TESTS


def by_host(drafter, seed):
    """How often each text is written under the same grammar as context-free rules."""
    decoder = jaxspec.SpeculativeDecoder(WRITER, drafter)
    options = {"temperature": 3.0, "top_p": None, "seed": seed, "max_new_tokens": 12, "answers": 4}
    rules = "start: " + " | ".join(f'"{text}"' for text in json.loads(GRAMMAR.source))
    results = decoder.generate([TOKENIZER.decode(ASK)] * 300, grammar=rules, **options)
    return collections.Counter(one.token_ids for one in results)


def counted(tokens, lengths, texts) -> np.ndarray:
    place = {text: index for index, text in enumerate(texts)}
    rows = zip(np.asarray(tokens).tolist(), np.asarray(lengths).tolist(), strict=True)
    return np.bincount([place[tuple(row[:count])] for row, count in rows], minlength=len(texts))

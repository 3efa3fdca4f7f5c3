"""What every drafter of trees promises: what a drafter of chains does, node by node."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.core.prefill import prefill
from jaxspec.core.state import Context
from jaxspec.verifiers.tree import TreeVerifier
from tests._fixtures import tiny
from tests.contracts.drafter import LENGTHS, MOST, NEVER, PROMPTS, ROUNDS, DrafterContract

COUPLED = jaxspec.CoupledVerifier()


def path_to(parents, node):
    """The nodes from the text down to `node`."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def siblings_before(parents, node):
    """Earlier children of the same parent, in order."""
    return [other for other in range(node) if parents[other] == parents[node]]


class TreeDrafterContract(DrafterContract):
    """Subclasses set `drafter`, and say in `expected` what a node should be.

    The inherited tests of greedy decoding run with `CoupledVerifier`, which takes trees.
    """

    most_traces = 2

    def expected(self, text: list[int], before: list[int], node: int) -> Any:
        """The distribution of a node after `text`, whose siblings `before` it are known; or its token.

        `None` where there should be no such node.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say what should be drafted; give it expected(text, before, node), "
            "written in plain Python: of node `node` after text, whose earlier siblings are the tokens `before`, it "
            "returns the distribution, [v] floats that sum to 1, of a deterministic drafter the token itself, or None "
            "where there should be no such node"
        )

    def generate(self, drafter, *, max_new_tokens=MOST, stop_tokens=NEVER, prompt=PROMPTS, **options):
        return jaxspec.generate(
            self.target,
            drafter,
            jnp.asarray(prompt % self.target.vocab_size),
            prompt_length=jnp.asarray(LENGTHS),
            max_new_tokens=jnp.asarray(np.broadcast_to(max_new_tokens, 4)),
            stop_tokens=stop_tokens,
            verifier=COUPLED,
            **options,
        )

    @classmethod
    @functools.cache
    def run_rounds(cls, rows):
        """Each round's text, the drafter's proposal, that of a fresh drafter, and the outcome."""
        rows = jnp.asarray(rows, jnp.int32)
        state = _init(cls.target, cls.drafter, jax.random.split(jax.random.key(5), 4)[rows], rows)
        found = []
        for _ in range(ROUNDS):
            running, fresh, after, info = _probe(cls.target, cls.drafter, state)
            found.append(jax.device_get((state.tokens, state.length, running, fresh, info)))
            state = after
        return found

    def test_coupled_output_is_that_of_plain_sampling(self):
        options = {"sampling": jaxspec.Sampling(temperature=0.8), "key": jax.random.key(3)}
        found, plain = self.generate(self.drafter, **options), self.generate(None, **options)
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        assert found.stats.accepted.sum() > 0

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text, parents = tokens[row, : length[row]].tolist(), proposal.parents[row].tolist()
                drafts = proposal.tokens[row].tolist()
                for node in range(len(drafts)):
                    path = [drafts[i] for i in path_to(parents, parents[node])]
                    before = [drafts[i] for i in siblings_before(parents, node)]
                    self.check_node(proposal, row, node, self.expected(text + path, before, node))

    def check_node(self, proposal, row, node, expected):
        if not proposal.valid[row, node]:
            parent = proposal.parents[row, node]
            assert expected is None or (parent >= 0 and not proposal.valid[row, parent])
        elif np.ndim(expected) == 1:
            np.testing.assert_allclose(np.exp(proposal.log_probs[row, node]), expected, atol=3e-5)
            assert expected[proposal.tokens[row, node]] > 0
        else:
            assert proposal.log_probs is None
            assert proposal.tokens[row, node] == expected

    def test_valid_drafts_are_a_prefix(self, rounds):
        """In a tree: no draft without its parent, parents first, and paths no longer than `k`."""
        count = self.drafter.lengths[-1]
        for _, _, proposal, _, _ in rounds:
            assert proposal.tokens.shape == proposal.valid.shape == proposal.parents.shape == (4, count)
            assert (proposal.parents < np.arange(count)).all() and (proposal.parents >= -1).all()
            above = np.take_along_axis(proposal.valid, np.maximum(proposal.parents, 0), axis=1)
            assert (~proposal.valid | above | (proposal.parents < 0)).all()
            longest = max(len(path_to(row, node)) for row in proposal.parents for node in range(count))
            assert proposal.depth == self.drafter.max_drafts >= longest

    def test_it_is_a_static_shape_and_a_pytree(self):
        leaves, tree = jax.tree.flatten(self.drafter)
        copy = jax.tree.unflatten(tree, leaves)
        assert (copy.max_drafts, copy.lengths) == (self.drafter.max_drafts, self.drafter.lengths)
        assert copy.tree and len(copy.lengths) == 1

    def test_its_model_is_traced_twice_however_many_levels_there_are(self, monkeypatch):
        """One pass over the end of the text, and one for all levels alike."""
        state, calls = _init(self.target, self.drafter, jax.random.split(jax.random.key(5), 4), jnp.arange(4)), []
        for kind in (tiny.HistoryModel, jaxspec.LanguageModel):
            call = kind.__call__
            counted = lambda self, *args, call=call, **options: (calls.append(1), call(self, *args, **options))[1]
            monkeypatch.setattr(kind, "__call__", counted)
        jax.eval_shape(lambda state: self.drafter.propose(*_before_round(self.target, state)), state)
        assert 0 < len(calls) <= self.most_traces


def _before_round(target, state):
    """What a drafter is asked to propose with."""
    context = Context(target, state.cache, state.tokens, state.length, state.done, state.sampling)
    return TreeVerifier().rng(state.keys, state.length), state.drafter_state, context


@jax.jit
def _init(target, drafter, keys, rows):
    return jaxspec.init(
        target,
        drafter,
        jnp.asarray(PROMPTS % target.vocab_size)[rows],
        prompt_length=jnp.asarray(LENGTHS)[rows],
        max_new_tokens=200,
        sampling=jaxspec.Sampling(),
        key=keys,
    )


@jax.jit
def _probe(target, drafter, state):
    rng, drafter_state, context = _before_round(target, state)
    slots = state.tokens.shape[1]
    prefilled = prefill(target, state.tokens, state.length, target.init_cache(4, slots), drafter.capture)
    running, _ = drafter.propose(rng, drafter_state, context)
    fresh, _ = drafter.propose(rng, drafter.init(context, prefilled, slots), context)
    return running, fresh, *jaxspec.step(target, drafter, TreeVerifier(), state)


def propose(drafter, *, rows=4, sampling=jaxspec.Sampling(), verifier=TreeVerifier()):
    """What a drafter with one model proposes after the prompts."""
    vocab = drafter.model.vocab_size
    tokens = jnp.asarray(np.pad(PROMPTS % vocab, ((0, 0), (0, 8))), jnp.int32)[:rows]
    length = jnp.asarray(LENGTHS, jnp.int32)[:rows]
    cache = drafter.model.init_cache(rows, tokens.shape[1])
    cache = cache.append(drafter.model(tokens[:, :7], cache).entries)
    context = Context(drafter.model, cache, tokens, length, jnp.zeros(rows, jnp.bool_), sampling)
    rng = verifier.rng(jax.random.split(jax.random.key(2), 4)[:rows], length)
    if not drafter.deterministic:
        rng = rng.shared(drafter.max_drafts + 1, vocab)
    return jax.jit(lambda *args: drafter.propose(*args)[0])(rng, cache, context)

"""Defines the contract of tree drafters: that of chain drafters, node by node."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.sampling import Sampling
from jaxspec.core.state import Context
from jaxspec.decoding.generate import generate
from jaxspec.drafters.draft_model import DraftState
from jaxspec.nn.language_model import LanguageModel
from jaxspec.testing.contracts.drafter import LENGTHS, MOST, NEVER, PROMPTS, DrafterContract, before_round, init
from jaxspec.testing.history_models import HistoryModel
from jaxspec.verifiers.table import VERIFIERS

COUPLED, VERIFIER, SAMPLING = VERIFIERS["coupled"](), VERIFIERS["tree"](), Sampling()


def path_to(parents, node):
    """Returns the nodes from the text down to `node`."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def siblings_before(parents, node):
    """Returns earlier children of the node's parent, in order."""
    return [other for other in range(node) if parents[other] == parents[node]]


class TreeDrafterContract(DrafterContract):
    """Checks a drafter of trees; a test class sets `drafter`, and defines each node in `expected`.

    Example:
      >>> model = jaxspec.testing.history_model(1, vocab=11)
      >>> class TestTree(jaxspec.testing.TreeDrafterContract):
      ...     drafter = jaxspec.TreeDrafter(model, jaxspec.Tree.balanced((2, 2)), jaxspec.drafters.WithReplacement())
      ...
      ...     def expected(self, text, before, node):
      ...         return jaxspec.testing.history_probs(model, text)

    The inherited tests of greedy decoding run with `CoupledVerifier`, which takes trees.
    """

    verifier = VERIFIER
    most_traces = 2

    def expected(self, text: list[int], before: list[int], node: int) -> Any:
        """Returns the expected node after `text`, given its earlier siblings `before`.

        Returns:
          The distribution, `[v]` floats; for a deterministic drafter the token; `None` if there should be no node.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define the expected drafts; write expected(text, before, node) in plain "
            "Python: for node `node` after text, whose earlier siblings are the tokens `before`, it "
            "returns the distribution, [v] floats that sum to 1, for a deterministic drafter the token, or None "
            "if there should be no such node"
        )

    def generate(self, drafter, *, max_new_tokens: Any = MOST, stop_tokens=NEVER, prompt=PROMPTS, **options):
        return generate(
            self.target,
            drafter,
            jnp.asarray(prompt % self.target.vocab_size),
            prompt_length=jnp.asarray(LENGTHS),
            max_new_tokens=jnp.asarray(np.broadcast_to(max_new_tokens, 4)),
            stop_tokens=stop_tokens,
            verifier=COUPLED,
            **options,
        )

    def test_coupled_output_is_that_of_plain_sampling(self):
        options = {"sampling": Sampling(temperature=0.8), "key": jax.random.key(3)}
        found, plain = self.generate(self.drafter, **options), self.generate(None, **options)
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        assert found.stats.accepted.sum() > 0

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text, parents = tokens[row, : length[row]].tolist(), proposal.parents[row].tolist()
                drafts = proposal.tokens[row].tolist()
                for node in range(len(drafts)):
                    if parents[node] >= 0 and not proposal.valid[row, parents[node]]:
                        continue  # it is invalid too, and there is no text before it
                    path = [drafts[i] for i in path_to(parents, parents[node])]
                    before = [drafts[i] for i in siblings_before(parents, node)]
                    self.check_node(proposal, row, node, self.expected(text + path, before, node))

    def check_node(self, proposal, row, node, expected):
        drafted, place = int(proposal.tokens[row, node]), f"node {node} of row {row}"
        if not proposal.valid[row, node]:
            assert expected is None, f"{place}: the drafter proposes no node, expected returned {expected}"
        elif np.ndim(expected) == 1:
            np.testing.assert_allclose(np.exp(proposal.log_probs[row, node]), expected, atol=3e-5, err_msg=place)
            assert expected[drafted] > 0, f"{place}: the drafter drew {drafted}, which has probability 0"
        else:
            assert proposal.log_probs is None, f"{place}: expected returned {expected}, the proposal has log_probs"
            assert drafted == expected, f"{place}: the drafter proposes {drafted}, expected returned {expected}"

    def test_valid_drafts_are_a_prefix(self, rounds):
        """Finds parents before children, no draft without its parent, and no path longer than `k`."""
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
        """Counts one pass over the end of the text, and one shared by all levels."""
        state, calls = init(self.target, self.drafter, jnp.arange(4)), []
        for kind in (HistoryModel, LanguageModel):
            call = kind.__call__

            def counted(self, *args, call=call, **options):
                return (calls.append(1), call(self, *args, **options))[1]

            monkeypatch.setattr(kind, "__call__", counted)
        jax.eval_shape(lambda state: self.drafter.propose(*before_round(self.target, self.verifier, state)), state)
        assert 0 < len(calls) <= self.most_traces


def propose(drafter, *, rows=4, sampling=SAMPLING, verifier=VERIFIER):
    """Returns the proposal of a drafter with one model after the prompts."""
    vocab = drafter.model.vocab_size
    tokens = jnp.asarray(np.pad(PROMPTS % vocab, ((0, 0), (0, 8))), jnp.int32)[:rows]
    length = jnp.asarray(LENGTHS, jnp.int32)[:rows]
    cache = drafter.model.init_cache(rows, tokens.shape[1])
    cache = cache.append(drafter.model(tokens[:, :7], cache).entries)
    context = Context(drafter.model, cache, tokens, length, jnp.zeros(rows, jnp.bool_), sampling)
    rng = verifier.rng(jax.random.split(jax.random.key(2), 4)[:rows], length)
    if not drafter.deterministic:
        rng = rng.shared(drafter.max_drafts + 1, vocab)
    return jax.jit(lambda *args: drafter.propose(*args)[0].dense())(rng, DraftState(cache), context)

"""`MedusaDrafter`: its guesses against the heads' arithmetic, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.prefill import prefill
from jaxspec.core.state import Context
from jaxspec.core.tree import Tree
from jaxspec.draft_length.early_stop import EntropyStop
from jaxspec.sharding.params import shard_models
from jaxspec.testing.contracts.drafter import LENGTHS, PROMPTS, DrafterContract
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract, path_to
from jaxspec.testing.random_models import wide_transformer
from jaxspec.testing.statistics import same_distribution
from tests._fixtures import published_trees, tiny
from tests._fixtures.contract_tests import DRAFTS_TEST, VARIANT_TESTS
from tests._fixtures.draft_lengths import PausesContract, Turns
from tests._fixtures.medusa import conditioned_head, paper_head, probs
from tests._fixtures.meshes import make_mesh

TARGET = tiny.transformer(3)
HEAD = conditioned_head(TARGET, ids=[0, 2, 3, 5, 6, 8, 9])
PAPERS = paper_head(TARGET, 2, blocks=2, ids=[1, 2, 4, 5, 7, 9, 10])


class MedusaContract(DrafterContract):
    target = TARGET
    head = HEAD

    def guess(self, text, offset):
        """Head `offset`'s distribution: of the text without the drafts, which it does not see."""
        found = probs(TARGET, self.head, text[: len(text) - offset])
        return None if found is None else found[offset]

    def check_guess(self, proposal, row, i, guess):
        if guess is None:
            assert not proposal.valid[row, i]
        else:
            super().check_guess(proposal, row, i, guess)

    def test_only_a_text_of_one_token_is_without_guesses(self, rounds):
        for _, length, proposal, _, _ in rounds:
            np.testing.assert_array_equal(proposal.valid[:, 0], length > 1)


class TestMedusa(MedusaContract):
    quick_tests = (*VARIANT_TESTS, "test_only_a_text_of_one_token_is_without_guesses")
    drafter = jaxspec.MedusaDrafter(HEAD)


class TestPapersHeads(MedusaContract):
    """Their top-1 guesses, under a policy that draws: they are certain."""

    quick_tests = VARIANT_TESTS
    head = PAPERS
    drafter = jaxspec.MedusaDrafter(PAPERS, k=2, sampling=jaxspec.Greedy())

    def guess(self, text, offset):
        found = super().guess(text, offset)
        return None if found is None else int(np.argmax(found))


@pytest.mark.slow
class TestPauses(PausesContract, MedusaContract):
    """In rounds without drafts, the newest state is still kept."""

    drafter = jaxspec.MedusaDrafter(HEAD, k=Turns())
    test_only_a_text_of_one_token_is_without_guesses = None


class TestTree(TreeDrafterContract):
    quick_tests = DRAFTS_TEST
    target = TARGET
    topology = Tree((-1, 0, 0, 2, -1, 4, -1))
    drafter = jaxspec.MedusaDrafter(HEAD, topology=topology)
    sees_every_acceptance = False

    def test_its_model_is_traced_twice_however_many_levels_there_are(self):
        """Its own: there is no pass for each level, nor a model."""
        assert self.drafter.lengths == (7,) and self.drafter.max_drafts == 3

    def expected(self, text, before, node):
        depth = len(path_to(self.topology.parents, node)) - 1
        found = probs(TARGET, HEAD, text[: len(text) - depth])
        return None if found is None else int(np.argsort(-found[depth])[len(before)])


def test_the_joint_distribution_of_a_chain():
    """Drafts are drawn from the product of the heads' distributions: none looks at another, nor shares its noise."""
    rows, text = 40_000, [4, 1, 7]
    head = conditioned_head(TARGET, ids=[0, 3, 5, 8])
    drafter = jaxspec.MedusaDrafter(head)
    tokens, length = jnp.asarray([text + [0] * 5], jnp.int32), jnp.asarray([3], jnp.int32)
    context = Context(TARGET, TARGET.init_cache(1, 8), tokens, length, jnp.zeros(1, jnp.bool_), jaxspec.Sampling())
    state = drafter.init(context, prefill(TARGET, tokens, length, context.cache, drafter.capture), 8)

    @jax.jit
    def draft(key):
        one = lambda key: drafter.propose(jaxspec.TokenVerifier().rng(key[None], length), state, context)[0].tokens
        return jax.vmap(one)(jax.random.split(key, rows))

    each = probs(TARGET, head, text)[:, [0, 3, 5, 8]]
    places = np.searchsorted([0, 3, 5, 8], draft(jax.random.key(1))[:, 0])
    same_distribution(
        np.einsum("a,b,c->abc", *each).reshape(-1), np.bincount(places @ [16, 4, 1], minlength=64), tests=4
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "shape"), [(None, (1, 2)), (Tree((-1, 0, 0, -1, 3)), (2, 1))], ids=["chain", "tree"]
)
def test_the_same_tokens_on_a_mesh(topology, shape):
    """Two devices split the blocks, the output rows and the vocabulary; or the rows of the batch."""
    target, mesh = wide_transformer(0), make_mesh(*shape)
    drafter = jaxspec.MedusaDrafter(conditioned_head(target, ids=[*range(0, 64, 2)], sharpness=8.0), topology=topology)
    options = {"prompt_length": jnp.asarray(LENGTHS), "key": jax.random.key(5), "sampling": jaxspec.Sampling(0.8)}
    run = lambda *models: jaxspec.generate(*models, jnp.asarray(PROMPTS), max_new_tokens=12, **options)
    target_there, drafter_there = shard_models((target, drafter), mesh)
    for kernel in (
        drafter_there.head.params["shared_0"]["down"]["kernel"],
        drafter_there.head.params["output"]["head"],
    ):
        assert kernel.sharding.is_fully_replicated == (shape == (2, 1))
    found, expected = run(target_there, drafter_there), run(target, drafter)
    assert expected.stats.accepted.sum() > 0
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.stats.accepted, expected.stats.accepted)


@pytest.mark.slow
def test_the_published_tree_changes_no_greedy_token():
    """63 guesses of four heads, the same below every parent."""
    drafter = jaxspec.MedusaDrafter(paper_head(TARGET, heads=4), topology=Tree.from_paths(published_trees.MEDUSA))
    assert (drafter.lengths, drafter.max_drafts) == ((63,), 4)
    run = lambda drafter: jaxspec.generate(TARGET, drafter, jnp.asarray(PROMPTS), max_new_tokens=8)
    np.testing.assert_array_equal(run(drafter).tokens, run(None).tokens)


def generate(target, drafter, **options):
    return jaxspec.generate(target, drafter, jnp.asarray(PROMPTS), max_new_tokens=2, **options)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: jaxspec.MedusaDrafter("head"), TypeError, "MedusaDrafter needs a MedusaHead, got str"),
        (lambda: jaxspec.MedusaDrafter(HEAD, topology=(-1, 0)), TypeError, r"topology must be a Tree, got \(-1, 0\)"),
        (lambda: jaxspec.MedusaDrafter(HEAD, k=-1), ValueError, "k must be at least 0, got -1"),
        (lambda: jaxspec.MedusaDrafter(HEAD, 2, Tree((-1,))), ValueError, "as deep as its topology, here 1, .* k=2"),
        (
            lambda: jaxspec.MedusaDrafter(HEAD, topology=Tree((-1,)), sampling=jaxspec.Sampling()),
            ValueError,
            "takes the most probable tokens, got .*; leave k and sampling out",
        ),
        (lambda: generate(TARGET, jaxspec.MedusaDrafter(7, k=2)), TypeError, "needs a MedusaHead, got int"),
        (lambda: generate(TARGET, jaxspec.MedusaDrafter(HEAD, k=4)), ValueError, "there are 3 heads .* got k=4"),
        (
            lambda: generate(TARGET, jaxspec.MedusaDrafter(HEAD, topology=Tree.chains(1, 4))),
            ValueError,
            "got k=4; pass a smaller k, or a shallower tree",
        ),
        (
            lambda: generate(TARGET, jaxspec.MedusaDrafter(HEAD, topology=Tree.chains(8, 1))),
            ValueError,
            "a node has 8 children, the heads guess 7 tokens",
        ),
        (
            lambda: generate(DrafterContract.target, jaxspec.MedusaDrafter(HEAD)),
            TypeError,
            "MedusaDrafter reads hidden states and the embedding of a LanguageModel",
        ),
        (
            lambda: generate(tiny.transformer(layers=2), jaxspec.MedusaDrafter(HEAD)),
            ValueError,
            r"heads that read \(1,\) for a target of 2 layers",
        ),
        (
            lambda: generate(wide_transformer(vocab=tiny.VOCAB), jaxspec.MedusaDrafter(HEAD)),
            ValueError,
            "width 16, got a target of width 32",
        ),
        (
            lambda: generate(tiny.transformer(vocab=12), jaxspec.MedusaDrafter(paper_head(TARGET))),
            ValueError,
            "guess 11 tokens and have no draft vocabulary, the target has 12 tokens",
        ),
        (
            lambda: generate(TARGET, jaxspec.MedusaDrafter(HEAD, sampling=jaxspec.Sampling(jnp.ones(4)))),
            ValueError,
            "a drafter's own sampling must have one value for all rows",
        ),
        (lambda: generate(TARGET, jaxspec.MedusaDrafter(HEAD, k=EntropyStop(4))), ValueError, "got k=4"),
    ],
)
def test_bad_input(make, error, text):
    with pytest.raises(error, match=text):
        make()

"""The joint distribution of the first tokens through the whole of `generate`, against exact products.

One ragged batch for every pair of drafter and verifier: two texts of different lengths, two temperatures, top-p,
and greedy rows between them. Monte Carlo with fixed seeds; `statistics.FALSE_ALARM` over all tests
here states how often a correct program would fail under new ones.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib.parallel import ParallelDrafter
from jaxspec.contrib.union import UnionDrafter
from jaxspec.core.tree import Tree
from jaxspec.drafters.children import TopAndSampled, WithoutReplacement, WithReplacement
from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.testing.history_models import HistoryModel, history_model, history_probs, nearby
from jaxspec.testing.statistics import FALSE_ALARM, independence, same_distribution
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.k_seq import KSequence
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.traversal import TraversalVerifier
from jaxspec.verifiers.tree import TreeVerifier
from jaxspec.verifiers.univer import UniVerVerifier
from tests._fixtures import tiny, token_maps

VOCAB, ROWS, LENGTH, TESTS = 4, 40_000, 3, 100
TARGET = history_model(2, vocab=VOCAB)
DRAFT, OTHER = nearby(TARGET, 0.7), nearby(TARGET, 1.0, seed=4)
MODEL = jaxspec.ModelDrafter(DRAFT, k=2)
NGRAM = jaxspec.NGramDrafter(k=2, min_ngram=1)
SUFFIX = jaxspec.SuffixDrafter(k=2)
# Token 2 is none of this draft's, which reads it as two.
SHARED = {0: 2, 1: 0, 3: 1}
# In the longer text there is room for one draft, and then for none.
SHORT_DRAFT = tiny.bounded(DRAFT, 6)
UNLIKE = jaxspec.CrossVocabularyDrafter(
    token_maps.nearby(TARGET, SHARED, 5), token_maps.made([[2], [0], [3, 4], [1]], SHARED, [], 5), k=2
)
CHAINS = Tree.chains(3, 2)
SAMPLED = TreeDrafter(DRAFT, Tree((-1, -1, 0, 0, 1)), draw=WithoutReplacement())
TOP_TOKENS = TreeDrafter(DRAFT, Tree((-1, -1, 0, 0, 1)))
PAIRS = {
    "model, token": (MODEL, TokenVerifier()),
    "model, block": (MODEL, BlockVerifier()),
    "model, coupled": (MODEL, CoupledVerifier()),
    "model of six tokens, block": (jaxspec.ModelDrafter(SHORT_DRAFT, k=2), BlockVerifier()),
    "tree of six tokens, recursive": (
        TreeDrafter(SHORT_DRAFT, Tree((-1, -1, 0, 0, 1)), draw=WithoutReplacement()),
        MultiDraftVerifier(),
    ),
    "model, traversal": (MODEL, TraversalVerifier()),
    "greedy model, default": (jaxspec.ModelDrafter(DRAFT, k=2, sampling=jaxspec.Greedy()), None),
    "model of another vocabulary, default": (UNLIKE, None),
    "model of another vocabulary, coupled": (UNLIKE, CoupledVerifier()),
    "ngram, token": (NGRAM, TokenVerifier()),
    "ngram, default": (NGRAM, None),
    "ngram, tree": (NGRAM, TreeVerifier()),
    "suffix, default": (SUFFIX, None),
    "suffix or model, block": (jaxspec.HybridDrafter(SUFFIX, MODEL), BlockVerifier()),
    "cascade, token": (jaxspec.contrib.CascadeDrafter(DRAFT, SUFFIX, k=2), TokenVerifier()),
    "three drafts, K-SEQ": (
        TreeDrafter(DRAFT, CHAINS, draw=WithReplacement()),
        MultiDraftVerifier(KSequence()),
    ),
    "three drafts, recursive": (TreeDrafter(DRAFT, CHAINS, draw=WithReplacement()), MultiDraftVerifier()),
    "three different drafts, recursive": (TreeDrafter(DRAFT, CHAINS, draw=WithoutReplacement()), MultiDraftVerifier()),
    "three different drafts, traversal": (TreeDrafter(DRAFT, CHAINS, draw=WithoutReplacement()), TraversalVerifier()),
    "drawn tree, recursive": (SAMPLED, None),
    "drawn tree, traversal": (SAMPLED, TraversalVerifier()),
    "top and sampled tree, UniVer": (
        TreeDrafter(DRAFT, Tree((-1, -1, 0, 0, 1)), draw=TopAndSampled()),
        UniVerVerifier(),
    ),
    "drawn tree, tree": (SAMPLED, TreeVerifier()),
    "drawn tree, coupled": (SAMPLED, CoupledVerifier()),
    "top-k tree, default": (TOP_TOKENS, None),
    "top-k tree, multi-draft": (TOP_TOKENS, MultiDraftVerifier()),
    "dynamic tree, default": (DynamicTreeDrafter(DRAFT, top_k=2, depth=2, nodes=4), None),
    "two models, recursive": (UnionDrafter((MODEL, jaxspec.ModelDrafter(OTHER, k=1))), MultiDraftVerifier()),
    "model and ngram, recursive": (UnionDrafter((MODEL, NGRAM)), MultiDraftVerifier()),
    "two models in parallel, default": (ParallelDrafter((DRAFT, OTHER), k=2), None),
    "two replicas in parallel, K-SEQ": (ParallelDrafter(DRAFT, k=2, num_drafts=2), MultiDraftVerifier(KSequence())),
}

# The wiring is one for all of them, and is checked with the first; the others' arithmetic is integrated in their tests.
QUICK = ("model, token",)

# Of every ten rows four are of the first kind, four of the second, two greedy.
LONG, SHORT = (1, 0, 2, 1, 0), (2, 0)
KIND = np.arange(ROWS) % 5
FIRST, SECOND, COLD = KIND < 2, (KIND == 2) | (KIND == 3), KIND == 4
TEXTS = np.where(FIRST[:, None], LONG, (*SHORT, 0, 0, 0))
LENGTHS = np.where(FIRST, len(LONG), len(SHORT))
POLICY = jaxspec.Sampling(
    temperature=jnp.asarray(np.select([FIRST, SECOND], [0.7, 1.3], 0.0), jnp.float32),
    top_p=jnp.asarray(np.where(SECOND, 0.8, 1.0), jnp.float32),
)


def probs_of(target, text, temperature, top_p) -> np.ndarray:
    """The warped distribution after a text, by sorting."""
    probs = history_probs(target, text, temperature)
    order = np.argsort(-probs)
    kept = order[: int(np.searchsorted(np.cumsum(probs[order]), top_p)) + 1]
    return np.where(np.isin(np.arange(VOCAB), kept), probs, 0) / probs[kept].sum()


def joint_probs(target, text=LONG, temperature=0.7, top_p=1.0) -> np.ndarray:
    probs = [
        np.prod([probs_of(target, text + new[:i], temperature, top_p)[new[i]] for i in range(LENGTH)])
        for new in itertools.product(range(VOCAB), repeat=LENGTH)
    ]
    return np.array(probs)


def counts(tokens) -> np.ndarray:
    return np.bincount(np.asarray(tokens) @ VOCAB ** np.arange(LENGTH - 1, -1, -1), minlength=VOCAB**LENGTH)


def generate(target, drafter, verifier, *, sampling=POLICY, texts=TEXTS, lengths=LENGTHS, **options):
    return jaxspec.generate(
        target,
        drafter,
        jnp.asarray(texts, jnp.int32),
        prompt_length=jnp.asarray(lengths, jnp.int32),
        key=jax.random.key(0),
        sampling=sampling,
        verifier=verifier,
        max_new_tokens=LENGTH,
        **options,
    )


@pytest.mark.parametrize(
    "pair", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in PAIRS]
)
def test_the_joint_distribution_of_three_tokens(pair):
    result = generate(TARGET, *PAIRS[pair])
    tokens = np.asarray(result.tokens)
    same_distribution(joint_probs(TARGET), counts(tokens[FIRST]), tests=TESTS)
    same_distribution(joint_probs(TARGET, SHORT, 1.3, 0.8), counts(tokens[SECOND]), tests=TESTS)
    text = list(SHORT)
    for place in range(LENGTH):
        text.append(int(np.argmax(history_probs(TARGET, text))))
        assert (tokens[COLD, place] == text[-1]).all()
    assert 0 < result.stats.acceptance_rate < 1
    assert result.lossless and result.measured_total_variation == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "verifier",
    [
        TokenVerifier(),
        pytest.param(BlockVerifier(), marks=pytest.mark.slow),
        pytest.param(TraversalVerifier(), marks=pytest.mark.slow),
    ],
)
def test_a_draft_whose_support_the_target_excludes(verifier):
    """Nothing is ever accepted, and the distribution is right."""
    low, high = jnp.array([0, 0, -jnp.inf, -jnp.inf]), jnp.array([-jnp.inf, -jnp.inf, 0, 0])
    target = HistoryModel(TARGET.a + low[None], TARGET.b)
    draft = jaxspec.ModelDrafter(HistoryModel(TARGET.a + high[None], TARGET.b), k=2)
    long = {"texts": TEXTS[FIRST], "lengths": LENGTHS[FIRST], "sampling": jaxspec.Sampling(0.7)}
    result = generate(target, draft, verifier, **long)
    assert result.stats.accepted.sum() == 0
    same_distribution(joint_probs(target), counts(result.tokens), tests=TESTS)


def flat(seed):
    """A model with one distribution for every token."""
    a = history_model(seed, vocab=VOCAB).a[:1]
    return HistoryModel(jnp.broadcast_to(a, (VOCAB, VOCAB)), jnp.zeros((VOCAB, VOCAB)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [
        pytest.param(jaxspec.ModelDrafter(flat(1), k=2), TokenVerifier(), id="token"),
        pytest.param(jaxspec.ModelDrafter(flat(1), k=3), BlockVerifier(), id="block", marks=pytest.mark.slow),
        pytest.param(
            TreeDrafter(flat(1), Tree.chains(2, 2), draw=WithReplacement()),
            MultiDraftVerifier(KSequence()),
            id="K-SEQ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            TreeDrafter(flat(1), Tree.chains(2, 2), draw=WithoutReplacement()),
            TraversalVerifier(),
            id="traversal",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            TreeDrafter(flat(1), Tree((-1, -1, 0, 1, 1)), draw=TopAndSampled()),
            UniVerVerifier(),
            id="UniVer",
            marks=pytest.mark.slow,
        ),
        pytest.param(TreeDrafter(flat(1), Tree.chains(2, 2)), TreeVerifier(), id="tree", marks=pytest.mark.slow),
    ],
)
def test_rounds_and_rows_are_independent(drafter, verifier):
    """Where every token has one distribution, the firsts of two rounds, and of two rows, are independent."""
    target, prompt = flat(0), jnp.zeros((ROWS, 1), jnp.int32)
    start = jax.jit(
        lambda: jaxspec.init(
            target, drafter, prompt, key=jax.random.key(3), sampling=jaxspec.Sampling(), max_new_tokens=16
        )
    )
    state, first = jaxspec.jit_step(donate=True)(target, drafter, verifier, start())
    _, second = jaxspec.jit_step(donate=True)(target, drafter, verifier, state)
    ones, twos = np.asarray(first.tokens[:, 0]), np.asarray(second.tokens[:, 0])
    last = np.asarray(first.tokens)[np.arange(ROWS), np.asarray(first.count) - 1]
    for a, b in ((ones, twos), (last, twos), (ones[:-1], ones[1:]), (ones * 4 + np.asarray(first.accepted), twos)):
        table = np.zeros((a.max() + 1, b.max() + 1))
        np.add.at(table, (a, b), 1)
        assert independence(table) > FALSE_ALARM / TESTS
    probs = history_probs(target, [0])
    same_distribution(probs, np.bincount(twos, minlength=VOCAB), tests=TESTS)

"""Drafters whose context is shorter than the text: they draft up to its end, row by row, and then rest."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib import CascadeDrafter, ParallelDrafter, UnionDrafter
from jaxspec.core.tree import Tree
from jaxspec.drafters.children import WithoutReplacement
from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter
from jaxspec.testing.history_models import HistoryModel, history_model, nearby
from tests._fixtures import dflash, eagle, medusa, tandem, tiny, token_maps

CONTEXT, MOST, K = 24, 40, 3
# The longest prompt has outgrown the context before the first round.
LENGTHS = np.array([7, 1, 26, 20, 2])
PROMPTS = np.random.default_rng(0).integers(0, tiny.VOCAB, size=(5, 26))
KEYS = jax.random.split(jax.random.key(2), 5)

HISTORY = history_model(0, vocab=tiny.VOCAB, scale=2.0)
DRAFT = nearby(HISTORY, 0.3)
NETWORK = eagle.TARGET
NGRAM = jaxspec.NGramDrafter(k=K, min_ngram=1)


def with_context(network, context):
    """The same model or head, but for its context; of learned positions those that fit."""
    if isinstance(network, HistoryModel):
        return tiny.bounded(network, context)
    module = network.module
    module = dataclasses.replace(module, config=dataclasses.replace(module.config, context_length=context))
    params = network.params
    if "position_embedding" in params:
        params = params | {"position_embedding": params["position_embedding"][:context]}
    return dataclasses.replace(network, module=module, params=params)


LEARNED = tiny.transformer(4, ropes=(None,))
SAME = {i: i for i in range(tiny.VOCAB)}
TREE = Tree((-1, -1, 0, 0, 1, 2))
# Drafters by their network; those of a history model draft for another, all others for a transformer.
CHAINS = {
    "model": (DRAFT, lambda draft: jaxspec.ModelDrafter(draft, k=K)),
    "learned positions": (LEARNED, lambda draft: jaxspec.ModelDrafter(draft, k=K)),
    "eagle": (eagle.HEAD, lambda head: jaxspec.EagleDrafter(head, k=K)),
    "tandem": (tandem.random_head(NETWORK, seed=3), lambda head: jaxspec.contrib.TandemDrafter(head, k=K)),
    "dflash": (dflash.random_head(NETWORK), lambda head: jaxspec.DFlashDrafter(head, k=K)),
    "cascade": (DRAFT, lambda draft: CascadeDrafter(draft, NGRAM, k=K)),
}
TREES = {
    "several drafts": (DRAFT, lambda draft: jaxspec.ModelDrafter(draft, k=K, num_drafts=2)),
    "parallel": (DRAFT, lambda draft: ParallelDrafter(draft, k=K, num_drafts=2)),
    "tree": (DRAFT, lambda draft: jaxspec.drafters.TreeDrafter(draft, TREE, WithoutReplacement())),
    "tree of a head": (eagle.HEAD, lambda head: jaxspec.drafters.TreeDrafter(head, TREE)),
    "dynamic tree": (DRAFT, lambda draft: DynamicTreeDrafter(draft, top_k=2, depth=K, nodes=6)),
}
QUICK = ("model",)
EACH = [
    pytest.param(*pair, id=name, marks=[] if name in QUICK else [pytest.mark.slow])
    for name, pair in (CHAINS | TREES).items()
]


def target_of(network):
    return HISTORY if isinstance(network, HistoryModel) else NETWORK


def generate(target, drafter, policy=jaxspec.Greedy(), **options):
    return jaxspec.generate(
        target,
        drafter,
        jnp.asarray(PROMPTS),
        prompt_length=jnp.asarray(LENGTHS),
        key=KEYS,
        sampling=policy,
        max_new_tokens=MOST,
        **options,
    )


def rounds(target, drafter, verifier=None, policy=jaxspec.Greedy()):
    """Each round's lengths before it, and what it reports."""
    options = {"prompt_length": jnp.asarray(LENGTHS), "key": KEYS, "sampling": policy, "max_new_tokens": MOST}
    init = jax.jit(lambda target, drafter: jaxspec.init(target, drafter, jnp.asarray(PROMPTS), **options))
    state, found = init(target, drafter), []
    while not state.done.all():
        before = np.asarray(state.length)
        state, info = jaxspec.jit_step()(target, drafter, verifier, state)
        found.append((before, info))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("network", "make"), EACH)
def test_it_drafts_as_far_as_its_context_and_then_rests(network, make):
    """Greedy text is that of plain decoding; up to the context each row's drafts are those of a longer context."""
    target, drafter = target_of(network), make(with_context(network, CONTEXT))
    assert drafter.info.context_length == CONTEXT
    plain = generate(target, None)
    long = rounds(target, make(with_context(network, 512) if network is not LEARNED else network))
    alike, ends = np.full(5, True), LENGTHS + MOST
    texts = [PROMPTS[row, :length].tolist() for row, length in enumerate(LENGTHS)]
    found = rounds(target, drafter)
    for number, (before, info) in enumerate(found):
        room = np.clip(CONTEXT - before, 0, K)
        assert (np.asarray(info.drafted) <= room).all()
        # A one-token text is too short for some heads.
        assert ((np.asarray(info.drafted) > 0) | (room == 0) | (before == 1)).all()
        if number < len(long):
            alike &= long[number][0] == before
            expected = np.minimum(long[number][1].accepted, room)
            np.testing.assert_array_equal(np.asarray(info.accepted)[alike], expected[alike])
        for row, text in enumerate(texts):
            text.extend(np.asarray(info.tokens)[row, : info.count[row]].tolist())
    assert [len(text) for text in texts] == ends.tolist()
    for row, text in enumerate(texts):
        assert text[LENGTHS[row] :] == plain.tokens[row].tolist()
    assert sum(int(info.accepted.sum()) for _, info in found) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("network", "make"), EACH)
def test_coupled_text_is_that_of_plain_decoding(network, make):
    target, drafter = target_of(network), make(with_context(network, CONTEXT))
    policy = jaxspec.Sampling(temperature=0.8)
    plain = generate(target, None, policy)
    found = generate(target, drafter, policy, verifier=jaxspec.CoupledVerifier())
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    drafted = np.asarray(found.stats.drafted)
    assert drafted[2] == 0 and (drafted[[0, 1, 3, 4]] > 0).all()


@pytest.mark.slow
def test_the_other_half_of_a_hybrid_goes_on():
    """The model is always right, so nothing is copied before its context ends; after it, any match is."""
    hybrid = jaxspec.HybridDrafter(NGRAM, jaxspec.ModelDrafter(tiny.bounded(HISTORY, CONTEXT), k=K))
    assert hybrid.info.context_length is None
    alone = rounds(HISTORY, NGRAM)
    guesses = {(row, int(n)): int(info.drafted[row]) for before, info in alone for row, n in enumerate(before)}
    texts, compared = [PROMPTS[row, :length].tolist() for row, length in enumerate(LENGTHS)], 0
    for before, info in rounds(HISTORY, hybrid):
        for row, n in enumerate(before.tolist()):
            texts[row].extend(info.tokens[row, : info.count[row]].tolist())
            if n < CONTEXT:
                assert info.accepted[row] == info.drafted[row]
            elif (row, n) in guesses:
                assert info.drafted[row] == guesses[row, n]
                compared += guesses[row, n]
    assert [text[n:] for text, n in zip(texts, LENGTHS, strict=True)] == generate(HISTORY, None).tokens.tolist()
    assert compared > 0


@pytest.mark.slow
def test_drafters_of_a_union_rest_one_by_one():
    union = UnionDrafter((jaxspec.ModelDrafter(tiny.bounded(DRAFT, CONTEXT), k=K), jaxspec.ModelDrafter(DRAFT, k=1)))
    assert union.info.context_length is None
    plain = generate(HISTORY, None)
    texts = rounds(HISTORY, union)
    for before, info in texts:
        drafted, going = np.asarray(info.drafted), np.asarray(info.count) > 0
        assert (drafted[going] == np.where(before < CONTEXT, np.clip(CONTEXT - before, 1, K), 1)[going]).all()
    np.testing.assert_array_equal(generate(HISTORY, union).tokens, plain.tokens)


@pytest.mark.slow
def test_a_draft_of_another_vocabulary_counts_its_own_tokens():
    token_map = token_maps.made([[i] for i in SAME], SAME, [], tiny.VOCAB)
    drafter = jaxspec.CrossVocabularyDrafter(tiny.bounded(DRAFT, CONTEXT), token_map, k=K)
    plain = generate(HISTORY, None)
    np.testing.assert_array_equal(generate(HISTORY, drafter).tokens, plain.tokens)
    for before, info in rounds(HISTORY, drafter):
        drafted = np.asarray(info.drafted)
        assert ((drafted > 0) == ((before < CONTEXT - K) & (np.asarray(info.count) > 0))).all()


@pytest.mark.slow
def test_heads_without_a_cache_draft_on():
    drafter = jaxspec.MedusaDrafter(medusa.paper_head(NETWORK))
    assert drafter.info.context_length is None
    drafted = generate(NETWORK, drafter).stats
    assert (drafted.drafted >= drafted.rounds).all()


@pytest.mark.slow
def test_an_adaptive_length_decodes_plainly_where_all_rows_rest():
    """Rounds without drafts are as wide as those of plain decoding."""
    length = jaxspec.Adaptive((1.0, 1.1, 1.2), (0, 2, 4))
    drafter = jaxspec.ModelDrafter(tiny.bounded(DRAFT, CONTEXT), k=length)
    plain = generate(HISTORY, None)
    np.testing.assert_array_equal(generate(HISTORY, drafter).tokens, plain.tokens)
    found = rounds(HISTORY, drafter)
    assert any(info.drafted.any() for _, info in found)
    assert not any(info.drafted[before >= CONTEXT].any() for before, info in found)


@pytest.mark.slow
def test_a_fixed_length_decodes_plainly_where_all_rows_rest():
    """The target's passes are then of one token, and not of a round of drafts that nobody made."""
    widths = []

    class Watched(HistoryModel):
        def __call__(self, tokens, cache, **options):
            jax.debug.callback(lambda: widths.append(tokens.shape[1]))
            return super().__call__(tokens, cache, **options)

    target = jax.tree_util.register_dataclass(Watched, ["a", "b"], [])(HISTORY.a, HISTORY.b)
    drafter = jaxspec.ModelDrafter(tiny.bounded(DRAFT, CONTEXT), k=K)
    jax.block_until_ready(jaxspec.generate(target, drafter, jnp.asarray(PROMPTS[2:3, : CONTEXT - 1]), max_new_tokens=4))
    jax.effects_barrier()
    assert K + 1 in widths and widths[-1] == 1, widths


def test_its_cache_has_slots_for_its_context_and_a_round():
    """The length of the text does not matter."""
    drafter = jaxspec.ModelDrafter(tiny.bounded(DRAFT, CONTEXT), k=K)
    init = lambda drafter: jaxspec.init(HISTORY, drafter, jnp.asarray(PROMPTS), max_new_tokens=4000)
    state = jax.eval_shape(init, drafter)
    assert state.cache.tokens.shape[1] > 4000
    assert state.drafter_state.draft_state.cache.tokens.shape[1] == CONTEXT + K + 1

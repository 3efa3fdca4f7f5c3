"""Training a DFlash head: its blocks are those that the drafter drafts from, and training helps."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.heads.dflash.head import DFlashDrafter
from jaxspec.heads.dflash.training import Blocks, DFlash2Recipe, DFlashRecipe, DSparkRecipe, choose_anchors
from jaxspec.testing.contracts.head import HeadContract
from jaxspec.training.dataset import Batch
from jaxspec.training.evaluation import Prompts, evaluate
from jaxspec.training.loop import train
from jaxspec.training.recipe import Features
from jaxspec.training.state import TrainingOptions, target_features
from tests._fixtures import tiny
from tests._fixtures.bigram import Conversations
from tests._fixtures.dflash import Reference, random_head
from tests._fixtures.dflash_blocks import TARGET as OTHER
from tests._fixtures.dflash_corrections import CORRECTED, Formula

TARGET = tiny.transformer(3, layers=3)
COUNTS = np.arange(tiny.VOCAB, 0, -1)
SIZE, WIDTH = 3, 16
FREE = {"block_size": SIZE, "draft_vocabulary": None, "mlp_width": 24, "anchor_every": 1}
SMALL = FREE | {"markov_rank": 4}


def recipe(**options):
    return DFlashRecipe.of(
        TARGET,
        **{"block_size": SIZE, "draft_vocabulary": 8, "mlp_width": 24, "markov_rank": 4, "anchor_every": 1} | options,
    )


def texts(lengths=(11, 7, 0)):
    rng = np.random.default_rng(0)
    tokens, index = rng.integers(0, tiny.VOCAB, (len(lengths), WIDTH)), np.arange(WIDTH)[None]
    length = np.asarray(lengths)
    answer = (index >= 4) & (index < length[:, None])
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32), jnp.asarray(answer))


def shaken(one, seed=0, scale=0.3):
    """Parameters that no symmetry hides: those that begin as zero have an effect too."""
    rng = np.random.default_rng(seed)
    leaf = lambda x: x + jnp.asarray(rng.normal(size=x.shape) * scale, x.dtype) if x.dtype == jnp.float32 else x
    return jax.tree.map(leaf, one.init(jax.random.key(0), TARGET, COUNTS))


def test_the_loss_is_dspark_s_over_the_blocks_that_are_drafted():
    """Every place before an answer's token is an anchor here: the means are over all of them, by NumPy."""
    one, batch = recipe(), texts()
    params = shaken(one)
    features = jax.jit(target_features, static_argnums=0)(one, TARGET, batch)
    loss, reported = jax.jit(one.loss)(params, TARGET, batch, features, jax.random.key(1))
    head = one.head(params, TARGET)
    numpy, hidden = Reference.of(head), [np.asarray(x, np.float64) for x in features.hidden]
    embedding = np.asarray(TARGET.params["embedding"], np.float64)
    after = jax.jit(lambda row: jax.nn.softmax(TARGET(row[None], TARGET.init_cache(1, WIDTH)).logits[0]))
    terms, weights, lengths = [], [], []
    kept, first = [[] for _ in range(SIZE)], []
    for row, tokens in enumerate(np.asarray(batch.tokens)):
        all_probs, answered = np.asarray(after(batch.tokens[row]), np.float64), np.asarray(batch.answer[row])
        for anchor in range(1, WIDTH - 1):
            if not answered[anchor + 1]:
                continue
            known = numpy.known([x[row, :anchor] for x in hidden], embedding[tokens[anchor]], anchor)
            reach, length = 1.0, 1.0
            for i in range(SIZE):
                at = anchor + 1 + i  # the place of the drafted token
                if at >= WIDTH or not answered[at] or any(token not in numpy.ids for token in tokens[anchor + 1 : at]):
                    break
                probs = all_probs[at - 1][numpy.ids]
                guess, label = numpy.probs(known[i], tokens[at - 1]), probs / probs.sum()
                agreement, trust = np.minimum(guess, label).sum(), numpy.trust(known[i], tokens[at - 1])
                divergence = (label * np.log(label / guess)).sum()
                surprise = -agreement * np.log(trust) - (1 - agreement) * np.log(1 - trust)
                terms.append(0.1 * divergence + 0.9 * np.abs(guess - label).sum() + surprise)
                weights.append(np.exp(-i / 4))
                kept[i].append(agreement)
                if i == 0:
                    first.append(np.minimum(guess, probs).sum())
                reach *= agreement
                length += reach
            lengths.append(length)
    np.testing.assert_allclose(loss, np.average(terms, weights=weights), rtol=1e-4)
    np.testing.assert_allclose(reported["count"], np.sum(weights), rtol=1e-5)
    np.testing.assert_allclose(reported["acceptance"], np.mean(first), rtol=1e-4)
    for i in range(1, SIZE):
        np.testing.assert_allclose(reported[f"acceptance_{i + 1}"], np.mean(kept[i]), rtol=1e-4)
    np.testing.assert_allclose(reported["length"], np.mean(lengths), rtol=1e-4)


def test_anchors_are_places_before_answers_and_random():
    batch = texts((12, 9, 6, 2, 16))
    choose = jax.jit(choose_anchors, static_argnums=1)
    fits = lambda row: [i for i in range(1, WIDTH - 1) if i + 1 < batch.length[row] and bool(batch.answer[row, i + 1])]
    anchors, chosen = choose(batch, WIDTH, jax.random.key(0))
    for row in range(5):
        assert sorted(np.asarray(anchors[row])[np.asarray(chosen[row])].tolist()) == fits(row)
    found = set()
    for seed in range(30):
        anchors, chosen = choose(batch, 2, jax.random.key(seed))
        assert chosen[0].all() and not chosen[3].any() and anchors[0, 0] != anchors[0, 1]
        found |= set(anchors[0].tolist())
    assert sorted(found) == fits(0)


@pytest.mark.slow
def test_what_is_not_trained():
    """The head's rows are the target's; a draft vocabulary is the most frequent tokens."""
    one = recipe(draft_vocabulary=5)
    params = one.init(jax.random.key(0), TARGET, COUNTS)
    assert params["ids"].tolist() == [0, 1, 2, 3, 4]
    assert "head" not in params["network"]
    head = one.head(params, TARGET)
    np.testing.assert_array_equal(head.params["head"], TARGET.head[:5])
    whole = recipe(draft_vocabulary=None, markov_rank=0, confidence=False)
    assert whole.head(whole.init(jax.random.key(0), TARGET, COUNTS), TARGET).config.confidence == "none"


@functools.cache
def blank_step():
    whole = recipe(draft_vocabulary=None, markov_rank=0, confidence=False)
    params = whole.init(jax.random.key(0), TARGET, COUNTS)
    batch = texts((0, 0, 3))
    features = jax.jit(target_features, static_argnums=0)(whole, TARGET, batch)

    def loss(network):
        return whole.loss(params | {"network": network}, TARGET, batch, features, jax.random.key(0))

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params["network"])


@pytest.mark.slow
def test_a_batch_without_answers_teaches_nothing():
    (loss, reported), slopes = blank_step()
    assert loss == 0 and reported["count"] == 0
    assert all((slope == 0).all() for slope in jax.tree.leaves(slopes))


OPTIONS = TrainingOptions(steps=150, batch_tokens=512, learning_rate=5e-3, log_every=50)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "dflash"
    aside = [Conversations().batches(batch_tokens=512, seed=1, devices=1).batch(0)]
    return train(recipe(draft_vocabulary=None), TARGET, Conversations(), OPTIONS, out, aside=aside, quiet=True)


class TestTrained(HeadContract):
    target, recipe = TARGET, recipe(draft_vocabulary=None)
    least_acceptance = 0.8

    def drafter(self, head):
        return DFlashDrafter(head)


@pytest.mark.slow
def test_what_is_saved_knows_how_sure_it_is(trained):
    """Its scale is measured on held-out data."""
    assert jaxspec.load_head(trained.folder, TARGET).confidence_scale is not None


# The target's ten most probable tokens of eleven have 0.977 of its probability, on average; four have 0.627. No head
# that drafts among so few is accepted more often.
VARIANTS = {
    "gated": DSparkRecipe.of(TARGET, markov_head="gated", **SMALL),
    "rnn": DSparkRecipe.of(TARGET, markov_head="rnn", **SMALL),
    "selector": DFlash2Recipe.of(TARGET, selector_rank=4, selector_top_k=10, conv_group_size=4, **FREE),
}


SLOWER = ("gated", "rnn", "rnn in place", "Domino, shifted", "selector from the anchor")


@pytest.mark.parametrize("name", ["selector", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOWER)])
def test_drafts_are_corrected_after_the_text_s_own_tokens(name):
    """Each place of a block by the formula of the correction, given the tokens that stand in the text."""
    head = random_head(OTHER, layers=1, seed=4, scale=0.6, **CORRECTED[name])
    formula, batch = Formula(head), texts((11, 7))
    anchors = jnp.asarray([[5, 3], [4, 3]], jnp.int32)

    @jax.jit
    def log_probs(head):
        *hidden, last = OTHER(batch.tokens, OTHER.init_cache(2, 1), capture=(*head.capture, 1)).hidden
        features = Features(tuple(hidden), last)
        return Blocks.of(head, OTHER, batch, features, anchors, anchors > 0).draft_log_probs

    found = np.exp(log_probs(head))
    for row, index in np.ndindex(2, 2):
        tokens, anchor = batch.tokens[row].tolist(), int(anchors[row, index])
        expected = formula.logits(tokens[: anchor + 1], tokens[anchor + 1 : anchor + head.config.num_drafts])
        for place, logits in enumerate(expected[: head.config.num_drafts]):
            probs = np.exp(logits - np.logaddexp.reduce(logits))
            np.testing.assert_allclose(found[row, index, place], probs, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_an_untrained_correction_changes_nothing(name):
    one = VARIANTS[name]
    params = one.init(jax.random.key(0), TARGET, COUNTS)
    batch = texts()
    features = jax.jit(target_features, static_argnums=0)(one, TARGET, batch)
    anchors, chosen = choose_anchors(batch, 4, jax.random.key(1))

    @jax.jit
    def log_probs(params):
        blocks = Blocks.of(one.head(params, TARGET), TARGET, batch, features, anchors, chosen)
        return blocks.draft_log_probs, blocks.base_log_probs

    @jax.jit
    def slopes(network):
        loss = lambda network: one.loss(params | {"network": network}, TARGET, batch, features, jax.random.key(0))[0]
        return jax.grad(loss)(network)

    draft, base = log_probs(params)
    among = jax.nn.log_softmax(jnp.where(draft > -jnp.inf, base, -jnp.inf))
    np.testing.assert_allclose(jnp.exp(draft), jnp.exp(among), atol=1e-5)
    found = slopes(params["network"])
    assert all(jnp.isfinite(slope).all() for slope in jax.tree.leaves(found))
    assert any((slope != 0).any() for slope in jax.tree.leaves(found["correction"]))


class VariantContract(HeadContract):
    target, least_acceptance = TARGET, 0.8

    @pytest.fixture(scope="class")
    def trained(self, tmp_path_factory):
        out = tmp_path_factory.mktemp("run") / "variant"
        return train(self.recipe, TARGET, Conversations(), OPTIONS, out, quiet=True)

    def drafter(self, head):
        return DFlashDrafter(head)


@pytest.mark.slow
class TestGated(VariantContract):
    recipe = VARIANTS["gated"]


@pytest.mark.slow
class TestRecurrent(VariantContract):
    recipe = VARIANTS["rnn"]


@pytest.mark.slow
class TestDFlash2(VariantContract):
    recipe = VARIANTS["selector"]

    def test_more_tokens_a_round_than_dflash_after_the_same_updates(self, trained, tmp_path):
        """DFlash's drafts are independent: it has no Markov head."""
        plain = recipe(draft_vocabulary=None, markov_rank=0)
        theirs = train(plain, TARGET, Conversations(), OPTIONS, tmp_path / "plain", quiet=True)
        rows = np.random.default_rng(0).integers(0, tiny.VOCAB, (16, 4))
        prompts = Prompts(tuple(map(tuple, rows.tolist())), max_new_tokens=100, batch=16)
        less = evaluate(TARGET, plain.drafter(theirs.params, TARGET, COUNTS), prompts)
        more = evaluate(TARGET, self.recipe.drafter(trained.params, TARGET, COUNTS), prompts)
        ratios = {name: more[name].mean_acceptance_length / less[name].mean_acceptance_length for name in more}
        assert min(ratios.values()) > 1.05, ratios


class Died(Exception):
    pass


class Dying(Conversations):
    """Conversations whose fourth batch cannot be read."""

    def batches(self, **options):
        batches = super().batches(**options)

        def batch(step):
            if step == 3:
                raise Died
            return batches.batch(step)

        return SimpleNamespace(batch=batch)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_that_died_goes_on_to_the_same_bits(name, tmp_path):
    options = TrainingOptions(steps=4, batch_tokens=128, checkpoint_every=2)
    run = lambda data, folder: train(VARIANTS[name], TARGET, data, options, tmp_path / folder, quiet=True)  # noqa: E731
    with pytest.raises(Died):
        run(Dying(), "died")
    found, expected = run(Conversations(), "died"), run(Conversations(), "whole")
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def test_dflash2_learns_candidates_and_their_order():
    """The cross-entropy of both, by NumPy; a token that is not drafted is missing in one of them."""
    rng = np.random.default_rng(0)
    target, base, scores = rng.normal(size=(3, 1, 2, SIZE, tiny.VOCAB))
    scores[base < 0] = -np.inf
    log = lambda x: jnp.asarray(x - np.logaddexp.reduce(x, axis=-1, keepdims=True), jnp.float32)  # noqa: E731
    target, base, draft = map(log, (target, base, scores))
    blocks = Blocks(draft, base, target, None, jnp.ones((1, 2, SIZE), bool), jnp.zeros((1, 2, SIZE, 16)))
    chosen = np.isfinite(draft)
    terms = np.where(chosen, target - np.where(chosen, draft, 0), 0) + target - base
    np.testing.assert_allclose(VARIANTS["selector"].divergence(blocks), (np.exp(target) * terms).sum(-1), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DSparkRecipe.of(TARGET, markov_head="lstm"),
            "markov_head must be one of vanilla, gated, rnn, got 'lstm'",
        ),
        (lambda: DSparkRecipe.of(TARGET, markov_head="rnn", markov_rank=0), "a rnn Markov head needs a markov_rank"),
        (lambda: DFlash2Recipe.of(TARGET, selector_top_k=0), "selector_top_k must be at least 1, got 0"),
        (lambda: DFlash2Recipe.of(TARGET, conv_group_size=5).parts(TARGET), "must divide the width 16, got 5"),
    ],
)
def test_recipes_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()

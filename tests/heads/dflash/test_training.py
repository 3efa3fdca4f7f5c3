"""Training a DFlash head: its blocks are those that the drafter drafts from, and training helps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.heads.dflash.head import DFlashDrafter
from jaxspec.heads.dflash.training import DFlashRecipe, choose_anchors
from jaxspec.testing.contracts.head import HeadContract
from jaxspec.training.dataset import Batch
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions, target_features
from tests._fixtures import tiny
from tests._fixtures.bigram import Conversations
from tests._fixtures.dflash import Reference

TARGET = tiny.transformer(3, layers=3)
COUNTS = np.arange(tiny.VOCAB, 0, -1)
SIZE, WIDTH = 3, 16


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


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "dflash"
    options = TrainingOptions(steps=150, batch_tokens=512, learning_rate=5e-3, log_every=50)
    aside = [Conversations().batches(batch_tokens=512, seed=1, devices=1).batch(0)]
    return train(recipe(draft_vocabulary=None), TARGET, Conversations(), options, out, aside=aside, quiet=True)


class TestTrained(HeadContract):
    target, recipe = TARGET, recipe(draft_vocabulary=None)
    least_acceptance = 0.8

    def drafter(self, head):
        return DFlashDrafter(head)


@pytest.mark.slow
def test_what_is_saved_knows_how_sure_it_is(trained):
    """Its scale is measured on held-out data."""
    assert jaxspec.load_head(trained.folder, TARGET).confidence_scale is not None

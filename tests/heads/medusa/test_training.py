"""Training Medusa's heads: the loss is of the distributions that the drafter drafts from, and training helps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.tree import best_tree
from jaxspec.heads.medusa.training import Chosen, MedusaRecipe, measure_accuracies
from jaxspec.training.dataset import Batch
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions, target_features
from tests._fixtures import tiny
from tests._fixtures.medusa import probs
from tests._fixtures.written import Written

TARGET = tiny.transformer(3)
COUNTS = np.arange(tiny.VOCAB, 0, -1)
WIDTH, LENGTHS = 16, (14, 9, 6)


def recipe(**options):
    return MedusaRecipe(**({"num_heads": 3, "draft_vocabulary": None, "mlp_width": 32} | options))


def texts():
    """Three rows; the first has two answers, the last one that is nearly as long as there are heads."""
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, (3, WIDTH)), jnp.int32)
    answer = np.zeros((3, WIDTH), bool)
    answer[0, 1:6], answer[0, 8:14], answer[1, 4:9], answer[2, 4:6] = True, True, True, True
    return Batch(tokens, jnp.asarray(LENGTHS, jnp.int32), jnp.asarray(answer))


def answers(batch, heads):
    """Each head's guesses of the batch: the row, the place they begin at, and the head."""
    for row, place in np.argwhere(np.asarray(batch.answer)).tolist():
        for head in range(heads):
            if place >= 2 and np.asarray(batch.answer)[row, place : place + head + 1].sum() == head + 1:
                yield row, place, head


def loss_of(one, params, batch):
    features = jax.jit(target_features, static_argnums=0)(one, TARGET, batch)
    return jax.jit(one.loss)(params, TARGET, batch, features, jax.random.key(1))


def random_params(one):
    """Parameters of blocks that do something, unlike those at the start."""
    params = one.init(jax.random.key(0), TARGET, COUNTS)
    rng = np.random.default_rng(4)
    noisy = lambda x: x + jnp.asarray(rng.normal(size=x.shape) * 0.2, x.dtype)
    return params | {"blocks": jax.tree.map(noisy, params["blocks"])}


def test_the_loss_is_of_the_distributions_that_are_drafted_from():
    one, batch = recipe(draft_vocabulary=6), texts()
    params = random_params(one)
    loss, reported = loss_of(one, params, batch)
    head, ids = one.head(params, TARGET), np.asarray(params["ids"])
    after = jax.jit(lambda tokens: TARGET(tokens, TARGET.init_cache(3, WIDTH)).logits)
    target_probs = np.asarray(jax.nn.softmax(after(batch.tokens)), np.float64)
    divergence, accepted = [[], [], []], [[], [], []]
    for row, place, i in answers(batch, 3):
        text = batch.tokens[row].tolist()
        wanted, guess = target_probs[row, place + i - 1][ids], probs(TARGET, head, text[:place])[i][ids]
        wanted, known = wanted / wanted.sum(), text[place + i] in ids
        accepted[i].append(np.minimum(wanted, guess).sum() if known else 0.0)
        if known:
            divergence[i].append(np.sum(wanted * np.log(wanted / guess)))
    weights = 0.8 ** np.arange(3)
    means = np.array([np.mean(values) for values in divergence])
    np.testing.assert_allclose(loss, np.sum(weights * means) / weights.sum(), rtol=1e-4)
    for i, name in enumerate(("acceptance", "acceptance_2", "acceptance_3")):
        np.testing.assert_allclose(reported[name], np.mean(accepted[i]), rtol=1e-4)
    assert reported["count"] == len(accepted[0])


@pytest.mark.slow
def test_heads_begin_as_the_targets_own():
    """Each says of the token it guesses what the target said of the one before."""
    one, batch = recipe(), texts()
    head = one.head(one.init(jax.random.key(0), TARGET, COUNTS), TARGET)
    text = batch.tokens[0, :5].tolist()
    np.testing.assert_allclose(probs(TARGET, head, text), [tiny.transformer_probs(TARGET, text[:-1])] * 3, atol=1e-5)


@pytest.mark.slow
def test_a_draft_vocabulary_is_of_the_most_frequent_tokens():
    assert recipe(draft_vocabulary=4).init(jax.random.key(0), TARGET, COUNTS)["ids"].tolist() == [0, 1, 2, 3]


@functools.partial(jax.jit, static_argnames="count")
def choose(batch, count, key):
    chosen = Chosen.of(batch, count, 3, key)
    return chosen.places, chosen.there, chosen.tokens, chosen.before


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 40])
def test_where_guesses_begin(count):
    """At consecutive places of a row's answer, for any key; at all of them if they fit."""
    batch = texts()
    found = set()
    for seed in range(12):
        chosen = Chosen(3, *choose(batch, count, jax.random.key(seed)))
        for row in range(3):
            usual = [place for place in np.flatnonzero(batch.answer[row]) if place >= 2]
            places = np.asarray(chosen.places[row])[np.asarray(chosen.there[row])].tolist()
            start = usual.index(places[0])
            assert places == usual[start : start + count + 2] and len(places) == min(count + 2, len(usual))
            np.testing.assert_array_equal(chosen.tokens[row, : len(places)], batch.tokens[row, np.array(places)])
            np.testing.assert_array_equal(chosen.before[row, : len(places)], batch.tokens[row, np.array(places) - 1])
            found.add((row, start))
    assert {row for row, _ in found} == {0, 1, 2}
    assert (len(found) > 3) == (count < 40)


@pytest.mark.slow
def test_accuracies_are_shares_of_the_texts_tokens():
    one, batch = recipe(draft_vocabulary=9), texts()
    params = random_params(one)
    head = one.head(params, TARGET)
    found = measure_accuracies(head, TARGET, [batch, batch], ranks=4)
    hits, counts = np.zeros((3, 4)), np.zeros(3)
    for row, place, i in answers(batch, 3):
        text = batch.tokens[row].tolist()
        each = probs(TARGET, head, text[:place])[i]
        rank = int(np.sum(each > each[text[place + i]])) if text[place + i] in np.asarray(params["ids"]) else 4
        counts[i] += 1
        if rank < 4:
            hits[i, rank] += 1
    np.testing.assert_allclose(found, hits / counts[:, None], rtol=1e-6)
    with pytest.raises(ValueError, match="no answer in the batches"):
        measure_accuracies(head, TARGET, [dataclasses.replace(batch, answer=batch.answer & False)])


# Its guesses cannot be made by repeating a token.
WRITER = tiny.transformer(0, sharpness=14.0, tied_head=False)
PROMPTS = np.random.default_rng(3).integers(0, tiny.VOCAB, (32, 3))


@functools.partial(jax.jit, static_argnames="count")
def write(drafter, count):
    """Texts of the target at temperature 1."""
    options = {"sampling": jaxspec.Sampling(), "key": jax.random.key(2), "max_new_tokens": count}
    return jaxspec.generate(WRITER, drafter, jnp.asarray(PROMPTS), **options)


def length_of(drafter):
    """The mean acceptance length, of some 600 rounds or more."""
    stats = write(drafter, 41).stats
    return float(jnp.sum(stats.emitted) / jnp.sum(stats.rounds))


def some_of(data):
    return [jax.tree.map(jnp.asarray, data.batch(step)) for step in range(4)]


@pytest.fixture(scope="module")
def data():
    return Written(np.concatenate([PROMPTS, write(None, 41).tokens[:, :41]], axis=1).astype(np.int32))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "medusa"
    options = TrainingOptions(steps=150, batch_tokens=24 * 44, learning_rate=1e-2, log_every=50)
    return train(recipe(), WRITER, data, options, out, aside=some_of(data), quiet=True)


@pytest.mark.slow
def test_training_helps_in_the_real_loop(trained):
    """Far more guesses are kept than before, and as many as the loss reports."""
    measure = lambda params: length_of(recipe().drafter(params, WRITER, COUNTS))
    before, after = measure(recipe().init(jax.random.key(0), WRITER, COUNTS)), measure(trained.params)
    assert after > before + 0.5
    assert abs(after - trained.curve[-1]["length"]) < 0.15
    assert trained.curve[-1]["acceptance"] > trained.curve[0]["acceptance"] + 0.05


@pytest.mark.slow
def test_what_is_saved_is_what_was_trained(trained):
    read, head = jaxspec.load_head(trained.folder, WRITER), recipe().head(trained.params, WRITER)
    assert jaxspec.text.names.drafter_of(read).max_drafts == 3
    np.testing.assert_array_equal(read.ids, head.ids)
    same = functools.partial(np.testing.assert_allclose, rtol=2**-8)  # bfloat16
    jax.tree.map(same, read.params, head.params)


@pytest.mark.slow
def test_what_is_saved_knows_how_good_its_guesses_are(trained, data):
    """They are measured on held-out data, which is enough for the best tree."""
    read = jaxspec.load_head(trained.folder, WRITER)
    np.testing.assert_allclose(read.accuracies, measure_accuracies(read, WRITER, some_of(data)))
    assert best_tree(read.accuracies, 8).depth > 1


@pytest.mark.slow
def test_answers_too_short_to_measure_on_are_told_of(trained, data):
    """The drafter exists all the same."""
    options = TrainingOptions(steps=150, batch_tokens=24 * 44, learning_rate=1e-2, log_every=50)
    short = Written(data.texts[:, :4])
    with pytest.warns(UserWarning, match="has no measurements of its guesses"):
        again = train(recipe(), WRITER, data, options, trained.folder.parent, aside=some_of(short), quiet=True)
    assert jaxspec.load_head(again.folder, WRITER).num_heads == 3


@pytest.mark.slow
def test_a_tree_of_what_was_measured(trained, data):
    """Its first level keeps as many tokens as were measured to be right."""
    head = recipe().head(trained.params, WRITER)
    accuracies = measure_accuracies(head, WRITER, [data.batch(step) for step in range(4)], ranks=11)
    np.testing.assert_allclose(np.sum(accuracies, axis=1), 1, atol=1e-6)
    tree = best_tree(accuracies, 8)
    assert tree.depth > 1 and tree.widths[0] > 1
    accepted = np.asarray(write(jaxspec.MedusaDrafter(head, topology=tree), 41).stats.acceptance_by_position)
    np.testing.assert_allclose(accepted[0], sum(accuracies[0][: tree.widths[0]]), atol=0.06)

"""Training an early exit: the loss is of the distribution that the drafter drafts from, and training helps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib.exit_head.training import EarlyExitRecipe
from jaxspec.training.dataset import Batch
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions, target_features
from tests._fixtures import tiny
from tests._fixtures.early_exit import exit_probs
from tests._fixtures.written import Written

LAYERS, EXIT = 3, 1
TARGET = tiny.transformer(1, layers=LAYERS, sharpness=14.0, tied_head=False)
COUNTS = np.arange(tiny.VOCAB, 0, -1)


def recipe(**options):
    return EarlyExitRecipe.of(TARGET, **({"draft_vocabulary": None} | options))


def random_params(one):
    params = one.init(jax.random.key(0), TARGET, COUNTS)
    rng = np.random.default_rng(4)
    noisy = lambda x: x + jnp.asarray(rng.normal(size=x.shape) * 0.2, x.dtype)
    return params | {"exit": jax.tree.map(noisy, params["exit"])}


@pytest.mark.slow
@pytest.mark.parametrize("places", [40, 1])
def test_the_loss_is_of_the_distributions_that_are_drafted_from(places):
    """Tests all places before answers, or any one of each row."""
    one = recipe(draft_vocabulary=6, places=places)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 12)), jnp.int32)
    answer = np.zeros((2, 12), bool)
    answer[0, 3:9], answer[1, 5:7] = True, True
    batch, params = Batch(tokens, jnp.asarray([12, 7], jnp.int32), jnp.asarray(answer)), random_params(one)
    features = jax.jit(target_features, static_argnums=0)(one, TARGET, batch)
    loss, reported = jax.jit(one.loss)(params, TARGET, batch, features, jax.random.key(1))
    head, ids = one.head(params, TARGET), np.asarray(params["ids"])
    divergence, accepted = {0: [], 1: []}, {0: [], 1: []}
    for row, place in np.argwhere(answer).tolist():
        text = tokens[row, :place].tolist()
        wanted, guess = tiny.transformer_probs(TARGET, text), exit_probs(TARGET, head, text)
        divergence[row].append(np.sum(wanted[ids] * np.log(wanted[ids] / guess[ids])))
        accepted[row].append(np.minimum(wanted, guess).sum())
    if places == 40:
        np.testing.assert_allclose(loss, np.mean(divergence[0] + divergence[1]), rtol=1e-4)
        np.testing.assert_allclose(reported["acceptance"], np.mean(accepted[0] + accepted[1]), rtol=1e-4)
        assert reported["count"] == 8
    else:
        possible = [(a + b) / 2 for a in divergence[0] for b in divergence[1]]
        assert np.min(np.abs(np.array(possible) - float(loss))) < 1e-4 and reported["count"] == 2


@pytest.mark.slow
def test_it_begins_as_the_exit_without_training():
    one = recipe()
    head = one.head(one.init(jax.random.key(0), TARGET, COUNTS), TARGET)
    plain, partial = TARGET.begin(jnp.asarray([[3, 1, 4, 1, 5]], jnp.int32), TARGET.init_cache(1, 8), EXIT)
    np.testing.assert_allclose(head(TARGET, partial.hidden), plain, atol=1e-5)


@pytest.mark.slow
def test_options():
    assert recipe().capture == (1,) and recipe(layers=2).capture == (2,)
    assert EarlyExitRecipe.of(tiny.transformer(layers=9)).layers == 2
    with pytest.raises(ValueError, match="got layers=3 of a target of 3"):
        recipe(layers=3)
    assert recipe(draft_vocabulary=4).init(jax.random.key(0), TARGET, COUNTS)["ids"].tolist() == [0, 1, 2, 3]


PROMPTS = np.random.default_rng(3).integers(0, tiny.VOCAB, (32, 3))


@functools.partial(jax.jit, static_argnames="count")
def write(drafter, count):
    """Texts of the target at temperature 1."""
    options = {"sampling": jaxspec.Sampling(), "key": jax.random.key(2), "max_new_tokens": count}
    return jaxspec.generate(TARGET, drafter, jnp.asarray(PROMPTS), **options)


def rate(drafter):
    return float(write(drafter, 41).stats.acceptance_rate)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    data = Written(np.concatenate([PROMPTS, write(None, 41).tokens[:, :41]], axis=1).astype(np.int32))
    options = TrainingOptions(steps=120, batch_tokens=24 * 44, learning_rate=1e-2, log_every=40)
    return train(recipe(k=1), TARGET, data, options, tmp_path_factory.mktemp("run") / "exit", quiet=True)


@pytest.mark.slow
def test_training_helps_in_the_real_loop(trained):
    """Far more drafts are accepted than from the untrained exit, and as many as the loss reports."""
    drafter = recipe(k=1).drafter(trained.params, TARGET, COUNTS)
    after, before = rate(drafter), rate(jaxspec.EarlyExitDrafter(EXIT, k=1))
    assert after > before + 0.1
    assert abs(after - trained.curve[-1]["acceptance"]) < 0.05


@pytest.mark.slow
def test_what_is_saved_is_what_was_trained(trained):
    read, head = jaxspec.load_head(trained.folder, TARGET), recipe().head(trained.params, TARGET)
    same = functools.partial(np.testing.assert_allclose, rtol=2**-8, atol=1e-8)  # bfloat16
    jax.tree.map(same, read.params, head.params)
    assert jaxspec.load_drafter(trained.folder, TARGET).layers == EXIT

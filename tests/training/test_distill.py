"""Distillation: the loss against plain arithmetic over the whole vocabulary, and the model that comes out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints.huggingface import write_model
from jaxspec.checkpoints.load import load
from jaxspec.checkpoints.params import abstract_model, abstract_params
from jaxspec.sharding.params import shard
from jaxspec.testing.history_models import history_model, history_probs
from jaxspec.testing.random_models import wide_transformer
from jaxspec.training import losses
from jaxspec.training.answers import rewritten
from jaxspec.training.dataset import Batch
from jaxspec.training.distill import Candidates, DistillRecipe
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions, gradients, join, split, target_features
from tests._fixtures import text_models, tiny
from tests._fixtures.bigram import Conversations

VOCAB = 24
SMALL = DistillRecipe(width=12, layers=1, heads=2, mlp_width=16, frequent=None)
COUNTS = np.arange(VOCAB, dtype=np.int64)


@pytest.fixture(scope="module")
def target():
    return tiny.transformer(0, layers=2, vocab=VOCAB)


@pytest.fixture(scope="module")
def params(target):
    return jax.tree.map(jnp.asarray, SMALL.init(jax.random.key(1), target, COUNTS))


@pytest.fixture(scope="module")
def batch():
    return jax.tree.map(jnp.asarray, Conversations(vocab=VOCAB).batches(batch_tokens=64, seed=3, devices=1).batch(0))


def _log_probs(model, tokens):
    return jax.nn.log_softmax(model(tokens, model.init_cache(tokens.shape[0], 0)).logits)


@pytest.mark.slow
@pytest.mark.parametrize("hard", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_the_loss_is_a_mean_over_answer_tokens(target, params, batch, hard):
    recipe = dataclasses.replace(SMALL, divergence=losses.TotalVariation(), hard=hard)
    trained, constants = split(params)

    @functools.partial(jax.value_and_grad, has_aux=True)
    def expected(trained):
        draft = recipe.model(join(trained, constants), target)
        wanted, guessed = (_log_probs(model, batch.tokens)[:, :-1] for model in (target, draft))
        common = jnp.sum(jnp.exp(jnp.minimum(wanted, guessed)), axis=-1)
        written = jnp.take_along_axis(guessed, batch.tokens[:, 1:, None], axis=-1)[..., 0]
        there = batch.answer[:, 1:]
        mean = lambda x: jnp.sum(jnp.where(there, x, 0.0)) / jnp.sum(there, dtype=jnp.float32)
        return mean((1 - hard) * (1 - common) - hard * written), mean(common)

    sums = gradients(recipe, params, target, batch, jax.random.key(0))
    (loss, common), slopes = jax.jit(expected)(trained)
    assert int(sums.weight) == np.sum(batch.answer)
    close = lambda x, y: np.testing.assert_allclose(x / sums.weight, y, rtol=1e-4, atol=1e-6)
    close(sums.reported["loss"], loss)
    close(sums.reported["acceptance"], common)
    jax.tree.map(close, sums.gradients, slopes)


@pytest.mark.slow
def test_candidates_that_are_everything_are_the_whole_vocabulary(target, params, batch):
    few = dataclasses.replace(SMALL, frequent=16, drawn=8)
    others = {
        name: jnp.asarray(value)
        for name, value in few.init(jax.random.key(1), target, COUNTS).items()
        if name in ("frequent", "rest")
    }
    np.testing.assert_array_equal(np.sort(others["frequent"]), np.arange(8, VOCAB))
    loss = jax.jit(
        lambda recipe, params: recipe.loss(
            params, target, batch, target_features(recipe, target, batch), jax.random.key(2)
        ),
        static_argnums=0,
    )
    (value, reported), (expected, whole) = loss(few, params | others), loss(SMALL, params)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(reported["acceptance"], whole["acceptance"], rtol=1e-5)


def test_the_rest_is_estimated(target, params):
    """For any sampled tokens, exponentials of logits sum on average to those of the whole vocabulary."""
    others = {"frequent": jnp.arange(16, dtype=jnp.int32), "rest": jnp.arange(16, VOCAB, dtype=jnp.int32)}
    states = 4 * target.head[:5]

    @jax.vmap
    def mass(key):
        candidates = Candidates.draw(params | others, target, 3, key)
        return jnp.exp(candidates.log_probs(states, candidates.of_target)[1])

    drawn = np.asarray(jax.jit(mass)(jax.random.split(jax.random.key(0), 4000)))
    whole = np.exp(np.asarray(states) @ np.asarray(target.head).T).sum(-1)
    assert np.all(np.abs(drawn.mean(0) - whole) < 5 * drawn.std(0) / np.sqrt(4000))
    assert np.all(drawn.std(0) > 0.005 * whole)  # draws do differ


@pytest.mark.slow
def test_acceptance_rises_with_drawn_candidates(tmp_path):
    target = tiny.transformer(0, vocab=VOCAB, sharpness=12.0)
    recipe = DistillRecipe(width=16, layers=1, heads=2, mlp_width=24, frequent=16, drawn=4)
    options = TrainingOptions(steps=60, batch_tokens=256, learning_rate=2e-2, log_every=1)
    trained = train(recipe, target, Conversations(vocab=VOCAB), options, tmp_path / "run", quiet=True)
    first, last = trained.curve[0], trained.curve[-1]
    assert first["acceptance"] < 0.65 and last["acceptance"] > 0.77 and last["loss"] < first["loss"] / 2
    # The saved model is the trained one, but for rounding to bfloat16, and an ordinary model.
    saved, kept = load(tmp_path / "run" / "head"), recipe.model(trained.params, target)
    assert saved.module.config == kept.module.config
    tokens = jnp.arange(VOCAB, dtype=jnp.int32).reshape(2, -1)
    first, second = (np.exp(jax.jit(_log_probs)(model, tokens)) for model in (saved, kept))
    np.testing.assert_allclose(first, second, atol=0.05)


@pytest.mark.slow
def test_in_bfloat16_and_on_four_devices(batch):
    """Both are the same arithmetic; parameters stay float32 and whole."""
    target = wide_transformer(vocab=VOCAB)
    recipe = dataclasses.replace(SMALL, frequent=16, drawn=4)
    params = jax.tree.map(jnp.asarray, recipe.init(jax.random.key(1), target, COUNTS))
    alone = gradients(recipe, params, target, batch, jax.random.key(0))
    split_up = shard(target, jax.make_mesh((4, 2), ("data", "model")))
    place = split_up.placement
    spread = gradients(recipe, place.replicate(params), split_up, place.rows(batch), jax.random.key(0))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), spread, alone)
    halved = lambda path, x: x if path[-1].key == "scale" else x.astype(jnp.bfloat16)
    module = dataclasses.replace(target.module, dtype=jnp.bfloat16)
    half = jaxspec.LanguageModel(module, jax.tree.map_with_path(halved, target.params))
    rough = gradients(recipe, params, half, batch, jax.random.key(0))
    assert {x.dtype.name for x in jax.tree.leaves(rough.gradients)} == {"float32"}
    np.testing.assert_allclose(rough.reported["loss"], alone.reported["loss"], rtol=0.05)


def test_size_beside_smollm2():
    shape = dataclasses.replace(tiny.config(vocab=49_152), width=576)
    module = DistillRecipe()._module(49_152, abstract_model(shape, jnp.float32), jnp.float32)
    numbers = sum(x.size for x in jax.tree.leaves(abstract_params(module)))
    assert 8e6 < numbers < 9e6


@pytest.mark.slow
def test_the_projection_keeps_what_it_can(target):
    """As wide as the target's, it loses nothing but lengths."""
    recipe = dataclasses.replace(SMALL, width=16)
    params = recipe.init(jax.random.key(0), target, COUNTS)
    head, mapped = np.asarray(target.head), np.asarray(recipe.model(params, target).head)
    np.testing.assert_allclose(np.std(mapped), 0.02, rtol=0.1)
    ratio = (mapped @ mapped.T) / (head @ head.T)
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-2)


@pytest.mark.slow
def test_answers_written_by_the_draft():
    draft = history_model(4, vocab=6, scale=300.0)  # so sharp that it draws what is most likely
    tokens = jnp.asarray([[1, 2, 3, 4, 5, 0, 0, 0], [2, 2, 1, 1, 1, 1, 1, 1], [3, 3, 3, 3, 0, 0, 0, 0]], jnp.int32)
    length = jnp.asarray([5, 8, 4], jnp.int32)
    answer = jnp.asarray([[0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0, 1, 1], [0] * 8], jnp.bool_)

    def continued(text, count):
        for _ in range(count):
            text = [*text, int(np.argmax(history_probs(draft, text)))]
        return text

    first, second = continued([1, 2], 3), continued([2, 2, 1], 5)
    end = second[5]  # ends the second row's answer early, and the first's if it comes to that
    assert end not in first[2:] and end not in second[3:5]
    fresh = rewritten(draft, Batch(tokens, length, answer), jax.random.key(0), (end,))
    np.testing.assert_array_equal(fresh.length, [5, 6, 4])
    np.testing.assert_array_equal(fresh.tokens[0], [*first, 0, 0, 0])
    np.testing.assert_array_equal(fresh.tokens[1], [*second[:6], 0, 0])
    np.testing.assert_array_equal(fresh.tokens[2], tokens[2])
    np.testing.assert_array_equal(fresh.answer, [[0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0], [0] * 8])


@pytest.mark.slow
def test_a_share_of_batches_is_on_policy(target, params, batch):
    recipe = dataclasses.replace(SMALL, on_policy=0.5)
    prepared = [recipe.prepare(params, target, batch, key) for key in jax.random.split(jax.random.key(5), 12)]
    changed = sum(not np.array_equal(one.tokens, batch.tokens) for one in prepared)
    assert 2 <= changed <= 10
    assert SMALL.prepare(params, target, batch, jax.random.key(0)) is batch


def test_a_saved_model_has_the_targets_tokenizer(tmp_path):
    tokenizer = text_models.byte_level()
    model = dataclasses.replace(tiny.transformer(0, vocab=tokenizer.vocab_size), tokenizer=tokenizer)
    write_model(model, tmp_path / "model")
    read = load(tmp_path / "model")
    assert read.tokenizer.encode("the sea") == tokenizer.encode("the sea")
    assert read.tokenizer.eos_token_ids == tokenizer.eos_token_ids
    expected = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), model.params)
    jax.tree.map(np.testing.assert_array_equal, read.params, expected)


def test_other_families_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="families llama, qwen2, qwen3, without sliding windows"):
        write_model(tiny.transformer(windows=(8,)), tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"heads": 5}, "even number"), ({"hard": 2.0}, "hard must be"), ({"layers": 0}, "layers must be")],
)
def test_wrong_options(wrong, said):
    with pytest.raises(ValueError, match=said):
        DistillRecipe(**wrong)


def test_wider_than_the_target(target):
    with pytest.raises(ValueError, match="at most the target's 16"):
        DistillRecipe().init(jax.random.key(0), target, COUNTS)


def test_only_numbers_are_trained(params):
    trained, constants = split(params)
    assert set(jax.tree.leaves(jax.tree.map(lambda x: x.dtype.name, trained))) == {"float32"}
    assert len(jax.tree.leaves(constants)) == 2

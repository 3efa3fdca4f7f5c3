"""Training whole models to exit early: schedules and loss against the formulas, and the model that comes out."""

import dataclasses
import functools
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints.params import abstract_params
from jaxspec.contrib import layer_skip
from jaxspec.contrib.layer_skip import Gradual, LayerSkipRecipe, Rotational, run_dropping
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.rope import Rope
from jaxspec.sharding.rules import FULLY_SHARDED
from jaxspec.testing.random_models import random_params
from jaxspec.training.dataset import Batch
from jaxspec.training.evaluation import Prompts
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions, gradients
from tests._fixtures import text_models, tiny
from tests._fixtures.bigram import Conversations

LAYERS, EXIT = 3, 1
TARGET = tiny.transformer(1, layers=LAYERS, sharpness=14.0, tied_head=False)
PROBS = np.random.default_rng(0).dirichlet(np.full(tiny.VOCAB, 0.2), tiny.VOCAB)
close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)


@dataclasses.dataclass(frozen=True)
class Chains:
    """Endlessly many texts in which each token says how likely the next one is."""

    rows: int = 16
    width: int = 16

    def token_counts(self):
        return np.ones(tiny.VOCAB, np.int64)

    def batches(self, **_):
        return self

    def batch(self, step):
        rng = np.random.default_rng([7, step])
        tokens = rng.integers(0, tiny.VOCAB, (self.rows, 1))
        for _ in range(self.width - 1):
            below = rng.random((self.rows, 1)) > np.cumsum(PROBS, axis=1)[tokens[:, -1], :-1]
            tokens = np.concatenate([tokens, below.sum(axis=1, keepdims=True)], axis=1)
        answer = np.broadcast_to(np.arange(self.width) >= 2, tokens.shape)
        return Batch(tokens.astype(np.int32), np.full(self.rows, self.width, np.int32), answer)


def recipe(**options):
    return LayerSkipRecipe.of(TARGET, **({"layers": EXIT, "k": 1} | options))


def of_device(batch):
    return jax.tree.map(jnp.asarray, batch)


def test_the_last_layer_is_dropped_most():
    rates = layer_skip.dropout_rates(4, 0.1)
    np.testing.assert_allclose(rates, [0.0, 0.1 * (2 ** (1 / 3) - 1), 0.1 * (2 ** (2 / 3) - 1), 0.1])
    grown = [float(layer_skip.growth(jnp.int32(step), jnp.int32(5))) for step in range(5)]
    np.testing.assert_allclose(grown, [math.exp(step * math.log(2) / 4) - 1 for step in range(5)], rtol=1e-6)
    assert layer_skip.growth(jnp.int32(0), jnp.int32(1)) == 0


def test_rows_drop_layers_of_their_own():
    one, moment, rows = recipe(dropout=0.4), jnp.asarray([3, 9], jnp.int32), 8192
    ran = np.asarray(one.runs(moment, 4, rows, jax.random.key(0)))
    rates = 0.4 * (2.0 ** (np.arange(4) / 3) - 1)
    assert np.all(np.abs(1 - ran.mean(axis=1) - rates) <= 5 * np.sqrt(rates * (1 - rates) / rows))
    # Of two layers independently.
    assert abs(np.mean(~ran[2] & ~ran[3]) - rates[2] * rates[3]) < 5 * math.sqrt(rates[2] * rates[3] / rows)
    assert not np.array_equal(ran, one.runs(moment, 4, rows, jax.random.key(1)))
    assert np.all(recipe(dropout=0.0).runs(moment, 4, rows, jax.random.key(0)))
    growing = recipe(dropout=0.4, growing_dropout=True)
    assert np.all(growing.runs(jnp.asarray([0, 9], jnp.int32), 4, rows, jax.random.key(0)))
    np.testing.assert_array_equal(growing.runs(jnp.asarray([8, 9], jnp.int32), 4, rows, jax.random.key(0)), ran)


def test_later_exits_weigh_more():
    np.testing.assert_array_equal(layer_skip.exit_weights(4, 1.0), [1, 3, 6, 10])
    np.testing.assert_array_equal(layer_skip.exit_weights(4, 0.5), [0.5, 1.5, 3, 4 + 3])
    one = recipe(exit_scale=0.5, rotation=2)
    close(one.weights(jnp.asarray([0, 8], jnp.int32), 4), np.array([0.5, 0, 3, 7]) / 10.5)
    close(one.weights(jnp.asarray([1, 8], jnp.int32), 4), np.array([0, 1.5, 0, 7]) / 8.5)


def _exits(curriculum, step, steps, layers):
    return np.flatnonzero(curriculum.exits(jnp.int32(step), jnp.int32(steps), layers)).tolist()


def test_each_exit_has_its_turn():
    assert [_exits(Rotational(3), step, 9, 5) for step in range(4)] == [[0, 3, 4], [1, 4], [2, 4], [0, 3, 4]]
    assert _exits(Rotational(1), 5, 9, 4) == [0, 1, 2, 3]
    # Two layers in 25 updates each: 0, 12.5, 25, 37.5.
    first = [min(step for step in range(100) if layer in _exits(Gradual(), step, 100, 4)) for layer in range(4)]
    assert first == [38, 25, 13, 0]
    for steps in (1, 2, 7):
        shown = [_exits(Gradual(), step, steps, 6) for step in range(steps)]
        by_hand = [[layer for layer in range(6) if 12 * step >= (5 - layer) * steps] for step in range(steps)]
        assert shown == by_hand
    assert [_exits(Gradual(), step, 2**31 - 1, 80)[0] for step in (0, 2**30, 2**31 - 2)] == [79, 0, 0]


@pytest.fixture(scope="module")
def batch():
    """Answers of several lengths, one row without any; a width that is no multiple of a chunk's."""
    rng = np.random.default_rng(2)
    answer = np.zeros((4, 13), bool)
    answer[0, 3:9], answer[1, 5:7], answer[1, 9:13], answer[2, 12] = True, True, True, True
    tokens = rng.integers(0, tiny.VOCAB, (4, 13)).astype(np.int32)
    return of_device(Batch(tokens, np.asarray([13, 13, 13, 5], np.int32), answer))


def _states(params, tokens):
    output = dataclasses.replace(TARGET, params=params)(tokens, TARGET.init_cache(4, 0), capture=(1, 2, 3))
    return jnp.stack(output.hidden)


def _exit_logits(tokens):
    return TARGET.begin(tokens, TARGET.init_cache(4, 0), EXIT)[0]


def test_a_dropped_layer_passes_its_input_on(batch):
    runs = jnp.asarray([[True, True, True, False], [True, False, True, True], [True, True, False, True]])
    run = jax.jit(functools.partial(run_dropping, TARGET.module))
    empty = TARGET.init_cache(4, 0)
    all_run = run(TARGET.params, jnp.ones((3, 4), bool), batch.tokens, empty)
    close(all_run, jax.jit(_states)(TARGET.params, batch.tokens))
    states = run(TARGET.params, runs, batch.tokens, empty)
    np.testing.assert_array_equal(states[:, 0], all_run[:, 0])
    np.testing.assert_array_equal(states[1, 1], states[0, 1])
    np.testing.assert_array_equal(states[2, 2], states[1, 2])
    np.testing.assert_array_equal(states[:2, 2], all_run[:2, 2])
    assert np.max(np.abs(states[0, 3] - all_run[0, 3])) > 0.1
    # A decoder of the other layers alone.
    others = dataclasses.replace(TARGET.module.config, num_layers=2, ropes=(Rope(1e4),) * 2, windows=(None,) * 2)
    params = {"layer_1" if name == "layer_2" else name: x for name, x in TARGET.params.items() if name != "layer_1"}
    shorter = jaxspec.LanguageModel(Transformer(others), params)
    without = jax.jit(lambda model: model(batch.tokens, model.init_cache(4, 0)).logits)(shorter)
    close(layer_skip._logits(TARGET, states[2])[1], without[1])


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [pytest.param(1024, marks=pytest.mark.slow), 20])
def test_the_loss_is_a_weighted_mean_over_answer_tokens(batch, chunk, monkeypatch):
    """With its gradients, however it is cut in chunks; what is reported, against distributions computed one by one."""
    monkeypatch.setattr(layer_skip, "_CHUNK", chunk)
    one = recipe(dropout=0.0, rotation=2, exit_scale=1 + chunk / 1e5)  # another program for each
    params = one.at(one.init(jax.random.key(0), TARGET, None), 3, 9)
    sums = gradients(one, params, TARGET, batch, jax.random.key(1))
    weights = np.array([0, 3 * one.exit_scale, 3 + 3 * one.exit_scale])

    def expected(own):
        model = dataclasses.replace(TARGET, params=own)
        probs = jnp.stack([jax.nn.log_softmax(layer_skip._logits(model, x)) for x in _states(own, batch.tokens)])
        written = jnp.take_along_axis(probs[:, :, :-1], batch.tokens[None, :, 1:, None], axis=-1)[..., 0]
        each = -jnp.sum(jnp.where(batch.answer[None, :, 1:], written, 0.0), axis=(1, 2)) / 13
        return jnp.sum(each * jnp.asarray(weights / weights.sum(), jnp.float32)), each

    (loss, each), slopes = jax.jit(jax.value_and_grad(expected, has_aux=True))(TARGET.params)
    assert sums.weight == 13 == np.sum(batch.answer)
    close(sums.reported["loss"] / 13, loss)
    close([sums.reported[name] / 13 for name in ("exit_loss", "last_loss")], [each[0], each[-1]])
    jax.tree.map(lambda x, y: close(x / 13, y), sums.gradients["model"], slopes)
    early = np.asarray(jax.nn.softmax(jax.jit(_exit_logits)(batch.tokens)))
    text = lambda row, place: batch.tokens[row, :place].tolist()
    accepted = [
        np.minimum(early[row, place - 1], tiny.transformer_probs(TARGET, text(row, place))).sum()
        for row, place in np.argwhere(batch.answer).tolist()
    ]
    close(sums.reported["acceptance"] / 13, np.mean(accepted))


@pytest.mark.slow
def test_dropped_layers_learn_nothing_and_reports_know_no_dropout(batch):
    one = recipe(dropout=0.999, rotation=1)
    params = one.at(one.init(jax.random.key(0), TARGET, None), 0, 9)
    keys = jax.random.split(jax.random.key(3), 99)
    ran = [np.asarray(one.runs(params["moment"], 3, 4, key)) for key in keys]
    key = next(key for key, layers in zip(keys, ran, strict=True) if not np.any(layers[2]) and layers[1, 0])
    other = next(key for key, layers in zip(keys, ran, strict=True) if not layers[1, 0])
    sums, others = (gradients(one, params, TARGET, batch, x) for x in (key, other))
    lengths = jax.tree.map(lambda x: float(jnp.max(jnp.abs(x))), sums.gradients["model"])
    assert max(jax.tree.leaves(lengths["layer_2"])) == 0 < min(jax.tree.leaves(lengths["layer_0"]))
    # The draws do not reach what is reported.
    for name in ("acceptance", "exit_loss", "last_loss"):
        assert sums.reported[name] == others.reported[name]
    states = jax.jit(_states)(TARGET.params, batch.tokens)
    probs = jax.nn.log_softmax(layer_skip._logits(TARGET, states[-1]))[:, :-1]
    written = np.take_along_axis(np.asarray(probs), np.asarray(batch.tokens)[:, 1:, None], axis=-1)[..., 0]
    close(sums.reported["last_loss"], -np.sum(written[np.asarray(batch.answer)[:, 1:]]))
    assert abs(sums.reported["loss"] - others.reported["loss"]) > 1e-2


OPTIONS = TrainingOptions(steps=120, batch_tokens=256, learning_rate=1e-2, log_every=20, checkpoint_every=60)
PROMPTS = Prompts(tuple((token, 3) for token in range(tiny.VOCAB)), max_new_tokens=24)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "whole"
    return train(recipe(), TARGET, Chains(), OPTIONS, folder, validation=PROMPTS, quiet=True)


@pytest.mark.slow
def test_training_helps_and_the_model_gets_no_worse(trained):
    one, texts = recipe(), [of_device(Chains().batch(10**6 + step)) for step in range(8)]

    def report(params):
        sums = [gradients(one, params, TARGET, text, jax.random.key(0)).reported for text in texts]
        return {name: np.mean([part[name] for part in sums]) / (16 * 14) for name in sums[0]}

    before, after = report(one.init(jax.random.key(0), TARGET, None)), report(trained.params)
    assert after["acceptance"] > before["acceptance"] + 0.15
    tokens = np.concatenate([text.tokens for text in texts])
    best = -np.mean(np.log(PROBS[tokens[:, 1:-1], tokens[:, 2:]]))
    assert best < after["last_loss"] < best + 0.1 < before["last_loss"]
    assert after["exit_loss"] < best + 0.2
    # In the real loop it is the trained model that is measured.
    assert abs(trained.curve[-1]["measured"]["sampled"]["by_position"][0] - after["acceptance"]) < 0.1


@pytest.mark.slow
def test_the_saved_model_is_the_trained_one(trained):
    model = jaxspec.load(trained.folder)
    jax.tree.map(np.testing.assert_array_equal, model.params, trained.params["model"])
    assert model.module == TARGET.module
    prompt = jnp.asarray([[3, 1], [4, 1]], jnp.int32)
    options = {"key": jax.random.key(0), "max_new_tokens": 20}
    plain = jaxspec.generate(model, None, prompt, **options)
    drafted = jaxspec.generate(model, jaxspec.EarlyExitDrafter(EXIT, k=3), prompt, **options)
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    assert np.sum(drafted.stats.rounds) < np.sum(plain.stats.rounds)


@pytest.mark.slow
def test_a_run_that_died_goes_on(trained, tmp_path):
    out = tmp_path / "again"
    shutil.copytree(trained.folder.parent, out)
    shutil.rmtree(out / "head")
    shutil.rmtree(out / "checkpoints" / "120")
    again = train(recipe(), TARGET, Chains(), OPTIONS, out, quiet=True)
    jax.tree.map(np.testing.assert_array_equal, again.params, trained.params)
    assert again.params["moment"].tolist() == [0, 1]


@pytest.mark.slow
def test_devices_and_bfloat16(tmp_path):
    """Both are the same arithmetic; everything is split over eight devices, or nothing is."""
    shape = TransformerConfig(16, 2, 32, 16, 8, 8, 64, 512, (Rope(1e4),) * 2, (None,) * 2, tied_head=True)
    params = random_params(abstract_params(Transformer(shape)), 0, 0.2)
    target, data = jaxspec.LanguageModel(Transformer(shape), params), Conversations(vocab=16)
    one, options = (
        LayerSkipRecipe.of(target, dropout=0.3),
        dataclasses.replace(OPTIONS, steps=2, warmup_steps=0, batch_tokens=128),
    )
    alone = train(one, target, data, options, tmp_path / "one", quiet=True)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    spread = train(one, target, data, options, tmp_path / "split", mesh=mesh, rules=FULLY_SHARDED, quiet=True)
    np.testing.assert_allclose(spread.curve[-1]["loss"], alone.curve[-1]["loss"], rtol=1e-5)
    same = functools.partial(np.testing.assert_allclose, atol=1e-3)
    jax.tree.map(same, spread.params["model"], alone.params["model"])
    jax.tree.map(same, jaxspec.load(spread.folder).params, alone.params["model"])
    halved = lambda path, x: x if path[-1].key == "scale" else x.astype(jnp.bfloat16)
    half = jaxspec.LanguageModel(Transformer(shape, jnp.bfloat16), jax.tree.map_with_path(halved, params))
    rough = train(one, half, data, options, tmp_path / "half", quiet=True)
    np.testing.assert_allclose(rough.curve[-1]["loss"], alone.curve[-1]["loss"], rtol=0.05)
    # The saved parameters are those that the loss was computed from.
    saved, kept = jaxspec.load(rough.folder, dtype="bfloat16"), one.target(rough.params, half)
    assert {x.dtype.name for x in jax.tree.leaves(saved.params)} == {"float32", "bfloat16"}
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y.astype(jnp.bfloat16)), saved.params, kept.params)


@pytest.mark.slow
def test_a_saved_model_has_the_tokenizer(tmp_path):
    tokenizer = text_models.byte_level()
    model = dataclasses.replace(tiny.transformer(0, layers=2, vocab=tokenizer.vocab_size), tokenizer=tokenizer)
    one = LayerSkipRecipe.of(model)
    one.save(one.init(jax.random.key(0), model, None), model, None, tmp_path / "model")
    read = jaxspec.load(tmp_path / "model")
    assert read.tokenizer.encode("the sea") == tokenizer.encode("the sea")
    jax.tree.map(np.testing.assert_array_equal, read.params, model.params)


@pytest.mark.slow
def test_options(tmp_path):
    one = LayerSkipRecipe.of(tiny.transformer(layers=12))
    assert (one.layers, one.rotation, one.capture) == (3, 8, (3,)) and recipe(layers=2).rotation == 2
    assert one.curriculum == Rotational(8) and recipe(rotation=None).curriculum == Gradual()
    assert one.usage("base", "run/head") == "--model run/head --drafter early-exit:3"
    for wrong, said in (
        ({"dropout": 1.0}, "dropout must be"),
        ({"exit_scale": 0.0}, "exit_scale must be"),
        ({"rotation": 0}, "rotation must be"),
        ({"dropout": 0.0, "growing_dropout": True}, "pass a dropout above 0"),
        ({"layers": 3}, "got layers=3 of a target of 3"),
    ):
        with pytest.raises(ValueError, match=said):
            recipe(**wrong)
    with pytest.raises(TypeError, match="all weights are trained, got Int8Weight"):
        LayerSkipRecipe.of(jaxspec.quantize_weights(TARGET))
    with pytest.raises(ValueError, match="for a frozen target, but LayerSkipRecipe trains it"):
        train(one, TARGET, Chains(), OPTIONS, tmp_path / "run", states=tmp_path / "states")
    assert not list(tmp_path.iterdir())

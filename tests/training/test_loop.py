"""The loop of training, on a recipe and a target so small that a run takes a second."""

import dataclasses
import importlib.util
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sharding.rules import FULLY_SHARDED
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import wide_transformer
from jaxspec.training import losses
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions
from tests._fixtures import disk_faults, tiny
from tests._fixtures.bigram import Bigrams, Conversations

OPTIONS = TrainingOptions(
    steps=12, batch_tokens=128, learning_rate=0.1, warmup_steps=2, checkpoint_every=4, log_every=3, keep=2
)
DATA = Conversations()


@pytest.fixture(scope="module")
def target():
    return tiny.transformer()


@pytest.fixture(scope="module")
def run(target, tmp_path_factory):
    """A whole run, and its folder."""
    out = tmp_path_factory.mktemp("run")
    return train(Bigrams(), target, DATA, OPTIONS, out, notes={"command": "by hand"}, quiet=True), out


def _numbers(curve):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in curve]


@pytest.mark.slow
def test_acceptance_rises(run):
    (trained, _), untrained = run, 1 / tiny.VOCAB
    assert trained.curve[-1]["acceptance"] > trained.curve[0]["acceptance"] > untrained
    assert trained.curve[-1]["loss"] < trained.curve[0]["loss"]


@pytest.mark.slow
def test_what_a_run_leaves(run):
    trained, out = run
    np.testing.assert_array_equal(np.load(out / "head" / "table.npy"), trained.params["table"])
    # Every three updates, and at each checkpoint.
    assert [line["step"] for line in trained.curve] == [3, 4, 6, 8, 9, 12]
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["12", "8"]
    report = json.loads((out / "training.json").read_text())
    assert report["command"] == "by hand" and report["curve"] == trained.curve
    assert report["options"]["learning_rate"] == 0.1 and report["recipe"]["divergence"] == {"kind": "ForwardKL"}
    lengths = [DATA.batches(batch_tokens=128, seed=0, devices=1).batch(step).length for step in range(12)]
    assert report["tokens"] == trained.curve[-1]["tokens"] == np.sum(lengths)
    drawn = importlib.util.find_spec("matplotlib") is not None
    assert (out / "loss.svg").is_file() == drawn
    assert not drawn or (out / "loss.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is(run, target):
    trained, out = run
    again = train(Bigrams(), target, DATA, OPTIONS, out, quiet=True)
    assert again.curve == trained.curve
    np.testing.assert_array_equal(again.params["table"], trained.params["table"])


@pytest.mark.parametrize("died_after", [1, 5, 7])
def test_a_run_that_died_goes_on(run, target, tmp_path, died_after):
    class Died(Exception):
        pass

    @dataclasses.dataclass(frozen=True)
    class Dying(Conversations):
        def batches(self, **options):
            batches = super().batches(**options)

            class Some:
                def batch(self, step):
                    if step == died_after:
                        raise Died
                    return batches.batch(step)

            return Some()

    with pytest.raises(Died):
        train(Bigrams(), target, Dying(), OPTIONS, tmp_path, quiet=True)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')  # cut off in the middle of a line
    trained = train(Bigrams(), target, DATA, OPTIONS, tmp_path, quiet=True)
    assert _numbers(trained.curve) == _numbers(run[0].curve)
    np.testing.assert_array_equal(trained.params["table"], run[0].params["table"])


def test_a_damaged_checkpoint_changes_nothing(run, target, tmp_path, messages):
    out = shutil.copytree(run[1], tmp_path / "run")
    disk_faults.flip(max((out / "checkpoints" / "12").glob("state/**/d/*"), key=lambda path: path.stat().st_size), 9)
    trained = train(Bigrams(), target, DATA, OPTIONS, out, quiet=True)
    (line,) = messages()
    assert line.startswith("checkpoint 12 is not intact")
    assert _numbers(trained.curve) == _numbers(run[0].curve)
    np.testing.assert_array_equal(trained.params["table"], run[0].params["table"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recipe": Bigrams(losses.TotalVariation())}, "recipe.divergence.kind was 'ForwardKL', now 'TotalVariation'"),
        ({"options": dataclasses.replace(OPTIONS, seed=1)}, "options.seed was 0, now 1"),
        ({"data": Conversations(width=32)}, "data.digest was"),
        ({"target": tiny.transformer(layers=2)}, "target.num_layers was 1, now 2"),
        ({"target": tiny.transformer(seed=1)}, "target.weights was"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(run, target, change, said):
    arguments = {"recipe": Bigrams(), "target": target, "data": DATA, "options": OPTIONS} | change
    with pytest.raises(ValueError, match=said):
        train(**arguments, out=run[1], quiet=True)


def test_the_loss_knows_the_update(target, tmp_path):
    """Batches of one accumulation belong to the same update, and a resumed run goes on counting."""

    @dataclasses.dataclass(frozen=True)
    class Told(Bigrams):
        def init(self, key, target, token_counts):
            return super().init(key, target, token_counts) | {"at": jnp.zeros(2, jnp.int32)}

        def at(self, params, step, steps):
            return params | {"at": jnp.asarray([step, steps], jnp.int32)}

        def loss(self, params, target, batch, features, key):
            value, reported = super().loss(params, target, batch, features, key)
            return value, reported | {"at": params["at"][0], "of": params["at"][1]}

    options = dataclasses.replace(OPTIONS, steps=3, accumulation=2, log_every=1, checkpoint_every=1)
    curve = train(Told(), target, DATA, options, tmp_path, quiet=True).curve
    shutil.rmtree(tmp_path / "checkpoints" / "3")
    resumed = train(Told(), target, DATA, options, tmp_path, quiet=True).curve
    assert _numbers(resumed) == _numbers(curve) and len(curve) == 3
    for line in curve:
        np.testing.assert_allclose([line["step"] - 1, 3], [line["at"], line["of"]], rtol=1e-6)


def test_accumulation_is_one_large_batch(target, tmp_path):
    """Batches differ in how many answer tokens they hold, so a mean of means would not be the same."""

    class Halves(Conversations):
        def batches(self, *, batch_tokens, **options):
            whole = super().batches(batch_tokens=2 * batch_tokens, **options)

            class Parts:
                def batch(self, step):
                    return jax.tree.map(lambda x: np.split(x, 2)[step % 2], whole.batch(step // 2))

            return Parts()

    options = dataclasses.replace(OPTIONS, steps=4, warmup_steps=0)
    halved = dataclasses.replace(options, batch_tokens=64, accumulation=2)
    one = train(Bigrams(), target, DATA, options, tmp_path / "one", quiet=True)
    two = train(Bigrams(), target, Halves(), halved, tmp_path / "two", quiet=True)
    np.testing.assert_allclose(two.params["table"], one.params["table"], atol=2e-5)
    assert two.curve[-1]["tokens"] == one.curve[-1]["tokens"]


@pytest.mark.slow
def test_devices_change_nothing(tmp_path):
    """Rows over four devices, the target over two; and parameters and optimizer whole, or over all eight."""
    mesh, target, data = (
        jax.make_mesh((4, 2), ("data", "model")),
        wide_transformer(vocab=16),
        Conversations(vocab=16),
    )
    options = dataclasses.replace(OPTIONS, steps=3, checkpoint_every=2)
    alone = train(Bigrams(), target, data, options, tmp_path / "one", quiet=True)
    for name, rules in (("whole", None), ("split", FULLY_SHARDED)):
        trained = train(Bigrams(), target, data, options, tmp_path / name, mesh=mesh, rules=rules, quiet=True)
        for line, expected in zip(trained.curve, alone.curve, strict=True):
            np.testing.assert_allclose(line["loss"], expected["loss"], rtol=1e-5)
        np.testing.assert_allclose(trained.params["table"], alone.params["table"], atol=1e-4)


def test_a_loss_that_is_not_finite_ends_the_run(target, tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Broken(Bigrams):
        def loss(self, params, target, batch, features, key):
            value, reported = super().loss(params, target, batch, features, key)
            return jnp.where(reported["acceptance"] > 0.5, jnp.nan, value), reported

    with pytest.raises(FloatingPointError, match=r"at update \d+; lower the learning rate"):
        train(Broken(), target, DATA, OPTIONS, tmp_path, quiet=True)
    assert all(np.isfinite(json.loads(line)["loss"]) for line in (tmp_path / "metrics.jsonl").open())


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"steps": 4, "warmup_steps": 4},
        {"steps": 4, "learning_rate": float("nan")},
        {"steps": 4, "final_fraction": 2.0},
        {"steps": 4, "accumulation": True},
        {"steps": 4, "evaluate_every": 0},
    ],
)
def test_wrong_options(wrong):
    with pytest.raises(ValueError, match=f"{list(wrong)[-1]} must be"):
        TrainingOptions(**wrong)


def test_wrong_targets(tmp_path):
    with pytest.raises(TypeError, match="HistoryModel"):
        train(Bigrams(), history_model(), DATA, OPTIONS, tmp_path)
    half = dataclasses.replace(
        tiny.transformer(), module=dataclasses.replace(tiny.transformer().module, dtype=jnp.float16)
    )
    with pytest.raises(ValueError, match="float16"):
        train(Bigrams(), half, DATA, OPTIONS, tmp_path)

"""The target's states on disk: those that it computes, written once, and the same run with or without a death."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxspec.nn.digest import model_digest
from jaxspec.training import features as states
from jaxspec.training.answers import AnswerOptions
from jaxspec.training.data import make_data
from jaxspec.training.dataset import Dataset
from jaxspec.training.features import StoredStates
from jaxspec.training.loop import train
from jaxspec.training.recipe import Recipe
from jaxspec.training.state import TrainingOptions, target_features
from tests._fixtures import text_models, tiny
from tests._fixtures.bigram import Bigrams, Conversations

TOKENIZER = text_models.byte_level()
OPTIONS = TrainingOptions(steps=6, batch_tokens=256, learning_rate=0.1, checkpoint_every=2, log_every=1)
jitted_features = jax.jit(target_features, static_argnums=0)
WORDS = ("the", "sea", "is", "wide", "and")


@pytest.fixture(scope="module")
def target():
    return dataclasses.replace(tiny.transformer(3, vocab=TOKENIZER.vocab_size), tokenizer=TOKENIZER)


@pytest.fixture(scope="module")
def data(target, tmp_path_factory):
    """Nine conversations in three shards, two of each word."""
    folder = tmp_path_factory.mktemp("data")
    lines = [{"turns": [f"{word} {number}"]} for number in range(2) for word in WORDS][:9]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = AnswerOptions(max_new_tokens=8, batch=4, max_length=120)
    make_data(target, [folder / "prompts.jsonl"], folder / "made", options, shard=4)
    return Dataset.open([folder / "made"])


def test_they_are_the_target_s(target, data, tmp_path, monkeypatch):
    chosen, _ = data.split(2)
    schedule, recipe = chosen.batches(batch_tokens=512, seed=1), Bigrams()
    batches = [schedule.batch(step) for step in range(schedule.steps_per_epoch)]

    def read():
        kept = StoredStates(tmp_path, target, chosen)
        steps = enumerate(batches)
        return [kept.features((1,), schedule.indices(step), batch.tokens.shape) for step, batch in steps]

    first = read()
    for batch, features in zip(batches, first, strict=True):
        expected = jitted_features(recipe, target, jax.tree.map(jax.numpy.asarray, batch))
        for row, length in enumerate(batch.length):
            for one, other in zip((*features.hidden, features.last), (*expected.hidden, expected.last), strict=True):
                np.testing.assert_allclose(one[row, :length], other[row, :length], rtol=2**-7, atol=1e-3)
                assert not np.any(one[row, length:])
    # Then they are read, and not computed again.
    monkeypatch.setattr(states, "_states", lambda *_: pytest.fail("computed again"))
    for one, other in zip(first, read(), strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_only_what_is_computed_together_is_computed(target, data, tmp_path, monkeypatch):
    monkeypatch.setattr(states, "_AT_ONCE", 256)  # two sequences of width 128
    kept = StoredStates(tmp_path, target, data)
    kept.features((0,), [2], (1, 128))
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.glob("layer*")) == [
        f"layer-{layer:02}.{kind}" for layer in (0, 1) for kind in ("bfloat16", "crc32")
    ]
    there = lambda: np.fromfile(folder / "layer-01.crc32", np.uint32).astype(bool).tolist()
    assert there() == [False, False, True, True]
    kept.features((0,), [1], (1, 128))
    assert there() == [True, True, True, True]


def test_sequences_of_one_width_are_neighbors(monkeypatch):
    monkeypatch.setattr(states, "_AT_ONCE", 256)
    shard = states._Shard([np.zeros(n, np.int32) for n in (5, 200, 128, 129, 1, 7, 5000)])
    together = [shard.together(number) for number in range(7)]
    assert [width for width, _ in together] == [128, 256, 128, 256, 128, 128, 8192]
    assert [members.tolist() for _, members in together] == [[0, 2], [1], [0, 2], [3], [4, 5], [4, 5], [6]]


@pytest.mark.slow
def test_a_run_that_died_reads_what_it_would_have(target, data, tmp_path):
    whole = train(Bigrams(), target, data, OPTIONS, tmp_path / "whole", states=tmp_path / "states", quiet=True)

    @dataclasses.dataclass(frozen=True)
    class Dying(Bigrams):
        """Dies before its fourth update."""

        def prepare(self, params, target, batch, key):
            seen.append(batch)
            if len(seen) == 4:
                raise KeyboardInterrupt
            return batch

    seen = []
    folders = {"out": tmp_path / "died", "states": tmp_path / "other"}
    with pytest.raises(KeyboardInterrupt):
        train(Dying(), target, data, OPTIONS, **folders, quiet=True)
    again = train(Dying(), target, data, OPTIONS, **folders, quiet=True)
    np.testing.assert_array_equal(again.params["table"], whole.params["table"])


@pytest.mark.slow
def test_what_a_drafter_wrote_is_not_read_from_there(target, data, tmp_path):
    class Rewriting(Bigrams):
        def prepare(self, params, target, batch, key):
            return dataclasses.replace(batch, tokens=batch.tokens[:, ::-1])

    train(Rewriting(), target, data, OPTIONS, tmp_path / "run", states=tmp_path / "states", quiet=True)
    assert not (tmp_path / "states").exists()
    assert Bigrams.prepare is Recipe.prepare


@pytest.mark.parametrize("what, message", [("mesh", "leave out the mesh"), ("data", "got Conversations")])
def test_where_they_cannot_be_kept(what, message, target, data, tmp_path):
    mesh = jax.make_mesh((1,), ("data",)) if what == "mesh" else None
    chosen = Conversations(vocab=target.vocab_size) if what == "data" else data
    with pytest.raises((TypeError, ValueError), match=message):
        train(Bigrams(), target, chosen, OPTIONS, tmp_path / "run", mesh=mesh, states=tmp_path / "states", quiet=True)


def test_a_model_is_its_configuration_and_all_its_weights(target):
    """The same weights with another norm are another target, as is one whose last number differs by one step."""
    config, leaves = target.module.config, jax.tree.leaves(target.params)
    largest = max(range(len(leaves)), key=lambda place: leaves[place].size)
    leaves[largest] = leaves[largest].at[(-1,) * leaves[largest].ndim].multiply(1 + 2**-20)
    others = [
        dataclasses.replace(target, module=target.module.clone(config=dataclasses.replace(config, norm_eps=1e-3))),
        dataclasses.replace(target, module=target.module.clone(dtype=jax.numpy.bfloat16)),
        dataclasses.replace(target, params=jax.tree.unflatten(jax.tree.structure(target.params), leaves)),
    ]
    assert len({model_digest(one) for one in (target, *others)}) == 4
    assert model_digest(dataclasses.replace(target)) == model_digest(target)


def test_files_of_something_else(target, data, tmp_path):
    StoredStates(tmp_path, target, data).features((1,), [0], (1, 128))
    (folder,) = tmp_path.iterdir()
    with open(folder / "layer-01.bfloat16", "ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match="remove it"):
        StoredStates(tmp_path, target, data).features((1,), [0], (1, 128))

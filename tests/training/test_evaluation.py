"""The true mean acceptance length, against the loop itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.sharding.rules import FULLY_SHARDED
from jaxspec.testing.history_models import history_model, nearby
from jaxspec.testing.random_models import wide_transformer
from jaxspec.training.evaluation import Prompts, evaluate, prompts_of
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions
from tests._fixtures import tiny
from tests._fixtures.bigram import Bigrams, Conversations

PROMPTS = Prompts(((1, 2, 3, 4), (5,), (4, 5)), max_new_tokens=8, batch=2)


@pytest.mark.slow
def test_greedy_rounds_are_those_of_each_prompt_alone():
    target = history_model(0, vocab=6)
    drafter = jaxspec.ModelDrafter(nearby(target, 0.7), k=2)
    measured = evaluate(target, drafter, PROMPTS)
    # Twice each, so that the program is the one compiled above.
    alone = lambda row: jaxspec.generate(  # noqa: E731
        target,
        drafter,
        jnp.asarray([(*row, *[0] * (4 - len(row)))] * 2, jnp.int32),
        prompt_length=jnp.full(2, len(row), jnp.int32),
        max_new_tokens=8,
    )
    stats = [alone(row).stats for row in PROMPTS.rows]
    rounds = sum(int(one.rounds[0]) for one in stats)
    greedy, sampled = measured["greedy"], measured["sampled"]
    assert (greedy.rounds, greedy.tokens, sampled.tokens) == (rounds, 24, 24)
    assert 1 < greedy.mean_acceptance_length == 24 / rounds < 3
    by_position = sum(np.asarray(one.accepted_at[0]) for one in stats) / rounds
    np.testing.assert_allclose(greedy.by_position, by_position)
    assert evaluate(target, drafter, PROMPTS, seed=1)["sampled"] != sampled


@pytest.mark.slow
def test_measured_while_training(tmp_path):
    options = TrainingOptions(steps=3, batch_tokens=128, learning_rate=0.1, evaluate_every=2)
    trained = train(Bigrams(), tiny.transformer(), Conversations(), options, tmp_path, validation=PROMPTS, quiet=True)
    assert [line["step"] for line in trained.curve if "measured" in line] == [2, 3]
    for kind in ("greedy", "sampled"):
        assert trained.curve[-1]["measured"][kind]["tokens"] == 24


@pytest.mark.slow
def test_measured_in_the_dtype_and_on_the_mesh_of_the_target(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("jaxspec.training.loop.evaluate", lambda target, drafter, *_, **__: seen.append(drafter) or {})
    target = wide_transformer(vocab=16)
    module = dataclasses.replace(target.module, dtype=jnp.bfloat16)
    halved = lambda path, x: x if path[-1].key == "scale" else x.astype(jnp.bfloat16)
    half = jaxspec.LanguageModel(module, jax.tree.map_with_path(halved, target.params))
    options = TrainingOptions(steps=1, batch_tokens=128)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    arguments = (Bigrams(), half, Conversations(vocab=16), options, tmp_path)
    monkeypatch.setattr("jaxspec.training.loop.plot", lambda *_: True)
    train(*arguments, mesh=mesh, rules=FULLY_SHARDED, validation=PROMPTS, quiet=True)
    (table,) = (drafter.model.a for drafter in seen)
    assert table.dtype == jnp.bfloat16 and table.sharding.is_fully_replicated


def test_prompts_of_conversations():
    answers = {(0, 0, 1, 0): (7, 8), (0, 0, 0, 0): (7, 8, 9, 7), (1, 0, 0, 1): ()}
    for answer, prompt in answers.items():
        assert prompts_of(np.array([7, 8, 9, 7], np.int32), np.array(answer, np.bool_)) == prompt
    for wrong in ((), ((),)):
        with pytest.raises(ValueError, match="at least one"):
            Prompts(wrong)

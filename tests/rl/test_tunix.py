"""The real tunix: its clusters, models and trainer with `TunixRollout`."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxspec
from jaxspec.rl import History, RolloutOutput, TunixRollout
from jaxspec.rl.contract import OwnConfig, OwnOutput, OwnRollout
from tests._fixtures.foreign import lenient
from tests._fixtures.rollouts import Letters

pytest.importorskip("tunix")
from flax import nnx
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.rl import common, rl_cluster
from tunix.rl.rollout import base_rollout

from tests._fixtures.tunix_models import made

PROMPTS = ["ab", "", "dcba", "ab"]
MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))


@pytest.fixture(autouse=True)
def _lenient():
    with lenient():
        yield


def config(**options):
    options = {"max_tokens_to_generate": 8, "temperature": 1.0, "max_prompt_length": 6, "kv_cache_size": 32} | options
    return base_rollout.RolloutConfig(**options)


def clustered(model, engine, given):
    """A cluster whose trainer and rollout have one mesh, so that the trainer's own module is passed."""
    roles = rl_cluster.Role
    return rl_cluster.RLCluster(
        actor=model,
        tokenizer=Letters(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh={roles.ACTOR: MESH, roles.REFERENCE: MESH, roles.ROLLOUT: MESH},
            rollout_engine=engine,
            offload_to_cpu=False,
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.sgd(1e-3), eval_every_n_steps=10, max_steps=10
            ),
            rollout_config=given,
        ),
    )


def rollout_of(model, **options):
    given = config(return_logprobs=True)
    return TunixRollout(
        rollout_actor=model, tokenizer=TokenizerAdapter(Letters()), mesh=MESH, rollout_config=given, **options
    )


def test_the_own_classes_are_like_tunix_s():
    """Fields, defaults and abstract members, so that tests without tunix hold for it."""
    theirs = {field.name: field.default for field in base_rollout.RolloutConfig.__dataclass_fields__.values()}
    for name, field in OwnConfig.__dataclass_fields__.items():
        assert theirs[name] == field.default, name
    assert list(OwnOutput.__dataclass_fields__) == list(base_rollout.RolloutOutput.__dataclass_fields__)
    assert OwnRollout.__abstractmethods__ == base_rollout.BaseRollout.__abstractmethods__
    for name in OwnRollout.__abstractmethods__ - {"__init__"}:
        kinds = (OwnRollout, base_rollout.BaseRollout)
        assert len({tuple(inspect.signature(getattr(kind, name)).parameters) for kind in kinds}) == 1, name
    assert issubclass(TunixRollout, base_rollout.BaseRollout)
    assert issubclass(RolloutOutput, base_rollout.RolloutOutput)


@pytest.mark.parametrize("kind", ["qwen3", "llama3"])
def test_a_cluster_calls_it_and_its_new_weights_are_used(kind):
    """Under the cluster's mesh, rules and transfer guards; nothing compiles from the second update on."""
    engine = functools.partial(TunixRollout, history=History(answers=4))
    cluster = clustered(made(kind, scale=0.2), engine, config(return_logprobs=True, temperature=0.8))
    out = cluster.generate(PROMPTS, micro_batch_size=2)
    assert len(out.tokens) == 4 and out.left_padded_prompt_tokens.shape == (4, 6)
    assert not rl_cluster.rl_utils.is_sharing_weights(cluster.actor_trainer.model, cluster.rollout.model())
    before = cluster.rollout.generate(PROMPTS, config(temperature=0.0)).text
    compiled = []
    scale = jax.jit(lambda state: jax.tree.map(lambda x: x * 0.9, state), donate_argnums=0)
    for step in range(4):
        cluster.sync_weights()
        state = scale(nnx.state(cluster.actor_trainer.model, nnx.Param))
        nnx.update(cluster.actor_trainer.model, state)
        if step == 1:
            jax.monitoring.register_event_duration_secs_listener(
                lambda event, duration_secs, **_: compiled.append(event) if "backend_compile" in event else None
            )
        cluster.rollout.generate(PROMPTS, config(temperature=0.0))
    assert not compiled
    nnx.update(cluster.actor_trainer.model, nnx.state(made(kind, seed=7), nnx.Param))
    cluster.sync_weights()
    assert cluster.rollout.generate(PROMPTS, config(temperature=0.0)).text != before


@pytest.mark.parametrize("kind", ["qwen3", "llama3"])
def test_log_probabilities_are_those_of_its_trainer(kind):
    """With the trainer's padding on the left, at its temperature."""
    model, temperature = made(kind, scale=0.2), 0.8
    given = config(return_logprobs=True, temperature=temperature)
    rollout = TunixRollout(
        rollout_actor=model, tokenizer=TokenizerAdapter(Letters()), mesh=MESH, rollout_config=given, include_end=True
    )
    out = rollout.generate(PROMPTS, given)
    padded = np.zeros((4, 8), np.int32)
    for row, tokens in zip(padded, out.tokens, strict=True):
        row[: len(tokens)] = tokens
    prompts, answers = jnp.asarray(out.left_padded_prompt_tokens), jnp.asarray(padded)
    graph, state = nnx.split(model)
    options = {"pad_id": 0, "eos_id": 2, "stop_gradient": True, "temperature": temperature}
    expected = common.compute_per_token_logps(graph, state, prompt_tokens=prompts, completion_tokens=answers, **options)
    scored = rollout.get_per_token_logps(prompts, answers)
    for row, log_probs in enumerate(out.logprobs):
        count = len(log_probs)
        # A token equal to the padding is masked by the trainer, and so are the positions after it.
        at = np.flatnonzero(padded[row, :count] == 0)
        count = int(at[0]) if at.size else count
        np.testing.assert_allclose(log_probs[:count], expected[row, :count], atol=1e-4)
        np.testing.assert_allclose(scored[row, :count], log_probs[:count], atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "gemma"])
def test_greedy_tokens_are_those_of_its_vanilla_rollout(kind):
    model = made(kind, scale=0.2)
    given = config(temperature=0.0, eos_tokens=[2, 5, 9])
    vanilla = clustered(model, "vanilla", config(top_p=None, eos_tokens=[2, 5, 9]))
    expected = vanilla.generate(PROMPTS)
    out = rollout_of(model).generate(PROMPTS, given)
    for own, theirs in zip(out.tokens, expected.tokens, strict=True):
        # Vanilla masks a token that equals the padding for those after it.
        pads = np.flatnonzero(own == 0)
        count = int(pads[0]) + 1 if pads.size else len(own)
        np.testing.assert_array_equal(own[:count], theirs[:count])
        assert pads.size or len(own) == len(theirs)
    np.testing.assert_array_equal(out.left_padded_prompt_tokens, expected.left_padded_prompt_tokens)


def test_a_model_that_cannot_be_adopted_is_wrapped():
    """One with adapters, of which updates have the adapters alone."""
    from qwix import LoraProvider, apply_lora_to_model

    base = made("qwen3", scale=0.2)
    provider = LoraProvider(module_path=".*q_proj", rank=2, alpha=2.0)
    model = apply_lora_to_model(base, provider, **base.get_model_input())
    rollout = rollout_of(model)
    before = rollout.generate(PROMPTS, config(temperature=0.0)).text
    state = nnx.state(model, nnx.LoRAParam)
    assert jax.tree.leaves(state)
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), state)
    rollout.update_params(state, (nnx.LoRAParam,))
    assert rollout.generate(PROMPTS, config(temperature=0.0)).text != before


@pytest.mark.slow
def test_no_row_differs_with_drafts_over_four_epochs():
    """History from the policy before each update; the same keys and weights."""
    model, seed = made("llama3", scale=0.2), jax.random.key(4)
    drafted, plain = rollout_of(model, history=History(answers=8)), rollout_of(model, drafter=None)
    state, accepted = nnx.state(model, nnx.Param), []
    for _ in range(4):
        first, second = (one.generate(PROMPTS * 2, config(seed=seed)) for one in (drafted, plain))
        for own, theirs in zip(first.tokens, second.tokens, strict=True):
            np.testing.assert_array_equal(own, theirs)
        accepted.append(int(first.answers.stats.accepted.sum()))
        state = jax.tree.map(lambda x: x * 0.99, state)
        for one in (drafted, plain):
            one.update_params(state)
    assert accepted[-1] > 0
    assert isinstance(drafted.rollouts.drafter, jaxspec.SuffixDrafter)

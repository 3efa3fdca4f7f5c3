"""Layers of experts on a mesh: whole experts or parts of each on a device, and the same tokens."""

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.config import ExpertsConfig
from jaxspec.sharding.params import parameter_axes, shard
from jaxspec.sharding.rules import DATA_AND_TENSOR, EXPERT_PARALLEL, FULLY_SHARDED, Rules
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures.meshes import generate, make_mesh, run, same
from tests.benchmarks.workload import disturbed

EXPERTS = ExpertsConfig(count=8, per_token=3, width=32, normalized=True)
TARGET = wide_transformer(0, vocab=8000, experts=EXPERTS)
DRAFT = disturbed(TARGET, 0.2)
CASES = {
    "whole experts": ((2, 4), EXPERT_PARALLEL),
    "one expert a device": ((1, 8), EXPERT_PARALLEL),
    "a part of each": ((2, 4), DATA_AND_TENSOR),
    "parts over all": ((1, 8), DATA_AND_TENSOR),
    "wherever they fit": ((2, 4), FULLY_SHARDED),
    "both": ((2, 4), Rules(vocab="model", experts="data", mlp="model")),
}


def test_each_device_holds_its_experts():
    placed = shard(TARGET, make_mesh(), EXPERT_PARALLEL)
    mlp = placed.params["layer_0"]["mlp"]
    assert mlp["experts_gate_up"]["kernel"].sharding.shard_shape((8, 2, 32, 32)) == (2, 2, 32, 32)
    assert mlp["experts_down"]["kernel"].sharding.spec[0] == "model"
    assert mlp["router"]["kernel"].sharding.is_fully_replicated
    assert parameter_axes(("mlp", "experts_down", "kernel"), rank=3) == ("experts", "embed", "mlp")
    with pytest.raises(ValueError, match="experts and mlp are axes of one array"):
        Rules(experts="model", mlp="model")
    with pytest.warns(UserWarning, match="the experts .8. cannot be divided evenly over 3 devices"):
        shard(TARGET, make_mesh(1, 3), Rules(experts="model"))


def test_a_mesh_with_an_axis_for_experts():
    mesh = jax.make_mesh((2, 2), ("expert", "model"), devices=jax.devices()[:4])
    kernel = shard(TARGET, mesh).params["layer_0"]["mlp"]["experts_gate_up"]["kernel"]
    assert tuple(kernel.sharding.spec) == ("expert", None, "model", None)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_same_tokens(name):
    shape, rules = CASES[name]
    mesh, verifier = make_mesh(*shape), jaxspec.CoupledVerifier()
    for drafter in (None, jaxspec.ModelDrafter(DRAFT, k=3)):
        expected = _alone(drafter is None)
        target = shard(TARGET, mesh, rules)
        own = drafter and jaxspec.ModelDrafter(shard(DRAFT, mesh, rules), k=3)
        same(run(target, own, verifier), expected)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_experts(bits):
    small = jaxspec.quantize_weights(TARGET, bits=bits, group=None if bits == 8 else 8)
    expected = generate(small, None)
    for rules in (EXPERT_PARALLEL, DATA_AND_TENSOR):
        same(run(shard(small, make_mesh(), rules), None), expected)


def _alone(plain):
    if plain not in _ALONE:
        drafter = None if plain else jaxspec.ModelDrafter(DRAFT, k=3)
        _ALONE[plain] = run(TARGET, drafter, jaxspec.CoupledVerifier())
        assert np.std(np.asarray(_ALONE[plain].tokens)) > 0
    return _ALONE[plain]


_ALONE = {}

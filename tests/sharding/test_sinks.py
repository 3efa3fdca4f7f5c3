"""Sinks, and experts with biases, on a mesh: each device holds those of its heads and experts, and tokens are equal."""

import numpy as np
import pytest

import jaxspec
from jaxspec.nn.config import ExpertsConfig
from jaxspec.nn.experts import ClampedGate
from jaxspec.ops.rope import Rope
from jaxspec.sharding.params import parameter_axes, shard
from jaxspec.sharding.rules import DATA_AND_TENSOR, EXPERT_PARALLEL
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures.meshes import make_mesh, run, same
from tests.benchmarks.workload import disturbed

EXPERTS = ExpertsConfig(8, 3, 32, normalized=True, clamped=ClampedGate(7.0, 1.702), bias=True)
OPTIONS = {"qkv_bias": True, "output_bias": True, "sinks": True, "windows": (8,), "ropes": (Rope(1e4),)}
TARGET = wide_transformer(0, vocab=8000, experts=EXPERTS, **OPTIONS)


def test_each_device_holds_its_sinks_and_biases():
    params = shard(TARGET, make_mesh(), EXPERT_PARALLEL).params["layer_0"]
    assert params["attention"]["sinks"].sharding.shard_shape((8, 2)) == (2, 2)
    assert params["mlp"]["experts_gate_up"]["bias"].sharding.shard_shape((8, 2, 32)) == (2, 2, 32)
    assert parameter_axes(("mlp", "experts_gate_up", "bias"), rank=3) == ("experts", None, "mlp")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 4), (1, 8)])
@pytest.mark.parametrize("rules", [EXPERT_PARALLEL, DATA_AND_TENSOR], ids=["whole experts", "a part of each"])
def test_the_same_tokens(shape, rules):
    mesh, verifier, draft = make_mesh(*shape), jaxspec.CoupledVerifier(), disturbed(TARGET, 0.2)
    expected = run(TARGET, jaxspec.ModelDrafter(draft, k=3), verifier)
    assert np.std(np.asarray(expected.tokens)) > 0
    drafter = jaxspec.ModelDrafter(shard(draft, mesh, rules), k=3)
    same(run(shard(TARGET, mesh, rules), drafter, verifier), expected)

"""`Weights`: copies on the rollout's own devices and in its own type; nothing of the trainer's is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxspec.rl.weights import Weights
from tests._fixtures.rollouts import VOCAB, Policy, to_model

MESHES = [Mesh(np.array(jax.devices()[start : start + 2]), ("fsdp",)) for start in (0, 2)]


def made(policy, mesh=None, dtype=None):
    return Weights(policy, mesh=mesh, dtype=dtype, to_model=to_model)


def test_no_buffer_is_the_trainer_s():
    policy = Policy()
    weights = made(policy)
    for x in (weights.target.a, weights.module().a[...]):
        assert x.unsafe_buffer_pointer() != policy.a[...].unsafe_buffer_pointer()
    weights.update(nnx.state(policy, nnx.Param))
    assert weights.target.a.unsafe_buffer_pointer() != policy.a[...].unsafe_buffer_pointer()


def test_weights_of_another_mesh_are_moved_by_the_same_axes():
    policy, (train, rollout) = Policy(), MESHES
    placed = lambda seed, mesh, spec: jax.device_put(  # noqa: E731
        nnx.state(Policy(seed), nnx.Param), NamedSharding(mesh, spec)
    )
    nnx.update(policy, placed(0, train, PartitionSpec()))
    weights = made(policy, rollout)
    assert weights.target.a.sharding == NamedSharding(rollout, PartitionSpec())
    weights.update(placed(1, train, PartitionSpec()))
    assert weights.target.a.sharding == NamedSharding(rollout, PartitionSpec())
    np.testing.assert_array_equal(weights.target.a, Policy(1).a[...])
    wide = {"wide": nnx.Param(jax.device_put(jnp.zeros((4, 2)), NamedSharding(train, PartitionSpec("fsdp"))))}
    other = Weights(nnx.Dict(wide), mesh=rollout, dtype=None, to_model=lambda module: to_model(policy))
    assert other.module().wide[...].sharding == NamedSharding(rollout, PartitionSpec("fsdp"))


def test_the_rollout_s_own_type_stays():
    weights = made(Policy(), dtype=jnp.bfloat16)
    weights.update(nnx.state(Policy(2), nnx.Param))
    assert weights.target.a.dtype == jnp.bfloat16 and weights.module().drawn[...].dtype == jnp.int32
    np.testing.assert_array_equal(weights.target.a, Policy(2).a[...].astype(jnp.bfloat16))


def test_other_parameters_and_models_are_refused():
    weights = made(Policy())
    with pytest.raises(ValueError, match=r"shape \(2, 2\), expected \(7, 7\)"):
        weights.update(nnx.state(Policy(), nnx.Param) | {"a": nnx.Param(jnp.zeros((2, 2)))})
    with pytest.raises(ValueError, match="no parameter"):
        weights.update({"other": jnp.zeros((VOCAB, VOCAB))})
    with pytest.raises(TypeError, match="to_model must return a jaxspec Model, got"):
        Weights(Policy(), mesh=None, dtype=None, to_model=lambda module: None)

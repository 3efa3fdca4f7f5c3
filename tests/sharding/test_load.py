"""Checkpoints are read straight into their shards."""

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints import huggingface
from jaxspec.sharding.placement import Placement
from jaxspec.sharding.rules import DATA_AND_TENSOR, FULLY_SHARDED, TENSOR_PARALLEL
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import folders
from tests._fixtures.meshes import make_mesh


def held(device) -> int:
    """Bytes that live arrays hold on a device. Asking an array for its parts would make more of them."""
    arrays = [x for x in jax.live_arrays() if device in x.sharding.device_set]
    return sum(int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize for x in arrays)


def assert_same(model, expected):
    assert jax.tree.structure(model.params) == jax.tree.structure(expected.params)
    jax.tree.map(np.testing.assert_array_equal, model.params, expected.params)


@pytest.mark.filterwarnings("ignore:the .* cannot be divided evenly")
@pytest.mark.parametrize("rules", [TENSOR_PARALLEL, FULLY_SHARDED])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_folder(tmp_path, family, rules):
    path = folders.write(tmp_path / family, family)
    mesh = make_mesh(2, 2)
    model = jaxspec.load(path, mesh=mesh, rules=rules)
    assert_same(model, jaxspec.load(path))
    assert model.placement == Placement.on(mesh, rules)
    assert not model.params["layer_0"]["mlp"]["down"]["kernel"].sharding.is_fully_replicated


@pytest.mark.slow
def test_what_save_wrote(tmp_path):
    model, mesh = wide_transformer(0), make_mesh()
    jaxspec.save(model, tmp_path / "saved")
    loaded = jaxspec.load(tmp_path / "saved", mesh=mesh)
    assert_same(loaded, model)
    assert loaded.placement == Placement.on(mesh, DATA_AND_TENSOR.within(mesh))
    for name, rank in {"query": 4, "key_value": 4, "output": 2}.items():
        assert len(loaded.params["layer_0"]["attention"][name]["kernel"].sharding.spec) == rank
        assert not loaded.params["layer_0"]["attention"][name]["kernel"].sharding.is_fully_replicated
    jaxspec.save(loaded, tmp_path / "again")
    assert_same(jaxspec.load(tmp_path / "again"), model)


def test_no_device_ever_holds_more_than_its_part(tmp_path, monkeypatch):
    path = folders.write(tmp_path / "llama", "llama")
    mesh = jax.make_mesh((2,), ("model",), devices=jax.devices()[1:3])
    device, most = jax.devices()[1], [0]
    before, at_start = held(device), held(jax.devices()[0])
    read = huggingface._read

    def watched(*arguments):
        most.append(held(device) - before)
        return read(*arguments)

    monkeypatch.setattr(huggingface, "_read", watched)
    model = jaxspec.load(path, mesh=mesh)
    whole, part = sum(x.nbytes for x in jax.tree.leaves(model.params)), held(device) - before
    assert len(most) > 5
    assert max(most) <= part < 0.75 * whole
    assert held(jax.devices()[0]) == at_start

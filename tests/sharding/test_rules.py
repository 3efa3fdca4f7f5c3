"""Rules define how arrays are split; rules that do not fit raise an error or a warning."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import jaxspec
from jaxspec.sharding.params import parameter_axes, shard, shard_models
from jaxspec.sharding.placement import Placement
from jaxspec.sharding.rules import (
    DATA_AND_TENSOR,
    FULLY_SHARDED,
    REPLICATED,
    TENSOR_PARALLEL,
    Rules,
    as_tuple,
    default_rules,
)
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures.meshes import make_mesh


def test_axes_that_divide_are_split():
    mesh = make_mesh()
    axes = ("batch", "vocab", "kv_heads", None)
    assert DATA_AND_TENSOR.spec(mesh, (4, 12, 8, 3), axes) == PartitionSpec(("data",), ("model",), ("model",), None)
    assert TENSOR_PARALLEL.spec(mesh, (4, 12), ("batch", "vocab")) == PartitionSpec(None, ("model",))
    both = Rules(mlp=("data", "model"))
    assert both.spec(mesh, (16,), ("mlp",)) == PartitionSpec(("data", "model"))


def mesh_of(*sizes, names="abcdefg"):
    return jax.make_mesh(sizes, tuple(names[: len(sizes)]), axis_types=(AxisType.Auto,) * len(sizes))


@pytest.mark.parametrize(
    ("sizes", "heads", "expected", "heads_over"),
    [
        ((8,), 8, Rules(vocab="a", kv_heads="a", mlp="a"), 8),
        ((4, 2), 4, Rules(vocab=("a", "b"), kv_heads="a", queries="b", mlp=("a", "b")), 8),
        ((2, 2, 2), 2, Rules(vocab=("a", "b", "c"), kv_heads="a", queries="b", mlp=("a", "b", "c")), 4),
        ((3, 2), 8, Rules(vocab="b", kv_heads="b", mlp="b"), 2),
        ((8,), 3, Rules(vocab="a", mlp="a"), 1),
    ],
)
def test_tensor_parallel_uses_what_divides(sizes, heads, expected, heads_over):
    """And a message says where it does not use all devices."""
    config, mesh = wide_transformer(0, heads=heads).module.config, mesh_of(*sizes)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rules = Rules.tensor_parallel(config, mesh)
    for field in dataclasses.fields(Rules):
        assert as_tuple(getattr(rules, field.name)) == as_tuple(getattr(expected, field.name)), field.name
    texts = [str(one.message) for one in said]
    assert any(f"the heads can be split over {heads_over} of" in text for text in texts) == (heads_over < mesh.size)


def test_tensor_parallel_leaves_data_to_the_rows():
    config = wide_transformer(0).module.config
    rules = Rules.tensor_parallel(config, make_mesh())
    assert rules.batch == "data" and rules.kv_heads == ("model",)
    assert Rules.tensor_parallel(config, make_mesh(), ("data", "model")).batch is None
    with pytest.raises(ValueError, match="split over the mesh axes rows, got a mesh with axes data, model"):
        Rules.tensor_parallel(config, make_mesh(), ("rows",))


def test_the_default_rules_use_every_axis_or_say_so():
    assert default_rules(make_mesh()) == DATA_AND_TENSOR.within(make_mesh())
    assert default_rules(mesh_of(4, 2, names=("draft", "model"))).drafts == ("draft",)
    with pytest.raises(
        ValueError, match="nothing would be split over the mesh axis a; name the axes data, model, expert"
    ):
        default_rules(mesh_of(8))
    with pytest.raises(ValueError, match="nothing would be split over the mesh axis a"):
        shard(wide_transformer(0), mesh_of(8))
    assert default_rules(mesh_of(8, 1, names=("model", "other"))).vocab == ("model",)


@pytest.mark.parametrize(
    ("rules", "error", "text"),
    [
        ({"vocab": 3}, TypeError, "vocab must be the name of a mesh axis, a tuple of names, or None, got 3"),
        ({"mlp": ("model", 1)}, TypeError, "mlp must be the name of a mesh axis"),
        ({"mlp": "a", "embed": ("b", "a")}, ValueError, "mlp and embed are axes of one array, .* the mesh axis a"),
        ({"batch": "a", "vocab": "a"}, ValueError, "batch and vocab are axes of one array"),
    ],
)
def test_rules_that_cannot_be_are_refused(rules, error, text):
    with pytest.raises(error, match=text):
        Rules(**rules)


def test_lists_of_axes_are_tuples():
    assert Rules(vocab=["a", "b"]) == Rules(vocab=("a", "b"))


def test_models_on_other_devices_are_refused():
    one = shard(wide_transformer(0), make_mesh())
    other = shard(wide_transformer(1), make_mesh(2, 2))
    with pytest.raises(ValueError, match="target and drafts must be on the same devices, got 8 of .* and 4 of"):
        jaxspec.generate(one, jaxspec.ModelDrafter(other, k=2), [[1, 2]], max_new_tokens=4)


def test_a_residual_width_that_does_not_divide_is_said():
    mesh = jax.make_mesh((3, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:6])
    with pytest.warns(UserWarning, match=r"residual width \(32\) cannot be divided evenly over 3 devices"):
        shard(wide_transformer(0), mesh, FULLY_SHARDED)


def test_axes_of_several_logical_ones_are_split_by_all_of_them():
    rules = Rules(kv_heads="a", queries="b")
    split = lambda size: rules.spec(mesh_of(4, 2), (size,), (("kv_heads", "queries"),))
    assert split(64) == PartitionSpec(("a", "b")) and split(60) == PartitionSpec(None)


def test_axes_that_do_not_divide_are_whole():
    assert DATA_AND_TENSOR.spec(make_mesh(), (3, 11), ("batch", "vocab")) == PartitionSpec(None, None)


def test_rules_within_a_mesh_name_only_its_axes():
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    assert DATA_AND_TENSOR.within(mesh) == dataclasses.replace(
        TENSOR_PARALLEL, vocab=("model",), kv_heads=("model",), mlp=("model",)
    )


@pytest.mark.parametrize("rules", [TENSOR_PARALLEL, DATA_AND_TENSOR, FULLY_SHARDED, REPLICATED])
def test_every_parameter_is_where_the_rules_say(rules):
    model = wide_transformer(0)
    placed = shard(model, make_mesh(), rules)
    split = {}
    for path, x in jax.tree.leaves_with_path(placed.params):
        name = ".".join(key.key for key in path)
        split[name] = tuple(x.sharding.spec)
        np.testing.assert_array_equal(x, _at(model.params, path))
    model_axis = None if rules is REPLICATED else "model"
    width = "data" if rules is FULLY_SHARDED else None
    assert split["embedding"] == (model_axis, width)
    assert split["layer_0.attention.query.kernel"] == (model_axis, None, None, width)
    assert split["layer_0.attention.key_value.kernel"] == (model_axis, None, None, width)
    assert split["layer_0.attention.output.kernel"] == (width, model_axis)
    assert split["layer_0.mlp.gate_up.kernel"] == (None, model_axis, width)
    assert split["layer_0.mlp.down.kernel"] == (width, model_axis)
    assert split["final_norm.scale"] == (None,)


def _at(tree, path):
    for key in path:
        tree = tree[key.key]
    return tree


@pytest.mark.parametrize("options", [{}, {"gated_mlp": False, "qkv_bias": True, "output_bias": True, "mlp_bias": True}])
def test_every_parameter_of_a_layer_is_known(options):
    """All but norms are: a parameter that is not is whole everywhere, and that would go unseen."""
    model = wide_transformer(0, **options, ropes=(None,), tied_head=False, norm="layer")
    for path, x in jax.tree.leaves_with_path(model.params):
        names = tuple(key.key for key in path)
        vector = any(name.endswith("norm") for name in names) or names[-1] == "bias"
        assert vector or set(parameter_axes(names, x.ndim)) != {None}, names


@pytest.mark.parametrize("path", ["fuse/kernel", "block_0/mix/kernel", "head_2_0/kernel"])
def test_a_head_s_product_over_the_target_s_states_is_split(path):
    assert parameter_axes(tuple(path.split("/")), 2) == ("embed", "mlp")


def test_what_cannot_be_split_is_said():
    with pytest.warns(UserWarning, match=r"key-value heads \(3\) cannot be divided evenly over 4 devices"):
        placed = shard(wide_transformer(0, heads=3), make_mesh())
    assert placed.params["layer_0"]["attention"]["key_value"]["kernel"].sharding.is_fully_replicated
    assert not placed.params["layer_0"]["mlp"]["down"]["kernel"].sharding.is_fully_replicated


def test_an_explicit_mesh_is_taken_as_automatic():
    explicit = make_mesh(kind=AxisType.Explicit)
    assert shard(wide_transformer(0), explicit).placement.mesh == make_mesh()


def test_models_inside_drafters_are_found():
    mesh, model = make_mesh(), wide_transformer(0)
    own = shard(model, mesh, REPLICATED)
    drafter = jaxspec.contrib.UnionDrafter((jaxspec.ModelDrafter(model, k=2), jaxspec.ModelDrafter(own, k=2)))
    first, second = (drafter.model for drafter in shard_models(drafter, mesh).drafters)
    assert first.placement == Placement.on(mesh, DATA_AND_TENSOR.within(mesh))
    assert second.placement.rules == REPLICATED


def test_what_does_not_fit_is_refused():
    mesh, model = make_mesh(), wide_transformer(0)
    with pytest.raises(ValueError, match="split over the mesh axes heads, got a mesh with axes data, model"):
        shard(model, mesh, Rules(kv_heads="heads"))
    with pytest.raises(TypeError, match=r"mesh must be a jax.sharding.Mesh, got tuple"):
        shard(model, (2, 4))
    with pytest.raises(TypeError, match="rules must be"):
        shard(model, mesh, "model")
    with pytest.raises(TypeError, match="shard takes a LanguageModel, got HistoryModel"):
        shard(history_model(0), mesh)
    other = make_mesh(4, 2)
    with pytest.raises(ValueError, match="mesh must be the one that the models are on"):
        jaxspec.generate(shard(model, mesh), None, jnp.ones((1, 2), jnp.int32), max_new_tokens=2, mesh=other)
    with pytest.raises(ValueError, match="pass mesh="):
        jaxspec.load("smollm2-135m-instruct", rules=TENSOR_PARALLEL)
    with pytest.raises(TypeError, match="unexpected keyword argument 'mesh'"):
        jaxspec.init(model, None, jnp.ones((1, 2), jnp.int32), max_new_tokens=2, mesh=mesh)

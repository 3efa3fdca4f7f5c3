"""Where a decoder's parameters go: the logical axes of each, and `shard`."""

import dataclasses
import warnings
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import DictKey

from jaxspec.core.model import Unsharded
from jaxspec.nn.language_model import LanguageModel, Network
from jaxspec.ops.packed import PackedWeight
from jaxspec.sharding.placement import Placement, automatic, put
from jaxspec.sharding.rules import Rules, as_tuple, default_rules, pieces
from jaxspec.sharding.stack import ModelStack

Players = TypeVar("Players")
Placed = TypeVar("Placed", bound=Network)
Axes = tuple[str | tuple[str, ...] | None, ...]

# By the end of a parameter's path; see `jaxspec.nn.transformer` for the layouts.
_AXES: dict[tuple[str, ...], Axes] = {
    ("embedding",): ("vocab", "embed"),
    ("head",): ("vocab", "embed"),
    ("markov_after",): ("vocab", None),
    ("position_embedding",): (None, "embed"),
    ("query", "kernel"): ("kv_heads", "queries", None, "embed"),
    ("query", "bias"): ("kv_heads", "queries", None),
    ("key_value", "kernel"): ("kv_heads", None, None, "embed"),
    ("key_value", "bias"): ("kv_heads", None, None),
    ("output", "kernel"): ("embed", ("kv_heads", "queries")),
    ("output", "bias"): (None,),
    ("gate_up", "kernel"): (None, "mlp", "embed"),
    ("gate_up", "bias"): (None, "mlp"),
    ("up", "kernel"): ("mlp", "embed"),
    ("up", "bias"): ("mlp",),
    ("down", "kernel"): ("embed", "mlp"),
    ("down", "bias"): (None,),
}


def parameter_axes(path: tuple[str, ...], rank: int) -> Axes:
    """The logical axes of the parameter at `path`; one that is not known is whole everywhere."""
    for count in (2, 1):
        if (axes := _AXES.get(path[-count:])) is not None and len(axes) == rank:
            return axes
    return (None,) * rank


def shard(model: Placed, mesh: Mesh, rules: Rules | None = None) -> Placed:
    """The same model with its parameters split over `mesh`, and its caches and logits with them.

    Do it once, and pass the result to `generate` and to drafters. Target and draft may follow
    different rules on one mesh: `shard(draft, mesh, REPLICATED)`. Works inside `jax.jit` too.

    Args:
      model: from `load`, or a head from `load_head`; parameters may also be
        `jax.ShapeDtypeStruct`, to compile ahead of time.
      mesh: from `jax.make_mesh`, with axes of the names that the rules use.
      rules: `TENSOR_PARALLEL`, `DATA_AND_TENSOR`, `FULLY_SHARDED`, `REPLICATED` or your own; `None`
        is by the axes `data`, `model` and `draft` (`default_rules`).

    Warns:
      UserWarning: an axis does not divide evenly, so it is whole on every device.

    Raises:
      TypeError, ValueError: the model is no `LanguageModel` nor head, or rules and mesh do not fit.
    """
    if not isinstance(model, Network):
        raise TypeError(
            f"shard takes a LanguageModel, got {type(model).__name__}; give the arrays of your own model their "
            "shardings with jax.device_put"
        )
    if any(isinstance(x, PackedWeight) and not x.splits for x in jax.tree.leaves(model.params, is_leaf=_is_stored)):
        raise TypeError("shard takes a model whose products XLA splits; pass the one that native_products was given")
    placement = Placement.on(mesh, default_rules(mesh) if rules is None else rules)
    params = jax.tree.map_with_path(lambda path, x: put(x, parameter_sharding(placement, path, x)), model.params)
    return placed(dataclasses.replace(model, params=params), placement)


def placed(model: Placed, placement: Placement) -> Placed:
    """The same model, whose parameters lie there already; warns of what could not be split."""
    _warn(model, placement)
    return dataclasses.replace(model, placement=placement)


def shard_models(players: Players, mesh: Mesh, rules: Rules | None = None) -> Players:
    """Every model and head in a pytree (a drafter, say) that has no placement yet, given one.

    The models of a `ParallelDrafter` are put side by side, one at each place along the rules' `drafts`.

    Args:
      players: any pytree.
      mesh: where to.
      rules: `None` is by the axes `data`, `model` and `draft` (`default_rules`).

    Raises:
      TypeError, ValueError: rules and mesh do not fit, or a model lies on another mesh.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}; jax.make_mesh makes one")

    def place(node):
        if not isinstance(node, kinds):
            return node
        if isinstance(node.placement, Unsharded):
            own = default_rules(mesh) if rules is None else rules
            return shard_stack(node, mesh, own) if isinstance(node, ModelStack) else shard(node, mesh, own)
        if node.placement.mesh != automatic(mesh):
            raise ValueError(
                f"mesh must be the one that the models lie on, got {mesh} and a model on {node.placement.mesh}; pass "
                "the same mesh to shard, or none here"
            )
        return node

    kinds = (Network, ModelStack)
    return jax.tree.map(place, players, is_leaf=lambda node: isinstance(node, kinds))


def check_devices(players: Any) -> None:
    """Raises `ValueError` if models in a pytree lie on the devices of different meshes."""
    kinds = (Network, ModelStack)
    nodes = jax.tree.leaves(players, is_leaf=lambda node: isinstance(node, kinds))
    meshes = [
        node.placement.mesh for node in nodes if isinstance(node, kinds) and not isinstance(node.placement, Unsharded)
    ]
    for mesh in meshes[1:]:
        if list(mesh.devices.flat) != list(meshes[0].devices.flat):
            raise ValueError(
                f"target and drafts must lie on the same devices, got {meshes[0].size} of {meshes[0]} and {mesh.size} "
                f"of {mesh}; shard them on one mesh, a small draft by jaxspec.sharding.REPLICATED"
            )


def shard_stack(stack: ModelStack, mesh: Mesh, rules: Rules) -> ModelStack:
    """Models side by side, each on its own part of `mesh`, and split over that part by the other rules.

    Raises:
      TypeError, ValueError: the models are no `LanguageModel`s, rules and mesh do not fit, or
        there are not as many models as places along the axis.
    """
    axes = as_tuple(Placement.on(mesh, rules).rules.drafts)
    count = len(stack.models)
    if not isinstance(stack.models[0], LanguageModel):
        raise TypeError(
            f"only LanguageModels run at the same time, got {type(stack.models[0]).__name__}; pass a UnionDrafter of "
            "ModelDrafters, which runs them one after the other"
        )
    if not axes or pieces(mesh, axes) != count:
        along = f"{pieces(mesh, axes)} along {' x '.join(axes)}"
        got = along if axes else f"rules without drafts, and a mesh with axes {', '.join(mesh.axis_names)}"
        raise ValueError(
            f"{count} drafts run side by side on a mesh axis with {count} places, got {got}; pass "
            f'jax.make_mesh(({count}, ...), ("draft", "model")), or Rules(drafts=...) with the name of another axis'
        )
    own = Placement.on(mesh, rules.without(axes))

    def stacked(path, *parts):
        spec = parameter_sharding(own, path, parts[0]).spec
        return _put_together(parts, NamedSharding(own.mesh, PartitionSpec(axes, *spec)))

    first, *others = (model.params for model in stack.models)
    params = jax.tree.map_with_path(stacked, first, *others)
    together = placed(dataclasses.replace(stack.models[0], params=params), own)
    return dataclasses.replace(stack, models=together, axes=axes)


def _put_together(parts: tuple[Any, ...], sharding: NamedSharding) -> Any:
    """Arrays stacked, or only their shapes, each straight to where it goes: no device holds another's."""
    if any(isinstance(part, jax.core.Tracer) for part in parts):
        return put(jnp.stack(parts), sharding)
    shape = (len(parts), *parts[0].shape)
    if isinstance(parts[0], jax.ShapeDtypeStruct):
        return put(jax.ShapeDtypeStruct(shape, parts[0].dtype), sharding)
    return jax.make_array_from_callback(shape, sharding, lambda index: _piece(parts, index))


def _piece(parts: tuple[Array, ...], index: tuple[slice, ...]) -> Array:
    (part,) = parts[index[0]]
    return part[index[1:]][None]


def parameter_sharding(placement: Placement, path: tuple[Any, ...], x: Any) -> NamedSharding:
    """Where the parameter at a pytree path goes: an `Int8Kernel`'s values as the kernel would, its scales beside."""
    names = tuple(key.key for key in path if isinstance(key, DictKey))
    if len(names) == len(path):
        return placement.sharding(x.shape, parameter_axes(names, len(x.shape)))
    scale = path[-1].name == "scale"
    axes = parameter_axes(names, len(x.shape) + scale)
    return placement.sharding(x.shape, axes[:-1] if scale else axes)


def _is_stored(x: Any) -> bool:
    return isinstance(x, PackedWeight)


def _warn(model: Network, placement: Placement) -> None:
    config = model.module.config
    # A head need not have all of these; what it has not is not split either.
    fields = {
        "vocab": "vocab_size",
        "kv_heads": "num_kv_heads",
        "queries": "queries_per_kv_head",
        "mlp": "mlp_width",
        "embed": "width",
    }
    sizes = {axis: size for axis, name in fields.items() if (size := getattr(config, name, None)) is not None}
    names = {"vocab": "vocabulary", "kv_heads": "key-value heads", "queries": "queries of a head"}
    names |= {"mlp": "inner width", "embed": "residual width"}
    for axis, size in sizes.items():
        over = as_tuple(getattr(placement.rules, axis))
        count = pieces(placement.mesh, over)
        if size % count:
            warnings.warn(
                f"the {names[axis]} ({size}) cannot be divided evenly over {count} devices of the mesh axis "
                f"{' x '.join(over)}: every device holds all of that",
                stacklevel=4,
            )

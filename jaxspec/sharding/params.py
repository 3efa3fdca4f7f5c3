"""Shards models over a mesh: the logical axes of each parameter, `shard` and `shard_models`."""

import dataclasses
import math
import re
import warnings
from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import DictKey

from jaxspec.core import validate
from jaxspec.core.layout import Unsharded
from jaxspec.core.typed import typed
from jaxspec.nn.network import Network, packed_weights
from jaxspec.ops.packed import Axes, PackedWeight, is_packed
from jaxspec.sharding.placement import Placement, automatic, put
from jaxspec.sharding.rules import Rules, as_tuple, default_rules, pieces

_Tree = TypeVar("_Tree")
_Network = TypeVar("_Network", bound=Network)

# Keyed by the last names of a parameter's path; see `jaxspec.nn.transformer` for the layouts.
_AXES: dict[tuple[str, ...], Axes] = {
    ("embedding",): ("vocab", "embed"),
    ("head",): ("vocab", "embed"),
    ("markov_after",): ("vocab", None),
    ("position_embedding",): (None, "embed"),
    ("query", "kernel"): ("kv_heads", "queries", None, "embed"),
    ("query", "bias"): ("kv_heads", "queries", None),
    ("sinks",): ("kv_heads", "queries"),
    ("key_value", "kernel"): ("kv_heads", None, None, "embed"),
    ("key_value", "bias"): ("kv_heads", None, None),
    ("output", "kernel"): ("embed", ("kv_heads", "queries")),
    ("output", "bias"): (None,),
    ("gate_up", "kernel"): (None, "mlp", "embed"),
    ("gate_up", "bias"): (None, "mlp"),
    ("up", "kernel"): ("mlp", "embed"),
    ("up", "bias"): ("mlp",),
    ("down", "kernel"): ("embed", "mlp"),
    ("experts_gate_up", "kernel"): ("experts", None, "mlp", "embed"),
    ("experts_gate_up", "bias"): ("experts", None, "mlp"),
    ("experts_down", "kernel"): ("experts", "embed", "mlp"),
    ("down", "bias"): (None,),
    # Products in heads that are summed over devices; each device reads a part of the replicated inputs.
    ("fuse", "kernel"): ("embed", "mlp"),
    ("mix", "kernel"): ("embed", "mlp"),
    ("head", "kernel"): ("embed", "mlp"),
}
# The number of a layer, say, or that of `head_0_1`, the second block of Medusa's first head.
_NUMBER = re.compile(r"(_\d+)+$")


@runtime_checkable
class SelfSharding(Protocol):
    """Describes a pytree node of several models that `shard_models` shards by its `shard` if it has no placement."""

    @property
    def placement(self) -> Any:
        """The layout of the node's models, a `jaxspec.core.Layout`."""
        ...

    def shard(self, mesh: Mesh, rules: Rules) -> Self:
        """Returns the node with its models on `mesh`."""
        ...


@typed("path", rank=(0, 64))
def parameter_axes(path: tuple[str, ...], rank: int) -> Axes:
    """Returns the logical axes of the parameter at `path`; an unknown parameter is replicated.

    Args:
      path: the names on the path to the parameter.
      rank: the number of the parameter's axes.

    Example:
        >>> jaxspec.sharding.parameter_axes(("layer_0", "mlp", "down", "kernel"), rank=2)
        ('embed', 'mlp')
    """
    names = tuple(_NUMBER.sub("", name) for name in path[-2:])
    for count in (2, 1):
        if (axes := _AXES.get(names[-count:])) is not None and len(axes) == rank:
            return axes
    return (None,) * rank


@typed()
def parameter_shardings(placement: Placement, params: Any) -> Any:
    """Returns the `NamedSharding` of each array in `params`, in a pytree of the same structure.

    Example:
        >>> mesh = jax.make_mesh((1,), ("model",))
        >>> placement = jaxspec.sharding.Placement.on(mesh, jaxspec.sharding.TENSOR_PARALLEL)
        >>> tuple(jaxspec.sharding.parameter_shardings(placement, target.params)["embedding"].spec)
        ('model', None)
    """

    def shardings(path: tuple[Any, ...], x: Any) -> Any:
        names = tuple(key.key for key in path if isinstance(key, DictKey))
        axes = parameter_axes(names, np.ndim(x))
        if isinstance(x, PackedWeight):
            return x.map_axes(lambda part, its: placement.sharding(part.shape, its), axes)
        return placement.sharding(np.shape(x), axes)

    validate.arrays("params", params)
    return jax.tree.map_with_path(shardings, params, is_leaf=is_packed)


def shard(model: _Network, mesh: Mesh, rules: Rules | None = None) -> _Network:
    """Returns the model with its parameters split over `mesh`; its caches and logits are split accordingly.

    Shard a model once, and pass the result to `generate` and to drafters. Target and draft may follow different rules
    on one mesh: `shard(draft, mesh, REPLICATED)`. Also works inside `jax.jit`.

    Args:
      model: a model from `load`, or a head from `load_head`. Its parameters may be `jax.ShapeDtypeStruct`, to compile
        ahead of time.
      mesh: a mesh from `jax.make_mesh`, with the axis names that the rules use.
      rules: `TENSOR_PARALLEL`, `DATA_AND_TENSOR`, `FULLY_SHARDED`, `REPLICATED` or custom rules; `None` splits over the
        axes `data`, `model` and `draft` (`default_rules`).

    Warns:
      UserWarning: if an axis does not divide evenly, so that every device holds all of it.

    Raises:
      TypeError, ValueError: if the model is not a `LanguageModel` or head, or if rules and mesh do not match.

    Example:
        >>> mesh = jax.make_mesh((1,), ("model",))
        >>> split = jaxspec.shard(target, mesh)
        >>> jaxspec.generate(split, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4).tokens.shape
        (2, 4)
    """
    if not isinstance(model, Network):
        raise TypeError(
            f"shard takes a LanguageModel, got {type(model).__name__}; place the arrays of a custom model with "
            "jax.device_put"
        )
    if unshardable := [x for x in packed_weights(model) if not x.shardable]:
        raise TypeError(
            f"shard takes a model whose products XLA splits, got {type(unshardable[0]).__name__}; pass the model "
            "before its conversion to these weights"
        )
    placement = Placement.on(mesh, default_rules(mesh) if rules is None else rules)
    params = jax.tree.map(put, model.params, parameter_shardings(placement, model.params))
    return placed(dataclasses.replace(model, params=params), placement)


@typed()
def placed(model: _Network, placement: Placement) -> _Network:
    """Sets the placement of a model whose parameters are already on the mesh; warns if an axis cannot be split.

    Example:
        >>> mesh = jax.make_mesh((1,), ("model",))
        >>> placement = jaxspec.sharding.Placement.on(mesh, jaxspec.sharding.TENSOR_PARALLEL)
        >>> jaxspec.sharding.placed(target, placement).placement == placement
        True
    """
    _warn(model, placement)
    return dataclasses.replace(model, placement=placement)


@typed()
def shard_models(models: _Tree, mesh: Mesh, rules: Rules | None = None) -> _Tree:
    """Shards every model and head without a placement in a pytree, such as a drafter or `(target, drafter)`.

    The models of a `jaxspec.contrib.ParallelDrafter` are placed side by side, one per index along the rules' `drafts`.

    Args:
      models: any pytree.
      mesh: a mesh from `jax.make_mesh`.
      rules: the rules to shard by; `None` splits over the axes `data`, `model` and `draft` (`default_rules`).

    Raises:
      TypeError, ValueError: if rules and mesh do not match, or a model is on another mesh.

    Example:
        >>> mesh = jax.make_mesh((1,), ("model",))
        >>> pair = target, jaxspec.ModelDrafter(draft, k=2)
        >>> split, drafter = jaxspec.sharding.shard_models(pair, mesh)
        >>> jaxspec.generate(split, drafter, prompt, max_new_tokens=4).tokens.shape
        (2, 4)
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}; jax.make_mesh makes one")

    def place(node: Any) -> Any:
        if not _has_placement(node):
            return node
        if isinstance(node.placement, Unsharded):
            own = default_rules(mesh) if rules is None else rules
            return shard(node, mesh, own) if isinstance(node, Network) else node.shard(mesh, own)
        if node.placement.mesh != automatic(mesh):
            raise ValueError(
                f"mesh must be the one that the models are on, got {mesh} and a model on {node.placement.mesh}; pass "
                "the same mesh to shard, or no mesh here"
            )
        return node

    return jax.tree.map(place, models, is_leaf=_has_placement)


@typed()
def check_devices(models: Any) -> None:
    """Raises `ValueError` if models in a pytree are on the devices of different meshes.

    Example:
        >>> jaxspec.sharding.check_devices((target, draft))
    """
    nodes = [node for node in jax.tree.leaves(models, is_leaf=_has_placement) if _has_placement(node)]
    meshes = [node.placement.mesh for node in nodes if not isinstance(node.placement, Unsharded)]
    for mesh in meshes[1:]:
        if list(mesh.devices.flat) != list(meshes[0].devices.flat):
            raise ValueError(
                f"target and drafts must be on the same devices, got {meshes[0].size} of {meshes[0]} and {mesh.size} "
                f"of {mesh}; shard them on one mesh, a small draft by jaxspec.sharding.REPLICATED"
            )


def _has_placement(node: Any) -> bool:
    return isinstance(node, Network | SelfSharding)


def _warn(model: Network, placement: Placement) -> None:
    config = model.module.config
    # A head may lack some of these; an axis that it lacks is not split.
    fields = {
        "vocab": "vocab_size",
        "kv_heads": "num_kv_heads",
        "queries": "queries_per_kv_head",
        "mlp": "mlp_width",
        "embed": "width",
    }
    sizes = {axis: size for axis, name in fields.items() if (size := getattr(config, name, None)) is not None}
    names = {"vocab": "vocabulary", "kv_heads": "key-value heads", "queries": "queries of a head"}
    names |= {"mlp": "inner width", "embed": "residual width", "experts": "experts"}
    if (experts := getattr(config, "experts", None)) is not None:
        sizes |= {"experts": experts.count, "mlp": math.gcd(experts.width, sizes["mlp"])}
    for axis, size in sizes.items():
        over = as_tuple(getattr(placement.rules, axis))
        count = pieces(placement.mesh, over)
        if size % count:
            warnings.warn(
                f"the {names[axis]} ({size}) cannot be divided evenly over {count} devices of the mesh axis "
                f"{' x '.join(over)}: every device holds all of it",
                stacklevel=4,
            )
    if uneven := [name for name, x in _packed(model.params) if _held(x, name, placement) > _share(x, name, placement)]:
        warnings.warn(
            f"the groups of {len(uneven)} quantized weights, such as {'/'.join(uneven[0])}, cannot be divided evenly "
            f"over the mesh: every device holds all of them; quantize in smaller groups",
            stacklevel=4,
        )


def _packed(params: Any) -> Iterator[tuple[tuple[str, ...], PackedWeight]]:
    """Yields the path of each packed weight, and the weight."""
    for path, x in jax.tree.leaves_with_path(params, is_leaf=is_packed):
        if isinstance(x, PackedWeight):
            yield tuple(key.key for key in path if isinstance(key, DictKey)), x


def _held(x: PackedWeight, path: tuple[str, ...], placement: Placement) -> int:
    """Returns the number of stored elements of a packed weight that each device holds."""
    size = lambda part, axes: math.prod(placement.sharding(part.shape, axes).shard_shape(part.shape))  # noqa: E731
    return x.map_axes(size, parameter_axes(path, x.ndim)).stored


def _share(x: PackedWeight, path: tuple[str, ...], placement: Placement) -> int:
    """Returns the number of elements that each device would hold of a plain weight of that shape."""
    return math.prod(placement.sharding(x.shape, parameter_axes(path, x.ndim)).shard_shape(x.shape))

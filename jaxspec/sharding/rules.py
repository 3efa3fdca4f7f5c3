"""Defines `Rules`, which map logical axes to mesh axes, and presets."""

import dataclasses
import math
import warnings
from typing import Any, Self

from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxspec.core.validate import shown

MeshAxes = str | tuple[str, ...] | None

# Pairs of logical axes that occur in one array: a weight, the cache, logits.
_TOGETHER = (
    ("vocab", "embed"),
    ("kv_heads", "embed"),
    ("kv_heads", "queries"),
    ("queries", "embed"),
    ("mlp", "embed"),
    ("experts", "mlp"),
    ("experts", "embed"),
    ("batch", "vocab"),
    ("batch", "kv_heads"),
)


@dataclasses.dataclass(frozen=True)
class Rules:
    """Maps each logical axis to the mesh axis, or axes, that it is split over; `None` means not split.

    Attributes:
      batch: the rows of everything that the loop carries.
      vocab: token ids, in the embedding, output head, logits, distributions and noise.
      kv_heads: key-value heads with their queries, in attention weights and the cache.
      queries: the queries of one key-value head, for more devices than key-value heads.
      mlp: the inner width of the feed-forward block, and of each expert.
      experts: the experts of a layer; a device computes those that it holds, for all tokens that chose them.
      embed: the width of the residual stream, in weights only; activations are not split by it.
      drafts: the models of a `ParallelDrafter`, one per index along the axis. Other logical axes mapped to this mesh
        axis are split over it for other models only.

    Example:
        >>> mesh = jax.make_mesh((1, 1), ("rows", "columns"))
        >>> rules = jaxspec.sharding.Rules(batch="rows", vocab="columns", mlp="columns")
        >>> tuple(rules.spec(mesh, (310, 16), ("vocab", "embed")))
        ('columns', None)
    """

    batch: MeshAxes = None
    vocab: MeshAxes = None
    kv_heads: MeshAxes = None
    queries: MeshAxes = None
    mlp: MeshAxes = None
    experts: MeshAxes = None
    embed: MeshAxes = None
    drafts: MeshAxes = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _normal(field.name, getattr(self, field.name)))
        for first, second in _TOGETHER:
            if shared := set(as_tuple(getattr(self, first))) & set(as_tuple(getattr(self, second))):
                raise ValueError(
                    f"{first} and {second} are axes of one array, which cannot both be split over the mesh axis "
                    f"{', '.join(sorted(shared))}; name it in one of them"
                )

    @property
    def mesh_axes(self) -> set[str]:
        """All mesh axes that the rules name."""
        return {name for field in dataclasses.fields(self) for name in as_tuple(getattr(self, field.name))}

    def check(self, mesh: Mesh | AbstractMesh) -> None:
        """Raises `ValueError` if a rule names an axis that `mesh` lacks, and `TypeError` if `mesh` is not a mesh."""
        _check_kind(mesh)
        if unknown := sorted(self.mesh_axes - set(mesh.axis_names)):
            raise ValueError(
                f"the rules split over the mesh axes {', '.join(unknown)}, got a mesh with axes "
                f"{', '.join(mesh.axis_names) or 'none'}; rename the mesh's axes, or pass Rules(...) with its names"
            )

    def within(self, mesh: Mesh | AbstractMesh) -> Self:
        """Returns the rules without the axes that `mesh` lacks."""
        _check_kind(mesh)
        return self.without(tuple(self.mesh_axes - set(mesh.axis_names)))

    def without(self, names: tuple[str, ...]) -> Self:
        """Returns the rules without these mesh axes."""
        rest = {}
        for field in dataclasses.fields(self):
            rest[field.name] = tuple(name for name in as_tuple(getattr(self, field.name)) if name not in names) or None
        return type(self)(**rest)

    def spec(self, mesh: Mesh | AbstractMesh, shape: tuple[int, ...], axes: tuple[Any, ...]) -> PartitionSpec:
        """Returns the partition of an array with these logical axes; an axis that does not divide evenly is not split.

        An entry of `axes` may be a tuple: several logical axes, flattened into one axis of the array.
        """
        return PartitionSpec(*(self._split(mesh, size, axis) for size, axis in zip(shape, axes, strict=True)))

    @classmethod
    def tensor_parallel(cls, config: Any, mesh: Mesh | AbstractMesh, axes: tuple[str, ...] | None = None) -> Self:
        """Makes rules that split a decoder's weights over as many of a mesh's devices as its sizes allow.

        Mesh axes that divide the key-value heads split them, and other axes that divide a head's queries split those.
        Vocabulary and inner width are split over all axes that divide them. A mesh of several small axes thus splits a
        model over more devices than it has key-value heads.

        Args:
          config: the model's sizes, such as `model.module.config` (a `jaxspec.nn.TransformerConfig`).
          mesh: the mesh.
          axes: the mesh axes to use, in order; `None` means all but `data`. A `data` axis, if present, splits the rows.

        Warns:
          UserWarning: if something is not split over all of these axes.

        Raises:
          TypeError, ValueError: if `mesh` is not a mesh, or lacks one of `axes`.
        """
        _check_kind(mesh)
        sizes = ("num_kv_heads", "queries_per_kv_head", "vocab_size", "mlp_width")
        if isinstance(config, type) or not all(hasattr(config, name) for name in sizes):
            raise TypeError(f"config must have {', '.join(sizes)}, got {shown(config)}; pass model.module.config")
        axes = tuple(name for name in mesh.axis_names if name != "data") if axes is None else as_tuple(axes)
        cls(vocab=axes).check(mesh)
        kv_heads = _dividing(mesh, axes, config.num_kv_heads)
        rest = tuple(name for name in axes if name not in kv_heads)
        queries = _dividing(mesh, rest, config.queries_per_kv_head)
        experts = getattr(config, "experts", None)
        inner = config.mlp_width if experts is None else math.gcd(config.mlp_width, experts.width)
        vocab, mlp = (_dividing(mesh, axes, size) for size in (config.vocab_size, inner))
        for what, used in {"heads": kv_heads + queries, "vocabulary": vocab, "inner width": mlp}.items():
            if pieces(mesh, used) < pieces(mesh, axes):
                warnings.warn(
                    f"the {what} can be split over {pieces(mesh, used)} of {pieces(mesh, axes)} devices only: several "
                    "hold the same part",
                    stacklevel=2,
                )
        batch = "data" if "data" in mesh.axis_names and "data" not in axes else None
        return cls(batch=batch, vocab=vocab, kv_heads=kv_heads, queries=queries, mlp=mlp)

    def _split(self, mesh: Mesh | AbstractMesh, size: int, axis: MeshAxes) -> MeshAxes:
        names = tuple(name for logical in as_tuple(axis) for name in as_tuple(getattr(self, logical)))
        return names if names and size % pieces(mesh, names) == 0 else None


def default_rules(mesh: Mesh | AbstractMesh) -> Rules:
    """Returns the default rules for a mesh: `DRAFTS_BESIDE`, restricted to the axes of the mesh.

    Raises:
      TypeError: if `mesh` is not a mesh.
      ValueError: if the mesh has an axis that these rules do not name, so that models would not be split over it.

    Example:
        >>> jaxspec.sharding.default_rules(jax.make_mesh((1,), ("model",))).vocab
        ('model',)
    """
    rules = DRAFTS_BESIDE.within(mesh)
    unused = [name for name in mesh.axis_names if mesh.shape[name] > 1 and name not in rules.mesh_axes]
    if unused:
        raise ValueError(
            f"nothing would be split over the mesh axis {', '.join(unused)}; name the axes data, model, expert and "
            "draft, or pass your own Rules to load or shard, such as Rules.tensor_parallel(config, mesh)"
        )
    return rules


def _normal(name: str, axes: Any) -> MeshAxes:
    if axes is None or isinstance(axes, str):
        return axes
    if isinstance(axes, tuple | list) and all(isinstance(one, str) for one in axes):
        return tuple(axes)
    raise TypeError(f"{name} must be the name of a mesh axis, a tuple of names, or None, got {shown(axes)}")


def _check_kind(mesh: object) -> None:
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}; jax.make_mesh makes one")


def as_tuple(axes: MeshAxes) -> tuple[str, ...]:
    """Returns the mesh axes of one rule as a tuple."""
    if axes is None:
        return ()
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _dividing(mesh: Mesh | AbstractMesh, axes: tuple[str, ...], size: int) -> tuple[str, ...]:
    """Selects axes greedily, in order, such that their combined size divides `size`."""
    used: tuple[str, ...] = ()
    for name in axes:
        if size % pieces(mesh, (*used, name)) == 0:
            used += (name,)
    return used


def pieces(mesh: Mesh | AbstractMesh, names: tuple[str, ...]) -> int:
    """Returns the number of pieces that these mesh axes split an array into."""
    count = 1
    for name in names:
        count *= mesh.shape[name]
    return count


# Weights are split by head and by column, so that a layer needs two sums over devices and no gather.
TENSOR_PARALLEL = Rules(vocab="model", kv_heads="model", mlp="model")
# `TENSOR_PARALLEL`, with the rows of a batch split over `data`.
DATA_AND_TENSOR = dataclasses.replace(TENSOR_PARALLEL, batch="data")
# `DATA_AND_TENSOR`, with whole experts on each device instead of a part of each: fewer and larger products.
EXPERT_PARALLEL = Rules(batch="data", vocab="model", kv_heads="model", experts="model")
# Weights are split over every device, for models that fit no other way.
FULLY_SHARDED = dataclasses.replace(DATA_AND_TENSOR, embed="data")
# Every device holds the complete model: for a small draft with a large target.
REPLICATED = Rules(batch="data")
# Several drafts at once, each on its own part of the mesh, and the target over all of it. `model` comes first, so
# that a draft's distribution is split further in place, and its pieces are swapped along `draft`.
DRAFTS_BESIDE = Rules(
    batch="data",
    vocab=("model", "draft"),
    kv_heads=("model", "draft"),
    mlp=("model", "draft"),
    experts="expert",
    drafts="draft",
)

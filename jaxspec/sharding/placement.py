"""Defines `Placement`: a mesh and rules, and the layouts of caches and activations that follow."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self, TypeVar

import jax
from jax import Array
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from jaxspec.sharding import multihost
from jaxspec.sharding.rules import Rules, as_tuple, pieces

_Tree = TypeVar("_Tree")


@dataclasses.dataclass(frozen=True)
class Placement:
    """Splits arrays over a mesh by rules: the `jaxspec.core.Layout` of sharded models.

    Static and hashable.

    Attributes:
      mesh: the devices, with automatic axes.
      rules: the mesh axes of each logical axis.

    Example:
        >>> mesh = jax.make_mesh((1,), ("model",))
        >>> jaxspec.shard(target, mesh).placement.mesh.axis_names
        ('model',)
    """

    mesh: Mesh
    rules: Rules

    @classmethod
    def on(cls, mesh: Mesh, rules: Rules) -> Self:
        """Makes a placement after checking mesh and rules.

        A mesh with explicit axes is taken as automatic: the loop's gathers over a split
        vocabulary have no explicit form.

        Raises:
          TypeError: `mesh` is no `jax.sharding.Mesh`, or `rules` no `Rules`.
          ValueError: a rule names an axis that `mesh` has not.
        """
        if not isinstance(rules, Rules):
            raise TypeError(f"rules must be jaxspec.sharding.Rules, got {type(rules).__name__}")
        rules.check(mesh)
        return cls(automatic(mesh), rules)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.mesh.size

    def sharding(self, shape: tuple[int, ...], axes: tuple[Any, ...]) -> NamedSharding:
        """Returns the sharding of an array with these logical axes."""
        return NamedSharding(self.mesh, self.rules.spec(self.mesh, shape, axes))

    def constrain(self, x: Array, axes: tuple[Any, ...]) -> Array:
        """Lays an array out by its logical axes."""
        return put(x, self.sharding(x.shape, axes))

    def cache(self, cache: _Tree) -> _Tree:
        """Splits a `KVCache` by heads and rows."""
        slots = lambda x: self.constrain(x, (None, "batch", "kv_heads", None, None))  # noqa: E731
        return jax.tree.map(lambda x: slots(x) if x.ndim == 5 else self.rows(x), cache)

    def logits(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Splits logits by rows and vocabulary."""
        return self.constrain(logits, ("batch", None, "vocab"))

    def vocab_parts(self, size: int) -> int:
        """Counts the parts that a vocabulary of this size is split into."""
        (axes,) = self.rules.spec(self.mesh, (size,), ("vocab",))
        return pieces(self.mesh, as_tuple(axes))

    def rows(self, tree: _Tree) -> _Tree:
        """Splits arrays that have the batch first by rows."""
        return jax.tree.map(lambda x: self.constrain(x, ("batch", *(None,) * (x.ndim - 1))), tree)

    def replicate(self, tree: _Tree) -> _Tree:
        """Puts complete arrays on every device."""
        return jax.tree.map(lambda x: put(x, self.replicated), tree)

    def on_each(
        self,
        function: Callable[..., Any],
        arguments: tuple[Array, ...],
        axes: tuple[tuple[Any, ...], ...],
        *,
        like: int | tuple[int, ...],
    ) -> Any:
        """Calls a function on each device with its own parts of the arguments; results are laid out as some of them.

        Args:
          function: takes and returns arrays; it needs nothing of other devices.
          arguments: complete arrays.
          axes: the logical axes of each.
          like: the index of that argument; of several results one for each.
        """
        specs = tuple(self.rules.spec(self.mesh, x.shape, names) for x, names in zip(arguments, axes, strict=True))
        # Axes that split nothing hold copies, which the function computes alike.
        out = specs[like] if isinstance(like, int) else tuple(specs[index] for index in like)
        each = jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)
        return each(*arguments)

    def check_same(self, parts: dict[str, Any], number: int = 0) -> int:
        """Raises `ValueError` unless every process of the mesh passes the same; see `multihost.check_same`."""
        return multihost.check_same(parts, self.mesh, number)

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of arrays that are complete on every device."""
        return NamedSharding(self.mesh, PartitionSpec())


def put(x: Any, sharding: NamedSharding) -> Any:
    """Moves `x` to a sharding; constrains it if it is traced, and annotates it if it is only a shape.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> replicated = NamedSharding(jax.make_mesh((1,), ("model",)), PartitionSpec())
        >>> jaxspec.sharding.put(prompt, replicated).sharding == replicated
        True
    """
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    if not isinstance(x, Tracer) and sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if not isinstance(x, Tracer) and not multihost.is_tracing():
        return multihost.put_from_host(x, sharding)
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        return jax.sharding.reshard(x, sharding.spec)  # there a constraint only asserts
    return jax.lax.with_sharding_constraint(x, sharding)


def to_host(tree: _Tree) -> _Tree:
    """Puts complete copies of arrays that are on a mesh on each of its devices, so that every host can read them.

    Other arrays, and traced ones, are returned as they are.

    Example:
        >>> jaxspec.sharding.to_host({"tokens": prompt})["tokens"].shape
        (2, 5)
    """

    def gather(x: Any) -> Any:
        if isinstance(x, Tracer) or not isinstance(x.sharding, NamedSharding):
            return x
        return jax.device_put(x, NamedSharding(x.sharding.mesh, PartitionSpec()))

    return jax.tree.map(gather, tree)


def automatic(mesh: Mesh) -> Mesh:
    """Returns the mesh with automatic axes."""
    if all(kind == AxisType.Auto for kind in mesh.axis_types):
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))

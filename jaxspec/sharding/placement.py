"""Where a model's arrays lie: a mesh and the rules, and what they say of caches and activations."""

import dataclasses
from typing import Any, Self

import jax
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxspec.sharding import multihost as hosts
from jaxspec.sharding.rules import Rules


@dataclasses.dataclass(frozen=True)
class Placement:
    """A mesh and the rules by which arrays are split over it. Static and hashable."""

    mesh: Mesh
    rules: Rules

    @classmethod
    def on(cls, mesh: Mesh, rules: Rules) -> Self:
        """Checks both.

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

    def sharding(self, shape: tuple[int, ...], axes: tuple[Any, ...]) -> NamedSharding:
        """The sharding of an array with these logical axes."""
        return NamedSharding(self.mesh, self.rules.spec(self.mesh, shape, axes))

    def constrain(self, x: Array, axes: tuple[Any, ...]) -> Array:
        """`x`, laid out so."""
        return put(x, self.sharding(x.shape, axes))

    def cache(self, cache: Any) -> Any:
        """A `KVCache`, its heads and rows split."""
        slots = lambda x: self.constrain(x, (None, "batch", "kv_heads", None, None))  # noqa: E731
        return jax.tree.map(lambda x: slots(x) if x.ndim == 5 else self.rows(x), cache)

    def logits(self, logits: Array) -> Array:
        """`[b, t, v]`, rows and vocabulary split."""
        return self.constrain(logits, ("batch", None, "vocab"))

    def rows(self, tree: Any) -> Any:
        """Arrays that have the batch first, their rows split."""
        return jax.tree.map(lambda x: self.constrain(x, ("batch", *(None,) * (x.ndim - 1))), tree)

    def replicate(self, tree: Any) -> Any:
        """The same arrays, whole on every device."""
        return jax.tree.map(lambda x: put(x, self.replicated), tree)

    def check_same(self, parts: dict[str, Any], number: int = 0) -> int:
        """Raises `ValueError` unless every process of the mesh passes the same; see `hosts.check_same`."""
        return hosts.check_same(parts, self.mesh, number)

    @property
    def replicated(self) -> NamedSharding:
        """The whole array on every device."""
        return NamedSharding(self.mesh, PartitionSpec())


def put(x: Any, sharding: NamedSharding) -> Any:
    """`x` moved there, or told to be there where it is traced or only a shape."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    if not isinstance(x, jax.core.Tracer) and sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if not isinstance(x, jax.core.Tracer) and not hosts.is_tracing():
        return hosts.put_from_host(x, sharding)
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        return jax.sharding.reshard(x, sharding.spec)  # there a constraint only asserts
    return jax.lax.with_sharding_constraint(x, sharding)


def to_host(tree: Any) -> Any:
    """Arrays that lie on a mesh, whole on each of its devices; others, and traced ones, as they are."""

    def gather(x):
        if isinstance(x, jax.core.Tracer) or not isinstance(x.sharding, NamedSharding):
            return x
        return jax.device_put(x, NamedSharding(x.sharding.mesh, PartitionSpec()))

    return jax.tree.map(gather, tree)


def automatic(mesh: Mesh) -> Mesh:
    """The same devices and names, with automatic axes."""
    if all(kind == AxisType.Auto for kind in mesh.axis_types):
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))

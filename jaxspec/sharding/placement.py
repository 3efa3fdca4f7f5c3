"""Defines `Placement`: a mesh and rules, and the resulting layouts of caches and activations.

By default, `jax.make_mesh` makes explicit axes, which make shardings part of types. A gather over a split vocabulary
has no explicit form. The loop thus runs under automatic axes: the compiler chooses layouts; results are replicated.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar, cast

import jax
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from jaxspec.core.programs import is_tracing
from jaxspec.core.typed import typed
from jaxspec.sharding import multihost
from jaxspec.sharding.rules import MeshAxes, Rules, as_tuple, pieces

_Tree = TypeVar("_Tree")


@dataclasses.dataclass(frozen=True)
class Placement:
    """Splits arrays over a mesh by rules: the `jaxspec.core.Layout` of sharded models.

    Static and hashable.

    Attributes:
      mesh: the mesh, with automatic axes.
      rules: the mesh axes that each logical axis is split over.

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

        Explicit axes become automatic: the loop's gathers over a split vocabulary have no explicit form.

        Raises:
          TypeError: if `mesh` is not a `jax.sharding.Mesh`, or `rules` are not `Rules`.
          ValueError: if a rule names an axis that `mesh` lacks.
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
        """Shards an array by its logical axes."""
        return put(x, self.sharding(x.shape, axes))

    def cache(self, cache: _Tree) -> _Tree:
        """Splits a `KVCache` by heads and rows."""
        slots = lambda x: self.constrain(x, (None, "batch", "kv_heads", None, None))  # noqa: E731
        return jax.tree.map(lambda x: slots(x) if x.ndim == 5 else self.rows(x), cache)

    def logits(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Splits logits by rows and vocabulary."""
        return self.constrain(logits, ("batch", None, "vocab"))

    def vocab_parts(self, size: int) -> int:
        """Returns the number of parts that a vocabulary of this size is split into."""
        (axes,) = self.rules.spec(self.mesh, (size,), ("vocab",))
        return pieces(self.mesh, as_tuple(axes))

    def rows(self, tree: _Tree) -> _Tree:
        """Splits arrays by rows, their first axis."""
        return jax.tree.map(lambda x: self.constrain(x, ("batch", *(None,) * (x.ndim - 1))), tree)

    def replicate(self, tree: _Tree) -> _Tree:
        """Replicates arrays on every device."""
        return jax.tree.map(lambda x: put(x, self.replicated), tree)

    def on_each(
        self,
        function: Callable[..., Any],
        arguments: tuple[Array, ...],
        axes: tuple[tuple[Any, ...], ...],
        *,
        like: int | tuple[int, ...],
        add: bool = False,
    ) -> Any:
        """Calls a function on each device's parts of the arguments; results are laid out like the arguments `like`.

        Args:
          function: takes and returns arrays, without communication between devices.
          arguments: the complete arrays.
          axes: the logical axes of each argument.
          like: the index of the argument whose layout the result has; for several results, one index for each.
          add: whether the result is the sum over devices that hold different parts of the other arguments.
        """
        specs = tuple(self.rules.spec(self.mesh, x.shape, names) for x, names in zip(arguments, axes, strict=True))
        # Along axes that split nothing, devices hold copies, for which the function gives equal results.
        out = specs[like] if isinstance(like, int) else tuple(specs[index] for index in like)
        if add:
            assert isinstance(like, int)
            names = [{name for one in spec for name in as_tuple(cast(MeshAxes, one))} for spec in specs]
            function = _added(function, tuple(sorted(set[str]().union(*names) - names[like])))
        each = jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)
        return each(*arguments)

    def check_same(self, parts: dict[str, Any], number: int = 0) -> int:
        """Raises `ValueError` unless all processes of the mesh pass the same values; see `multihost.check_same`."""
        return multihost.check_same(parts, self.mesh, number)

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of arrays that are complete on every device."""
        return NamedSharding(self.mesh, PartitionSpec())


def _added(function: Callable[..., Array], names: tuple[str, ...]) -> Callable[..., Array]:
    return lambda *arguments: jax.lax.psum(function(*arguments), names) if names else function(*arguments)


@typed()
def put(x: Array | np.ndarray | jax.ShapeDtypeStruct, sharding: NamedSharding) -> Any:
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
    if not isinstance(x, Tracer) and not is_tracing():
        return multihost.put_from_host(x, sharding)
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        return jax.sharding.reshard(x, sharding.spec)  # with explicit axes, a constraint only asserts
    return jax.lax.with_sharding_constraint(x, sharding)


@typed()
def to_host(tree: _Tree) -> _Tree:
    """Replicates arrays on a mesh to all of its devices, so that every host can read them.

    Everything else, such as traced arrays, is returned unchanged.

    Example:
        >>> jaxspec.sharding.to_host({"tokens": prompt})["tokens"].shape
        (2, 5)
    """

    def gather(x: Any) -> Any:
        if isinstance(x, Tracer) or not isinstance(getattr(x, "sharding", None), NamedSharding):
            return x
        return jax.device_put(x, NamedSharding(x.sharding.mesh, PartitionSpec()))

    return jax.tree.map(gather, tree)


def automatic(mesh: Mesh) -> Mesh:
    """Returns the mesh with all axes automatic."""
    if all(kind == AxisType.Auto for kind in mesh.axis_types):
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def under_automatic_axes(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function(*arguments)` with every explicit mesh axis made automatic inside."""
    mesh = _explicit_mesh(arguments)
    if mesh is None:
        return function(*arguments)
    return jax.sharding.auto_axes(function, out_sharding=NamedSharding(mesh, PartitionSpec()))(*arguments)


@contextlib.contextmanager
def automatic_axes() -> Iterator[None]:
    """Runs programs on the context's mesh (`jax.set_mesh`) with every explicit axis made automatic.

    Unlike `under_automatic_axes`, it keeps the layouts of results. The arrays passed to the programs must be on meshes
    with automatic axes (`on_automatic_axes`), as those of a `Placement` are.

    Example:
        >>> with jaxspec.sharding.placement.automatic_axes():
        ...     jax.jit(jnp.sum)(prompt).shape
        ()
    """
    if AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types or is_tracing():
        yield
        return
    with jax.set_mesh(automatic(jax.sharding.get_mesh())):
        yield


def on_automatic_axes(tree: _Tree) -> _Tree:
    """Returns arrays on their meshes with every explicit axis made automatic; nothing is moved."""

    def is_explicit(x: Any) -> bool:
        place = None if isinstance(x, Tracer) else getattr(x, "sharding", None)
        return isinstance(place, NamedSharding) and AxisType.Explicit in place.mesh.axis_types

    def moved(x: Any) -> Any:
        return jax.device_put(x, NamedSharding(automatic(x.sharding.mesh), x.sharding.spec)) if is_explicit(x) else x

    return jax.tree.map(moved, tree) if any(map(is_explicit, jax.tree.leaves(tree))) else tree


def _explicit_mesh(arguments: Any) -> AbstractMesh | None:
    """Returns the first mesh with an explicit axis, from the context or an argument; `None` if there is none."""
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(arguments)]
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)

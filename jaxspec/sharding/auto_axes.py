"""Runs the loop under automatic axes, where a mesh has explicit ones.

`jax.make_mesh` is explicit by default, which puts shardings into types. A gather over a split
vocabulary has no explicit form, so the compiler chooses the layouts inside, and results are replicated.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec


def under_automatic_axes(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function(*arguments)` with every explicit mesh axis made automatic inside."""
    mesh = _explicit_mesh(arguments)
    if mesh is None:
        return function(*arguments)
    return jax.sharding.auto_axes(function, out_sharding=NamedSharding(mesh, PartitionSpec()))(*arguments)


def _explicit_mesh(arguments: Any) -> AbstractMesh | None:
    """Finds the first mesh with an explicit axis, of the context or of an argument."""
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(arguments)]
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)

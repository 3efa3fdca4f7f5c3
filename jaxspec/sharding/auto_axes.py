"""Meshes with explicit axes: the loop runs under automatic ones.

`jax.make_mesh` is explicit by default, which puts shardings into types. A gather over a split
vocabulary has no explicit form, so what is inside is left to the compiler, and results are whole
on every device.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def under_automatic_axes(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, with every mesh axis that is explicit made automatic inside."""
    mesh = _explicit_mesh(arguments)
    if mesh is None:
        return function(*arguments)
    return jax.sharding.auto_axes(function, out_sharding=NamedSharding(mesh, PartitionSpec()))(*arguments)


def _explicit_mesh(arguments: Any):
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(arguments)]
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)

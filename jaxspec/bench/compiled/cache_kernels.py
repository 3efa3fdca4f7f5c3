"""Names the kernels that a compiled program's caches are attended to and written by."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import jax

from jaxspec.nn.cache_pallas import PALLAS, pallas_kernels
from jaxspec.nn.network import Network

_Tree = TypeVar("_Tree")


def _pallas(models: _Tree) -> _Tree:
    """Converts every model of a pytree that has caches."""
    is_model = lambda node: isinstance(node, Network)  # noqa: E731
    convert = lambda node: pallas_kernels(node) if is_model(node) and _has_cache(node) else node  # noqa: E731
    return jax.tree.map(convert, models, is_leaf=is_model)


def _has_cache(model: Network) -> bool:
    return "cache_type" in model.__dataclass_fields__ and model.cache_type in PALLAS


# By name, for commands: each takes a model, or a drafter, and returns it.
KERNELS: Mapping[str, Callable[[Any], Any]] = MappingProxyType({"xla": lambda models: models, "pallas": _pallas})

"""Which parameters may be stored in another way than as an array, and which models have such ones."""

from typing import Any

import jax

from jaxspec.nn.language_model import Network
from jaxspec.ops.packed import PackedWeight

_TABLES = ("embedding", "head")


def is_product(path: tuple[Any, ...]) -> bool:
    """Whether the parameter at a pytree path is a kernel, an embedding or an output head."""
    name = path[-1].key
    return name == "kernel" or name in _TABLES


def packed_weights(model: Network) -> list[PackedWeight]:
    """All kernels of the model that are no arrays."""
    leaves = jax.tree.leaves(model.params, is_leaf=lambda x: isinstance(x, PackedWeight))
    return [x for x in leaves if isinstance(x, PackedWeight)]

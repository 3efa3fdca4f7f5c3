"""Defines `Network`: a Flax module with its parameters, the base of models and heads. It imports no Flax itself."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxspec.core.kernels import Kernels
from jaxspec.core.layout import Layout
from jaxspec.nn.cache import KVCache
from jaxspec.ops.packed import PackedWeight, is_packed


class Network:
    """Holds a Flax module with its parameters and their placement: a whole model, or a head on one. A frozen dataclass.

    `jaxspec.shard` splits the parameters of each by their names.

    Attributes:
      module: static; `module.config` is a `TransformerConfig`, or has one's fields for the sizes to split.
      params: its `params` collection.
      placement: the layout of its caches and logits on devices, a `jaxspec.core.Layout`.
      cache_type: the class of its caches.

    Example:
        >>> isinstance(target, jaxspec.nn.Network)
        True
    """

    # Every subclass is a dataclass, which `dataclasses.replace` takes.
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    module: Any  # each subclass says which
    params: Any
    placement: Layout
    cache_type: type[KVCache] = KVCache

    @property
    def kernels(self) -> Kernels:
        """The kind of kernels that it runs by on accelerators."""
        return self.cache_type.kernels

    def empty_cache(self, layers: int, batch: int, capacity: int) -> KVCache:
        """Returns an empty cache of so many layers, laid out by the placement."""
        config = self.module.config
        empty = self.cache_type.empty(
            layers=layers,
            batch=batch,
            heads=config.num_kv_heads,
            capacity=capacity,
            head_dim=config.head_dim,
            dtype=jnp.dtype(self.module.dtype),
        )
        return self.placement.cache(empty.on(self.placement))


def packed_weights(model: Network) -> list[PackedWeight]:
    """Returns all weights of a model that are stored in another way than as an array."""
    return [x for x in jax.tree.leaves(model.params, is_leaf=is_packed) if isinstance(x, PackedWeight)]

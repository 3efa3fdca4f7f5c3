"""Defines `Network`: a Flax module with its parameters, the base of models and heads. It imports no Flax itself."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxspec.core.layout import Layout
from jaxspec.nn.cache_by_kind import Kinds, LayerCache
from jaxspec.ops.packed import PackedWeight, is_packed


class Network:
    """Holds a Flax module with its parameters and their placement: a model, or a head. A frozen dataclass.

    `jaxspec.shard` splits the parameters by name.

    Attributes:
      module: the static module; `module.config` is a `TransformerConfig`, or has its fields for the sizes to split.
      params: its `params` collection.
      placement: the layout of its caches and logits on devices, a `jaxspec.core.Layout`.
      cache_type: the class of its caches; `None` for a head without caches.

    Example:
        >>> isinstance(target, jaxspec.nn.Network)
        True
    """

    # Every subclass is a dataclass, which `dataclasses.replace` takes.
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    module: Any  # narrowed by subclasses
    params: Any
    placement: Layout
    cache_type: Any = None  # `type[KVCache]` in subclasses with caches

    def empty_cache(self, kinds: Kinds, batch: int, capacity: int) -> LayerCache:
        """Returns an empty cache for layers of these kinds, laid out by the placement."""
        sizes: dict[str, Any] = {"batch": batch, "capacity": capacity, "dtype": jnp.dtype(self.module.dtype)}
        return kinds.empty(self.cache_type, self.placement, **sizes)


def packed_weights(model: Network) -> list[PackedWeight]:
    """Returns all packed weights of a model."""
    return [x for x in jax.tree.leaves(model.params, is_leaf=is_packed) if isinstance(x, PackedWeight)]


def kind_of(model: object) -> str:
    """Returns the class of a network's module, or of any other object, for messages."""
    return type(model.module if isinstance(model, Network) else model).__name__

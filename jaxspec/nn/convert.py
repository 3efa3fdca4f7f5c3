"""Products of our own on a CPU."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxspec.core.model import Unsharded
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.language_model import LanguageModel, Network
from jaxspec.nn.packed import is_product, packed_weights
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.native_float import NativeKernel
from jaxspec.ops.packed import PackedWeight

_Network = TypeVar("_Network", bound=Network)


def native_kernels(model: _Network, *, weights: Any = None) -> _Network:
    """The same model, multiplied on a CPU by a product that reads every weight once for up to some ten rows.

    XLA takes almost twice as long for five tokens as for one; this takes a tenth longer. It is compiled for the machine
    when it is first asked for, which takes a C++ compiler and five seconds.

    Args:
      model: a float32 `LanguageModel` of a `jaxspec.nn.Transformer`, or a head from `jaxspec.load_head`, on one device.
      weights: how they are held; activations and sums are float32. `None` is bfloat16 where that holds all of them
        exactly, as it does those of most published models: the same numbers by half the bytes; else float32. With
        bfloat16, weights that are not bfloat16 numbers already are rounded, which makes another model of them. A
        draft may be another one: the target's distribution does not depend on it.

    Raises:
      TypeError: the model is of another kind or dtype, is split over a mesh, or its weights are stored otherwise
        already.
      ValueError: `weights` is another dtype.
      jaxspec.ops.native.NoCompilerError: there is no C++ compiler, or it failed.
    """
    if not _is_known(model):
        kind = type(getattr(model, "module", model)).__name__
        raise TypeError(f"native_products takes a LanguageModel of a jaxspec.nn.Transformer, or a head, got {kind}")
    if (dtype := jnp.dtype(model.module.dtype)) != jnp.float32:
        raise TypeError(f"native_products takes a float32 model, got {dtype}; pass dtype='float32' to load")
    if not isinstance(model.placement, Unsharded):
        raise TypeError("native_products takes a model on one device, got one that is split over a mesh")
    if weights is not None and jnp.dtype(weights) not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"weights must be float32 or bfloat16, got {jnp.dtype(weights)}")
    register()
    if weights is None:
        weights = jnp.bfloat16 if _are_bfloat16(model.params) else jnp.float32

    def stored(path, x):
        if not is_product(path):
            return x
        if isinstance(x, PackedWeight):
            raise TypeError(f"native_products takes plain weights, got {type(x).__name__}")
        return NativeKernel(x.astype(weights), jnp.dtype(x.dtype))

    params = jax.tree.map_with_path(stored, model.params, is_leaf=_is_stored)
    keeps = "cache_type" in {field.name for field in dataclasses.fields(model)} and model.cache_type is KVCache
    return dataclasses.replace(model, params=params, **({"cache_type": NativeKVCache} if keeps else {}))


def _are_bfloat16(params: Any) -> bool:
    """Whether rounding to bfloat16 would change none of the weights of products, as far as they are known."""
    weights = [x for path, x in jax.tree.leaves_with_path(params, is_leaf=_is_stored) if is_product(path)]
    known = not any(isinstance(x, PackedWeight | jax.core.Tracer) for x in weights)
    return known and all(bool(jnp.all(x.astype(jnp.bfloat16).astype(x.dtype) == x)) for x in weights)


def _is_stored(x: Any) -> bool:
    return isinstance(x, PackedWeight)


def _is_known(model: Any) -> bool:
    """Whether its products are those of this package: a head's all are."""
    if isinstance(model, LanguageModel):
        return isinstance(model.module, Transformer)
    return isinstance(model, Network)


def native_if_possible(model: _Network, *, weights: Any = None) -> _Network:
    """`native_kernels(...)` on one CPU device, in float32, where there is a compiler; else the model itself."""
    plain = _is_known(model) and isinstance(model.placement, Unsharded) and not packed_weights(model)
    if jax.default_backend() != "cpu" or not plain or jnp.dtype(model.module.dtype) != jnp.float32:
        return model
    try:
        return native_kernels(model, weights=weights)
    except (NoCompilerError, OSError):
        return model


def native_like(target: Any, draft: _Network) -> _Network:
    """A model or head to draft for `target`, multiplied as that is, and by half the bytes: its weights are rounded."""
    if not isinstance(target, LanguageModel) or not kernels_of(target).startswith("native"):
        return draft
    return native_if_possible(draft, weights=jnp.bfloat16)


# By name, for commands.
PRODUCTS: Mapping[str, Callable[[LanguageModel], LanguageModel]] = MappingProxyType(
    {
        "auto": native_if_possible,
        "xla": lambda model: model,
        "native": native_kernels,
        "native-float32": functools.partial(native_kernels, weights=jnp.float32),
        "native-bfloat16": functools.partial(native_kernels, weights=jnp.bfloat16),
    }
)


def kernels_of(model: Network) -> str:
    """The name of a model's products: "xla", "native", "native-bfloat16", or the class of its kernels."""
    kernels = packed_weights(model)
    if not kernels:
        return "xla"
    if not isinstance(kernels[0], NativeKernel):
        return type(kernels[0]).__name__
    return "native" if kernels[0].values.dtype == jnp.float32 else "native-bfloat16"

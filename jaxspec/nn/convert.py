"""Converts a model's weights and caches: to int8 and int4, and to the native CPU kernels.

A model with quantized weights or caches is a different target: lossless means lossless relative to it, and drafters
trained for the original guess almost as well for it. `pack_weights` converts to other weight formats
(`jaxspec.ops.formats`).
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.typing import DTypeLike

from jaxspec.core import validate
from jaxspec.core.layout import Unsharded
from jaxspec.nn.cache_half import NATIVE, HalfKVCache
from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.nn.chosen_kernels import kernels_like, with_kernels
from jaxspec.nn.exact_passes import BY_SLOT, is_by_token
from jaxspec.nn.experts import ROUTER
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.layers import PRODUCTS
from jaxspec.nn.network import Network, kind_of, packed_weights
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.formats import FORMATS, GROUPED_FORMAT
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.packed import PackedWeight, is_packed

_Network = TypeVar("_Network", bound=Network)

# The weight formats of native kernels, by the dtype of the weights.
_NATIVE: Mapping[jnp.dtype, str] = MappingProxyType(
    {
        jnp.dtype(jnp.float32): "native",
        jnp.dtype(jnp.bfloat16): "native",
        jnp.dtype(jnp.int8): "stored",
        jnp.dtype(jnp.int4): "stored",
    }
)


def pack_weights(model: _Network, pack: Callable[[Array], PackedWeight]) -> _Network:
    """Returns the model with the weights of its products in another format; routers, norms and biases stay.

    Args:
      model: a `LanguageModel` of a `jaxspec.nn.Transformer`, or a head, with plain float weights.
      pack: converts one weight `[*out, in]`: the `pack` of a class in `jaxspec.ops.FORMATS`, or a custom one.

    Raises:
      TypeError: the model is of another kind, or its weights are already packed.

    Example:
        >>> small = jaxspec.nn.pack_weights(target, jaxspec.ops.FORMATS["int8"].pack)
        >>> small.params["embedding"].values.dtype
        dtype('int8')
    """
    _check(model, "pack_weights")
    validate.takes("pack", pack, "weight")
    if packed := packed_weights(model):
        kind = type(packed[0]).__name__
        raise TypeError(f"a model is packed once, from plain weights, got {kind}; load it with weights='dequantized'")
    params = jax.tree.map_with_path(lambda path, x: pack(x) if _is_product(path) else x, model.params)
    return dataclasses.replace(model, params=params)


def quantize_weights(model: LanguageModel, *, bits: int = 8, group: int | None = None) -> LanguageModel:
    """Returns the model with int8 or int4 weights, with a scale for each output or each group of its inputs.

    Kernels, the embedding and the output head are rounded. Activations keep the model's dtype. The model may be split
    over a mesh: each device rounds the outputs that it holds completely; for others, devices find the largest weight
    together.

    Args:
      model: a `LanguageModel` of a `jaxspec.nn.Transformer`, with float weights.
      bits: 8 or 4.
      group: the number of adjacent inputs that share a scale; `None` is all inputs of an output. 4 bits need groups, of
        128 on a TPU, whose products are at least that deep.

    Raises:
      TypeError: the model is of another kind, or its weights are already packed.
      ValueError: `bits` is neither, or `group` does not divide the inputs of a weight.

    Example:
        >>> small = jaxspec.quantize_weights(target)
        >>> jaxspec.generate(small, jaxspec.ModelDrafter(draft, k=2), prompt, max_new_tokens=4).tokens.shape
        (2, 4)
        >>> jaxspec.quantize_weights(target, bits=4, group=8).params["embedding"].values.dtype
        dtype(int4)
    """
    _check(model, "quantize_weights", heads=False)
    if type(bits) is not int or bits not in (8, 4):
        raise ValueError(f"bits must be 8 or 4, got {validate.shown(bits)}")
    if group is not None:
        _check_group(model, group)
    elif bits == 8:
        return pack_weights(model, FORMATS["int8"].pack)
    dtype = jnp.int8 if bits == 8 else jnp.int4
    return pack_weights(model, functools.partial(GROUPED_FORMAT.pack, dtype=dtype, group=group))


def _check_group(model: LanguageModel, group: int) -> None:
    """Raises `ValueError` unless a group divides the inputs of all products."""
    if type(group) is not int or group < 1:
        raise ValueError(
            f"group must be a positive integer, or None for one scale per output, got {validate.shown(group)}"
        )
    for path, x in jax.tree.leaves_with_path(model.params, is_leaf=is_packed):
        if _is_product(path) and x.shape[-1] % group:
            name = "/".join(key.key for key in path)
            raise ValueError(
                f"group must divide the inputs of each weight, got {group} for the {x.shape[-1]} of {name}; pass a "
                "divisor of all of them, or None for one scale per output"
            )


def quantize_cache(model: LanguageModel, dtype: DTypeLike = "int8") -> LanguageModel:
    """Returns the model with caches of rounded keys and values.

    They are rounded before anything attends to them, so speculative and plain decoding agree exactly, up to rounding in
    bfloat16. With native kernels they agree to the bit.

    Args:
      model: a `LanguageModel` of a `jaxspec.nn.Transformer`.
      dtype: int8 with one scale per vector (`Int8KVCache`), or float16 for a float32 model (`HalfKVCache`), which the
        native attention kernel reads too.

    Raises:
      TypeError: the model is of another kind, or has 16 bits already.
      ValueError: `dtype` is an unsupported dtype.

    Example:
        >>> jaxspec.quantize_cache(target).init_cache(batch=1, capacity=16).keys.dtype
        dtype('int8')
    """
    _check(model, "quantize_cache", heads=False)
    if validate.dtype_of("dtype", dtype, ["int8", "float16"]) == jnp.float16:
        return _with_half_cache(model)
    if is_by_token(model):
        return dataclasses.replace(model, cache_type=BY_SLOT[Int8KVCache])
    found = kernels_like(model, dataclasses.replace(model, cache_type=Int8KVCache))
    return found if model.pass_tokens is None else found.bit_exact()


def _with_half_cache(model: LanguageModel) -> LanguageModel:
    if (own := jnp.dtype(model.module.dtype)) != jnp.float32:
        raise TypeError(f"a cache of float16 is for a float32 model, got {own}, whose cache has no more bits")
    native = model.cache_type in NATIVE.values()
    model = dataclasses.replace(model, cache_type=NATIVE[HalfKVCache] if native else HalfKVCache)
    return model if model.pass_tokens is None else model.bit_exact()


def native_kernels(model: _Network, *, weights: DTypeLike | None = None) -> _Network:
    """Returns the model with native CPU kernels, which read every weight once for passes of up to about ten tokens.

    XLA takes almost twice as long for five tokens as for one; these take a tenth longer. The kernels of a release wheel
    are used if they exploit the processor fully. Otherwise they are compiled for the machine on first use, which needs
    a C++ compiler and five seconds, and kept.

    Args:
      model: a float32 `LanguageModel` of a `jaxspec.nn.Transformer`, or a head from `jaxspec.load_head`, on one device.
      weights: the dtype of the weights; activations and sums are float32. `None` is bfloat16 if that represents all
        weights exactly, as in most published models, with half the bytes; else float32. With bfloat16, other weights
        are rounded, which makes a different model. With int8 and int4 all are rounded, in blocks of 32
        (`StoredWeight.pack`), and activations in products too. A draft may be a different model: the target's
        distribution does not depend on it.

    Raises:
      TypeError: the model is of another kind or dtype, is split over a mesh, or its weights are already packed.
      ValueError: `weights` is an unsupported dtype.
      jaxspec.ops.native.build.NoCompilerError: there is no C++ compiler, or it failed, and no prebuilt kernels.
      OSError: the cache folder cannot be written, or no space is left.

    Example:
        >>> fast = jaxspec.native_kernels(target)
        >>> jaxspec.generate(fast, None, prompt, max_new_tokens=4).tokens.shape
        (2, 4)
        >>> small = jaxspec.native_kernels(draft, weights="int4")
        >>> small.params["embedding"].kernels
        'stored-Q4_1'
    """
    _check(model, "native_kernels")
    if (dtype := jnp.dtype(model.module.dtype)) != jnp.float32:
        raise TypeError(f"native_kernels takes a float32 model, got {dtype}; pass dtype='float32' to load")
    if not isinstance(model.placement, Unsharded):
        raise TypeError("native_kernels takes a model on one device, got one that is split over a mesh")
    if weights is not None:
        weights = validate.dtype_of("weights", weights, [dtype.name for dtype in _NATIVE])
    register()
    if weights is None:
        weights = jnp.bfloat16 if _are_bfloat16(model.params) else jnp.float32
    kind = FORMATS[_NATIVE[jnp.dtype(weights)]]
    return _all_native(pack_weights(model, functools.partial(kind.pack, dtype=weights)))


def native_if_possible(model: _Network, *, weights: DTypeLike | None = None) -> _Network:
    """Returns `native_kernels(...)` on one CPU device, in float32, if they are available; else the model itself."""
    plain = _is_known(model) and isinstance(model.placement, Unsharded) and not packed_weights(model)
    if jax.default_backend() != "cpu" or not plain or jnp.dtype(model.module.dtype) != jnp.float32:
        return model
    try:
        return native_kernels(model, weights=weights)
    except (NoCompilerError, OSError):
        return model


def weights_like(target: Any) -> Literal["dequantized"] | None:
    """Returns `load`'s `weights` for a draft model: in the stored format only if the target's are."""
    plain = isinstance(target, LanguageModel) and not kernels_of(target).startswith("stored")
    return "dequantized" if plain else None


def native_like(target: Any, draft: _Network) -> _Network:
    """Uses the target's matmul kernels for `draft`, a model or head, with rounded weights.

    With native kernels, rounds to bfloat16; with weights in a file's format, to int8 with a scale for each 32.
    """
    if not isinstance(target, LanguageModel):
        return draft
    kernels = kernels_of(target)
    if kernels.startswith("native"):
        return native_if_possible(draft, weights=jnp.bfloat16)
    plain = _is_known(draft) and not packed_weights(draft) and jnp.dtype(draft.module.dtype) == jnp.float32
    if not kernels.startswith("stored") or not plain or not isinstance(draft.placement, Unsharded):
        return draft
    return _all_native(pack_weights(draft, FORMATS["stored"].pack))


def _all_native(model: _Network) -> _Network:
    """Returns a model of native weights with the cache of native kernels, and its routers native too, unrounded."""
    params = jax.tree.map_with_path(
        lambda path, x: FORMATS["native"].pack(x) if _is_router(path) else x, model.params, is_leaf=is_packed
    )
    model = dataclasses.replace(model, params=params)
    # A head without caches has no such field to replace.
    return dataclasses.replace(model, cache_type=NATIVE[model.cache_type]) if model.cache_type in NATIVE else model


# The conversions by name, for commands.
KERNELS: Mapping[str, Callable[[LanguageModel], LanguageModel]] = MappingProxyType(
    {
        "auto": native_if_possible,
        "stored": lambda model: model,
        "xla": lambda model: with_kernels(model, "xla"),
        "pallas": lambda model: with_kernels(model, "pallas"),
        "native": native_kernels,
        "native-float32": functools.partial(native_kernels, weights=jnp.float32),
        "native-bfloat16": functools.partial(native_kernels, weights=jnp.bfloat16),
    }
)


def weights_for(kernels: str) -> Literal["stored", "dequantized"] | None:
    """Returns `load`'s `weights` for these kernels of `KERNELS`."""
    return {"auto": None, "stored": "stored"}.get(kernels, "dequantized")


def kernels_of(model: Network) -> str:
    """Returns the name of a model's matmul kernels: "xla", or that of the format with most of its bytes."""
    sizes = collections.Counter[str]()
    for weight in packed_weights(model):
        sizes[weight.kernels] += weight.nbytes
    return sizes.most_common(1)[0][0] if sizes else "xla"


def _check(model: object, name: str, *, heads: bool = True) -> None:
    if not _is_known(model) or not (heads or isinstance(model, LanguageModel)):
        kind, or_head = kind_of(model), ", or a head" if heads else ""
        raise TypeError(f"{name} takes a LanguageModel of a jaxspec.nn.Transformer{or_head}, got {kind}")


def _is_known(model: object) -> bool:
    """Returns whether this package computes a model's products; it does for every head."""
    if isinstance(model, LanguageModel):
        return isinstance(model.module, Transformer)
    return isinstance(model, Network)


def _is_product(path: tuple[Any, ...]) -> bool:
    """Returns whether a parameter is the weight of a product that may be rounded."""
    return path[-1].key in PRODUCTS and not _is_router(path)


def _is_router(path: tuple[Any, ...]) -> bool:
    return [key.key for key in path[-2:]] == [ROUTER, "kernel"]


def _are_bfloat16(params: Any) -> bool:
    """Returns whether rounding to bfloat16 is exact for all weights of products, as far as they are known."""
    weights = [x for path, x in jax.tree.leaves_with_path(params, is_leaf=is_packed) if _is_product(path)]
    known = not any(isinstance(x, PackedWeight | Tracer) for x in weights)
    return known and all(bool(jnp.all(x.astype(jnp.bfloat16).astype(x.dtype) == x)) for x in weights)

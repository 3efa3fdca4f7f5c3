"""Steers compilers: chooses kernels, fixes trip counts of loops, and orders operations."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Shaped

from jaxspec.core.layout import Layout
from jaxspec.core.model import Kernels, Model
from jaxspec.core.parts import current_layout, over_devices

_KERNELS: contextvars.ContextVar[Kernels] = contextvars.ContextVar("kernels", default="xla")


def by_platform(kernels: Mapping[str, Callable[..., Any]], default: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the kernel of the platform that the program is lowered for, or the default.

    Example:
        >>> jaxspec.core.compiler.by_platform({"tpu": jnp.sin}, jnp.cos, jnp.zeros(()))
        Array(1., dtype=float32)
    """
    return jax.lax.platform_dependent(*arguments, default=default, **kernels)


def kept_form(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns `functools.partial(function, **options)`, the same object each time within equal contexts.

    JAX traces a branch or a loop's body once for each function and types of arguments, and a new partial or closure is
    a new function: each layer would be traced anew. Layout and kernels count, since functions ask for them.

    Args:
      function: a function of a module, which uses nothing but its arguments, layout and kernels.
      **options: its keywords; with an array, as a traced layer number, a new partial is made.

    Example:
        >>> one, other = (jaxspec.core.compiler.kept_form(jnp.sum, axis=-1) for _ in range(2))
        >>> one is other
        True
    """
    if any(isinstance(x, jax.Array) for x in options.values()):
        return functools.partial(function, **options)
    return _kept(function, current_layout(), _KERNELS.get(), **options)


@functools.lru_cache(maxsize=1024, typed=True)
def _kept(function: Callable[..., Any], layout: Layout, kernels: Kernels, /, **options: Any) -> Callable[..., Any]:
    return functools.partial(function, **options)


@contextlib.contextmanager
def kernels_of(model: Model) -> Iterator[None]:
    """Traces with a model's kernels if it is on one device: Pallas kernels of products and norms, native sampling.

    A mesh splits XLA's operations. A kernel would have all devices gather each other's parts.

    Example:
        >>> with jaxspec.core.compiler.kernels_of(jaxspec.nn.pallas_kernels(target)):
        ...     jaxspec.core.compiler.in_products()
        True
    """
    traits = model.traits
    before = _KERNELS.set(traits.kernels if traits.placement.devices == 1 else "xla")
    try:
        yield
    finally:
        _KERNELS.reset(before)


@contextlib.contextmanager
def traced_for(target: Model) -> Iterator[None]:
    """Traces computations on a target's logits for its layout and kernels (`over_devices`, `kernels_of`).

    Example:
        >>> with jaxspec.core.compiler.traced_for(target):
        ...     jaxspec.core.compiler.in_products()
        False
    """
    with over_devices(target.traits.placement), kernels_of(target):
        yield


def in_products() -> bool:
    """Returns whether the current trace may use Pallas kernels outside of attention."""
    return _KERNELS.get() == "pallas"


def samples_natively() -> bool:
    """Returns whether the current trace may use the native kernels of sampling on a CPU."""
    return _KERNELS.get() == "native"


def known_on_gpu(trips: Int[Array, ""], usual: int) -> Int[Array, ""]:
    """Makes a loop's trip count static on GPUs, where a dynamic one forces a host sync; elsewhere returns `trips`.

    Args:
      trips: the number of trips needed, at most `usual`, int32; further trips must not change any result.
      usual: the static trip count.

    Example:
        >>> from jaxspec.core.compiler import known_on_gpu
        >>> int(known_on_gpu(jnp.int32(0), 1))  # here, on a CPU
        0
    """
    known = lambda trips: jnp.full((), usual, trips.dtype)  # noqa: E731
    return jax.lax.platform_dependent(trips, cuda=known, default=lambda trips: trips)


def after(entries: Shaped[Array, "..."], x: Float[Array, "b t n"], axis: int) -> Shaped[Array, "..."]:
    """Orders cache entries after `x`, the output of the last layer, which has read all of the cache.

    Keys are known before their own layer's attention, so their write into the cache could run before that read. The
    compiler would keep both apart by copying the entire cache on every step. Adding a zero that depends on `x` orders
    them.

    Args:
      entries: the entries of a pass.
      x: the output of the pass.
      axis: the row axis of `entries`.

    Example:
        >>> jaxspec.core.compiler.after(jnp.ones((3, 2)), jnp.ones((2, 3, 4)), axis=1).shape
        (3, 2)
    """
    bits = jax.lax.bitcast_convert_type(x[:, 0, 0].astype(jnp.float32), jnp.int32)
    zero = jnp.minimum(jax.lax.shift_right_logical(bits, jnp.int32(1)), 0).astype(entries.dtype)
    return entries + zero.reshape(*(zero.shape[0] if number == axis else 1 for number in range(entries.ndim)))

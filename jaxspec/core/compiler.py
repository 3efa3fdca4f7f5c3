"""Steers compilers: chooses kernels, fixes trip counts of loops, and orders operations."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Shaped

from jaxspec.core.model import Kernels, Model
from jaxspec.core.parts import over_devices

_KERNELS: contextvars.ContextVar[Kernels] = contextvars.ContextVar("kernels", default="xla")


def by_platform(kernels: Mapping[str, Callable[..., Any]], default: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the kernel of the platform that the program is lowered for, or the default.

    Example:
        >>> jaxspec.core.compiler.by_platform({"tpu": jnp.sin}, jnp.cos, jnp.zeros(()))
        Array(1., dtype=float32)
    """
    return jax.lax.platform_dependent(*arguments, default=default, **kernels)


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

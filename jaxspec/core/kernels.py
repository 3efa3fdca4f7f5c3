"""Chooses between a platform's kernel and what computes the same, where a program is lowered."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax

from jaxspec.core.layout import placement_of

Kernels = Literal["xla", "pallas"]

_IN_PRODUCTS: contextvars.ContextVar[bool] = contextvars.ContextVar("in_products", default=False)


def by_platform(kernels: Mapping[str, Callable[..., Any]], default: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the kernel of the platform that the program is lowered for, or what computes the same.

    Example:
        >>> jaxspec.core.kernels.by_platform({"tpu": jnp.sin}, jnp.cos, jnp.zeros(()))
        Array(1., dtype=float32)
    """
    return jax.lax.platform_dependent(*arguments, default=default, **kernels)


@contextlib.contextmanager
def kernels_of(model: object) -> Iterator[None]:
    """Traces products and norms with Pallas kernels if a model's caches have them, and it is on one device.

    A mesh splits what XLA computes. A kernel would have all devices bring each other their parts.

    Example:
        >>> with jaxspec.core.kernels.kernels_of(jaxspec.nn.pallas_kernels(target)):
        ...     jaxspec.core.kernels.in_products()
        True
    """
    chosen = getattr(model, "kernels", "xla") == "pallas" and placement_of(model).devices == 1
    before = _IN_PRODUCTS.set(chosen)
    try:
        yield
    finally:
        _IN_PRODUCTS.reset(before)


def in_products() -> bool:
    """Returns whether what is traced now may use Pallas kernels outside of attention."""
    return _IN_PRODUCTS.get()

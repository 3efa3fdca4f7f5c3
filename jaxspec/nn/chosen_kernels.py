"""Chooses the kernels that read and write caches on the available accelerator."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import jax

from jaxspec.core.model import CacheKernels, Model
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_half import NATIVE
from jaxspec.nn.cache_pallas import PALLAS
from jaxspec.nn.exact_passes import BY_SLOT
from jaxspec.nn.network import Network
from jaxspec.ops.triton import attention

_Network = TypeVar("_Network", bound=Network)

# Devices that run Triton's kernels; there, the host waits twice per layer for XLA's attention.
_GPUS, _AMPERE = "NVIDIA", 8.0
# Devices where the compiled plain step takes no longer with Pallas kernels, at either end of its bracket, except for 1
# % at a v6e's low end (`docs/benchmarks/tpu.md`).
PALLAS_DEVICES = ("TPU v5 lite", "TPU v6 lite", "TPU7x")
# A kernel reads heads in tiles of this size; smaller heads would be padded.
_TILE = 128
_XLA: Mapping[type[KVCache], type[KVCache]] = MappingProxyType({kernels: xla for xla, kernels in PALLAS.items()})
_OF_NATIVE: Mapping[type[KVCache], type[KVCache]] = MappingProxyType({native: xla for xla, native in NATIVE.items()})
_PLAIN: Mapping[type[KVCache], type[KVCache]] = MappingProxyType({slots: plain for plain, slots in BY_SLOT.items()})


def kernels_for(kind: str, head_dim: int) -> CacheKernels:
    """Returns the default kernels for caches with heads of this size on a device of this `device_kind`.

    Example:
        >>> from jaxspec.nn.chosen_kernels import kernels_for
        >>> kernels_for("TPU v6 lite", 128), kernels_for("TPU v6 lite", 64), kernels_for("TPU v5", 128)
        ('pallas', 'xla', 'xla')
        >>> kernels_for("NVIDIA H100 80GB HBM3", 64), kernels_for("NVIDIA H100 80GB HBM3", 96)
        ('pallas', 'xla')
    """
    fits = head_dim % _TILE == 0 if kind in PALLAS_DEVICES else kind.startswith(_GPUS) and attention.fits(head_dim)
    return "pallas" if fits else "xla"


def _default(head_dim: int) -> CacheKernels:
    device = jax.devices()[0]
    # Triton needs at least Ampere.
    old = float(getattr(device, "compute_capability", _AMPERE)) < _AMPERE
    return "xla" if old else kernels_for(device.device_kind, head_dim)


def with_kernels(model: _Network, kernels: CacheKernels | None = None) -> _Network:
    """Returns a model with these kernels for its cache.

    Args:
      model: a model with a cache.
      kernels: the kernels; `None` is the default of the first device. A native cache stays.
    """
    found = plain = _PLAIN.get(model.cache_type, model.cache_type)
    if kernels is not None:
        found = _OF_NATIVE.get(found) or _XLA.get(found, found)
    if (kernels or _default(model.module.config.head_dim)) == "pallas":
        found = PALLAS.get(found, found)
    return dataclasses.replace(model, cache_type=found if plain is model.cache_type else BY_SLOT[found])


def kernels_like(target: Model, draft: _Network) -> _Network:
    """Gives a draft model or head Pallas kernels if its target has them, and removes them if not."""
    theirs: Any = target.traits.cache_type
    kinds = PALLAS if _PLAIN.get(theirs, theirs) in _XLA else _XLA
    own: Any = draft.cache_type if isinstance(draft, Network) else None
    return dataclasses.replace(draft, cache_type=kinds[own]) if own in kinds else draft

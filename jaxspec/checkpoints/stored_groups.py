"""Holds parameters as quantized safetensors store them: integers, with scales and zeros for groups of inputs."""

from collections.abc import Mapping

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxspec.core.files import reading
from jaxspec.families.base import LazyTensor, ParamMapping
from jaxspec.families.grouped import build_grouped
from jaxspec.nn.weight import PRODUCTS
from jaxspec.ops.grouped import DTYPES, GroupedWeight


def hold_groups(
    mapping: ParamMapping, tensors: Mapping[str, LazyTensor], source: str, dtype: DTypeLike
) -> GroupedWeight | None:
    """Returns a parameter as its tensors are quantized.

    Args:
      mapping: of the parameter.
      tensors: the tensors by name.
      source: where they are read from, for error messages.
      dtype: of the rows that are read from it.

    Returns:
      The parameter, of the integers and scales of the file; `None` for one that no product reads, whose tensors are not
      quantized all alike, whose groups lie scattered, or whose numbers are floats of a byte.

    Raises:
      FileFormatError: a tensor is unreadable or not finite.
    """
    if mapping.is_norm or mapping.path[-1] not in PRODUCTS:
        return None
    parts = []
    for name, _ in mapping.sources:
        with reading(source, f"tensor {name}"):
            part = tensors[name].grouped()
        if part is None or part.values.dtype not in DTYPES:
            return None
        parts.append(part)
    found = build_grouped(mapping.build, parts)
    if found is None:
        return None
    values = found.values if found.bits == 8 else found.values.astype(jnp.int4)
    return GroupedWeight.of(values, found.scale, found.zero, dtype=dtype)

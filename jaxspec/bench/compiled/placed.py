"""Places models of known shapes, without their numbers, on the devices of a topology."""

import functools
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxspec.checkpoints.params import abstract_model
from jaxspec.families.shapes import shape
from jaxspec.nn.convert import pack_weights, quantize_weights
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.formats import FORMATS
from jaxspec.sharding.params import shard
from jaxspec.sharding.rules import Rules, pieces

_GROUP = 128
# By name, for commands.
WEIGHTS: Mapping[str, Callable[[LanguageModel], LanguageModel]] = MappingProxyType(
    {
        "bfloat16": lambda model: model,
        "int8": quantize_weights,
        "int4": functools.partial(quantize_weights, bits=4, group=_GROUP),
    }
)
# The same, of heads.
_GROUPED: Any = FORMATS["grouped"]
HEAD_WEIGHTS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "bfloat16": lambda head: head,
        "int8": lambda head: pack_weights(head, FORMATS["int8"].pack),
        "int4": lambda head: pack_weights(head, functools.partial(_GROUPED.pack, dtype=jnp.int4, group=_GROUP)),
    }
)


def placed(name: str, mesh: Mesh, weights: str, devices: int | None = None) -> LanguageModel:
    """Returns a model that is split over so many devices; the rest hold the same."""
    config = shape(name)
    model = jax.eval_shape(WEIGHTS[weights], abstract_model(config, jnp.bfloat16))
    axes = _last_axes(mesh, devices or mesh.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays that are not split show in the bytes
        return shard(model, mesh, Rules.tensor_parallel(config, mesh, axes))


def _last_axes(mesh: Mesh, devices: int) -> tuple[str, ...]:
    """Returns the last axes of a mesh with so many devices together.

    Raises:
      ValueError: no such axes have.
    """
    sizes = {
        pieces(mesh, mesh.axis_names[start:]): mesh.axis_names[start:] for start in range(len(mesh.axis_names) + 1)
    }
    if devices not in sizes:
        raise ValueError(f"draft_devices must be one of {', '.join(map(str, sorted(sizes)))}, got {devices}")
    return sizes[devices]

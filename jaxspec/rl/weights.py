"""Holds the weights of a rollout: a copy of the trainer's, and the model that decodes with them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jax.typing import DTypeLike

from jaxspec.core.model import Model, kind_given
from jaxspec.foreign.adoption import adopt
from jaxspec.foreign.tunix import from_tunix

ToModel = Callable[[Any], Model]


class Weights:
    """Copies the parameters of an NNX module, and makes a `Model` of them.

    An update copies on the device, compiles nothing after the first, and transfers nothing from or to the host. The
    trainer may donate or change its arrays afterwards.

    Attributes:
      target: the model with the newest weights; `None` while they are in the host's memory.
    """

    def __init__(self, module: Any, *, mesh: Mesh | None, dtype: DTypeLike | None, to_model: ToModel | None) -> None:
        """Copies the parameters.

        Args:
          module: the NNX module.
          mesh: the devices to decode on; `None` keeps the module's.
          dtype: the type of floating parameters; `None` keeps the module's.
          to_model: makes a model of a module; `None` is `jaxspec.adopt`, or `from_tunix` for what that cannot express.
        """
        self._graph, state = nnx.split(module)
        named, self._tree = jax.tree_util.tree_flatten_with_path(state)
        self._names = {jax.tree_util.keystr(path): index for index, (path, _) in enumerate(named)}
        self._types = [_type_in(x, dtype) for _, x in named]
        self._shardings = [_sharding_on(x, mesh) for _, x in named]
        self._to_model = to_model or _to_model(module)
        self._arrays: list[Array] = [x for _, x in named]
        self.target: Model | None = None
        self.update(state)

    def module(self) -> Any:
        """Returns a module with these parameters."""
        return nnx.merge(self._graph, jax.tree.unflatten(self._tree, self._arrays))

    def update(self, params: Any) -> None:
        """Copies new values of some or all parameters.

        Args:
          params: an `nnx.State` with parameters of the module.

        Raises:
          ValueError: a parameter is unknown, or has another shape.
        """
        new = list(self._arrays)
        for path, x in jax.tree_util.tree_flatten_with_path(params)[0]:
            name = jax.tree_util.keystr(path)
            if (index := self._names.get(name)) is None:
                raise ValueError(
                    f"the rollout's model has no parameter {name}; pass a state of the module it was made of"
                )
            if x.shape != self._arrays[index].shape:
                raise ValueError(f"parameter {name} has shape {x.shape}, expected {self._arrays[index].shape}")
            new[index] = self._moved(x, index)
        self._arrays = new
        on_device = all(_on_device(x, own) for x, own in zip(new, self._shardings, strict=True))
        self.target = self._made() if on_device else None

    def _moved(self, x: Array, index: int) -> Array:
        """Copies an array to its own place; one in the host's memory, where a trainer puts it meanwhile, stays."""
        sharding = self._shardings[index]
        if not _on_device(x, sharding):
            return x
        return _copy(x if x.sharding == sharding else jax.device_put(x, sharding), self._types[index])

    def _made(self) -> Model:
        target = self._to_model(self.module())
        if not isinstance(target, Model):
            raise TypeError(f"to_model must return a jaxspec Model, got {kind_given(target)}; pass jaxspec.adopt, say")
        return target


@functools.partial(jax.jit, static_argnums=1)
def _copy(x: Array, dtype: Any) -> Array:
    """Copies an array, in a type; `None` keeps its own."""
    # Without a copy, a compiler may return the buffer that it got, which the trainer donates.
    return jnp.copy(x if dtype is None else x.astype(dtype))


def _type_in(x: Array, dtype: DTypeLike | None) -> Any:
    """Returns the type of a parameter: `dtype` if it is floating, else its own; `None` for keys."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return None
    floats = jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.dtype(x.dtype if dtype is None or not floats else dtype)


def _sharding_on(x: Array, mesh: Mesh | None) -> Sharding:
    """Returns the sharding of an array on the devices of a mesh, by the same axes if it has them."""
    own = x.sharding
    if mesh is None or own.device_set <= set(mesh.devices.flat):
        return own
    spec = own.spec if isinstance(own, NamedSharding) else PartitionSpec()
    axes = {axis for part in spec for axis in (part if isinstance(part, tuple) else (part,)) if axis is not None}
    return NamedSharding(mesh, spec if axes <= set(mesh.axis_names) else PartitionSpec())


def _on_device(x: Array, sharding: Sharding) -> bool:
    return x.sharding.memory_kind == sharding.memory_kind


def _to_model(module: Any) -> ToModel:
    """Returns `adopt` if it can express a module, else `from_tunix`."""
    try:
        adopt(module)
    except (TypeError, ValueError):
        return lambda module: from_tunix(module, check=False)
    return adopt

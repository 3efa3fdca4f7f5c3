"""Models side by side on a mesh: each group of devices holds one, and all run at the same time."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxspec.core.model import Model, placement_of
from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelStack:
    """Models of one architecture; once placed, they lie side by side along mesh axes.

        mesh         model 0   model 1
        draft 0      a . .     . a .        a's parameters, split over `model`
        draft 1      b . .     . b .        b's

    Attributes:
      models: a tuple of them; once placed, one `LanguageModel` whose parameters are all of
        theirs, `[m, ...]`, the first axis split over `axes`.
      axes: those mesh axes; none before.
    """

    models: tuple[Model, ...] | Model
    axes: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})

    @property
    def first(self) -> Model:
        """One of them, for what all have in common; once placed, its parameters are those of all."""
        return self.models if self.axes else self.models[0]

    @property
    def placement(self) -> Any:
        """That of each model by itself."""
        return placement_of(self.first)

    def each(self, function: Callable[..., Any], own: Any, *shared: Any) -> Any:
        """What `function(number, model, own, *shared)` returns for each placed model, all at the same time.

        The devices of a model see no other's arrays. Its loops must run as often as all others' do: some
        exchanges within a model (collective permutes) are joined by the devices of all.

        Args:
          function: gets the model's number, the model, its part of `own`, and all of `shared`.
          own: arrays `[m, ...]`.
          shared: arrays that all models see.

        Returns:
          Arrays `[m, ...]`, each part where its model is.
        """

        def one(model, number, own, *shared):
            model, number, own = jax.tree.map(lambda x: x[0], (model, number, own))
            return jax.tree.map(lambda x: x[None], function(number, model, own, *shared))

        mesh = self.placement.mesh
        split = PartitionSpec(self.axes)
        count = jax.tree.leaves(self.models)[0].shape[0]
        run = jax.shard_map(
            one,
            mesh=mesh,
            in_specs=(split, split, split, *(PartitionSpec() for _ in shared)),
            out_specs=split,
            axis_names=set(self.axes),
            check_vma=False,
        )
        return run(self.models, jnp.arange(count, dtype=jnp.int32), own, *shared)

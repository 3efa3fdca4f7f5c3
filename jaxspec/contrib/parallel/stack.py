"""Places models side by side on a mesh: each group of devices holds one, and all run at the same time."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxspec.core.layout import Layout, placement_of
from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import parameter_shardings, placed
from jaxspec.sharding.placement import Placement, put
from jaxspec.sharding.rules import Rules, as_tuple, pieces


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelStack:
    """Runs models of one architecture; once placed, they lie side by side along mesh axes.

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
        """One of the models, for what all have in common; once placed, its parameters are those of all."""
        return self.models[0] if isinstance(self.models, tuple) else self.models

    @property
    def each_model(self) -> tuple[Model, ...]:
        """The models one by one, before they are placed."""
        if not isinstance(self.models, tuple):
            raise ValueError("the models lie side by side on a mesh; keep the stack from before for each of them")
        return self.models

    @property
    def placement(self) -> Layout:
        """The layout of each model by itself."""
        return placement_of(self.first)

    def shard(self, mesh: Mesh, rules: Rules) -> Self:
        """Places the models side by side, each on its own part of `mesh`, split over that part by the other rules.

        Raises:
          TypeError, ValueError: the models are no `LanguageModel`s, rules and mesh do not fit, or
            there are not as many models as places along the axis.
        """
        models = self.each_model
        axes, count = as_tuple(Placement.on(mesh, rules).rules.drafts), len(models)
        first, *others = models
        if not isinstance(first, LanguageModel):
            raise TypeError(
                f"only LanguageModels run at the same time, got {type(first).__name__}; pass a UnionDrafter of "
                "ModelDrafters, which runs them one after the other"
            )
        if not axes or pieces(mesh, axes) != count:
            along = f"{pieces(mesh, axes)} along {' x '.join(axes)}"
            got = along if axes else f"rules without drafts, and a mesh with axes {', '.join(mesh.axis_names)}"
            raise ValueError(
                f"{count} drafts run side by side on a mesh axis with {count} places, got {got}; pass "
                f'jax.make_mesh(({count}, ...), ("draft", "model")), or Rules(drafts=...) with the name of another axis'
            )
        own = Placement.on(mesh, rules.without(axes))

        def stacked(sharding: NamedSharding, *parts: Any) -> Any:
            return _put_together(parts, NamedSharding(own.mesh, PartitionSpec(axes, *sharding.spec)))

        each = (first.params, *(model.params for model in others if isinstance(model, LanguageModel)))
        params = jax.tree.map(stacked, parameter_shardings(own, first.params), *each)
        together = placed(dataclasses.replace(first, params=params), own)
        return dataclasses.replace(self, models=together, axes=axes)

    def each(self, function: Callable[..., Any], own: Any, *shared: Any) -> Any:
        """Runs `function(number, model, own, *shared)` for each placed model, all at the same time.

        The devices of a model see no other's arrays. Its loops must run as often as all others' do: some
        exchanges within a model (collective permutes) are joined by the devices of all.

        Args:
          function: gets the model's number, the model, its part of `own`, and all of `shared`.
          own: arrays `[m, ...]`.
          shared: arrays that all models see.

        Returns:
          What the function returns, as arrays `[m, ...]`, each part where its model is.
        """

        def one(model: Any, number: Array, own: Any, *shared: Any) -> Any:
            model, number, own = jax.tree.map(lambda x: x[0], (model, number, own))
            return jax.tree.map(lambda x: x[None], function(number, model, own, *shared))

        placement = self.placement
        if not isinstance(placement, Placement):
            raise ValueError("the models are on no mesh; call shard first")
        split = PartitionSpec(self.axes)
        count = jax.tree.leaves(self.models)[0].shape[0]
        run = jax.shard_map(
            one,
            mesh=placement.mesh,
            in_specs=(split, split, split, *(PartitionSpec() for _ in shared)),
            out_specs=split,
            axis_names=set(self.axes),
            check_vma=False,
        )
        return run(self.models, jnp.arange(count, dtype=jnp.int32), own, *shared)


def _put_together(parts: tuple[Any, ...], sharding: NamedSharding) -> Any:
    """Stacks arrays, or only their shapes, each straight to its place: no device holds another's."""
    if any(isinstance(part, Tracer) for part in parts):
        return put(jnp.stack(parts), sharding)
    shape = (len(parts), *parts[0].shape)
    if isinstance(parts[0], jax.ShapeDtypeStruct):
        return put(jax.ShapeDtypeStruct(shape, parts[0].dtype), sharding)
    return jax.make_array_from_callback(shape, sharding, lambda index: _piece(parts, index or ()))


def _piece(parts: tuple[Array, ...], index: tuple[slice, ...]) -> Array:
    """Cuts a device's piece out of the one model that it holds."""
    (part,) = parts[index[0]]
    return part[index[1:]][None]

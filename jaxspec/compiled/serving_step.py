"""Describes the slots of a server by their shapes, and the step that decodes them, for compilation.

The step is what `jaxspec.Engine` runs in each turn: free slots are released, and rounds run over all others.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.sampling import Sampling
from jaxspec.decoding import slots as slotted
from jaxspec.decoding.slots import Advance, Slots
from jaxspec.drafters.base import Drafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network
from jaxspec.sharding.placement import Placement, put

# The most rounds of a turn, as in `jaxspec.Engine`. It sizes a buffer, which is written once a round.
_ROUNDS = 16
# The arguments of `step` that it may overwrite: the slots.
DONATED = (2,)


def step(
    target: LanguageModel,
    drafter: Drafter | None,
    slots: Slots,
    free: Bool[Array, "b"],
    most: Int[Array, ""],
    until_end: Bool[Array, ""],
) -> tuple[Slots, Advance]:
    """Releases free slots, and runs rounds over the others; jit it with the slots donated."""
    held = slotted.release(slots, free)
    return slotted.advance(target, drafter, None, held, rounds=_ROUNDS, most=most, until_end=until_end)


def arguments_of(
    target: LanguageModel, drafter: Drafter | None, sampling: Sampling, *, rows: int, capacity: int
) -> tuple[Any, ...]:
    """Returns the shapes of the arguments of `step`, with their places on the target's mesh.

    Args:
      target: shapes of the model, placed on a mesh.
      drafter: drafter of such a model; `None` means plain decoding.
      sampling: shapes of the values that a row is sampled with.
      rows: number of slots.
      capacity: number of tokens that a row has room for.
    """

    def make(target: LanguageModel, drafter: Drafter | None, sampling: Sampling) -> Slots:
        return slotted.slots(target, drafter, rows, capacity=capacity, sampling=sampling)

    placement: Any = target.placement
    made = in_place(jax.eval_shape(make, target, drafter, sampling), placement, _own_placement(drafter, placement))
    like = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=placement.replicated)  # noqa: E731
    return target, drafter, made, like((rows,), jnp.bool_), like((), jnp.int32), like((), jnp.bool_)


def in_place(slots: Slots, target: Placement, drafter: Placement) -> Slots:
    """Returns the shapes of slots with their places: caches are split as their models place them, others copied.

    Args:
      slots: the shapes.
      target: the placement of the target.
      drafter: the placement of the drafter's model or head.
    """
    state = slots.state
    drafted = _placed(state.drafter_state, drafter)
    return dataclasses.replace(slots, state=dataclasses.replace(_placed(state, target), drafter_state=drafted))


def _placed(tree: Any, placement: Placement) -> Any:
    # As `Placement.cache` does to a cache; arrays with scales have fewer axes, and are copied.
    of_cache = (None, "batch", "kv_heads", None, None)
    own = lambda x: placement.sharding(x.shape, of_cache) if x.ndim == len(of_cache) else placement.replicated  # noqa: E731
    return jax.tree.map(lambda x: put(x, own(x)), tree)


def _own_placement(drafter: Drafter | None, target: Placement) -> Any:
    network = None if drafter is None else drafter.info.network
    return network.placement if isinstance(network, Network) else target

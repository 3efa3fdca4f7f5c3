"""Runs layers in one loop, which is traced and compiled once for each kind of layer instead of once for each layer.

Weights of native kernels stay where they are: a product takes those of all layers, and the layer's number. So does
attention, over the whole cache; of experts' biases, only rows are read. Other weights would be copied, since XLA slices
a layer's weights out of stacked ones before it multiplies by them; their layers are not run in a loop.

    layer      0  1  2  3  4  5
    kind       0  1  0  0  1  1     by specification, format and shape of the weights
    member     0  0  1  2  1  2     its number among the layers of its kind
"""

import collections
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.nn.cache_by_kind import after_all
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.experts import OF_EXPERTS
from jaxspec.nn.layers import PRODUCTS, Block, LayerSpec
from jaxspec.ops.layer_rows import LayerRows
from jaxspec.ops.packed import LayerWeight, is_packed


def loops(params: Sequence[Any], cache: Any, x: Float[Array, "b t d"]) -> bool:
    """Returns whether layers with these parameters can run in a loop over `x` that copies no weight and no cache."""
    # XLA's attention would slice a layer out of the cache, and Pallas kernels take its number as a constant.
    if not isinstance(cache, NativeKVCache) or x.dtype != jnp.float32:
        return False
    tokens = x.shape[0] * x.shape[1]
    leaves = (leaf for own in params for leaf in jax.tree.leaves_with_path(own, is_leaf=is_packed))
    weights = [leaf for path, leaf in leaves if is_packed(leaf) or getattr(path[-1], "key", "") in PRODUCTS]
    return bool(weights) and all(is_packed(weight) and weight.loops(tokens) for weight in weights)


def run_in_loop(
    specs: Sequence[LayerSpec],
    params: Sequence[Any],
    first: int,
    dtype: DTypeLike,
    capture: Sequence[int],
    x: Float[Array, "b t d"],
    arguments: Callable[[LayerSpec], tuple[Any, ...]],
) -> tuple[Float[Array, "b t d"], tuple[Float[Array, "b t d"], ...], Callable[[Float[Array, "b t width"]], Any]]:
    """Runs layers one after the other; returns what `jaxspec.nn.transformer.run` does.

    Args:
      specs: the layers' specifications.
      params: their parameters.
      first: the number of the first in the cache.
      dtype: the dtype of weights and activations.
      capture: the layers whose inputs are returned; `len(specs)` is the last output.
      x: the first layer's input.
      arguments: returns a layer's other arguments.
    """
    kinds: dict[Hashable, list[int]] = collections.defaultdict(list)
    for layer, (spec, own) in enumerate(zip(specs, params, strict=True)):
        leaves, tree = jax.tree.flatten(own)
        kinds[spec, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)].append(layer)
    members = list(kinds.values())
    place = {layer: (kind, member) for kind, of_kind in enumerate(members) for member, layer in enumerate(of_kind)}
    kept = sorted(set(capture) - {len(specs)})

    def run_kind(kind: int, own: Callable[[Array], Any], number: Array, member: Array, x: Array) -> Any:
        spec = specs[members[kind][0]]
        return Block(spec, number, dtype, parent=None).apply({"params": own(member)}, x, *arguments(spec))

    runs = [
        functools.partial(run_kind, kind, _select([params[layer] for layer in of_kind]))
        for kind, of_kind in enumerate(members)
    ]

    def body(carry: Any, each: Any) -> Any:
        x, states = carry
        kind, number, member, slot = each
        # The last slot takes the states that are not read.
        states = None if states is None else jax.lax.dynamic_update_index_in_dim(states, x, slot, axis=0)
        x, entry = runs[0](number, member, x) if len(runs) == 1 else jax.lax.switch(kind, runs, number, member, x)
        return (x, states), entry

    layers = range(len(specs))
    slots = [kept.index(layer) if layer in kept else len(kept) for layer in layers]
    each = [[*place[layer], first + layer, slots[layer]] for layer in layers]
    kind, member, number, slot = jnp.asarray(np.asarray(each, np.int32).T)
    states = jnp.zeros((len(kept) + 1, *x.shape), x.dtype) if kept else None
    with jax.named_scope("layers"):
        (x, states), entries = jax.lax.scan(body, (x, states), (kind, number, member, slot))
    captured = tuple(x if states is None or layer == len(specs) else states[kept.index(layer)] for layer in capture)
    return x, captured, functools.partial(after_all, entries)


def _select(params: Sequence[Any]) -> Callable[[Int[Array, ""]], Any]:
    """Returns a function from a member of a kind to its parameters; small arrays are stacked, once for all members."""

    def of_member(path: Any, *each: Any) -> Callable[[Int[Array, ""]], Any]:
        if is_packed(each[0]):
            return lambda member: LayerWeight(each, member)
        if path[-1].key == "bias" and path[-2].key in OF_EXPERTS:
            return lambda member: LayerRows(each, member)
        stacked = jnp.stack(each)
        return lambda member: stacked[member]

    found = jax.tree.map_with_path(of_member, *params, is_leaf=is_packed)
    return lambda member: jax.tree.map(lambda one: one(member), found)

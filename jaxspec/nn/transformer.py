"""Defines a decoder-only transformer of the layers in its configuration, and passes over some of them.

begin     tokens -> embedding -> layer 0 ... layer e-1 -> | state -> norm, head -> logits of an early exit
resume                                            state | -> layer e ... last -> norm, head -> logits
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core.model import PADDING
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sums import rounded
from jaxspec.nn import layer_loop
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.cache_by_kind import CacheByKind, part_of
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.layers import Block, LayerSpec, scaled, weight
from jaxspec.nn.norm import Norm
from jaxspec.ops.matmul import project
from jaxspec.ops.packed import PackedWeight
from jaxspec.ops.rope import rope_tables

_init = nn.initializers.normal(0.02)


class Transformer(nn.Module):
    """Scores tokens that follow a cache; returns logits, cache entries and captured states.

    Attributes:
      config: its sizes and options.
      dtype: the dtype of weights and activations; norms, softmax and logits are float32.

    Example:
        >>> module = jaxspec.nn.Transformer(target.module.config)
        >>> logits, entries, hidden = module.apply({"params": target.params}, prompt, target.init_cache(2, 16))
        >>> logits.shape
        (2, 5, 310)
    """

    config: TransformerConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: Any,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> tuple[Float[Array, "b t v"], Any, tuple[Float[Array, "b t d"], ...]]:
        config = self.config
        positions = positions_of(positions, cache, tokens.shape)
        embedding = weight(self, "embedding", (config.vocab_size, config.width), self.dtype)
        tables = {"embedding": embedding}
        if config.learned_positions:
            shape = config.context_length, config.width
            tables["position_embedding"] = self.param("position_embedding", _init, shape, self.dtype)
        x = first_input(config, tables, tokens, positions)
        if _skips_padding(cache):
            x, positions = skipped(tokens, x, positions)
        block = lambda layer, spec, number: Block(spec, number, self.dtype, name=f"layer_{layer}")  # noqa: E731
        params = {} if self.is_initializing() else self.variables["params"]
        layers = range(config.num_layers)
        x, states, stack = run(self, layers, block, params, x, cache, pending, positions, mask, capture)
        x = scaled(Norm(config, name="final_norm")(x), config.logit_scale)
        head = embedding
        if not config.tied_head:
            head = weight(self, "head", (config.head_size, config.width), self.dtype)
        return project(x, head).astype(jnp.float32), stack(x), states


def run(
    module: Transformer,
    layers: range,
    block: Callable[[int, LayerSpec, int], Callable[..., Any]],
    params: Mapping[str, Any],
    x: Float[Array, "b t d"],
    cache: Any,
    pending: Any,
    positions: Int[Array, "b u"],
    mask: Bool[Array, "b t u"] | None,
    capture: tuple[int, ...] = (),
) -> tuple[Float[Array, "b t d"], tuple[Float[Array, "b t d"], ...], Callable[[Float[Array, "b t width"]], Any]]:
    """Runs some layers; returns their last output, captured states, and how the entries for their caches are stacked.

    Entries are stacked after the state that is passed to `stack(x)`.

    Args:
      module: the transformer.
      layers: the consecutive layers to run.
      block: `block(layer, spec, number)` returns a layer with its parameters; `number` is its index among those that
        share its cache.
      params: the parameters; without those of the layers, the layers are not run in a loop.
      x: the input of the first layer.
      cache: the history.
      pending: entries of tokens that were fed before and are in no cache, or `None`.
      positions: the positions of pending and fed tokens.
      mask: whether each fed token sees each of them, or `None`.
      capture: the layers whose inputs are returned; the number after the last one is the last output.
    """
    config, specs = module.config, module.config.layers[layers.start : layers.stop]
    tables = rope_tables(positions[:, -x.shape[1] :], (spec.mixer.rotary for spec in specs))

    def arguments(spec: LayerSpec, part: int = 0) -> tuple[Any, ...]:
        before = None if pending is None else part_of(pending, part)
        return part_of(cache, part), before, positions, mask, tables[spec.mixer.rotary]

    own = [params[f"layer_{layer}"] for layer in layers if f"layer_{layer}" in params]
    if len(own) == len(layers) and layer_loop.loops(own, cache, x):
        return layer_loop.run_in_loop(specs, own, layers.start, module.dtype, capture, x, arguments)
    states, entries = [x], []
    for layer, spec in zip(layers, specs, strict=True):
        part, number = config.kinds.places[layer]
        x, entry = block(layer, spec, number)(x, *arguments(spec, part))
        states.append(x)
        entries.append(entry)
    captured = tuple(states[layer - layers.start] for layer in capture)
    return x, captured, functools.partial(config.kinds.stack, entries, layers.start)


def with_params(module: Transformer, params: Any) -> Callable[[int, LayerSpec, int], Callable[..., Any]]:
    """Returns the `block` of `run` for given parameters."""
    return lambda layer, spec, number: functools.partial(
        Block(spec, number, module.dtype).apply, {"params": params[f"layer_{layer}"]}
    )


def embed(config: TransformerConfig, params: Any, tokens: Int[Array, "b t"]) -> Float[Array, "b t width"]:
    """Looks up the embeddings of tokens, scaled for the family."""
    table = params["embedding"]
    rows = _rows(table, tokens)
    if not config.rounded_embedding_scale:
        return scaled(rows, config.embedding_scale)
    return rounded(rows * jnp.asarray(config.embedding_scale, table.dtype))


def _rows(table: Float[Array, "n width"] | PackedWeight, tokens: Int[Array, "b t"]) -> Float[Array, "b t width"]:
    """Looks up at least two rows of a table.

    The TPU compiler turns the gather of one row into a slice, whose preferred layout differs from that of the product
    with the table, and on TPU7x copies the table in each step.
    """
    if tokens.size > 1:
        return table[tokens]
    return table[jnp.pad(tokens, ((0, 0), (0, 1)))][:, :1]


def positions_of(positions: Int[Array, "b u"] | None, cache: Any, shape: tuple[int, ...]) -> Int[Array, "b u"]:
    """Returns the given positions, or those of a chain of `[b, t]` tokens that follows the cached ones."""
    if positions is not None:
        return positions
    slots = cache.length[:, None] + jnp.arange(shape[1], dtype=jnp.int32)[None]
    if isinstance(cache, KVCache) and cache.positions is not None:
        return jnp.take_along_axis(cache.positions, slots, axis=1)
    return slots


def _skips_padding(cache: Any) -> bool:
    parts = cache.parts if isinstance(cache, CacheByKind) else (cache,)
    return all(isinstance(part, NativeKVCache) for part in parts)


def skipped(
    tokens: Int[Array, "b t"], x: Float[Array, "b t d"], positions: Int[Array, "b u"]
) -> tuple[Float[Array, "b t d"], Int[Array, "b u"]]:
    """Returns the first layer's input and the positions, such that native kernels skip padding in each layer.

    Products skip rows of zeros, and attention tokens at positions below 0, whose result is zeros. Only a bias makes a
    state that is not zero, and then costs time.
    """
    padding = tokens == PADDING
    before = positions.shape[1] - tokens.shape[1]
    hidden = jnp.pad(padding, ((0, 0), (before, 0)))
    return jnp.where(padding[..., None], jnp.zeros((), x.dtype), x), jnp.where(hidden, -1, positions)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Partial:
    """Holds a pass that stopped after its first layers.

    Attributes:
      hidden: the state after them.
      entries: their keys and values, with an entry of the first axis for each layer that ran.
    """

    hidden: Float[Array, "b t d"]
    entries: KVEntries

    @property
    def layers(self) -> int:
        """The number of layers that ran."""
        return self.entries.keys.shape[0]

    def first(self, count: int) -> Self:
        """Cuts the pass to its first `count` tokens."""
        entries = jax.tree.map(lambda x: x[:, :, :, :count], self.entries)
        return dataclasses.replace(self, hidden=self.hidden[:, :count], entries=entries)

    def put(self, fresh: Self, start: Array | int) -> Self:
        """Overwrites the tokens from `start` on with `fresh`."""
        hidden = jax.lax.dynamic_update_slice_in_dim(self.hidden, fresh.hidden, start, axis=1)
        return dataclasses.replace(self, hidden=hidden, entries=self.entries.put(fresh.entries, start))


def first_input(
    config: TransformerConfig, params: Any, tokens: Int[Array, "b t"], positions: Int[Array, "b u"]
) -> Float[Array, "b t d"]:
    """Returns the first layer's input; the last `t` positions are those of the tokens."""
    x = embed(config, params, tokens)
    if config.learned_positions:
        x = x + params["position_embedding"][positions[:, -tokens.shape[1] :]]
    return x


def head_input(config: TransformerConfig, params: Any, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """Applies the final norm to a state, and scales it for the output head."""
    normalized: Any = Norm(config).apply({"params": params["final_norm"]}, x)
    return scaled(normalized, config.logit_scale)


def exit_logits(module: Transformer, params: Any, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
    """Applies final norm and output head to a state."""
    head = params["embedding" if module.config.tied_head else "head"]
    return project(head_input(module.config, params, x), head).astype(jnp.float32)

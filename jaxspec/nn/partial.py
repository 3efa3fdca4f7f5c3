"""Runs passes over some of a decoder's layers, which stop and go on later.

begin     tokens -> embedding -> layer 0 ... layer e-1 -> | state -> norm, head -> logits of an early exit
resume                                            state | -> layer e ... last -> norm, head -> logits
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.norm import Norm
from jaxspec.nn.transformer import Block, Transformer, embed, positions_of, stack_entries
from jaxspec.ops.matmul import project
from jaxspec.ops.rope import rope_tables


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Partial:
    """Holds a pass that stopped after its first layers.

    Attributes:
      hidden: the state after them.
      entries: their keys and values, the first axis one a layer that ran.
    """

    hidden: Float[Array, "b t d"]
    entries: KVEntries

    @property
    def layers(self) -> int:
        """The number of layers that ran."""
        return self.entries.keys.shape[0]

    def first(self, count: int) -> Self:
        """Returns the pass of the first `count` tokens alone."""
        entries = jax.tree.map(lambda x: x[:, :, :, :count], self.entries)
        return dataclasses.replace(self, hidden=self.hidden[:, :count], entries=entries)

    def put(self, fresh: Self, start: Array | int) -> Self:
        """Returns the pass with `fresh` written over the tokens from `start` on."""
        hidden = jax.lax.dynamic_update_slice_in_dim(self.hidden, fresh.hidden, start, axis=1)
        return dataclasses.replace(self, hidden=hidden, entries=self.entries.put(fresh.entries, start))


def begin(
    module: Transformer,
    params: Any,
    tokens: Int[Array, "b t"],
    cache: KVCache,
    layers: int,
    *,
    mask: Bool[Array, "b t u"] | None,
    positions: Int[Array, "b u"] | None,
    pending: KVEntries | None,
) -> tuple[Float[Array, "b t v"], Partial]:
    """Runs the first `layers`, and final norm and head for the logits there; other arguments as of `Transformer`."""
    positions = positions_of(positions, cache, tokens.shape)
    x = first_input(module.config, params, tokens, positions)
    x, entries = _run(module, params, range(layers), x, cache, pending, positions, mask)
    return exit_logits(module, params, x), Partial(x, entries)


def resume(
    module: Transformer,
    params: Any,
    partial: Partial,
    cache: KVCache,
    *,
    mask: Bool[Array, "b t t"] | None,
    positions: Int[Array, "b t"] | None,
) -> tuple[Float[Array, "b t v"], KVEntries]:
    """Runs the remaining layers over the cache that was begun with; returns logits, and the entries of all layers."""
    positions = positions_of(positions, cache, partial.hidden.shape[:2])
    others = range(partial.layers, module.config.num_layers)
    x, entries = _run(module, params, others, partial.hidden, cache, None, positions, mask)
    # The others' entries wait for every read of the cache, and so do those that are joined to them.
    entries = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=0), partial.entries, entries)
    return exit_logits(module, params, x), entries


def _run(
    module: Transformer,
    params: Any,
    layers: range,
    x: Float[Array, "b t d"],
    cache: KVCache,
    pending: KVEntries | None,
    positions: Int[Array, "b u"],
    mask: Bool[Array, "b t u"] | None,
) -> tuple[Float[Array, "b t d"], KVEntries]:
    """Runs some layers; returns the state after them and their entries."""
    config, entries = module.config, []
    tables = rope_tables(positions[:, -x.shape[1] :], config.head_dim, config.ropes)
    for layer in layers:
        block = Block(config, layer, module.dtype)
        output: Any = block.apply(
            {"params": params[f"layer_{layer}"]}, x, cache, pending, positions, mask, tables[layer]
        )
        x, entry = output
        entries.append(entry)
    return x, stack_entries(entries, x)


def first_input(
    config: TransformerConfig, params: Any, tokens: Int[Array, "b t"], positions: Int[Array, "b u"]
) -> Float[Array, "b t d"]:
    """Returns the first layer's input; the last `t` positions are the tokens'."""
    x = embed(config, params, tokens)
    if config.learned_positions:
        x = x + params["position_embedding"][positions[:, -tokens.shape[1] :]]
    return x


def exit_logits(module: Transformer, params: Any, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
    """Applies final norm and output head to a state."""
    head = params["embedding" if module.config.tied_head else "head"]
    normalized: Any = Norm(module.config).apply({"params": params["final_norm"]}, x)
    return project(normalized, head).astype(jnp.float32)

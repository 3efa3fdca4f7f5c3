"""A pass over some of a decoder's layers: begun now, gone on with later.

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
from jaxspec.nn.cache import Entries, KVCache
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.transformer import Block, Norm, Transformer, embed, entries_of, of_chain
from jaxspec.ops.matmul import project
from jaxspec.ops.rope import rotations


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Partial:
    """A pass that stopped after its first layers: what is needed to go on.

    Attributes:
      hidden: the state after them.
      entries: their keys and values, the first axis one a layer that ran.
    """

    hidden: Float[Array, "b t d"]
    entries: Entries

    @property
    def layers(self) -> int:
        """How many layers ran."""
        return self.entries.keys.shape[0]

    def first(self, count: int) -> Self:
        """That of the first `count` tokens alone."""
        entries = jax.tree.map(lambda x: x[:, :, :, :count], self.entries)
        return dataclasses.replace(self, hidden=self.hidden[:, :count], entries=entries)

    def put(self, fresh: Self, start: Array | int) -> Self:
        """The same with `fresh` written over the tokens from `start` on."""
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
    pending: Entries | None,
) -> tuple[Float[Array, "b t v"], Partial]:
    """Runs the first `layers` and gives the logits of an exit there; other arguments as of `Transformer`."""
    mask, positions = of_chain(mask, positions, cache, tokens.shape)
    x = enter(module.config, params, tokens, positions)
    x, entries = _run(module, params, range(layers), x, cache, pending, positions, mask)
    return leave(module, params, x), Partial(x, entries)


def resume(
    module: Transformer,
    params: Any,
    partial: Partial,
    cache: KVCache,
    *,
    mask: Bool[Array, "b t t"] | None,
    positions: Int[Array, "b t"] | None,
) -> tuple[Float[Array, "b t v"], Entries]:
    """Runs the other layers over the cache that was begun with: logits, and the entries of all layers."""
    mask, positions = of_chain(mask, positions, cache, partial.hidden.shape[:2])
    others = range(partial.layers, module.config.num_layers)
    x, entries = _run(module, params, others, partial.hidden, cache, None, positions, mask)
    # The others' entries wait for every read of the cache, and so does what is joined to them.
    entries = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=0), partial.entries, entries)
    return leave(module, params, x), entries


def _run(module, params, layers: range, x, cache, pending, positions, mask):
    config, entries = module.config, []
    rope_tables = rotations(positions[:, -x.shape[1] :], config.head_dim, config.ropes)
    for layer in layers:
        block = Block(config, layer, module.dtype)
        x, entry = block.apply(
            {"params": params[f"layer_{layer}"]}, x, cache, pending, positions, mask, rope_tables[layer]
        )
        entries.append(entry)
    return x, entries_of(entries, x)


def enter(
    config: TransformerConfig, params: Any, tokens: Int[Array, "b t"], positions: Int[Array, "b u"]
) -> Float[Array, "b t d"]:
    """What the first layer is given; the last `t` positions are the tokens'."""
    x = embed(config, params, tokens)
    if config.learned_positions:
        x = x + params["position_embedding"][positions[:, -tokens.shape[1] :]]
    return x


def leave(module: Transformer, params: Any, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
    """What final norm and head make of a state."""
    head = params["embedding" if module.config.tied_head else "head"]
    normalized = Norm(module.config).apply({"params": params["final_norm"]}, x)
    return project(normalized, head).astype(jnp.float32)

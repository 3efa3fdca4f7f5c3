"""Passes over a decoder without some of its blocks: known beforehand, or said by traced flags, for all rows or each."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.cache import Entries, KVCache
from jaxspec.nn.partial import enter, leave
from jaxspec.nn.transformer import Block, Transformer, entries_of, of_chain


def run_without(
    module: Transformer,
    params: Any,
    attention: tuple[int, ...],
    mlp: tuple[int, ...],
    tokens: Int[Array, "b t"],
    cache: KVCache,
    *,
    mask: Bool[Array, "b t u"] | None,
    positions: Int[Array, "b u"] | None,
    pending: Entries | None,
) -> tuple[Float[Array, "b t v"], Entries]:
    """Leaves out the attention and the MLP of some layers; the cache has those layers that attend, and no others."""
    config = module.config
    mask, positions = of_chain(mask, positions, cache, tokens.shape)
    x = enter(config, params, tokens, positions)
    attending = [layer for layer in range(config.num_layers) if layer not in attention]
    # Among the layers of the cache each has its own rotary embedding and window.
    of_cache = dataclasses.replace(
        config,
        num_layers=len(attending),
        ropes=tuple(config.ropes[layer] for layer in attending),
        windows=tuple(config.windows[layer] for layer in attending),
    )
    entries = []
    for layer in range(config.num_layers):
        attends, feeds = layer in attending, layer not in mlp
        block = Block(of_cache, len(entries), module.dtype, attends=attends, feeds=feeds)
        x, entry = block.apply({"params": params[f"layer_{layer}"]}, x, cache, pending, positions, mask)
        entries += [entry] if attends else []
    return leave(module, params, x), entries_of(entries, x)


def run_where(
    module: Transformer,
    params: Any,
    attends: Bool[Array, "l"],
    feeds: Bool[Array, "l"],
    tokens: Int[Array, "b t"],
    cache: KVCache,
) -> Float[Array, "b t d"]:
    """The last layer's output, before the final norm, of a pass in which traced flags say which blocks run.

    One program serves every set of blocks, and a block that does not run costs nothing.

    Args:
      module: the decoder.
      params: its parameters.
      attends: the layers whose attention runs.
      feeds: the layers whose MLP runs.
      tokens: the text; the fed tokens see each other alone.
      cache: an empty one.
    """
    config = module.config
    mask, positions = of_chain(None, None, cache, tokens.shape)
    x = enter(config, params, tokens, positions)
    for layer in range(config.num_layers):
        for runs, alone in ((attends[layer], {"feeds": False}), (feeds[layer], {"attends": False})):
            block = Block(config, layer, module.dtype, **alone)

            def run(x, block=block, layer=layer):
                return block.apply({"params": params[f"layer_{layer}"]}, x, cache, None, positions, mask)[0]

            x = jax.lax.cond(runs, run, lambda x: x, x)
    return x


def run_dropping(
    module: Transformer,
    params: Any,
    runs: Bool[Array, "l b"],
    tokens: Int[Array, "b t"],
    cache: KVCache,
) -> Float[Array, "l b t d"]:
    """The states after each layer, before the final norm, of a pass that differs from row to row; for training.

    Every layer is computed for all rows. What is computed within one is computed again for its gradients, and not
    kept.

    Args:
      module: the decoder.
      params: its parameters.
      runs: which layers run for which rows; a row passes one that does not as it is.
      tokens: the text; the fed tokens see each other alone.
      cache: an empty one.
    """
    config = module.config
    mask, positions = of_chain(None, None, cache, tokens.shape)
    x, states = enter(config, params, tokens, positions), []
    for layer in range(config.num_layers):
        block = Block(config, layer, module.dtype)

        @jax.checkpoint
        def run(own, x, block=block):
            return block.apply({"params": own}, x, cache, None, positions, mask)[0]

        x = jnp.where(runs[layer][:, None, None], run(params[f"layer_{layer}"], x), x)
        states.append(x)
    return jnp.stack(states)

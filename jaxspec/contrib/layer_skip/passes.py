"""Runs a decoder in which each row drops layers of its own, for LayerSkip's training."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.nn.cache import KVCache
from jaxspec.nn.partial import first_input
from jaxspec.nn.transformer import Block, Transformer, positions_of


def run_dropping(
    module: Transformer,
    params: Any,
    runs: Bool[Array, "l b"],
    tokens: Int[Array, "b t"],
    cache: KVCache,
) -> Float[Array, "l b t d"]:
    """Returns the states after each layer, before the final norm, of a pass that differs from row to row.

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
    positions = positions_of(None, cache, tokens.shape)
    x, states = first_input(config, params, tokens, positions), []
    for layer in range(config.num_layers):
        block = Block(config, layer, module.dtype)

        @jax.checkpoint
        def run(own, x, block=block):
            return block.apply({"params": own}, x, cache, None, positions, None)[0]

        x = jnp.where(runs[layer][:, None, None], run(params[f"layer_{layer}"], x), x)
        states.append(x)
    return jnp.stack(states)

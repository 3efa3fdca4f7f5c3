"""Makes exits whose parameters are random, and computes their distributions by the formulas."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.contrib.exit_head.head import EarlyExitHead, ExitConfig, ExitNetwork
from jaxspec.testing.random_models import random_params
from tests._fixtures.medusa import rms, silu


def random_exit(target, layers, seed=0, *, ids=None, blocks=1) -> EarlyExitHead:
    """One that does something, unlike an exit that is not trained yet."""
    config = target.module.config
    module = ExitNetwork(ExitConfig(config.width, 24, blocks), jnp.float32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1, config.width), jnp.float32))
    params = dict(random_params(shapes["params"], seed, 0.2))
    ids = None if ids is None else jnp.asarray(ids, jnp.int32)
    return EarlyExitHead(module, params if ids is None else params | {"head": target.head[ids]}, layers, ids)


def exit_probs(target, head: EarlyExitHead, text) -> np.ndarray:
    """The distribution of the next token by the formulas, from the state of one pass over the text."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), head.params)
    tokens = jnp.asarray([[*text, *[0] * (64 - len(text))]], jnp.int32)
    x = np.asarray(state_at(target, tokens, head.layers), np.float64)[0, len(text) - 1]
    for i in range(head.module.config.num_blocks):
        inputs = rms(x, params[f"block_{i}_norm"]["scale"])
        gate, up = params[f"block_{i}"]["gate_up"]["kernel"]
        x = x + params[f"block_{i}"]["down"]["kernel"] @ (silu(gate @ inputs) * (up @ inputs))
    ids = np.arange(target.vocab_size) if head.ids is None else np.asarray(head.ids)
    logits = np.asarray(target.head, np.float64)[ids] @ rms(x, params["final_norm"]["scale"])
    probs = np.zeros(target.vocab_size)
    probs[ids] = np.exp(logits - logits.max()) / np.sum(np.exp(logits - logits.max()))
    return probs


@jax.jit(static_argnames="layers")
def state_at(target, tokens, layers):
    return target(tokens, target.init_cache(1, 64), capture=(layers,)).hidden[0]

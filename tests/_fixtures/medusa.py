"""Medusa's heads of tiny targets, and their arithmetic once more in NumPy, from the formulas and in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.heads.medusa.head import MedusaHead
from jaxspec.heads.medusa.network import ConditionedConfig, ConditionedHeads, MedusaConfig, MedusaHeads
from jaxspec.testing.random_models import random_params

MOST_TEXT = 80


def random_head(target, module, seed=0, *, ids=None, sharpness=12.0) -> MedusaHead:
    """Heads with random blocks; `sharpness` scales them. A shared output matrix is the target's."""
    blank = jnp.zeros((1, 1, module.config.width))
    shapes = jax.eval_shape(module.init, jax.random.key(0), blank, blank)["params"]
    params = dict(random_params(shapes, seed, 0.02 * sharpness))
    ids = None if ids is None else jnp.asarray(ids, jnp.int32)
    if "output" in params:
        params["output"] = {"head": target.head if ids is None else target.head[ids]}
    return MedusaHead(module, params, (target.module.config.num_layers,), ids)


def paper_head(target, seed=0, *, heads=3, blocks=1, shared=False, ids=None, **options) -> MedusaHead:
    vocab = target.vocab_size if ids is None else len(ids)
    sizes = MedusaConfig(target.module.config.width, vocab, heads, blocks, shared)
    return random_head(target, MedusaHeads(sizes), seed, ids=ids, **options)


def conditioned_head(target, seed=0, *, heads=3, ids=None, shared_blocks=2, num_blocks=1, **options) -> MedusaHead:
    vocab = target.vocab_size if ids is None else len(ids)
    sizes = ConditionedConfig(target.module.config.width, vocab, heads, 24, shared_blocks, num_blocks)
    return random_head(target, ConditionedHeads(sizes), seed, ids=ids, **options)


def silu(x):
    return x / (1 + np.exp(-x))


def rms(x, scale):
    return x / np.sqrt(np.mean(x * x) + 1e-5) * scale


def paper_logits(state, blocks, outputs) -> np.ndarray:
    """`blocks[i][j]` is the matrix and the vector of block `j` of head `i`; `outputs[i]` its output matrix."""
    logits = []
    for head, output in zip(blocks, outputs, strict=True):
        x = state
        for matrix, vector in head:
            x = x + silu(matrix @ x + vector)
        logits.append(output @ x)
    return np.stack(logits)


def conditioned_logits(state, embedding, params, sizes: ConditionedConfig) -> np.ndarray:
    def block(name, x, *beside):
        inputs = np.concatenate([rms(x, params[f"{name}_norm"]["scale"]), *beside])
        gate, up = params[name]["gate_up"]["kernel"]
        return x + params[name]["down"]["kernel"] @ (silu(gate @ inputs) * (up @ inputs))

    token, x = rms(embedding, params["embedding_norm"]["scale"]), state
    for i in range(sizes.shared_blocks):
        x = block(f"shared_{i}", x, *([token] if i == 0 else []))
    logits = []
    for head in range(sizes.num_heads):
        y = x
        for i in range(sizes.num_blocks):
            y = block(f"head_{head}_{i}", y)
        logits.append(params["output"]["head"] @ y)
    return np.stack(logits)


@functools.partial(jax.jit, static_argnames="layer")
def _states(target, tokens, layer):
    (hidden,) = target(tokens, target.init_cache(1, MOST_TEXT), capture=(layer,)).hidden
    return hidden[0]


def newest_state(target, text) -> np.ndarray:
    """The state before the last token, normalized, from one pass over all of the text."""
    padded = jnp.asarray([[*text, *[0] * (MOST_TEXT - len(text))]], jnp.int32)
    hidden = np.asarray(_states(target, padded, target.module.config.num_layers), np.float64)[len(text) - 2]
    return rms(hidden, np.asarray(target.params["final_norm"]["scale"], np.float64))


def probs(target, head: MedusaHead, text) -> np.ndarray | None:
    """The distribution of each head after a text, over the target's vocabulary; `None` after one token."""
    if len(text) < 2:
        return None
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), head.params)
    sizes, state = head.module.config, newest_state(target, text)
    if isinstance(head.module, ConditionedHeads):
        embedding = np.asarray(target.params["embedding"], np.float64)[text[-1]]
        logits = conditioned_logits(state, embedding, params, sizes)
    else:
        each = lambda i: [params[f"head_{i}_{j}"] for j in range(sizes.num_blocks)]
        blocks = [[(block["kernel"], block["bias"]) for block in each(i)] for i in range(sizes.num_heads)]
        outputs = [params["output" if sizes.shared_output else f"output_{i}"]["head"] for i in range(sizes.num_heads)]
        logits = paper_logits(state, blocks, outputs)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    ids = range(target.vocab_size) if head.ids is None else np.asarray(head.ids)
    probs = np.zeros((sizes.num_heads, target.vocab_size))
    probs[:, ids] = weights / weights.sum(-1, keepdims=True)
    return probs

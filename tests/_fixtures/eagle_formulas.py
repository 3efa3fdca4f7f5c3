"""Computes EAGLE's head by the formulas of its paper."""

import jax.numpy as jnp
import numpy as np

from tests._fixtures import tiny

WIDTH, INNER, HEADS, KV_HEADS, HEAD = 16, 24, 2, 1, 8
IDS = np.array([0, 2, 3, 7, 9])
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "vocab_size": tiny.VOCAB,
    "draft_vocab_size": len(IDS),
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}


def rms(x, scale):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def rope(x):
    """`[t, heads, d]`, rotated by the row's number: the half-split layout."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] * 10000.0 ** -(np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    turned = first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)
    return np.concatenate(turned, axis=-1)


def layer(stored, name, inputs, residual):
    """Attention over `inputs` and the feed-forward block, as a Llama layer has them."""
    count = len(inputs)
    heads = lambda part: (inputs @ stored[f"{name}.self_attn.{part}_proj.weight"].T).reshape(count, -1, HEAD)
    queries, keys, values = rope(heads("q")), rope(heads("k")), heads("v")
    scores = np.einsum("thd,sd->hts", queries, keys[:, 0]) / np.sqrt(HEAD)
    scores = np.where(np.tril(np.ones((count, count))), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("hts,sd->thd", weights, values[:, 0]).reshape(count, -1)
    x = residual + mixed @ stored[f"{name}.self_attn.o_proj.weight"].T
    y = rms(x, stored[f"{name}.post_attention_layernorm.weight"])
    gate = y @ stored[f"{name}.mlp.gate_proj.weight"].T
    inner = gate / (1 + np.exp(-gate)) * (y @ stored[f"{name}.mlp.up_proj.weight"].T)
    return x + inner @ stored[f"{name}.mlp.down_proj.weight"].T


TEXT = jnp.asarray([[3, 1, 4, 1, 5, 9, 2, 6]], jnp.int32)

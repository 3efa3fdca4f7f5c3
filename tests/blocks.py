"""Heads of block drafters with random weights, and the same network in NumPy, one block at a time."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.heads.block import BlockHead
from jaxspec.nn import Rope
from jaxspec.nn.block import BlockConfig, BlockNetwork


def config(target, *, vocab, layers=2, block_size=4, features=2, **options) -> BlockConfig:
    """A network of `target`'s width with other heads than the target's."""
    options = {"ropes": (Rope(1e4),) * layers, "windows": (None,) * layers} | options
    width, context = target.module.config.width, target.context_length
    return BlockConfig(
        vocab, layers, width, 4, 2, 4, 20, context, block_size=block_size, num_features=features, **options
    )


def random_head(target, *, ids=None, seed=0, scale=0.3, capture=(1, 0), **options) -> BlockHead:
    """A head whose laws are far from uniform and from the target's; `scale` is the spread of its weights."""
    ids = np.arange(target.vocab_size) if ids is None else np.asarray(ids)
    module = BlockNetwork(config(target, vocab=len(ids), features=len(capture), **options))
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), method="every_parameter"))["params"]
    rng = np.random.default_rng(seed)
    leaf = lambda path, x: rng.normal(size=x.shape) * scale + (1.0 if path[-1].key == "scale" else 0.0)
    params = jax.tree.map_with_path(lambda path, x: jnp.asarray(leaf(path, x), jnp.float32), shapes)
    return BlockHead.of(module, params, ids, capture, target.vocab_size)


class Reference:
    """The network of `jaxspec.nn.block` in float64: plain loops over heads and places."""

    def __init__(self, head: BlockHead):
        self.config, self.ids = head.config, np.asarray(head.ids).tolist()
        self.params = jax.tree.map(lambda x: np.asarray(x, np.float64), head.params)

    def known(self, hidden, anchor, position):
        """What the places of a block know, `[n, d]`; `hidden` are the captured states `[t, d]` of all tokens before."""
        config, params = self.config, self.params
        x = np.stack([anchor, *[params["mask"]] * (config.block_size - 1)])
        places = position + np.arange(config.block_size)
        context = self.context(hidden)
        for number in range(config.num_layers):
            layer = params[f"layer_{number}"]
            x = x + self.attention(number, self.norm(layer["attention_norm"], x), places, context)
            inner = self.norm(layer["mlp_norm"], x)
            gate, up = (inner @ layer["mlp"]["gate_up"]["kernel"][i].T for i in (0, 1))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp"]["down"]["kernel"].T
        x = self.norm(params["final_norm"], x)
        return x if config.first_predicts else x[1:]

    def law(self, known, before):
        """The law over the target's vocabulary of a draft that follows the token `before`."""
        logits = self.params["head"] @ known + self.added(before)
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def expanded(self, law, vocab):
        out = np.zeros(vocab)
        out[self.ids] = law
        return out

    def added(self, before):
        if not self.config.markov_rank:
            return 0.0
        return self.params["markov_after"] @ self.row(before)

    def row(self, token):
        return self.params["markov_before"][self.ids.index(token) if token in self.ids else len(self.ids)]

    def trust(self, known, before):
        """The estimated probability that a draft is accepted."""
        parts = [known, self.row(before)] if self.config.confidence == "place and token" else [known]
        odds = self.params["trust"]["kernel"][0] @ np.concatenate(parts) + self.params["trust"]["bias"][0]
        return 1 / (1 + np.exp(-odds))

    def context(self, hidden):
        if not len(hidden[0]):
            return np.zeros((0, self.config.width))
        if self.config.feature_norms:
            hidden = [self.norm(self.params[f"state_norm_{i}"], x) for i, x in enumerate(hidden)]
        mixed = np.concatenate(hidden, axis=-1) @ self.params["mix"]["kernel"].T
        return self.norm(self.params["context_norm"], mixed)

    def norm(self, params, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps) * params["scale"]

    def rotate(self, x, position):
        """`[d]` by its position."""
        half = len(x) // 2
        angles = position * self.config.ropes[0].theta ** (-np.arange(half) / half)
        first, second = x[:half], x[half:]
        return np.concatenate(
            [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
        )

    def attention(self, number, x, places, context):
        config, params = self.config, self.params[f"layer_{number}"]["attention"]
        normed = lambda name, x: self.norm(params[name], x) if config.query_key_norm else x
        seen = np.concatenate([context, x])
        positions = [*range(len(context)), *places]
        causal, window = bool(config.causal_layers) and config.causal_layers[number], config.windows[number]
        out = np.zeros((len(x), config.num_kv_heads, config.queries_per_kv_head, config.head_dim))
        for i, at in enumerate(places):
            visible = [
                j for j, p in enumerate(positions) if (not causal or p <= at) and (window is None or p > at - window)
            ]
            for g in range(config.num_kv_heads):
                key, value = params["key_value"]["kernel"][g]
                keys = np.array([self.rotate(normed("key_norm", key @ seen[j]), positions[j]) for j in visible])
                for r in range(config.queries_per_kv_head):
                    query = self.rotate(normed("query_norm", params["query"]["kernel"][g, r] @ x[i]), at)
                    weights = np.exp(keys @ query * config.head_dim**-0.5)
                    out[i, g, r] = weights / weights.sum() @ (seen[visible] @ value.T)
        return out.reshape(len(x), -1) @ params["output"]["kernel"].T

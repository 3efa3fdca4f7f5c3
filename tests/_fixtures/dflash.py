"""DFlash heads with random weights, and the same network in NumPy, one block at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.heads.dflash.network import DFlashConfig, DFlashNetwork
from jaxspec.ops.rope import Rope


def config(target, *, vocab, layers=2, block_size=4, features=2, **options) -> DFlashConfig:
    """A network of `target`'s width with other heads than the target's."""
    options = {"ropes": (Rope(1e4),) * layers, "windows": (None,) * layers} | options
    width, context = target.module.config.width, target.context_length
    return DFlashConfig(
        vocab, layers, width, 4, 2, 4, 20, context, block_size=block_size, num_features=features, **options
    )


def random_head(target, *, ids=None, seed=0, scale=0.3, capture=(1, 0), **options) -> DFlashHead:
    """A head whose distributions are far from uniform and from the target's; `scale` is the spread of its weights."""
    ids = np.arange(target.vocab_size) if ids is None else np.asarray(ids)
    module = DFlashNetwork(config(target, vocab=len(ids), features=len(capture), **options))
    shapes = _shapes(module)
    rng = np.random.default_rng(seed)
    leaf = lambda path, x: rng.normal(size=x.shape) * scale + (1.0 if path[-1].key == "scale" else 0.0)
    params = jax.tree.map_with_path(lambda path, x: jnp.asarray(leaf(path, x), jnp.float32), shapes)
    return DFlashHead.of(module, params, ids, capture, target.vocab_size)


@functools.cache
def _shapes(module: DFlashNetwork):
    """The shapes of the parameters, cached: tests make many equal networks."""
    return jax.eval_shape(lambda: module.init(jax.random.key(0), method="every_parameter"))["params"]


class Reference:
    """The network of `jaxspec.heads.dflash.network` in float64: plain loops over heads and places.

    `weights` has matrices `[out, in]` by these names: `mix`, `context_norm`, `final_norm`, `mask`, `head`,
    `markov_before`, `markov_after`, `trust`, `trust_bias`, and in each of `layers` `attention_norm`, `query` and
    `query_norm`, `key`, `key_norm`, `value`, `output`, `mlp_norm`, `gate`, `up`, `down`.
    """

    def __init__(self, config: DFlashConfig, ids, weights):
        self.config, self.ids = config, list(map(int, ids))
        self.weights = jax.tree.map(lambda x: np.asarray(x, np.float64), weights)

    @classmethod
    def of(cls, head: DFlashHead):
        params = head.params
        weights = {name: x for name, x in params.items() if not isinstance(x, dict)}
        weights |= {"mix": params["mix"]["kernel"], "layers": []}
        weights |= {name: x["scale"] for name, x in params.items() if name.endswith("norm") or "_norm_" in name}
        if "trust" in params:
            weights |= {"trust": params["trust"]["kernel"], "trust_bias": params["trust"]["bias"]}
        for number in range(head.config.num_layers):
            layer = params[f"layer_{number}"]
            attention, both = layer["attention"], layer["attention"]["key_value"]["kernel"]
            flat = {name: x["scale"] for name, x in (layer | attention).items() if name.endswith("norm")}
            flat |= {"query": attention["query"]["kernel"].reshape(-1, head.config.width)}
            flat |= {name: both[:, i].reshape(-1, head.config.width) for i, name in enumerate(("key", "value"))}
            gate, up = layer["mlp"]["gate_up"]["kernel"]
            flat |= {"output": attention["output"]["kernel"], "gate": gate, "up": up}
            weights["layers"].append(flat | {"down": layer["mlp"]["down"]["kernel"]})
        return cls(head.config, head.ids, weights)

    def known(self, hidden, anchor, position):
        """What the places of a block know, `[n, d]`; `hidden` are the captured states `[t, d]` of all tokens before."""
        config, weights = self.config, self.weights
        x = np.stack([anchor, *[weights["mask"]] * (config.block_size - 1)])
        places = position + np.arange(config.block_size)
        context = self.context(hidden)
        for number, layer in enumerate(weights["layers"]):
            x = x + self.attention(number, self.norm(layer["attention_norm"], x), places, context)
            inner = self.norm(layer["mlp_norm"], x)
            gate = inner @ layer["gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (inner @ layer["up"].T)) @ layer["down"].T
        x = self.norm(weights["final_norm"], x)
        return x if config.first_predicts or config.keeps_anchor else x[1:]

    def probs(self, known, before):
        """The distribution over the draft vocabulary of a draft that follows the token `before`."""
        logits = self.weights["head"] @ known
        if self.config.markov_rank:
            logits = logits + self.weights["markov_after"] @ self.row(before)
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def expanded(self, probs, vocab):
        out = np.zeros(vocab)
        out[self.ids] = probs
        return out

    def row(self, token):
        return self.weights["markov_before"][self.ids.index(token) if token in self.ids else len(self.ids)]

    def trust(self, known, before):
        """The estimated probability that a draft is accepted."""
        parts = [known, self.row(before)] if self.config.confidence == "place and token" else [known]
        odds = self.weights["trust"][0] @ np.concatenate(parts) + self.weights["trust_bias"][0]
        return 1 / (1 + np.exp(-odds))

    def context(self, hidden):
        if not len(hidden[0]):
            return np.zeros((0, self.config.width))
        if self.config.feature_norms:
            hidden = [self.norm(self.weights[f"state_norm_{i}"], x) for i, x in enumerate(hidden)]
        return self.norm(self.weights["context_norm"], np.concatenate(hidden, axis=-1) @ self.weights["mix"].T)

    def norm(self, scale, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps) * scale

    def rotate(self, x, position):
        """`[d]` by its position."""
        half = len(x) // 2
        angles = position * self.config.ropes[0].theta ** (-np.arange(half) / half)
        first, second = x[:half], x[half:]
        turned = [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
        return np.concatenate(turned)

    def attention(self, number, x, places, context):
        config, layer = self.config, self.weights["layers"][number]
        normed = lambda name, x: self.norm(layer[name], x) if config.query_key_norm else x
        of_head = lambda name, head: layer[name].reshape(-1, config.head_dim, config.width)[head]
        seen = np.concatenate([context, x])
        positions = [*range(len(context)), *places]
        causal, window = bool(config.causal_layers) and config.causal_layers[number], config.windows[number]
        out = np.zeros((len(x), config.num_heads, config.head_dim))
        for i, at in enumerate(places):
            least, beyond = at - (window or np.inf), at + (1 if causal else window or np.inf)
            if config.windows_from_anchor:
                least, beyond = places[0] - (window or np.inf) - 1, at + (1 if causal else np.inf)
            near = lambda p: least < p < beyond
            visible = [j for j, p in enumerate(positions) if near(p)]
            for head in range(config.num_heads):
                shared = head // config.queries_per_kv_head
                key = [normed("key_norm", of_head("key", shared) @ seen[j]) for j in visible]
                keys = np.array([self.rotate(key, positions[j]) for key, j in zip(key, visible)])
                query = self.rotate(normed("query_norm", of_head("query", head) @ x[i]), at)
                weights = np.exp(keys @ query * config.head_dim**-0.5)
                out[i, head] = weights / weights.sum() @ (seen[visible] @ of_head("value", shared).T)
        return out.reshape(len(x), -1) @ layer["output"].T

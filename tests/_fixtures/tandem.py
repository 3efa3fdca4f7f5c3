"""Tandem decoders with random weights, and the same network in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.contrib.tandem.head import TandemHead
from jaxspec.contrib.tandem.network import TandemConfig, TandemNetwork
from jaxspec.ops.rope import Rope
from jaxspec.testing.random_models import random_params


def random_head(target, *, ids=None, seed=0, scale=0.3, capture=(1, 0), layers=2, **options) -> TandemHead:
    """A head whose distributions are far from uniform and from the target's; `scale` is the spread of its weights."""
    ids = np.arange(target.vocab_size) if ids is None else np.asarray(ids)
    sizes = {"width": 8, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4, "mlp_width": 12} | options
    config = TandemConfig(
        vocab_size=len(ids),
        num_layers=layers,
        context_length=target.context_length,
        ropes=(Rope(1e4),) * layers,
        windows=(None,) * layers,
        target_width=target.module.config.width,
        num_features=len(capture),
        **sizes,
    )
    module = TandemNetwork(config)
    blank = TandemHead(module, {}, jnp.zeros(0, jnp.int32), target.vocab_size, capture)
    init = lambda: module.init(jax.random.key(0), blank.init_cache(1, 0), method="everything")["params"]
    params = random_params(jax.eval_shape(init), seed, scale)
    return TandemHead(module, params, jnp.asarray(ids, jnp.int32), target.vocab_size, capture)


class Reference:
    """The network of `jaxspec.contrib.tandem.network` in float64: plain loops over heads and tokens."""

    def __init__(self, head: TandemHead):
        self.config, self.ids, self.vocab_size = head.config, np.asarray(head.ids), head.vocab_size
        self.params = jax.tree.map(lambda x: np.asarray(x, np.float64), head.params)

    def probs(self, hidden, embedded):
        """Of the token after those `embedded`, `[m, d]`; `hidden` are the states `[t, d]` of all before them."""
        params, start = self.params, len(hidden[0])
        normed = [self.norm(params[f"state_norm_{i}"], x) for i, x in enumerate(hidden)]
        context = self.norm(params["context_norm"], np.concatenate(normed, axis=-1) @ params["mix"]["kernel"].T)
        x = self.norm(params["token_norm"], embedded) @ params["lower"]["kernel"].T
        for number in range(self.config.num_layers):
            layer, inject = params[f"layer_{number}"], params[f"inject_{number}"]["key_value"]["kernel"]
            x = x + self.attention(layer["attention"], inject, self.norm(layer["attention_norm"], x), context, start)
            inner = self.norm(layer["mlp_norm"], x)
            gate, up = (inner @ part.T for part in layer["mlp"]["gate_up"]["kernel"])
            x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp"]["down"]["kernel"].T
        last = self.norm(params["final_norm"], params["lift"]["kernel"] @ x[-1])
        weights, probs = np.exp(params["head"] @ last), np.zeros(self.vocab_size)
        probs[self.ids] = weights / weights.sum()
        return probs

    def norm(self, scale, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps) * scale["scale"]

    def rotate(self, x, position):
        half = len(x) // 2
        angles = position * self.config.ropes[0].theta ** (-np.arange(half) / half)
        first, second = x[:half], x[half:]
        turned = [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
        return np.concatenate(turned)

    def attention(self, weights, inject, x, context, start):
        config, own = self.config, weights["key_value"]["kernel"]
        out = np.zeros((len(x), config.num_heads, config.head_dim))
        for i in range(len(x)):
            for head in range(config.num_heads):
                shared, place = divmod(head, config.queries_per_kv_head)
                keys = [self.rotate(inject[shared, 0] @ c, j) for j, c in enumerate(context)]
                keys += [self.rotate(own[shared, 0] @ x[j], start + j) for j in range(i + 1)]
                values = [inject[shared, 1] @ c for c in context] + [own[shared, 1] @ x[j] for j in range(i + 1)]
                query = self.rotate(weights["query"]["kernel"][shared, place] @ x[i], start + i)
                scores = np.exp(np.array(keys) @ query * config.head_dim**-0.5)
                out[i, head] = scores / scores.sum() @ np.array(values)
        return out.reshape(len(x), -1) @ weights["output"]["kernel"].T

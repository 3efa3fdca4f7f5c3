"""A decoder with the signatures of bonsai's: a cache of objects that a call writes into, and one index for all rows."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx


@dataclasses.dataclass(frozen=True)
class Config:
    num_layers: int = 2
    vocab_size: int = 29
    width: int = 16
    num_kv_heads: int = 2
    head_dim: int = 8


class LayerCache(nnx.Module):
    def __init__(self, config, batch_size, cache_size, dtype):
        shape = (batch_size, cache_size, config.num_kv_heads, config.head_dim)
        self.k_cache, self.v_cache = nnx.Cache(jnp.zeros(shape, dtype)), nnx.Cache(jnp.zeros(shape, dtype))
        self.start_ind = nnx.Variable(-1 * jnp.ones(batch_size, jnp.int32))
        self.cur_ind = nnx.Variable(jnp.zeros((), jnp.int32))


class Decoder(nnx.Module):
    """Attention alone, with learned positions."""

    def __init__(self, config, *, rngs):
        self.config, heads = config, (config.num_kv_heads, config.head_dim)
        draw = lambda *shape: nnx.Param(0.6 * jax.random.normal(rngs.params(), shape))
        self.embedding, self.place = draw(config.vocab_size, config.width), draw(96, config.width)
        self.products = nnx.List([draw(3, config.width, *heads) for _ in range(config.num_layers)])
        self.output = nnx.List([draw(*heads, config.width) for _ in range(config.num_layers)])

    def __call__(self, tokens, *, cache, segment_ids):
        start = cache[0].cur_ind[...]
        own = jnp.cumsum(segment_ids, axis=1) - 1 + start
        x = self.embedding[...][tokens] + self.place[...][own]
        for layer, weights, output in zip(cache, self.products, self.output, strict=True):
            queries, keys, values = (jnp.einsum("btd,dgh->btgh", x, one) for one in weights[...])
            for held, fresh in ((layer.k_cache, keys), (layer.v_cache, values)):
                held.set_value(jax.lax.dynamic_update_slice(held[...], fresh, (0, start, 0, 0)))
            slots = jnp.arange(layer.k_cache[...].shape[1])[None, None]
            seen = (slots <= own[:, :, None]) & (slots >= layer.start_ind[...][:, None, None])
            scores = jnp.where(seen[:, None], jnp.einsum("btgh,bsgh->bgts", queries, layer.k_cache[...]), -1e9)
            mixed = jnp.einsum("bgts,bsgh->btgh", jax.nn.softmax(scores), layer.v_cache[...])
            x = x + jnp.einsum("btgh,ghd->btd", mixed, output[...])
            layer.cur_ind.set_value(start + tokens.shape[1])
        return jnp.einsum("btd,vd->btv", x, self.embedding[...])


def made(seed=0, **sizes):
    return Decoder(Config(**sizes), rngs=nnx.Rngs(seed))

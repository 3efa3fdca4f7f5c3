# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A model of tunix
#
# You have a JAX model with its own code and cache. Here it is one of [tunix](https://github.com/google/tunix)
# (`pip install google-tunix`): a small Qwen 2 of random weights, made as tunix makes it.

# %%
import warnings

warnings.filterwarnings("ignore")  # of tunix with this version of Flax

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.qwen2.model import ModelConfig, Qwen2

config = ModelConfig(
    num_layers=4, vocab_size=512, embed_dim=128, hidden_dim=256, num_heads=8, num_kv_heads=2, head_dim=32,
    rope_theta=10_000, norm_eps=1e-6, dtype=jnp.float32, param_dtype=jnp.float32,
)  # fmt: skip
model = Qwen2(config, rngs=nnx.Rngs(0))

# %% [markdown]
# ## Two lines
#
# `from_tunix` wraps it. Its cache has one index for all rows, and still each row may accept a different number of drafts.

# %%
import jaxspec

target = jaxspec.foreign.from_tunix(model)
prompt = jax.random.randint(jax.random.key(1), (4, 12), 0, 512)
result = jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=32)
result.tokens[:, :10], result.stats.rounds

# %% [markdown]
# ## The same tokens as tunix's own sampler
#
# The sampler takes texts. A tokenizer whose texts are ids makes both comparable:

# %%
import json

import numpy as np
from tunix.generate.sampler import CacheConfig, Sampler


class Ids:
    """Reads and writes lists of ids."""

    encode = staticmethod(json.loads)
    decode = staticmethod(lambda ids: json.dumps([int(token) for token in ids]))
    bos_id = pad_id = staticmethod(lambda: 0)
    eos_id = staticmethod(lambda: 511)


sampler = Sampler(
    model,
    Ids(),
    CacheConfig(64, config.num_layers, config.num_kv_heads, config.head_dim),
)
texts = [json.dumps(row) for row in prompt.tolist()]
answers = sampler(texts, max_generation_steps=32, max_prompt_length=12).tokens
[
    bool(np.array_equal(own[: len(theirs)], theirs))
    for own, theirs in zip(np.asarray(result.tokens), answers, strict=True)
]

# %% [markdown]
# ## Inside your own `jit`, with other weights
#
# The wrapped model is a pytree. After an update of the weights, wrap it again: no program is compiled again.

# %%
traces = []


@jax.jit
def write(target, prompt, key):
    traces.append(1)
    sampling = jaxspec.Sampling(temperature=1.0)
    return jaxspec.generate(
        target,
        jaxspec.NGramDrafter(k=4),
        prompt,
        key=key,
        sampling=sampling,
        max_new_tokens=8,
    ).tokens


write(target, prompt, jax.random.key(0))
updated = jaxspec.foreign.from_tunix(Qwen2(config, rngs=nnx.Rngs(7)), check=False)
write(updated, prompt, jax.random.key(0)), len(traces)

# %% [markdown]
# ## Any function with a cache
#
# `from_cached` takes a function, a function that makes its cache, and the parameters. `cache_index` is the kind of its index:
#
# | `cache_index` | the cache's index is | the call | drafts |
# |---|---|---|---|
# | `"shared"` | one for all rows | takes a mask `[b, t, s]` over slots | chains and trees |
# | `"per_row"` | one per row | takes such a mask | chains and trees |
# | `"scalar"` | one number | has its own causal mask | chains |
#
# Leaves of the cache that grow with its capacity hold slots. Integers with one number, or one per row, are indices. A ring or a
# state of a fixed size is refused by its path. Wrapping runs a few tokens, so an ignored mask or index is an error before
# anything is generated.


# %%
def call(params, tokens, cache, fed):
    keys = jax.lax.dynamic_update_slice(
        cache["keys"], params["keys"][tokens], (0, fed.index, 0)
    )
    values = jax.lax.dynamic_update_slice(
        cache["values"], params["values"][tokens], (0, fed.index, 0)
    )
    scores = jnp.einsum("btd,bsd->bts", params["queries"][tokens], keys)
    weights = jax.nn.softmax(jnp.where(fed.mask, scores, -1e9))
    return jnp.einsum("bts,bsd,vd->btv", weights, values, params["values"]), {
        "keys": keys,
        "values": values,
    }


def init_cache(batch, capacity):
    return {name: jnp.zeros((batch, capacity, 16)) for name in ("keys", "values")}


keys = jax.random.split(jax.random.key(3), 3)
params = {
    name: jax.random.normal(key, (512, 16))
    for name, key in zip(("queries", "keys", "values"), keys, strict=True)
}
own = jaxspec.from_cached(
    call, init_cache, params, vocab_size=512, cache_index="shared"
)
jaxspec.generate(own, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=8).tokens

# %% [markdown]
# A function that ignores its mask is an error at once:

# %%
try:
    careless = lambda params, tokens, cache, fed: call(
        params,
        tokens,
        cache,
        jaxspec.foreign.Fed(fed.positions, jnp.ones_like(fed.mask), fed.index),
    )
    jaxspec.from_cached(
        careless, init_cache, params, vocab_size=512, cache_index="shared"
    )
except ValueError as error:
    print(error)

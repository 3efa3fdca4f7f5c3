"""Random models of the real tunix, which must be installed."""

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.gemma import model as gemma
from tunix.models.llama3 import model as llama3
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen3 import model as qwen3

VOCAB = 64
SIZES = {"num_layers": 2, "embed_dim": 32, "hidden_dim": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
ROPED = {"vocab_size": VOCAB, "rope_theta": 10_000, "norm_eps": 1e-5}
FLOAT = {"dtype": jnp.float32, "param_dtype": jnp.float32}


def made(kind, seed=0, scale=0.4, **options):
    """A random model, sharp enough that what was fed before matters."""
    if kind == "gemma":
        options = {"attention_types": (gemma.AttentionType.GLOBAL,) * 2} | options
        others = {"final_logit_softcap": None, "use_post_attn_norm": False, "use_post_ffw_norm": False}
        config = gemma.ModelConfig(num_embed=VOCAB, **SIZES, **others, **options)
    else:
        module, own = {"llama3": (llama3, {}), "qwen2": (qwen2, FLOAT), "qwen3": (qwen3, FLOAT)}[kind]
        config = module.ModelConfig(**SIZES, **ROPED, **own, **options)
    build = {"llama3": llama3.Llama3, "qwen2": qwen2.Qwen2, "qwen3": qwen3.Qwen3, "gemma": gemma.Gemma}[kind]
    graph, state = nnx.split(build(config, rngs=nnx.Rngs(0)))
    leaves, tree = jax.tree.flatten(state)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [jax.random.normal(key, x.shape, x.dtype) * scale if x.ndim > 1 else x for key, x in zip(keys, leaves)]
    return nnx.merge(graph, jax.tree.unflatten(tree, drawn))

# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Eight devices
#
# The same program on a mesh. This machine has one CPU; XLA makes eight devices of it, which is how the tests check every
# drafter and verifier on meshes.

# %%
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp

import jaxspec

mesh = jax.make_mesh(
    (2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
)
mesh

# %% [markdown]
# The residual width, heads and vocabulary of the target are split over `model`, the rows of the batch over `data`. SmolLM2 has
# three key-value heads, which four devices cannot share: they are replicated, and a warning says so.

# %%
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    target = jaxspec.load("smollm2-135m-instruct", mesh=mesh)
kernel = target.params["layer_0"]["mlp"]["down"]["kernel"]
print(
    kernel.shape,
    "in parts of",
    kernel.addressable_shards[0].data.shape,
    "on",
    len(kernel.sharding.device_set),
    "devices",
)

# %%
texts = ["The sea is", "1, 2, 3, 4,"]
ids = [target.tokenizer.encode(text) for text in texts]
width = max(map(len, ids))
prompt = jnp.asarray([row + [0] * (width - len(row)) for row in ids])
options = {
    "prompt_length": jnp.asarray([len(row) for row in ids]),
    "max_new_tokens": 24,
}
result = jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, **options)
for row, text in enumerate(texts):
    print(
        text
        + target.tokenizer.decode(
            result.tokens[row, : int(result.length[row])].tolist()
        )
    )

# %% [markdown]
# On one device the same call gives the same tokens:

# %%
alone = jaxspec.generate(
    jaxspec.load("smollm2-135m-instruct"), jaxspec.NGramDrafter(k=4), prompt, **options
)
same = bool((alone.tokens == result.tokens).all())
same

# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # First tokens
#
# A real model, some text, and a look at what speculation did to it. The first line loads SmolLM2-135M-Instruct, which is
# downloaded once (98 MB); `"auto"` is the drafter that its manifest names: n-grams, or a small head where that promises more.

# %%
import jaxspec

decoder = jaxspec.SpeculativeDecoder("smollm2-135m-instruct", "auto")
question = {"role": "user", "content": "Name three rivers."}
result = decoder.chat([question], temperature=0, max_new_tokens=64)
print(result)

# %% [markdown]
# A notebook shows the same result with its rounds: text on green was drafted and accepted, and each line ends a round.

# %%
result

# %% [markdown]
# Speculation pays where a text repeats itself. `compare` decodes without it too, in turns, and says how much faster it was
# on this machine:

# %%
decoder.compare("1, 2, 3, 4, 5, 6, 7, 8,", temperature=0, max_new_tokens=96)

# %% [markdown]
# ## The same in your own `jit`
#
# `jaxspec.generate` is a function of arrays. It runs inside your own `jit`, under `vmap` and in `lax.scan`:

# %%
import jax
import jax.numpy as jnp

target = decoder.target
prompt = jnp.asarray([target.tokenizer.encode("The sea is calm and")])


@jax.jit
def write(target, prompt, key):
    return jaxspec.generate(
        target,
        jaxspec.NGramDrafter(k=4),
        prompt,
        key=key,
        sampling=jaxspec.Sampling(temperature=0.8, top_p=0.95),
        verifier=jaxspec.CoupledVerifier(),
        max_new_tokens=32,
    )


with_drafts = write(target, prompt, jax.random.key(0))
print(target.tokenizer.decode(with_drafts.tokens[0].tolist()))

# %% [markdown]
# `CoupledVerifier` gives the tokens of plain decoding for the same key, one by one:

# %%
plain = jaxspec.generate(
    target,
    None,
    prompt,
    key=jax.random.key(0),
    sampling=jaxspec.Sampling(temperature=0.8, top_p=0.95),
    max_new_tokens=32,
)
same = bool((plain.tokens == with_drafts.tokens).all())
assert same
same

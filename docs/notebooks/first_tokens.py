# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # First tokens
#
# A real model, some text, and a look at its rounds. The first line loads SmolLM2-135M-Instruct, which is downloaded once
# (98 MB). Its drafter comes with it: n-grams, or a small head where that promises more.
#
# The first call compiles the program. The second one runs it again, so its speed is that of decoding.

# %%
import jaxspec

decoder = jaxspec.SpeculativeDecoder("smollm2-135m-instruct")
question = {"role": "user", "content": "Name three rivers."}
decoder.chat([question], temperature=0, max_new_tokens=64)  # compiles
result = decoder.chat([question], temperature=0, max_new_tokens=64)
print(result.text)

# %% [markdown]
# A notebook shows a result with its rounds: text on green was drafted and accepted, and each line ends a round.

# %%
result

# %% [markdown]
# Speculation gains most where a text repeats itself. `compare` also decodes without it, in turns, and reports the speed-up on
# this machine. It compiles before it measures:

# %%
decoder.compare("1, 2, 3, 4, 5, 6, 7, 8,", temperature=0, max_new_tokens=96)

# %% [markdown]
# ## The same in your own `jit`
#
# `jaxspec.generate` is a function of arrays. It runs inside your own `jit`, under `vmap` and in `lax.scan`. A row stops at the
# model's end token, and `length` counts its tokens:

# %%
import jax
import jax.numpy as jnp

target = decoder.target
prompt = jnp.asarray([target.tokenizer.apply_chat_template([question])])
sampling = jaxspec.Sampling(temperature=0.8, top_p=0.95)


@jax.jit
def write(target, drafter, prompt, key):
    verifier = jaxspec.CoupledVerifier()
    return jaxspec.generate(
        target,
        drafter,
        prompt,
        key=key,
        sampling=sampling,
        verifier=verifier,
        max_new_tokens=64,
    )


with_drafts = write(target, decoder.drafter, prompt, jax.random.key(0))
written = with_drafts.tokens[0, : with_drafts.length[0]]
print(target.tokenizer.decode(written.tolist()))

# %% [markdown]
# A text stops at the model's end token. `CoupledVerifier` gives the tokens of plain decoding for the same key, one by one:

# %%
plain = jaxspec.generate(
    target, None, prompt, key=jax.random.key(0), sampling=sampling, max_new_tokens=64
)
same = bool((plain.tokens == with_drafts.tokens).all())
assert same
same

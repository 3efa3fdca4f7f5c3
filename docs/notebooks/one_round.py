# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # One round, drawn
#
# A round proposes, verifies and commits. This notebook shows each part on a target small enough to look at: eight tokens, and a
# table of which token follows which.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxspec

VOCAB = 8
tables = np.random.default_rng(0).normal(size=(2, VOCAB, VOCAB))
table, noise = jnp.asarray(tables, jnp.float32) * 2
guesses = 0.5 * table + 0.7 * noise  # the draft is a worse model of the same text


def scores(table, tokens):
    return table[tokens]


target = jaxspec.from_function(scores, table, vocab_size=VOCAB)
draft = jaxspec.from_function(scores, guesses, vocab_size=VOCAB)

# %% [markdown]
# The drafter guesses three tokens, each drawn from its distribution. `step` runs one round, and its second value holds the
# emitted tokens.

# %%
drafter, verifier = jaxspec.ModelDrafter(draft, k=3), jaxspec.TokenVerifier()
state = jaxspec.init(
    target,
    drafter,
    jnp.array([[0, 3]]),
    key=jax.random.key(1),
    sampling=jaxspec.Sampling(1.0),
    max_new_tokens=16,
)
step, rounds = jaxspec.jit_step(), []
while not state.done.all():
    before = int(state.length[0])
    state, info = step(target, drafter, verifier, state)
    emitted = info.tokens[0, : int(info.count[0])].tolist()
    rounds.append((before, int(info.accepted[0]), emitted))
rounds

# %% [markdown]
# Each row below is a round: accepted drafts in green, and the token that the target drew after them in blue.

# %%
figure, axis = plt.subplots(figsize=(8, 0.5 * len(rounds) + 1))
for row, (before, accepted, tokens) in enumerate(rounds):
    for place, token in enumerate(tokens):
        color = "tab:green" if place < accepted else "tab:blue"
        box = plt.Rectangle((before + place, -row), 0.9, 0.8, color=color, alpha=0.6)
        axis.add_patch(box)
        axis.annotate(
            str(token), (before + place + 0.45, 0.4 - row), ha="center", va="center"
        )
axis.set_xlim(2, 19)
axis.set_ylim(-len(rounds) + 0.8, 1)
names = [f"round {row + 1}" for row in range(len(rounds))]
axis.set_yticks([0.4 - row for row in range(len(rounds))], names)
axis.set_xlabel("position in the text")
for side in ("top", "right", "left"):
    axis.spines[side].set_visible(False)
plt.show()

# %% [markdown]
# ## Why the distribution stays the target's
#
# A draft `x` is accepted with probability `min(1, target(x) / draft(x))`. After a rejection, the token is drawn from the residual
# `max(0, target - draft)`, normalized. The output has the sum of both, for each token:

# %%
target_row = jax.nn.softmax(table[3])
draft_row = jax.nn.softmax(guesses[3])
accepted = jnp.minimum(target_row, draft_row)
residual = jnp.maximum(target_row - draft_row, 0)
emitted = accepted + (1 - accepted.sum()) * residual / residual.sum()

places = np.arange(VOCAB)
figure, axis = plt.subplots(figsize=(8, 3))
axis.bar(places, accepted, color="tab:green", alpha=0.6, label="accepted drafts")
axis.bar(
    places,
    emitted - accepted,
    bottom=accepted,
    color="tab:blue",
    alpha=0.6,
    label="drawn after a rejection",
)
axis.plot(places, target_row, "k_", markersize=28, label="target")
axis.set_xlabel("token")
axis.set_ylabel("probability")
axis.legend(frameon=False)
plt.show()
print("largest difference from the target:", float(jnp.abs(emitted - target_row).max()))

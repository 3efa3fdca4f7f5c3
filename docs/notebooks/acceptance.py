# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Acceptance by hand
#
# How many tokens does a round give? That follows from one number a position: the probability that a draft is accepted. This
# notebook computes it exactly for a small pair of models, and compares it with the counts of the loop.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxspec

VOCAB, K = 6, 4
tables = np.random.default_rng(3).normal(size=(2, VOCAB, VOCAB)).astype(np.float32)
target_table, draft_table = (
    jnp.asarray(tables[0] * 1.5),
    jnp.asarray(tables[0] * 1.2 + tables[1] * 0.5),
)
model = lambda table: jaxspec.from_function(
    lambda table, tokens: table[tokens], table, vocab_size=VOCAB
)
target, draft = model(target_table), model(draft_table)

# %% [markdown]
# After token `t` a draft is accepted with probability `sum_x min(target(x | t), draft(x | t))`: one less the total variation
# between the two distributions.

# %%
target_rows, draft_rows = jax.nn.softmax(target_table), jax.nn.softmax(draft_table)
overlap = jnp.minimum(target_rows, draft_rows)
print("acceptance after each token:", np.round(overlap.sum(axis=1), 3))

# %% [markdown]
# A chain of `k` drafts goes on while all are accepted. With token-by-token verification the expected number of accepted drafts
# after token `t` follows by recursion, and so does the mean over the text, whose tokens follow the target's own chain.


# %%
def expected(k):
    """Expected tokens of a round that begins after each token, the one after the accepted drafts included."""
    tokens = jnp.ones(VOCAB)
    for _ in range(k):
        tokens = 1 + overlap @ tokens
    return tokens


def stationary_start(k):
    """How often a round begins after each token: its last token is drawn after an accepted or a rejected draft."""
    residual = jnp.maximum(target_rows - draft_rows, 0)
    step = jnp.eye(VOCAB)
    ends = target_rows  # after k accepted drafts the last token is the target's own
    for _ in range(k):
        ends = residual + overlap @ ends
    for _ in range(200):
        step = step @ ends
    return step[0]


by_hand = [float(stationary_start(k) @ expected(k)) for k in range(1, K + 1)]
np.round(by_hand, 3)

# %% [markdown]
# The same from the loop: 512 rows of 64 tokens each. The error bars are three standard errors of the mean over rows.


# %%
def measured(k):
    result = jaxspec.generate(
        target,
        jaxspec.ModelDrafter(draft, k=k),
        jnp.zeros((512, 1), jnp.int32),
        key=jax.random.key(k),
        sampling=jaxspec.Sampling(1.0),
        verifier=jaxspec.TokenVerifier(),
        max_new_tokens=64,
    )
    rows = np.asarray(result.stats.emitted / result.stats.rounds)
    return rows.mean(), 3 * rows.std() / np.sqrt(len(rows))


means, errors = np.array([measured(k) for k in range(1, K + 1)]).T
figure, axis = plt.subplots(figsize=(7, 3.5))
ks = np.arange(1, K + 1)
axis.plot(ks, by_hand, "o-", color="tab:blue", label="by hand")
axis.errorbar(
    ks,
    means,
    errors,
    fmt="s",
    color="tab:green",
    capsize=4,
    label="counted by the loop",
)
axis.set_xlabel("k, drafts a round")
axis.set_ylabel("tokens a round")
axis.set_xticks(ks)
axis.legend(frameon=False)
plt.show()
assert np.all(
    np.abs(means - by_hand) < errors + 0.05
)  # rounds at a text's end are cut short

# %% [markdown]
# Whether more drafts gain time is another question, which depends on the cost of a round. `jaxspec plan` measures it on your
# machine, and `Adaptive` decides during decoding.

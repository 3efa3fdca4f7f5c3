# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A trained head
#
# An EAGLE-3 head ships with the default model: one layer over the target's hidden states. `load_head` reads it, and
# `EagleDrafter` drafts with it.

# %%
import matplotlib.pyplot as plt
import numpy as np

import jaxspec

target = jaxspec.load("smollm2-135m-instruct")
head = jaxspec.load_head("smollm2-135m-instruct/eagle", target)
decoder = jaxspec.SpeculativeDecoder(target, jaxspec.EagleDrafter(head, k=4))
messages = [
    {"role": "user", "content": "How do plants make food? Explain it to a child."}
]
decoder.chat(messages, temperature=0, max_new_tokens=96)  # compiles
result = decoder.chat(messages, temperature=0, max_new_tokens=96)
result

# %% [markdown]
# How far does it guess right? The bars are the share of rounds that accepted the first, second, third and fourth draft.

# %%
share = result.stats.acceptance_by_position
figure, axis = plt.subplots(figsize=(6, 3))
axis.bar(np.arange(1, 5), share, color="tab:green", alpha=0.6)
axis.set_xticks(range(1, 5))
axis.set_xlabel("position of the draft")
axis.set_ylabel("share of rounds that accepted it")
axis.set_ylim(0, 1)
plt.show()

# %% [markdown]
# Every drafter writes the same greedy text, except for ties within rounding. They differ in the number of rounds:

# %%
drafters = {
    "n-gram": jaxspec.NGramDrafter(k=4),
    "EAGLE": jaxspec.EagleDrafter(head, k=4),
    "n-gram or EAGLE": jaxspec.HybridDrafter(
        jaxspec.NGramDrafter(k=4), jaxspec.EagleDrafter(head, k=4)
    ),
}
for name, drafter in drafters.items():
    other = jaxspec.SpeculativeDecoder(target, drafter).chat(
        messages, temperature=0, max_new_tokens=96
    )
    print(
        f"{name:16} {int(other.stats.rounds[0])} rounds, {other.mean_acceptance_length:.2f} tokens a round"
    )

# %% [markdown]
# To train one for your own model: [Train a drafter](../guides/train.md).

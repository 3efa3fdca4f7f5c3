"""transformers, from the package registry: `pip install transformers torch`."""

from unittest import mock

import numpy as np
import torch
from transformers.generation.utils import _speculative_sampling

PROJECT, PACKAGES = "transformers", ("transformers", "torch")
FUNCTION = "transformers.generation.utils._speculative_sampling"


def own_randomness(target_probs, draft_probs, tokens, rng):
    """Calls the function as `generate` does, with PyTorch's generator seeded anew."""
    torch.manual_seed(int(rng.integers(2**62)))
    logits = lambda probs: torch.tensor(probs, dtype=torch.float32).log()[None]  # noqa: E731
    drafts = torch.tensor(tokens)[None]
    found, _ = _speculative_sampling(drafts, logits(draft_probs), tokens.size, logits(target_probs))
    return found[0].numpy()


def given_uniforms(target_probs, draft_probs, tokens, uniforms):
    """Calls it with uniforms for `torch.rand_like`, and one that `torch.multinomial` is inverted with."""

    def rand_like(like):
        return torch.tensor(uniforms[: tokens.size], dtype=like.dtype).reshape(like.shape)

    def multinomial(probs, num_samples):
        below = np.cumsum(probs[0].double().numpy())
        return torch.tensor([[np.searchsorted(below, uniforms[-1] * below[-1], side="right")]])

    with mock.patch.multiple(torch, rand_like=rand_like, multinomial=multinomial):
        return own_randomness(target_probs, draft_probs, tokens, np.random.default_rng(0))


CASES = {
    "its uniforms given": (FUNCTION, given_uniforms, {"uniforms": 4}),
    "its own randomness": (FUNCTION, own_randomness, {"samples": 4_000}),
}

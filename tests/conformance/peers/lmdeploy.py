"""LMDeploy, from the package registry: `pip install lmdeploy`, or without its dependencies and with `torch`."""

import torch
from lmdeploy.pytorch.backends.default.rejection_sampling import DefaultRejectionSamplingImpl

PROJECT, PACKAGES = "LMDeploy", ("lmdeploy", "torch")
FUNCTION = "lmdeploy.pytorch.backends.default.rejection_sampling.DefaultRejectionSamplingImpl.forward"


def own_randomness(target_probs, draft_probs, tokens, rng):
    """Calls the portable implementation; the bonus token, which it is handed, is drawn here."""
    torch.manual_seed(int(rng.integers(2**62)))
    bonus = rng.choice(target_probs.shape[1], p=target_probs[-1] / target_probs[-1].sum())
    found, _, _ = DefaultRejectionSamplingImpl().forward(
        torch.tensor(target_probs[None, :-1], dtype=torch.float32).log(),
        torch.tensor(tokens)[None],
        torch.tensor([bonus]),
        is_greedy=None,
        draft_probs=torch.tensor(draft_probs, dtype=torch.float32)[None],
    )
    return found[0].numpy()


def greedy(target_probs, draft_probs, tokens, uniforms):
    """Calls its form for greedy decoding."""
    del draft_probs, uniforms
    best = torch.tensor(target_probs.argmax(axis=-1))[None]
    return DefaultRejectionSamplingImpl().forward_greedy(best, torch.tensor(tokens)[None])[0][0].numpy()


CASES = {
    "its own randomness": (FUNCTION, own_randomness, {"samples": 4_000}),
    "greedy": (f"{FUNCTION}_greedy", greedy, {"uniforms": 0, "greedy": True}),
}

"""core-deepinfer, from the package registry: `pip install core-deepinfer`."""

from core_deepinfer.speculative import verify_greedy

PROJECT, PACKAGES = "core-deepinfer", ("core-deepinfer",)


def greedy(target_probs, draft_probs, tokens, uniforms):
    """Calls its rule, which decodes greedily only; it takes logits, of which the largest counts."""
    del draft_probs, uniforms
    return list(verify_greedy(target_probs, tokens.tolist()).tokens)


CASES = {"greedy": ("core_deepinfer.speculative.verify_greedy", greedy, {"uniforms": 0, "greedy": True})}

"""Hierarchical speculative decoding, rewritten from its formulas: needs NumPy alone.

The paper is arXiv 2601.05724. The published code cannot be called as it stands, so the rule is written again here, from
`transformers/generation/utils.py` of its repository.
"""

import numpy as np

PROJECT, PACKAGES = "HSD (rewritten)", ("numpy",)
SOURCE = "ZhouYuxuanYX/Hierarchical-Speculative-Decoding at b8575e2ad42bcf2b32d0c6f3481eb49099453f33"
FUNCTION = "transformers.generation.utils._speculative_sampling with backward and clever, rewritten"


def _verify(target_probs, draft_probs, tokens, uniforms, capped):
    count = tokens.size
    places = np.arange(count)
    ratios = np.append(1.0, np.cumprod(target_probs[places, tokens] / draft_probs[places, tokens]))
    caps = ratios / np.maximum.accumulate(np.maximum(ratios, 1.0))
    if uniforms[0] < (caps[-1] if capped else ratios[-1]):
        return [*tokens, _choose(target_probs[-1], uniforms[-1])]
    above = np.maximum(caps[:-1, None] * target_probs[:-1] - draft_probs, 0.0)
    below = np.maximum(draft_probs - caps[:-1, None] * target_probs[:-1], 0.0).sum(axis=-1)
    stays = np.divide(above.sum(axis=-1), below, out=np.zeros(count), where=below > 0)
    place = next(i for i in reversed(range(count)) if i == 0 or uniforms[i] < stays[i])
    return [*tokens[:place], _choose(above[place], uniforms[-1])]


def _choose(weights, uniform):
    below = np.cumsum(weights)
    return int(np.searchsorted(below, uniform * below[-1], side="right"))


def published(target_probs, draft_probs, tokens, uniforms):
    """Accepts the whole draft by the ratio of its probabilities, as the published code does."""
    return _verify(target_probs, draft_probs, tokens, uniforms, capped=False)


def capped(target_probs, draft_probs, tokens, uniforms):
    """Accepts the whole draft by the capped ratio, by which all shorter ones are accepted."""
    return _verify(target_probs, draft_probs, tokens, uniforms, capped=True)


CASES = {
    "as published": (FUNCTION, published, {"uniforms": 4}),
    "with the capped ratio": ("block verification, the same rule", capped, {"uniforms": 4}),
}

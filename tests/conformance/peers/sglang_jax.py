"""sglang-jax, from a checkout, as the registry has no version with a verifier: `jax`, `--source CHECKOUT/python`."""

import jax.numpy as jnp
import numpy as np
from sgl_jax.srt.kernels.speculative import kernel

PROJECT, PACKAGES = "sglang-jax", ("jax", "jaxlib")
SOURCE = "sgl-project/sglang-jax at cddbf6f1cc33cbdd453bd8f36ff7051cf46ca176"
FUNCTION = "sgl_jax.srt.kernels.speculative.kernel.tree_speculative_sampling_target_only"


def _arrays(tokens, parents):
    """Returns the arrays that say which nodes there are; node 0 is the last token of the text."""
    above = np.append(-1, np.asarray(parents) + 1)
    nodes = range(above.size)
    children = [np.flatnonzero(above == node) for node in nodes]
    later = [[other for other in children[above[node]] if other > node] if node else [] for node in nodes]
    depth = [0] * above.size
    for node in nodes[1:]:
        depth[node] = depth[above[node]] + 1
    return max(depth) + 1, {
        "predicts": jnp.zeros(above.size, jnp.int32),
        "accept_index": jnp.full((1, max(depth) + 1), -1, jnp.int32),
        "accept_token_num": jnp.zeros(1, jnp.int32),
        "candidates": jnp.array([[0, *tokens]], jnp.int32),
        "retrive_index": jnp.arange(above.size, dtype=jnp.int32)[None],
        "retrive_next_token": jnp.array([[each[0] if each.size else -1 for each in children]], jnp.int32),
        "retrive_next_sibling": jnp.array([[each[0] if each else -1 for each in later]], jnp.int32),
    }


def _emitted(result):
    index, count, predicts = map(np.asarray, result)
    return predicts[index[0, : count[0] + 1]]


def tree(target_probs, draft_probs, tokens, parents, uniforms):
    """Calls the rule as `eagle_info.py` does: with draft probabilities of zero, and a coin for each node."""
    del draft_probs
    _, arrays = _arrays(tokens, parents)
    target = jnp.array(target_probs, jnp.float32)
    return _emitted(
        kernel.tree_speculative_sampling_target_only(
            **arrays,
            uniform_samples=jnp.array([[*uniforms[: tokens.size], 0.5]], jnp.float32),
            uniform_samples_for_final_sampling=jnp.array(uniforms[-1:], jnp.float32),
            target_probs=target,
            draft_probs=jnp.zeros_like(target),
        )
    )


def chain(target_probs, draft_probs, tokens, uniforms):
    """Calls it with a tree of one path."""
    return tree(target_probs, draft_probs, tokens, np.arange(-1, tokens.size - 1), uniforms)


def greedy(target_probs, draft_probs, tokens, parents, uniforms):
    """Calls the rule for greedy decoding."""
    del draft_probs, uniforms
    _, arrays = _arrays(tokens, parents)
    best = jnp.array(target_probs.argmax(axis=-1), jnp.int32)
    return _emitted(kernel.verify_tree_greedy(**arrays, target_predict=best))


CASES = {
    "chain": (FUNCTION, chain, {"uniforms": 4}),
    "tree, greedy": (
        "sgl_jax.srt.kernels.speculative.kernel.verify_tree_greedy",
        greedy,
        {"kind": "tree", "drafts": "distinct", "uniforms": 0, "greedy": True},
    ),
    "tree": (FUNCTION, tree, {"kind": "tree", "drafts": "distinct", "uniforms": 5}),
}

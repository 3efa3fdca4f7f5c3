"""Compares passes of many shapes, chains and trees, with one token at a time, to the bit."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.core.tree import verification_mask
from jaxspec.nn.config import ExpertsConfig
from jaxspec.nn.experts import ClampedGate
from jaxspec.ops.rope import Rope

# What differs between families, for `tiny.transformer`.
FAMILIES = {
    "llama": {"layers": 2},
    "qwen": {"qkv_bias": True, "tied_head": False},
    "gemma": {
        "layers": 2,
        "windows": (5, None),
        "ropes": (Rope(1e4),) * 2,
        "query_key_norm": True,
        "post_norms": True,
        "sinks": True,
    },
    "gpt2": {
        "ropes": (None,),
        "norm": "layer",
        "activation": "gelu_tanh",
        "gated_mlp": False,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    },
    "experts": {
        "layers": 2,
        "query_key_norm": True,
        "norm_all_heads": True,
        "clip_qkv": 1.0,
        "experts": ExpertsConfig(6, 3, 24, False, (1,), ClampedGate(limit=7.0, alpha=1.702), bias=True),
    },
}

# Takes fed tokens, the cache, a mask and positions (None for a chain); returns a `ModelOutput`.
Pass = Callable[..., Any]


@jax.jit
def run(model: jaxspec.LanguageModel, tokens: jax.Array, cache: Any, mask: Any = None, positions: Any = None) -> Any:
    return model(tokens, cache, mask=mask, positions=positions)


def passes(model: jaxspec.LanguageModel) -> Pass:
    return lambda *arguments: run(model, *arguments)


@jax.jit
def _append(cache, entries, nodes):
    return cache.append(entries.keep_path(nodes))


def by_chains(feed: Pass, cache: Any, text: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """Feeds texts `[b, s]` in passes of these widths, and returns the logits after each token."""
    found, at = [], 0
    for width in widths:
        output = feed(jnp.asarray(text[:, at : at + width], jnp.int32), cache)
        cache = _append(cache, output.entries, jnp.broadcast_to(jnp.arange(width), (len(text), width)))
        found.append(np.asarray(output.logits))
        at += width
    assert at == text.shape[1]
    return np.concatenate(found, axis=1)


def by_trees(feed: Pass, cache: Any, text: np.ndarray, nodes: int, depth: int, seed: int = 0) -> np.ndarray:
    """Feeds texts in trees of random shape that hold the next `depth` tokens along one path; other nodes are random.

    The texts are cut to whole trees.
    """
    rng, found = np.random.default_rng(seed), []
    for at in range(0, text.shape[1] - depth, depth + 1):
        parents, path = random_tree(rng, nodes, depth)
        tokens = rng.integers(0, int(text.max()) + 1, (len(text), nodes))
        tokens[:, path] = text[:, at + 1 : at + depth + 1]
        fed = np.concatenate([text[:, at : at + 1], tokens], axis=1)
        each = jnp.broadcast_to(jnp.asarray(parents, jnp.int32), tokens.shape)
        mask = verification_mask(each, depth=nodes)
        positions = cache.length[:, None] + jnp.sum(mask, axis=2, dtype=jnp.int32) - 1
        output = feed(jnp.asarray(fed, jnp.int32), cache, mask, positions)
        rows = np.concatenate([[0], path + 1])
        cache = _append(cache, output.entries, jnp.broadcast_to(jnp.asarray(rows), (len(text), depth + 1)))
        found.append(np.asarray(output.logits)[:, rows])
    return np.concatenate(found, axis=1)


def random_tree(rng: np.random.Generator, nodes: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the parents of a tree, and a path of `depth` nodes from the root, which stand anywhere in it."""
    path = np.sort(rng.choice(nodes, depth, replace=False))
    parents = np.asarray([rng.integers(-1, node) if node else -1 for node in range(nodes)])
    parents[path] = [-1, *path[:-1]]
    return parents, path


def differing(found: np.ndarray, expected: np.ndarray) -> int:
    """Counts the rows of logits in which a bit differs."""
    bits = lambda x: x.view(np.uint32)  # noqa: E731
    return int((bits(found) != bits(expected[:, : found.shape[1]])).any(axis=-1).sum())


def assert_same_bits(
    feed: Pass,
    empty: Callable[[], Any],
    text: np.ndarray,
    chains: Sequence[Sequence[int]],
    trees: Sequence[tuple[int, int]] = (),
) -> None:
    """Compares passes of widths, and trees of nodes and depth, with one token at a time.

    Args:
      feed: the pass.
      empty: makes its empty cache, with room for the texts and the widest pass.
      text: `[b, s]` token ids.
      chains: lists of widths, each of which add up to `s`.
      trees: nodes and depth.
    """
    alone = by_chains(feed, empty(), text, [1] * text.shape[1])
    for widths in chains:
        assert differing(by_chains(feed, empty(), text, widths), alone) == 0, f"passes of {widths[:5]}..."
    for nodes, depth in trees:
        assert differing(by_trees(feed, empty(), text, nodes, depth), alone) == 0, f"trees of {nodes} nodes"

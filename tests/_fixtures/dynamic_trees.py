"""Grows dynamic trees by the definition."""

import numpy as np

from jaxspec.testing.contracts.tree_drafter import path_to


def search(probs, text, *, top_k, depth, nodes):
    """Expands and reranks in plain Python: paths of drafts, and the best of them in order.

    Candidates are listed level by level in the order they are found; of equals the first is better.
    """
    found, level = [], [((), 0.0)]
    for _ in range(depth):
        added = []
        for path, score in level:
            with np.errstate(divide="ignore"):  # of tokens that a head cannot guess
                chances = np.log(probs([*text, *path]))
            best = sorted(range(len(chances)), key=lambda token: (-round(chances[token], 5), token))[:top_k]
            added += [((*path, token), score + chances[token]) for token in best]
        found += added
        level = sorted(added, key=lambda candidate: -round(candidate[1], 5))[:top_k]
    best = sorted(range(len(found)), key=lambda i: (-round(found[i][1], 5), i))[:nodes]
    return [found[i][0] for i in sorted(best)]


def paths(proposal, row):
    """Each node's tokens from the text on."""
    parents, tokens = proposal.parents[row].tolist(), proposal.tokens[row].tolist()
    return [tuple(tokens[i] for i in path_to(parents, node)) for node in range(len(tokens))]

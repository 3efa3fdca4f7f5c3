"""One round, exactly: every draft that can be drawn, and every way that verifying it can end."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tests.oracle.drafting import Drafter, Drafts, enumerate_drafts
from tests.oracle.leaves import Leaf
from tests.oracle.tables import Table, Text, total_variation

# A verifier's arithmetic: the leaves of every draft.
Rule = Callable[[Drafts], Sequence[Sequence[Leaf]]]


@dataclasses.dataclass(frozen=True)
class Round:
    """Everything that can happen in one round after one text; `leaves[i]` are those of draft `i`."""

    drafts: Drafts
    leaves: Sequence[Sequence[Leaf]]

    def emitted(self, draft: int, leaf: Leaf, next_token: int) -> Text:
        """The tokens of a leaf's path and the one after them."""
        return (*self.drafts.tokens[draft, list(leaf.path)].tolist(), next_token)


def enumerate_round(
    target: Table, drafter: Drafter, rule: Rule, text: Text = (), scored: Callable[[Drafts, Text], Drafts] | None = None
) -> Round:
    """All drafts of `drafter` after `text`, verified by `rule`.

    `scored(drafts, text)` puts the target's distributions that the package computes in the table's place.
    """
    drafts = enumerate_drafts(target, drafter, text)
    drafts = drafts if scored is None else scored(drafts, text)
    round_ = Round(drafts, rule(drafts))
    assert all(abs(sum(leaf.chance() for leaf in leaves) - 1) < 1e-12 for leaves in round_.leaves)
    return round_


def emitted_probs(round_: Round) -> dict[Text, float]:
    """The distribution of what one round emits."""
    probs: dict[Text, float] = {}
    for i, leaves in enumerate(round_.leaves):
        for leaf in leaves:
            chance = round_.drafts.chance[i] * leaf.chance()
            for token, share in enumerate(leaf.next_probs.tolist()):
                text = round_.emitted(i, leaf, token)
                probs[text] = probs.get(text, 0.0) + chance * share
    return probs


def extend(probs: dict[Text, float], target: Table, length: int) -> dict[Text, float]:
    """The distribution of the first `length` tokens, where the target continues what is shorter."""
    done: dict[Text, float] = {}
    pending = list(probs.items())
    while pending:
        text, chance = pending.pop()
        if len(text) >= length:
            done[text[:length]] = done.get(text[:length], 0.0) + chance
        elif chance > 0:
            pending += [((*text, t), chance * share) for t, share in enumerate(target.probs(text))]
    return done


def deviation(round_: Round, target: Table, length: int) -> float:
    """The total variation between one round, continued by the target, and the target.

    `length` tokens of it, one more than the longest path; the round starts at the empty text.
    """
    return total_variation(extend(emitted_probs(round_), target, length), target.text_probs(length))


def mean_accepted(round_: Round) -> float:
    """The expected number of accepted drafts."""
    means = [sum(leaf.chance() * len(leaf.path) for leaf in leaves) for leaves in round_.leaves]
    return float(np.dot(round_.drafts.chance, means))

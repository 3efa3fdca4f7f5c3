"""Enumerates one round exactly: every possible draft, and every outcome of its verification."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxspec.core.typed import typed
from jaxspec.testing.enumeration.drafting import Drafter, Drafts, enumerate_drafts
from jaxspec.testing.enumeration.leaves import Leaf
from jaxspec.testing.enumeration.tables import Table, Text, total_variation

# A verifier's arithmetic: a function from drafts to the leaves of each.
Rule = Callable[[Drafts], Sequence[Sequence[Leaf]]]


@dataclasses.dataclass(frozen=True)
class Round:
    """Holds all outcomes of one round after a text; `leaves[i]` are those of draft `i`."""

    drafts: Drafts
    leaves: Sequence[Sequence[Leaf]]

    def emitted(self, draft: int, leaf: Leaf, next_token: int) -> Text:
        """Returns the tokens of a leaf's path and the one after them."""
        return (*self.drafts.tokens[draft, list(leaf.path)].tolist(), next_token)


@typed()
def enumerate_round(
    target: Table, drafter: Drafter, rule: Rule, text: Text = (), scored: Callable[[Drafts, Text], Drafts] | None = None
) -> Round:
    """Verifies all drafts of `drafter` after `text` by `rule`.

    Args:
      target: distributions to keep.
      drafter: drafter made by `drawn`, `drawn_without_replacement` or `guessed`.
      rule: a verifier's arithmetic, made by `chain_rule` or `walk_rule`.
      text: committed tokens.
      scored: function `scored(drafts, text)` that replaces the table's distributions with a program's.

    Raises:
      ValueError: if the probabilities of a draft's leaves do not add up to 1.

    Example:
      >>> from jaxspec.testing import Leaf, drawn, enumerate_round, make_table
      >>> table = make_table(2, 2, lambda: [0.25, 0.75])
      >>> rule = lambda drafts: [[Leaf((), (), row[0])] for row in drafts.target_probs]  # accepts nothing
      >>> round_ = enumerate_round(table, drawn((-1,), table), rule)
      >>> round_.drafts.tokens.tolist()
      [[0], [1]]
    """
    drafts = enumerate_drafts(target, drafter, text)
    drafts = drafts if scored is None else scored(drafts, text)
    round_ = Round(drafts, rule(drafts))
    for i, leaves in enumerate(round_.leaves):
        total = sum(leaf.chance() for leaf in leaves)
        if not abs(total - 1) < 1e-12:
            raise ValueError(
                f"the leaves of the drafts {drafts.tokens[i].tolist()} have probabilities that add up to {total}, "
                "expected 1; pass a rule whose leaves are exclusive and exhaustive"
            )
    return round_


@typed()
def emitted_probs(round_: Round) -> dict[Text, float]:
    """Returns the distribution of the tokens that one round emits.

    Example:
      >>> from jaxspec.testing import Leaf, drawn, enumerate_round, make_table
      >>> table = make_table(2, 2, lambda: [0.25, 0.75])
      >>> rule = lambda drafts: [[Leaf((), (), row[0])] for row in drafts.target_probs]  # accepts nothing
      >>> round_ = enumerate_round(table, drawn((-1,), table), rule)
      >>> jaxspec.testing.emitted_probs(round_)
      {(0,): 0.25, (1,): 0.75}
    """
    probs: dict[Text, float] = {}
    for i, leaves in enumerate(round_.leaves):
        for leaf in leaves:
            chance = float(round_.drafts.chance[i]) * leaf.chance()
            for token, share in enumerate(leaf.next_probs.tolist()):
                text = round_.emitted(i, leaf, token)
                probs[text] = probs.get(text, 0.0) + chance * share
    return probs


def extend(probs: dict[Text, float], target: Table, length: int) -> dict[Text, float]:
    """Returns the distribution of the first `length` tokens, with shorter texts continued by the target."""
    done: dict[Text, float] = {}
    pending = list(probs.items())
    while pending:
        text, chance = pending.pop()
        if len(text) >= length:
            done[text[:length]] = done.get(text[:length], 0.0) + chance
        elif chance > 0:
            pending += [((*text, t), chance * share) for t, share in enumerate(target.probs(text))]
    return done


@typed("round_", "target", length=(0, 2**10))
def deviation(round_: Round, target: Table, length: int) -> float:
    """Returns the total variation between one round, continued by the target, and the target.

    It compares the first `length` tokens, one more than the longest path; the round starts at the empty text.

    Example:
      >>> from jaxspec.testing import Leaf, drawn, enumerate_round, make_table
      >>> table = make_table(2, 2, lambda: [0.25, 0.75])
      >>> rule = lambda drafts: [[Leaf((), (), row[0])] for row in drafts.target_probs]  # accepts nothing
      >>> round_ = enumerate_round(table, drawn((-1,), table), rule)
      >>> jaxspec.testing.deviation(round_, table, length=2)
      0.0
    """
    return total_variation(extend(emitted_probs(round_), target, length), target.text_probs(length))


@typed()
def mean_accepted(round_: Round) -> float:
    """Returns the expected number of accepted drafts.

    Example:
      >>> from jaxspec.testing import Leaf, drawn, enumerate_round, make_table
      >>> table = make_table(2, 2, lambda: [0.25, 0.75])
      >>> rule = lambda drafts: [[Leaf((), (), row[0])] for row in drafts.target_probs]  # accepts nothing
      >>> round_ = enumerate_round(table, drawn((-1,), table), rule)
      >>> jaxspec.testing.mean_accepted(round_)
      0.0
    """
    means = [sum(leaf.chance() * len(leaf.path) for leaf in leaves) for leaves in round_.leaves]
    return float(np.dot(round_.drafts.chance, means))

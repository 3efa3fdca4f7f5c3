"""Several rounds, with every random draw known by the key that the package draws it with.

A draw is a uniform number that is refined only as far as someone looked at it: an interval. A
decision splits it. Two decisions that use one key share one interval, so a reused draw is
conditioned on what was already seen of it, exactly. (A categorical draw is taken by inverse
distribution function; for draws that are used once this changes nothing.)

What was seen of a draw that no later round uses is forgotten, and equal pasts are added up: with
fresh draws only the text is left, so many rounds cost little.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core import random as keys
from tests.oracle.drafting import Drafter
from tests.oracle.leaves import Leaf
from tests.oracle.rounds import Round, Rule, enumerate_round
from tests.oracle.tables import Table, Text

Intervals = Mapping[Hashable, tuple[float, float]]
# A drafted token's place in the drafter's loop: its offset, after the index of its draft if
# several are drawn side by side.
Offset = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Names:
    """The key of every draw of one round.

    Attributes:
      drafts: one a node.
      uniforms: one for each that the verifier compares.
      next: that of the token after the accepted ones.
    """

    drafts: tuple
    uniforms: tuple
    next: Hashable

    def all(self) -> tuple:
        """Every draw of the round."""
        return (*self.drafts, *self.uniforms, self.next)


@contextlib.contextmanager
def recorded_keys() -> Iterator[list[tuple[int, ...]]]:
    """The data of every key that the package draws with meanwhile, in order."""
    seen: list[tuple[int, ...]] = []
    draw = keys._uniform

    def record(key, count=None):
        seen.extend(tuple(data) for data in np.asarray(jax.random.key_data(key)).reshape(-1, 2).tolist())
        return draw(key, count)

    with mock.patch.object(keys, "_uniform", record):
        yield seen


def real_names(verifier, row_key, length: int, drafts: int | Sequence[Offset], uniforms: int | None = None) -> Names:
    """The names that the package's own draws have: the keys they are drawn with.

    Args:
      verifier: whose draws they are.
      row_key: the row's key.
      length: the committed tokens when the round starts.
      drafts: how many nodes a chain has; else each node's place. Nodes that are meant to be
        drawn with one noise (siblings without replacement) have one place, and are told apart
        by their order.
      uniforms: how many the verifier draws; one a node by default.
    """
    nodes = range(drafts) if isinstance(drafts, int) else drafts
    places = [(node,) if isinstance(node, int) else node for node in nodes]
    with recorded_keys() as seen:
        rng = verifier.rng(row_key[None], jnp.full(1, length, jnp.int32))
        for *indices, offset in places:
            stream = rng
            for index in indices:
                stream = stream.of_draft(index)
            stream.draft_noise(jnp.int32(offset), 3)
        rng.uniforms(len(places) if uniforms is None else uniforms)
        rng.next_noise(3)
    # By their place, not by their key: places that share a key by mistake must share a name.
    again = [places[:i].count(place) for i, place in enumerate(places)]
    drafted = tuple((key, times) if times else key for key, times in zip(seen, again, strict=False))
    return Names(drafted, tuple(seen[len(places) : -1]), seen[-1])


def several_rounds(
    target: Table, drafter: Drafter, rule: Rule, *, length: int, names: Callable[[int], Names], scored=None
) -> dict[Text, float]:
    """The exact distribution of the first `length` tokens, with as many rounds as it takes.

    Args:
      target: the distribution to keep; its table and the drafter's know all texts that can be drafted.
      drafter: where drafts come from.
      rule: how they are verified.
      length: how many tokens.
      names: the draws of the round that starts after so many tokens.
      scored: as in `enumerate_round`.
    """
    later = [{name for start in range(n, length) for name in names(start).all()} for n in range(length)]
    pasts = [collections.Counter() for _ in range(length)]
    pasts[0][(), frozenset()] = 1.0
    probs: dict[Text, float] = collections.Counter()
    for start in range(length):
        rounds: dict[Text, Round] = {}
        for (text, seen), chance in pasts[start].items():
            if text not in rounds:
                rounds[text] = enumerate_round(target, drafter, rule, text, scored)
            for emitted, share, refined in _one_round(rounds[text], drafter, text, names(start), dict(seen)):
                longer = text + emitted
                if len(longer) >= length:
                    probs[longer[:length]] += chance * share
                    continue
                kept = frozenset((name, part) for name, part in refined.items() if name in later[len(longer)])
                pasts[len(longer)][longer, kept] += chance * share
    return dict(probs)


def _one_round(
    round_: Round, drafter: Drafter, text: Text, names: Names, seen: Intervals
) -> Iterator[tuple[Text, float, Intervals]]:
    index = {tuple(tokens): i for i, tokens in enumerate(round_.drafts.tokens.tolist())}
    for tokens, chance, drafted in _drafts(drafter, text, names, seen):
        i = index[tokens]
        for leaf in round_.leaves[i]:
            for share, verified in _reached(leaf, names, drafted):
                for token, part, after in _categorical(verified, names.next, leaf.next_probs):
                    yield round_.emitted(i, leaf, token), chance * share * part, after


def _drafts(drafter: Drafter, text: Text, names: Names, seen: Intervals) -> list[tuple[Text, float, Intervals]]:
    found = [((), 1.0, seen)]
    for node in range(len(drafter.parents)):
        longer = []
        for tokens, chance, before in found:
            probs = drafter.probs(drafter.place(text, tokens, node))
            drawn = [(0, 1.0, before)] if probs is None else _categorical(before, names.drafts[node], probs)
            longer += [((*tokens, token), chance * share, after) for token, share, after in drawn]
        found = longer
    return found


def _reached(leaf: Leaf, names: Names, seen: Intervals) -> Iterator[tuple[float, Intervals]]:
    """How likely the leaf is after what was seen, and what is seen then; nothing if it cannot be."""
    chance = 1.0
    for comparison in leaf.comparisons:
        share, seen = _narrowed(seen, names.uniforms[comparison.uniform], *comparison.interval())
        if share == 0:
            return
        chance *= share
    yield chance, seen


def _categorical(seen: Intervals, name: Hashable, probs: np.ndarray) -> Iterator[tuple[int, float, Intervals]]:
    edges = np.concatenate([[0.0], np.cumsum(probs)]).tolist()
    edges[-1] = 1.0
    for token in np.flatnonzero(probs).tolist():
        share, after = _narrowed(seen, name, edges[token], edges[token + 1])
        if share > 0:
            yield token, share, after


def _narrowed(seen: Intervals, name: Hashable, low: float, high: float) -> tuple[float, Intervals]:
    """The chance that a draw lies in an interval after what was seen of it, and what is seen then."""
    least, most = seen.get(name, (0.0, 1.0))
    low, high = max(low, least), min(high, most)
    return ((high - low) / (most - least), {**seen, name: (low, high)}) if high > low else (0.0, seen)

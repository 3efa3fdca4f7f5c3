"""Enumerates several rounds, with every random draw identified by the key that the package draws it with.

A draw is a uniform number known only up to an interval. A
decision splits the interval. Decisions that share a key share one interval, so a reused draw is
conditioned exactly on earlier decisions. (A categorical draw uses the inverse
distribution function; for draws that are used once this changes nothing.)

Intervals that no later round uses are forgotten, and equal histories are merged: with
fresh draws only the text remains, and long texts cost little.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Key

from jaxspec.core import random as keys, validate
from jaxspec.core.typed import typed
from jaxspec.testing.enumeration.drafting import Drafter, Drafts
from jaxspec.testing.enumeration.leaves import Leaf
from jaxspec.testing.enumeration.rounds import Round, Rule, enumerate_round
from jaxspec.testing.enumeration.tables import Table, Text
from jaxspec.verifiers.base import Verifier

Intervals = Mapping[Hashable, tuple[float, float]]
# The place of a drafted token in the drafter's loop: its offset, preceded by the index of its draft if
# there are several.
Offset = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class KeyNames:
    """Names the key of each random number of one round.

    Attributes:
      drafts: one key per node.
      uniforms: one key per uniform that the verifier compares.
      next: key of the token after the accepted ones.

    Example:
      >>> names = jaxspec.testing.KeyNames(("draft",), ("uniform",), "next")
      >>> names.all()
      ('draft', 'uniform', 'next')
    """

    drafts: tuple
    uniforms: tuple
    next: Hashable

    def all(self) -> tuple:
        """Returns every name of the round."""
        return (*self.drafts, *self.uniforms, self.next)


@contextlib.contextmanager
def recorded_keys() -> Iterator[list[tuple[int, ...]]]:
    """Records the data of every key that the package draws with in the context, in order."""
    seen: list[tuple[int, ...]] = []
    draw = keys._uniform

    def record(key, count=None):
        seen.extend(tuple(data) for data in np.asarray(jax.random.key_data(key)).reshape(-1, 2).tolist())
        return draw(key, count)

    with mock.patch.object(keys, "_uniform", record):
        yield seen


@typed("verifier", "drafts", "row_key", length=(0, 2**31 - 1), uniforms=(0, 2**20))
def key_names(
    verifier: Verifier,
    row_key: Key[jax.Array, ""],
    length: int,
    drafts: int | Sequence[Offset],
    uniforms: int | None = None,
) -> KeyNames:
    """Returns the keys of the random numbers that the package draws.

    Args:
      verifier: verifier that supplies the random numbers.
      row_key: key of the row.
      length: number of committed tokens at the start of the round.
      drafts: number of nodes of a chain, or the place of each node. Nodes that are meant to share
        noise (siblings without replacement) share a place, and are distinguished
        by their order.
      uniforms: number of uniforms that the verifier draws; by default one per node.

    Example:
      >>> names = jaxspec.testing.key_names(jaxspec.TokenVerifier(), key, length=3, drafts=2)
      >>> len(names.drafts), len(names.uniforms)
      (2, 2)
    """
    validate.integers("key_names", drafts=(drafts if isinstance(drafts, int) else len(drafts), 0, 2**10))
    nodes = range(drafts) if isinstance(drafts, int) else drafts
    places = [(node,) if isinstance(node, int) else node for node in nodes]
    for place in places:
        if not place or not all(0 <= index < 2**31 for index in place):
            raise ValueError(f"drafts of key_names must be places of integers from 0 to {2**31 - 1}, got {place}")
    with recorded_keys() as seen:
        rng: Any = verifier.rng(row_key[None], jnp.full(1, length, jnp.int32))
        for *indices, offset in places:
            stream = rng
            for index in indices:
                stream = stream.of_draft(index)
            stream.draft_noise(jnp.int32(offset), 3)
        rng.uniforms(len(places) if uniforms is None else uniforms)
        rng.next_noise(3)
    # By place, not by key: places that share a key by mistake must share a name.
    again = [places[:i].count(place) for i, place in enumerate(places)]
    drafted = tuple((key, times) if times else key for key, times in zip(seen, again, strict=False))
    return KeyNames(drafted, tuple(seen[len(places) : -1]), seen[-1])


@typed("target", "drafter", "rule", "names", "scored", length=(0, 2**10))
def several_rounds(
    target: Table,
    drafter: Drafter,
    rule: Rule,
    *,
    length: int,
    names: Callable[[int], KeyNames],
    scored: Callable[[Drafts, Text], Drafts] | None = None,
) -> dict[Text, float]:
    """Returns the exact distribution of the first `length` tokens, over as many rounds as needed.

    Args:
      target: distributions to keep; its table and the drafter's must have all texts that can be drafted.
      drafter: drafter made by `drawn`, `drawn_without_replacement` or `guessed`.
      rule: a verifier's arithmetic, made by `chain_rule` or `walk_rule`.
      length: number of tokens.
      names: function from a number of tokens to the keys of the round that starts after them.
      scored: function that replaces the table's distributions, as in `enumerate_round`.

    Example:
      >>> from jaxspec.testing import Leaf, drawn, make_table, several_rounds
      >>> table = make_table(2, 3, lambda: [0.25, 0.75])
      >>> rule = lambda drafts: [[Leaf((), (), row[0])] for row in drafts.target_probs]  # accepts nothing
      >>> names = lambda length: jaxspec.testing.KeyNames((("draft", length),), (), ("next", length))
      >>> several_rounds(table, drawn((-1,), table), rule, length=1, names=names)
      {(0,): 0.25, (1,): 0.75}
    """
    later = [{name for start in range(n, length) for name in names(start).all()} for n in range(length)]
    pasts = [collections.defaultdict(float) for _ in range(length)]
    pasts[0][(), frozenset()] = 1.0
    probs: dict[Text, float] = collections.defaultdict(float)
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
    round_: Round, drafter: Drafter, text: Text, names: KeyNames, seen: Intervals
) -> Iterator[tuple[Text, float, Intervals]]:
    index = {tuple(tokens): i for i, tokens in enumerate(round_.drafts.tokens.tolist())}
    for tokens, chance, drafted in _drafts(drafter, text, names, seen):
        i = index[tokens]
        for leaf in round_.leaves[i]:
            for share, verified in _reached(leaf, names, drafted):
                for token, part, after in _categorical(verified, names.next, leaf.next_probs):
                    yield round_.emitted(i, leaf, token), chance * share * part, after


def _drafts(drafter: Drafter, text: Text, names: KeyNames, seen: Intervals) -> list[tuple[Text, float, Intervals]]:
    found = [((), 1.0, seen)]
    for node in range(len(drafter.parents)):
        longer = []
        for tokens, chance, before in found:
            probs = drafter.probs(drafter.place(text, tokens, node))
            drawn = [(0, 1.0, before)] if probs is None else _categorical(before, names.drafts[node], probs)
            longer += [((*tokens, token), chance * share, after) for token, share, after in drawn]
        found = longer
    return found


def _reached(leaf: Leaf, names: KeyNames, seen: Intervals) -> Iterator[tuple[float, Intervals]]:
    """Yields the conditional probability of a leaf and the intervals after it; nothing if it is impossible."""
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
    """Returns the conditional probability of an interval of a number, and the intervals after it."""
    least, most = seen.get(name, (0.0, 1.0))
    low, high = max(low, least), min(high, most)
    return ((high - low) / (most - least), {**seen, name: (low, high)}) if high > low else (0.0, seen)

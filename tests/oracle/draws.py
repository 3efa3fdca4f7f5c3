"""Several rounds, with every random draw known by the key that the package draws it with.

A draw is a uniform number that is refined only as far as someone looked at it: an interval. A
decision splits it. Two decisions that use one key share one interval, so a reused draw is
conditioned on what was already seen of it, exactly. (A categorical draw is taken by inverse
distribution function; for draws that are used once this changes nothing.)
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import keys
from tests.oracle.tables import Table, Text
from tests.oracle.token_rounds import Guess, Round, enumerate_round

Intervals = Mapping[Any, tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Names:
    """The key of every draw of one round."""

    drafts: tuple
    accepts: tuple
    next: Any

    def all(self) -> tuple:
        return (*self.drafts, *self.accepts, self.next)


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


def real_names(verifier, row_key, length: int, k: int) -> Names:
    """The names that the package's own draws have: the keys they are drawn with."""
    with recorded_keys() as seen:
        draws = verifier.draws(row_key[None], jnp.full(1, length, jnp.int32))
        for offset in range(k):
            draws.draft_noise(jnp.int32(offset), 3)
        draws.uniforms(k)
        draws.next_noise(3)
    return Names(tuple(seen[:k]), tuple(seen[k : 2 * k]), seen[2 * k])


def several_rounds(
    target: Table,
    draft: Table | Guess,
    *,
    k: int,
    length: int,
    names: Callable[[int], Names],
    valid: Callable[[Text], int] | None = None,
) -> dict[Text, float]:
    """The exact law of the first `length` tokens, with as many rounds as it takes.

    Args:
      target: the law to keep.
      draft: where drafts come from.
      k: drafts a round.
      length: how many tokens.
      names: the draws of the round that starts after so many tokens.
      valid: how many drafts are submitted after a text; all by default.
    """
    law: dict[Text, float] = {}
    rounds: dict[Text, Round] = {}
    submitted = valid or (lambda text: k)
    pending: list[tuple[Text, float, Intervals]] = [((), 1.0, {})]
    while pending:
        text, chance, seen = pending.pop()
        if len(text) >= length:
            law[text[:length]] = law.get(text[:length], 0.0) + chance
            continue
        if text not in rounds:
            rounds[text] = enumerate_round(target, draft, text, k, submitted(text))
        for emitted, share, refined in _one_round(rounds[text], draft, text, submitted(text), names(len(text)), seen):
            pending.append((text + emitted, chance * share, refined))
    return law


def _one_round(round_: Round, draft, text, valid, names: Names, seen) -> Iterator[tuple[Text, float, Intervals]]:
    index = {tuple(drafts.tolist()): i for i, drafts in enumerate(round_.drafts)}
    for drafts, chance, refined in _drafts(round_, draft, text, names, seen):
        i = index[drafts]
        yield from _verified(drafts, round_.accept[i], round_.next_laws[i], valid, names, chance, refined)


def _drafts(round_, draft, text, names, seen) -> Iterator[tuple[Text, float, Intervals]]:
    k = round_.drafts.shape[1]
    if not isinstance(draft, Table):
        yield tuple(round_.drafts[0].tolist()), 1.0, seen
        return
    pending = [((), 1.0, seen)]
    for offset in range(k):
        pending = [
            ((*drafts, token), chance * share, refined)
            for drafts, chance, before in pending
            for token, share, refined in _categorical(before, names.drafts[offset], draft.law(text + drafts))
        ]
    yield from pending


def _verified(drafts, accept, next_laws, valid, names, chance, seen) -> Iterator[tuple[Text, float, Intervals]]:
    for accepted in range(valid + 1):
        ends = [(1.0, seen)]
        if accepted < valid:
            kept, rejected = _below(seen, names.accepts[accepted], accept[accepted])
            ends = [rejected] if rejected else []
        for share, after in ends:
            for token, part, refined in _categorical(after, names.next, next_laws[accepted]):
                yield (*drafts[:accepted], token), chance * share * part, refined
        if accepted == valid or not kept:
            return
        chance, seen = chance * kept[0], kept[1]


def _below(seen: Intervals, name, threshold: float):
    """Splits a draw at `threshold`: the part below and the part above, with their chances."""
    low, high = seen.get(name, (0.0, 1.0))
    cut = min(max(threshold, low), high)
    parts = ((low, cut), (cut, high))
    return tuple(((b - a) / (high - low), {**seen, name: (a, b)}) if b > a else None for a, b in parts)


def _categorical(seen: Intervals, name, law) -> Iterator[tuple[int, float, Intervals]]:
    low, high = seen.get(name, (0.0, 1.0))
    edges = np.concatenate([[0.0], np.cumsum(law)])
    edges[-1] = 1.0
    for token, (a, b) in enumerate(zip(np.maximum(edges[:-1], low), np.minimum(edges[1:], high), strict=True)):
        if b > a and law[token] > 0:
            yield token, float((b - a) / (high - low)), {**seen, name: (float(a), float(b))}

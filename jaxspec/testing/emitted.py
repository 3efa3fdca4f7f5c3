"""Computes the distribution of texts that a verifier emits: exactly from its uniforms, or by sampling."""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float

from jaxspec.testing.cells import Cell, partition, put
from jaxspec.testing.engine_call import EngineCall, Fault
from jaxspec.testing.instances import Draft, Instance, Text

LARGEST = 1 - 2.0**-24  # the largest uniform below 1 in float32
MakeCall = Callable[[Instance, Draft], EngineCall]


@dataclasses.dataclass
class Emitted:
    """Holds the emitted texts of one target and draft.

    Attributes:
      probs: probability of each text, one axis per token, or its share of `num_rounds` rounds; the target continues
        shorter texts.
      tokens: expected number of tokens per round.
      lost: probability of results that are not texts.
      varies: whether the result depends on the randomness for any draft.
      faults: each observed result that is not a text, with a description of when.
      changed: whether the function changed its arguments.
      num_rounds: number of sampled rounds; 0 if `probs` is exact.
    """

    probs: Float[np.ndarray, "..."]
    tokens: float = 0.0
    lost: float = 0.0
    varies: bool = False
    faults: list[tuple[Fault, str]] = dataclasses.field(default_factory=list)
    changed: bool = False
    num_rounds: int = 0

    @classmethod
    def none(cls, instance: Instance) -> "Emitted":
        """Returns an empty count."""
        return cls(np.zeros((instance.vocab,) * instance.length))

    def total_variation(self, expected: Float[np.ndarray, "..."]) -> float:
        """Returns the total variation from the expected texts."""
        return 0.5 * (float(np.abs(self.probs - expected).sum()) + self.lost)


def prefixes(probs: Float[np.ndarray, "..."]) -> Iterator[Float[np.ndarray, "..."]]:
    """Yields the distributions of the first token, of the first two tokens, and so on."""
    for length in range(1, probs.ndim + 1):
        yield probs.sum(axis=tuple(range(length, probs.ndim)))


def emit_exactly(
    instance: Instance, make_call: MakeCall, uniforms: int, *, checks: int, rng: np.random.Generator
) -> Emitted:
    """Partitions the cube of uniforms for every draft, and sums up its cells.

    Args:
      instance: target and draft.
      make_call: function that returns the verifier as a function of its uniforms.
      uniforms: number of uniforms.
      checks: number of random points that each partition must agree with.
      rng: generator that chooses these points.

    Raises:
      NotPartitionedError: if the verifier is not a step function of its uniforms.
    """
    found, known = Emitted.none(instance), [[] for _ in range(uniforms)]
    for draft in instance.drafts:
        call = make_call(instance, draft)
        ask = lambda point, call=call: call(np.array(point))  # noqa: E731
        cells = partition(ask, uniforms, rng, checks=checks, known=known)
        found.varies |= len({cell.result for cell in cells}) > 1
        for cell in cells:
            weight = draft.chance * cell.volume
            if isinstance(cell.result, Fault):
                found.lost += weight
                found.faults.append((cell.result, _when(draft, cell.center)))
            else:
                found.tokens += weight * len(cell.result)
                found.probs[cell.result] += weight * instance.target.texts(cell.result, instance.length)
        found.faults += _faults_at_edges(instance, draft, call, cells)
        found.changed |= call.restore()
    return found


def _when(draft: Draft, uniforms: tuple[float, ...]) -> str:
    values = ", ".join("1 - 2^-24" if value == LARGEST else f"{value:.4g}" for value in uniforms)
    return f"drafted {draft.tokens.tolist()}, uniforms [{values}]"


def _faults_at_edges(instance: Instance, draft: Draft, call: EngineCall, cells: list[Cell]) -> list[tuple[Fault, str]]:
    """Returns the faults at uniforms of 0 and of the largest value below 1."""
    found: dict[str, tuple[Fault, str]] = {}
    for cell in cells:
        if isinstance(cell.result, Fault) or _excluded(instance, cell.result) is not None:
            continue
        for point in _edges(cell):
            result = call(np.array(point))
            if not isinstance(result, Fault):
                place = _excluded(instance, result)
                if place is None:
                    continue
                at = "u = 0" if 0.0 in point else "u just below 1"
                result = Fault("edge", f"{at} emits token {result[place]}, whose target probability is 0")
            found.setdefault(result.kind, (result, _when(draft, point)))
    return list(found.values())


def _edges(cell: Cell) -> Iterator[tuple[float, ...]]:
    """Yields points of a cell on the faces that it shares with the cube: one on each face, and one on all."""
    lowest, center = tuple(0.0 if low == 0 else c for low, c in zip(cell.low, cell.center, strict=True)), cell.center
    highest = tuple(LARGEST if high == 1 else c for high, c in zip(cell.high, cell.center, strict=True))
    for corner in (lowest, highest):
        for axis, value in enumerate(corner):
            if value in (0.0, LARGEST):
                yield put(center, axis, value)
        yield corner


def _excluded(instance: Instance, text: Text) -> int | None:
    """Returns the index of the first token that the target excludes."""
    return next((i for i, token in enumerate(text) if instance.target.probs(text[:i])[token] == 0), None)


def emit_by_sampling(
    instance: Instance,
    make_call: MakeCall,
    randomness: Callable[[], object],
    *,
    looks: tuple[int, ...],
    bound: float,
    rng: np.random.Generator,
) -> tuple[Emitted, bool]:
    """Samples rounds until the texts significantly differ from the target's, or the rounds are used up.

    A share `s` of `n` rounds is too far from its probability `c` if `n KL(s, c)` exceeds the bound. By Chernoff, the
    probability of that is at most `2 exp(-bound)`. Every prefix of every text is tested, after each number of rounds.

    Args:
      instance: target and draft.
      make_call: function that returns the verifier as a function of its randomness.
      randomness: function that returns the randomness of one round.
      looks: numbers of rounds after which to test, in ascending order.
      bound: bound of one test.
      rng: generator of the drafts, and of the tokens that continue a text.

    Returns:
      The shares, and whether they are too far off.
    """
    calls = [make_call(instance, draft) for draft in instance.drafts]
    chances = np.array([draft.chance for draft in instance.drafts])
    expected, found = instance.target.texts((), instance.length), Emitted.none(instance)
    counts, lengths, lost, far = np.zeros_like(expected), 0, 0, False
    results: dict[int, set] = {}
    for look in looks:
        for which in rng.choice(len(calls), size=look - found.num_rounds, p=chances / chances.sum()).tolist():
            result = calls[which](randomness())
            results.setdefault(which, set()).add(result)
            if isinstance(result, Fault):
                lost += 1
                found.faults.append((result, f"drafted {instance.drafts[which].tokens.tolist()}"))
                continue
            lengths += len(result)
            counts[_continued(instance, result, rng)] += 1
        found.num_rounds = look
        found.probs, found.lost, found.tokens = counts / look, lost / look, lengths / look
        found.varies = any(len(each) > 1 for each in results.values())
        far = max(map(_divergence, prefixes(found.probs), prefixes(expected))) * look > bound
        if far or found.faults:
            break
    found.changed = any(call.restore() for call in calls)
    return found, far or bool(found.faults)


def _continued(instance: Instance, text: Text, rng: np.random.Generator) -> Text:
    while len(text) < instance.length:
        below = np.cumsum(instance.target.probs(text))
        text = (*text, int(np.searchsorted(below, rng.random() * below[-1], side="right")))
    return text


def _divergence(shares: Float[np.ndarray, "..."], chances: Float[np.ndarray, "..."]) -> float:
    """Returns the largest divergence of a share from its probability, each against all others."""
    both = ((share, chance) for share, chance in zip(shares.ravel().tolist(), chances.ravel().tolist(), strict=True))
    return max(_term(share, chance) + _term(1 - share, 1 - chance) for share, chance in both)


def _term(share: float, chance: float) -> float:
    if share <= 0:
        return 0.0
    return share * math.log(share / chance) if chance > 1e-12 else math.inf


def num_tests(instances: tuple[Instance, ...], looks: tuple[int, ...]) -> int:
    """Counts the tests of `emit_by_sampling`."""
    return len(looks) * sum(sum(each.vocab**i for i in range(1, each.length + 1)) for each in instances)

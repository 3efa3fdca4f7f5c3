"""Reports the quality of a drafter from measured rounds: figures with standard errors, tables, and a sentence.

Rounds of one text are correlated, so errors are estimated between texts, with each text as one cluster.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxspec.bench.engine_log import Comparison, EngineLog
from jaxspec.bench.estimate import Estimate, ratio
from jaxspec.bench.report import Table, number

# The first bucket holds shorter texts; each further bucket reaches twice as far.
_FIRST_BUCKET = 64


@dataclasses.dataclass(frozen=True)
class MeasuredRounds:
    """Holds `r` measured rounds with drafts at up to `k` positions.

    Attributes:
      text: the index of each round's text.
      context: the number of tokens before a round's drafts.
      reach: the probability that verification reaches each draft; for a tree whether it did, by depth.
      accept: the probability that a reached draft is accepted; for a tree whether it was.
      block: the probability that block verification accepts all drafts up to this one; `None` for a tree.
      agree: whether target and drafter have the same most likely token; `None` for a tree.
      accepted: the number of drafts that a verifier accepted; `None` without a verifier.
    """

    text: Int[np.ndarray, "r"]
    context: Int[np.ndarray, "r"]
    reach: Float[np.ndarray, "r k"]
    accept: Float[np.ndarray, "r k"]
    block: Float[np.ndarray, "r k"] | None = None
    agree: Bool[np.ndarray, "r k"] | None = None
    accepted: Int[np.ndarray, "r"] | None = None

    @classmethod
    def of(cls, found: Sequence[Mapping[str, Any]], texts: Int[np.ndarray, "b"], k: int) -> Self:
        """Collects the measurements of one batch's rounds, from the rows that were live in each.

        Args:
          found: the arrays `live` and `context` of each round, and `chain` or `accepted`, or both.
          texts: `[b]` the index of each row's text.
          k: the number of drafts of a round, along one path.
        """
        live = np.stack([one["live"] for one in found])
        of_rows = lambda name: np.stack([one[name] for one in found])[live]  # noqa: E731
        of_chain = lambda name: np.stack([getattr(one["chain"], name) for one in found])[live]  # noqa: E731
        text = np.broadcast_to(texts[None], live.shape)[live]
        accepted = of_rows("accepted") if "accepted" in found[0] else None
        if "chain" in found[0]:
            parts = {name: of_chain(name) for name in ("reach", "accept", "block", "agree")}
            return cls(text, of_rows("context"), **parts, accepted=accepted)
        assert accepted is not None, "the accepted drafts of a tree are counted"
        places = np.arange(k)[None]
        reached, passed = places <= accepted[:, None], places < accepted[:, None]
        return cls(text, of_rows("context"), reached.astype(float), passed.astype(float), accepted=accepted)

    @classmethod
    def joined(cls, parts: "Sequence[MeasuredRounds]") -> "MeasuredRounds":
        """Concatenates the rounds of several batches."""
        first, *rest = parts
        found = {field.name: [getattr(part, field.name) for part in parts] for field in dataclasses.fields(cls)}
        joined = {name: np.concatenate(values) for name, values in found.items() if values[0] is not None}
        return dataclasses.replace(first, **joined) if rest else first

    def where(self, chosen: Bool[np.ndarray, "r"]) -> Self:
        """Selects the rounds where the mask `chosen` is set."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: x[chosen] for name, x in parts.items() if x is not None})

    def tokens(self) -> Float[np.ndarray, "r"]:
        """Returns the expected number of tokens of each round under the token rule."""
        return 1 + np.sum(self.reach * self.accept, axis=1)


@dataclasses.dataclass(frozen=True)
class Position:
    """Reports the figures of the draft at one position.

    Attributes:
      position: the position, from 1.
      reached: the probability that verification reaches it.
      acceptance: the expected acceptance of the reached draft.
      agreement: how often target and drafter have the same most likely token there; `None` for a tree.
    """

    position: int
    reached: Estimate
    acceptance: Estimate
    agreement: Estimate | None


@dataclasses.dataclass(frozen=True)
class ContextRange:
    """Reports the tokens per round, and the first draft's acceptance, after `first` to `last` tokens of context."""

    first: int
    last: int
    rounds: int
    tokens: Estimate
    acceptance: Estimate


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Reports the quality of a drafter; made by `expected_acceptance`.

    Attributes:
      texts: the number of texts.
      rounds: the number of measured rounds.
      given: whether the answers were given; then there is one position, and no tokens per round.
      positions: the figures of each draft.
      tokens: the expected tokens per round by rule: "token" and "block" for a chain, its own rule for a tree.
      by_context: the expected tokens per round by the length of the text before a round.
      measured: the measured rounds.

    Example:
      >>> from jaxspec.bench import AcceptanceOptions, expected_acceptance
      >>> drafter = jaxspec.ModelDrafter(draft, k=2)
      >>> found = expected_acceptance(target, drafter, [[5, 6, 7], [9, 8]], options=AcceptanceOptions(max_new_tokens=4))
      >>> sorted(found.as_record()["tokens_a_round"])
      ['block', 'token']
    """

    texts: int
    rounds: int
    given: bool
    positions: tuple[Position, ...]
    tokens: Mapping[str, Estimate]
    by_context: tuple[ContextRange, ...]
    measured: MeasuredRounds = dataclasses.field(repr=False)

    @classmethod
    def of(cls, measured: MeasuredRounds, *, texts: int, given: bool, rule: str | None) -> Self:
        """Computes the figures; `rule` names a tree's rule, and is `None` for a chain."""
        groups, rounds = measured.text, len(measured.text)
        ones = np.ones(rounds)
        positions = []
        for place in range(1 if given else measured.reach.shape[1]):
            reach, accept = measured.reach[:, place], measured.accept[:, place]
            agree = None if measured.agree is None else ratio(reach * measured.agree[:, place], reach, groups)
            acceptance = ratio(reach * accept, reach, groups)
            positions.append(Position(place + 1, ratio(reach, ones, groups), acceptance, agree))
        tokens = {}
        if not given:
            tokens["token" if rule is None else rule] = ratio(measured.tokens(), ones, groups)
        if measured.block is not None and not given:
            tokens["block"] = ratio(1 + np.sum(measured.block, axis=1), ones, groups)
        by_context = () if given else tuple(_ranges(measured))
        return cls(texts, rounds, given, tuple(positions), tokens, by_context, measured)

    def compare(self, log: EngineLog) -> Comparison:
        """Compares an engine's counts with these expectations.

        Raises:
          ValueError: if the engine drafts more positions than were measured, or answers were given.
        """
        if self.given:
            raise ValueError(
                "an engine's counts are from texts that its target writes; leave the answers out, so that they are "
                "sampled here too"
            )
        if log.positions > len(self.positions):
            raise ValueError(
                f"the engine's log has {log.positions} positions, but {len(self.positions)} drafts per round were "
                f"measured; measure with k={log.positions}"
            )
        ranges = [(one.first, one.last, one.tokens) for one in self.by_context]
        return Comparison.of(log, [one.acceptance for one in self.positions], ranges)

    def conclusion(self) -> str:
        """Summarizes the quality of the drafter in one sentence."""
        first = self.positions[0]
        if self.given:
            agreement = f", and {first.agreement} of the most likely tokens agree" if first.agreement else ""
            return f"On these texts the first draft is accepted with a chance of {first.acceptance}{agreement}."
        rules = " and ".join(f"{value} by the {name} rule" for name, value in self.tokens.items())
        drafts = f"{len(self.positions)} draft{'s' * (len(self.positions) > 1)}"
        return f"A round of {drafts} is worth {rules} in tokens, where plain decoding has 1."

    def tables(self) -> list[Table]:
        """Returns the tables of the figures."""
        optional = lambda one: number(None) if one is None else str(one)  # noqa: E731
        columns = {
            "draft": lambda one: str(one.position),
            "reached": lambda one: str(one.reached),
            "acceptance there": lambda one: str(one.acceptance),
            "top token agrees": lambda one: optional(one.agreement),
        }
        found = [Table.of(f"{self.rounds} rounds of {self.texts} texts", columns, self.positions)]
        if len(self.by_context) > 1:
            columns = {
                "tokens before": lambda one: f"{one.first}-{one.last}",
                "rounds": lambda one: str(one.rounds),
                "first draft": lambda one: str(one.acceptance),
                "tokens a round": lambda one: str(one.tokens),
            }
            found.append(Table.of("By length of context", columns, self.by_context))
        return found

    def as_record(self) -> dict[str, Any]:
        """Returns the figures, for JSON."""
        return {
            "texts": self.texts,
            "rounds": self.rounds,
            "sampled": not self.given,
            "positions": [
                {
                    "position": one.position,
                    "reached": one.reached.as_record(),
                    "acceptance": one.acceptance.as_record(),
                    "agreement": None if one.agreement is None else one.agreement.as_record(),
                }
                for one in self.positions
            ],
            "tokens_a_round": {name: one.as_record() for name, one in self.tokens.items()},
            "by_context": [
                {
                    "first": one.first,
                    "last": one.last,
                    "rounds": one.rounds,
                    "tokens_a_round": one.tokens.as_record(),
                    "first_acceptance": one.acceptance.as_record(),
                }
                for one in self.by_context
            ],
            "conclusion": self.conclusion(),
        }


def _ranges(measured: MeasuredRounds) -> list[ContextRange]:
    longest, found = int(measured.context.max()), []
    low, high = 0, _FIRST_BUCKET
    for _ in range(max(1, math.ceil(math.log2((longest + 1) / _FIRST_BUCKET)) + 1)):
        part = measured.where((measured.context >= low) & (measured.context < high))
        if count := len(part.text):
            first = ratio(part.reach[:, 0] * part.accept[:, 0], part.reach[:, 0], part.text)
            tokens = ratio(part.tokens(), np.ones(count), part.text)
            found.append(ContextRange(low, high - 1, count, tokens, first))
        low, high = high, 2 * high
    return found

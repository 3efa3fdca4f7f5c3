"""Holds the report about a verifier, as text and as JSON."""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Finding:
    """Holds an observation about a verifier.

    Attributes:
      kind: kind of the finding, in one or two words.
      text: description in a sentence.
      biased: whether the finding implies that the verifier is not lossless.

    Example:
        >>> print(jaxspec.testing.Finding("greedy", "the emitted tokens do not depend on the randomness"))
        greedy: the emitted tokens do not depend on the randomness
    """

    kind: str
    text: str
    biased: bool = True

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclasses.dataclass(frozen=True)
class CheckedCase:
    """Holds the figures of one target and draft.

    Attributes:
      description: target and draft, in words.
      total_variation: total variation between the emitted texts and the target's.
      tokens_per_round: expected number of tokens per round.
      best_tokens_per_round: the highest possible value for a verifier of one chain; `None` if drafts branch.

    Example:
        >>> case = jaxspec.testing.CheckedCase("target [0.5, 0.5], draft [0.6, 0.4]", 0.0, 1.9, 1.9)
        >>> case.best_tokens_per_round
        1.9
    """

    description: str
    total_variation: float
    tokens_per_round: float
    best_tokens_per_round: float | None


@dataclasses.dataclass(frozen=True)
class VerifierReport:
    """Holds the result of `check_verifier`.

    Attributes:
      lossless: whether all emitted texts had the target's distribution.
      exact: whether probabilities were computed exactly from the uniforms; otherwise rounds were sampled.
      counterexample: the first and smallest case that fails, in words.
      findings: other observations.
      false_alarm_rate: if rounds were sampled, the probability that a lossless verifier is called biased; 0 if exact.
      num_calls: number of calls of the function.
      cases: targets and drafts, smallest first.

    Example:
        >>> case = jaxspec.testing.CheckedCase("target [0.5, 0.5], draft [0.6, 0.4]", 1e-7, 1.9, 1.9)
        >>> print(jaxspec.testing.VerifierReport(True, True, None, (), 0.0, 900, (case,)))
        lossless: exact, over 1 targets and drafts
        total variation below 1e-05; 1.900 tokens a round, of 1.900 at best
    """

    lossless: bool
    exact: bool
    counterexample: str | None
    findings: tuple[Finding, ...]
    false_alarm_rate: float
    num_calls: int
    cases: tuple[CheckedCase, ...]

    @property
    def num_instances(self) -> int:
        """Number of targets and drafts."""
        return len(self.cases)

    @property
    def total_variation(self) -> float:
        """Largest total variation over the cases; for sampled rounds that of the samples, which is never 0."""
        return max(case.total_variation for case in self.cases)

    @property
    def tokens_per_round(self) -> float:
        """Expected number of tokens per round, averaged over the cases."""
        return sum(case.tokens_per_round for case in self.cases) / len(self.cases)

    @property
    def best_tokens_per_round(self) -> float | None:
        """Highest possible `tokens_per_round` of a verifier of one chain; `None` if drafts branch."""
        best = [case.best_tokens_per_round for case in self.cases if case.best_tokens_per_round is not None]
        return sum(best) / len(best) if len(best) == len(self.cases) else None

    def to_json(self) -> str:
        """Returns one JSON object with all attributes and properties."""
        names = ("num_instances", "total_variation", "tokens_per_round", "best_tokens_per_round")
        values = {name: getattr(self, name) for name in names} | dataclasses.asdict(self)
        first = {"lossless": self.lossless, "exact": self.exact, "counterexample": self.counterexample}
        return json.dumps(first | values, ensure_ascii=False)

    def __str__(self) -> str:
        how = "exact" if self.exact else f"sampled, with a false-alarm rate of {self.false_alarm_rate:g}"
        distance = f"{self.total_variation:.3g}"
        if self.lossless:
            distance = f"of the samples {distance}"
            if self.exact:
                distance = "below 1e-05" if self.total_variation < 1e-5 else f"only {self.total_variation:.1g}"
        best = "" if self.best_tokens_per_round is None else f", of {self.best_tokens_per_round:.3f} at best"
        verdict = "BIASED" if not self.lossless else "lossless" if self.exact else "no bias found"
        lines = [
            f"{verdict}: {how}, over {self.num_instances} targets and drafts",
            f"total variation {distance}; {self.tokens_per_round:.3f} tokens a round{best}",
        ]
        if self.counterexample is not None:
            lines.append(f"counterexample: {self.counterexample}")
        others = (finding for finding in self.findings if finding.text != self.counterexample)
        return "\n".join([*lines, *(f"* {finding}" for finding in others)])

"""A whole plan: the device, what drafts are worth, what they cost, what follows, and whether it is true."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxspec.bench.cases import Case, load_cases, longest_text, with_halves
from jaxspec.bench.groups import groups
from jaxspec.bench.plan.acceptance import Acceptance, measure_acceptance
from jaxspec.bench.plan.check import check
from jaxspec.bench.plan.costs import StepCosts, measure_step_costs
from jaxspec.bench.plan.prediction import Prediction, predict
from jaxspec.bench.plan.recommendation import Crossover, Recommendation, best_of, crossover, recommend
from jaxspec.bench.plan.roofline import Device, Roofline, measure_device, roofline
from jaxspec.bench.run import check_askable, machine
from jaxspec.bench.setting import Setting
from jaxspec.checkpoints.load import load
from jaxspec.nn.convert import PRODUCTS
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

# Turns of what takes milliseconds.
_TURNS = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that was measured, and what follows from it.

    Attributes:
      setting: what was asked for, with the questions, for JSON.
      machine: where.
      device: its bandwidth and peak.
      acceptances: of each drafter.
      costs: of each batch.
      rooflines: the same.
      predictions: of each batch and case.
      recommendations: of each batch.
      crossover: over all batches; `None` if there is only one.
    """

    setting: dict[str, Any]
    machine: dict[str, Any]
    device: Device
    acceptances: tuple[Acceptance, ...]
    costs: tuple[StepCosts, ...]
    rooflines: tuple[Roofline, ...]
    predictions: tuple[Prediction, ...]
    recommendations: tuple[Recommendation, ...]
    crossover: Crossover | None


def make_plan(
    setting: Setting,
    questions: Sequence[Conversation],
    *,
    tell: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """Measures, predicts, checks and recommends.

    Args:
      setting: what to consider, at one temperature. Without `lengths` each drafter is tried with its own number of
        drafts and with half of it.
      questions: on what.
      tell: is told what is being done.
      clock: tells the time in seconds.

    Raises:
      ValueError: setting, models and questions do not fit each other.
      OSError: a model cannot be read.
      FloatingPointError: the target's logits were not finite.
    """
    if len(setting.temperatures) != 1:
        raise ValueError(f"a plan is for one temperature, got {len(setting.temperatures)}; make one plan for each")
    tell("loading the models")
    target = PRODUCTS[setting.products](load(setting.model, dtype=setting.dtype))
    check_askable(setting.model, target, questions)
    cases = load_cases(setting, target)
    cases = cases if setting.lengths else [*cases[:1], *with_halves(setting, cases[1:], target)]
    tell("the device's bandwidth and peak")
    device = measure_device(target.dtype, clock=clock)
    return _Planner(target, cases, questions, setting, device, tell, clock).plan()


@dataclasses.dataclass(frozen=True)
class _Planner:
    target: LanguageModel
    cases: Sequence[Case]
    questions: Sequence[Conversation]
    setting: Setting
    device: Device
    tell: Callable[[str], None]
    clock: Callable[[], float]

    def plan(self) -> Plan:
        acceptances = {one.name: one for one in map(self._acceptance, self._longest())}
        costs = [self._costs(batch, list(acceptances.values())) for batch in self.setting.batches]
        rooflines = [
            roofline(self.target, self.device, batch=one.batch, text=one.text, seconds=one.plain_seconds)
            for one in costs
        ]
        predictions = {one.batch: self._predictions(one, acceptances) for one in costs}
        recommendations = [self._recommendation(one, predictions[one.batch], acceptances) for one in costs]
        speedups = {one.batch: one.measured.speedup.median for one in recommendations}
        return Plan(
            setting=self.setting.described(self.questions),
            machine=machine(self.target, None),
            device=self.device,
            acceptances=tuple(acceptances.values()),
            costs=tuple(costs),
            rooflines=tuple(rooflines),
            predictions=tuple(one for of_batch in predictions.values() for one in of_batch),
            recommendations=tuple(recommendations),
            crossover=crossover(speedups) if len(speedups) > 1 else None,
        )

    @property
    def _temperature(self) -> float:
        return self.setting.temperatures[0]

    @property
    def _drafting(self) -> Sequence[Case]:
        return self.cases[1:]

    def _longest(self) -> list[Case]:
        """Of each drafter the case with the most drafts: it tells of fewer, too."""
        most: dict[str, Case] = {}
        for case in self._drafting:
            if case.name not in most or case.drafter.k > most[case.name].drafter.k:
                most[case.name] = case
        return list(most.values())

    def _acceptance(self, case: Case) -> Acceptance:
        jax.clear_caches()  # each stage has programs of its own, and each takes much memory
        return measure_acceptance(
            self.target, case, self.questions, self.setting, temperature=self._temperature, tell=self.tell
        )

    def _costs(self, batch: int, acceptances: Sequence[Acceptance]) -> StepCosts:
        jax.clear_caches()
        self.tell(f"what rounds cost, batch {batch} (compiles {len(self._drafting)} cases first)")
        return measure_step_costs(
            self.target,
            self.cases,
            batch=batch,
            text=self._text(acceptances),
            temperature=self._temperature,
            repeats=_TURNS,
            clock=self.clock,
        )

    def _text(self, acceptances: Sequence[Acceptance]) -> int:
        """How long a text is in the middle of an answer, as far as all models have room for it."""
        middles = [one.prompt_tokens + one.tokens // 2 for found in acceptances for one in found.answers]
        text = max(8, round(statistics.median(middles)))
        longest = longest_text(self.target, self.cases)
        return text if longest is None else min(text, longest - 2 * (max(case.drafter.k for case in self.cases) + 1))

    def _predictions(self, costs: StepCosts, acceptances: dict[str, Acceptance]) -> list[Prediction]:
        asked = groups(self.questions, costs.batch)
        return [
            predict(
                acceptances[case.name],
                asked,
                case=case.label,
                k=case.drafter.k,
                batch=costs.batch,
                cost=costs.rounds[case.label],
            )
            for case in self._drafting
        ]

    def _recommendation(self, costs: StepCosts, predictions, acceptances) -> Recommendation:
        jax.clear_caches()
        best = best_of(predictions)
        case = next(one for one in self.cases if one.label == best.case)
        measured = check(
            self.target,
            self.cases[0],
            case,
            self.questions,
            self.setting,
            batch=costs.batch,
            temperature=self._temperature,
            tell=self.tell,
            clock=self.clock,
        )
        return recommend(best, measured, case, acceptance=acceptances[case.name], cost=costs.rounds[case.label])

"""Makes a plan: measures acceptance and costs, predicts, checks the predictions with a run, and recommends."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxspec.bench.cases import Case, load_cases, longest_text, with_halves
from jaxspec.bench.measure import Measurement
from jaxspec.bench.plan.acceptance import Acceptance, measure_acceptance
from jaxspec.bench.plan.prediction import Prediction, predict
from jaxspec.bench.plan.recommendation import Crossover, Recommendation, best_of, crossover, recommend
from jaxspec.bench.plan.roofline import Device, Roofline, measure_device, roofline
from jaxspec.bench.questions import check_askable, groups
from jaxspec.bench.records import Turn
from jaxspec.bench.rounds import StepCosts, measure_step_costs
from jaxspec.bench.run import machine
from jaxspec.bench.setting import Setting, load_target
from jaxspec.bench.summary import ALL, Summary, summarize
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

# Turns of what takes milliseconds.
_TURNS = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that was measured, and what follows from it.

    Attributes:
      setting: what was asked for, with the questions, for JSON.
      machine: the device and the versions.
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
      tell: called with each step, in words.
      clock: tells the time in seconds.

    Raises:
      ValueError: setting, models and questions do not fit each other.
      OSError: a model cannot be read.
      FloatingPointError: the target's logits were not finite.
    """
    if len(setting.temperatures) != 1:
        raise ValueError(f"a plan is for one temperature, got {len(setting.temperatures)}; make one plan for each")
    tell("loading the models")
    _, target = load_target(setting)
    check_askable(setting.model, target.tokenizer, questions)
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
        acceptances = {case.name: self._acceptance(case) for case in self._longest()}
        costs = [self._costs(batch, acceptances.values()) for batch in self.setting.batches]
        predictions = [self._predictions(one, acceptances) for one in costs]
        recommendations = [
            self._recommendation(one, best_of(predicted), acceptances)
            for one, predicted in zip(costs, predictions, strict=True)
        ]
        speedups = {one.batch: one.measured.speedup.median for one in recommendations if one.measured.speedup}
        return Plan(
            setting=self.setting.described(self.questions),
            machine=machine(self.target, None),
            device=self.device,
            acceptances=tuple(acceptances.values()),
            costs=tuple(costs),
            rooflines=tuple(
                roofline(self.target, self.device, batch=one.batch, text=one.text, seconds=one.plain_seconds)
                for one in costs
            ),
            predictions=tuple(one for of_batch in predictions for one in of_batch),
            recommendations=tuple(recommendations),
            crossover=crossover(speedups) if len(speedups) > 1 else None,
        )

    def _longest(self) -> list[Case]:
        """Returns of each drafter the case with the most drafts: it tells of fewer, too."""
        most: dict[str, Case] = {}
        for case in self.cases[1:]:
            if case.name not in most or case.drafter.max_drafts > most[case.name].drafter.max_drafts:
                most[case.name] = case
        return list(most.values())

    def _acceptance(self, case: Case) -> Acceptance:
        jax.clear_caches()  # each stage has programs of its own, and each takes much memory
        temperature = self.setting.temperatures[0]
        return measure_acceptance(
            self.target, case, self.questions, self.setting, temperature=temperature, tell=self.tell
        )

    def _costs(self, batch: int, acceptances) -> StepCosts:
        """Measures costs at the length of a text in the middle of an answer, as far as all models have room for it."""
        jax.clear_caches()
        self.tell(f"what rounds cost, batch {batch} (compiles {len(self.cases) - 1} cases first)")
        middles = [one.prompt_tokens + one.tokens // 2 for found in acceptances for one in found.answers]
        text, longest = max(8, round(statistics.median(middles))), longest_text(self.target, self.cases)
        if longest is not None:
            text = min(text, longest - 2 * (max(case.drafter.max_drafts for case in self.cases) + 1))
        return measure_step_costs(
            self.target,
            self.cases,
            batch=batch,
            text=text,
            temperature=self.setting.temperatures[0],
            repeats=_TURNS,
            clock=self.clock,
        )

    def _predictions(self, costs: StepCosts, acceptances: Mapping[str, Acceptance]) -> list[Prediction]:
        asked, batch = groups(self.questions, costs.batch), costs.batch
        return [
            predict(
                acceptances[case.name],
                asked,
                case=case.label,
                k=case.drafter.max_drafts,
                batch=batch,
                cost=costs.rounds[case.label],
            )
            for case in self.cases[1:]
        ]

    def _recommendation(
        self, costs: StepCosts, best: Prediction, acceptances: Mapping[str, Acceptance]
    ) -> Recommendation:
        jax.clear_caches()
        case = next(one for one in self.cases if one.label == best.case)
        setting = dataclasses.replace(self.setting, batches=(costs.batch,))
        measured = check(self.target, self.cases[0], case, self.questions, setting, tell=self.tell, clock=self.clock)
        return recommend(best, measured, case, acceptance=acceptances[case.name], cost=costs.rounds[case.label])


def check(
    target: LanguageModel,
    plain: Case,
    case: Case,
    questions: Sequence[Conversation],
    setting: Setting,
    *,
    tell: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Summary:
    """Measures one case as `jaxspec bench` does, over all tasks: whether a prediction is true.

    Args:
      target: the model that answers.
      plain: plain decoding.
      case: what is checked.
      questions: on what; at least one fits the models' contexts.
      setting: its first batch and temperature, `max_new_tokens`, `repeats` and `seed` count.
      tell: called with each step, in words.
      clock: tells the time in seconds.
    """
    measurement = Measurement(target, [plain, case], questions, setting, clock=clock)
    batch, temperature, records = setting.batches[0], setting.temperatures[0], list[Turn]()
    asked = groups(questions, batch)
    for index, group in enumerate(asked):
        tell(f"{case.label} against plain decoding, batch {batch}: {index + 1} of {len(asked)}")
        for record in measurement.turns(group, temperature):
            record["unit"] = [index]
            records.append(record)
    return next(found for found in summarize(records) if found.task == ALL and found.case == case.label)

"""Makes a plan: measures a small grid of drafters, numbers of drafts and batches, and recommends the fastest."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxspec.bench.cases import Case, Setting, load_cases, load_target
from jaxspec.bench.measure import Measurement
from jaxspec.bench.questions import check_askable, groups
from jaxspec.bench.records import Turn
from jaxspec.bench.report import describe_speedup, origin, what_to_change, why_slower
from jaxspec.bench.run import machine
from jaxspec.bench.summary import ALL, Summary, summarize
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """Holds the recommendation for one batch size.

    Attributes:
      speculate: whether any drafter was faster than plain decoding.
      drafter: the drafter's name; "none" for plain decoding.
      k: the number of drafts per round, of a tree its nodes; 0 for plain decoding.
      measured: the figures of the fastest case with a drafter.
      text: the recommendation and its reason, in words.
    """

    speculate: bool
    drafter: str
    k: int
    measured: Summary
    text: str


@dataclasses.dataclass(frozen=True)
class Crossover:
    """Holds the batch size beyond which speculation is no longer worth it.

    Attributes:
      pays_at: the largest measured batch at which speculation is faster; `None` if there is none.
      not_from: the smallest measured batch without a speed-up there or beyond; `None` if the largest has one.
      estimate: the batch between them at which both ways of decoding would be equally fast, by linear interpolation
        over the logarithm of the batch; `None` unless both are known.
    """

    pays_at: int | None
    not_from: int | None
    estimate: float | None

    @property
    def text(self) -> str:
        """The crossover in one sentence."""
        if self.not_from is None:
            return f"Speculation pays off up to the largest batch that was measured, {self.pays_at}."
        if self.pays_at is None:
            return "Speculation pays off at no batch that was measured."
        return (
            f"Speculation pays off at batch {self.pays_at}, but no longer at batch {self.not_from}: "
            f"both ways of decoding are equally fast at about {self.estimate:.0f}."
        )


@dataclasses.dataclass(frozen=True)
class Plan:
    """Holds all measurements, and the recommendations derived from them.

    Attributes:
      setting: the options and the questions, for JSON.
      machine: the device and the versions.
      summaries: the figures of each batch, task and case, including plain decoding.
      recommendations: the recommendation for each batch.
      crossover: the crossover over all batches; `None` if there is only one batch.
    """

    setting: dict[str, Any]
    machine: dict[str, Any]
    summaries: tuple[Summary, ...]
    recommendations: tuple[Recommendation, ...]
    crossover: Crossover | None

    def notes(self) -> list[str]:
        """Returns notes for readers of the figures."""
        temperature, repeats = self.setting["temperatures"][0], self.setting["repeats"]
        return [
            origin(self.setting, self.machine),
            f"{self.setting['questions']} questions, at most {self.setting['max_new_tokens']} new tokens, temperature "
            f"{temperature:g}; {repeats} repeat{'s' if repeats > 1 else ''}, in turn with plain decoding",
        ]

    def command(self, one: Recommendation) -> str:
        """Returns the command that follows a recommendation."""
        drafting = f"--drafter {one.drafter} -k {one.k}" if one.speculate else "--drafter none"
        temperature = self.setting["temperatures"][0]
        return f"jaxspec generate --model {self.setting['model']} {drafting} --temperature {temperature:g}"

    def as_record(self, typed: str) -> dict[str, Any]:
        """Returns the plan for JSON, with the command that made it."""
        record: dict[str, Any] = dataclasses.asdict(self) | {"command": typed}
        for row, one in zip(record["recommendations"], self.recommendations, strict=True):
            row["command"] = self.command(one)
        return record


def make_plan(
    setting: Setting, questions: Sequence[Conversation], *, tell: Callable[[str], None] = lambda _: None
) -> Plan:
    """Measures each drafter at each number of drafts and each batch, and makes recommendations.

    Args:
      setting: the options to consider, at one temperature. Without `lengths`, each drafter is tried with its default
        number of drafts and half of it.
      questions: the questions to answer.
      tell: called with a description of each step.

    Raises:
      ValueError: if setting, models and questions are inconsistent.
      OSError: if a model cannot be read.
      FloatingPointError: if the target's logits are not finite.
    """
    if len(setting.temperatures) != 1:
        raise ValueError(f"a plan is for one temperature, got {len(setting.temperatures)}; make one plan for each")
    tell("loading the models")
    _, target = load_target(setting)
    check_askable(setting.model, target.tokenizer, questions)
    cases = load_cases(setting, target, halves=True)
    summaries, recommendations = list[Summary](), []
    for batch in setting.batches:
        found = measure_cases(target, cases, questions, dataclasses.replace(setting, batches=(batch,)), tell=tell)
        if not found:
            raise ValueError("no question fits the model's context; pass shorter ones, or lower --max-new-tokens")
        recommendations.append(recommend(found, cases))
        summaries += found
    speedups = {one.measured.batch: one.measured.speedup.median for one in recommendations if one.measured.speedup}
    return Plan(
        setting=setting.described(questions),
        machine=machine(target),
        summaries=tuple(summaries),
        recommendations=tuple(recommendations),
        crossover=crossover(speedups) if len(speedups) > 1 else None,
    )


def measure_cases(
    target: LanguageModel,
    cases: Sequence[Case],
    questions: Sequence[Conversation],
    setting: Setting,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Summary]:
    """Measures cases in turn, as `jaxspec bench` does, at the setting's first batch and temperature.

    Args:
      target: the target model.
      cases: the cases, plain decoding first.
      questions: the questions to answer.
      setting: the options.
      tell: called with a description of each step.

    Returns:
      The summaries of all tasks and cases; empty if no question fits the models' contexts.
    """
    jax.clear_caches()  # each batch has its own programs, which take much memory
    measurement = Measurement(target, list(cases), questions, setting)
    records, batches = list[Turn](), groups(questions, setting.batches[0])
    for number, group in enumerate(batches, start=1):
        tell(f"{len(cases)} cases in turn, batch {setting.batches[0]}: {number} of {len(batches)}")
        records += measurement.turns(group, setting.temperatures[0])
    return summarize(records)


def recommend(summaries: Sequence[Summary], cases: Sequence[Case]) -> Recommendation:
    """Recommends the fastest drafter for one batch, if whole answers were faster with it than without.

    Args:
      summaries: the figures of the batch.
      cases: the measured cases.
    """
    drafting = [(one.speedup, one) for one in summaries if one.task == ALL and one.speedup is not None]
    speedup, best = max(drafting, key=lambda pair: pair[0].median)
    case = next(one for one in cases if one.label == best.case)
    how = describe_speedup(speedup, "plain decoding")
    if speedup.median > 1:
        text = f"use {case.label}. Whole answers were {how}."
        if speedup.low <= 1:
            text += " Not in every repeat: measure more questions before you rely on it."
        chosen = (True, case.name, case.drafter.lengths[-1])
    else:
        change = what_to_change(best, [one for _, one in drafting])
        text = f"decode plainly. The best case, {case.label}, was {how}. {why_slower(best)}{change}."
        chosen = (False, "none", 0)
    return Recommendation(*chosen, best, f"batch {best.batch}: {text}")


def crossover(speedups: Mapping[int, float]) -> Crossover:
    """Finds the crossover from the best speed-up at each batch; at least one batch is needed."""
    batches = sorted(speedups)
    pays_at = max((batch for batch in batches if speedups[batch] > 1), default=None)
    not_from = min((batch for batch in batches if pays_at is None or batch > pays_at), default=None)
    if pays_at is None or not_from is None:
        return Crossover(pays_at, not_from, None)
    share = (speedups[pays_at] - 1) / (speedups[pays_at] - speedups[not_from])
    return Crossover(pays_at, not_from, pays_at * (not_from / pays_at) ** share)

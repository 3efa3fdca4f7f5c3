"""Makes a plan: measures acceptance and costs, predicts, checks the best predictions with a run, and recommends."""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.bench.cases import Case, load_cases, widest_prompt
from jaxspec.bench.costs import measure_parts
from jaxspec.bench.measure import Measurement, counts_of, generate, turn_key
from jaxspec.bench.plan.deviation import Deviation, deviation
from jaxspec.bench.plan.prediction import Acceptance, Answer, Prediction, predict
from jaxspec.bench.plan.recommendation import Crossover, Recommendation, crossover, recommend
from jaxspec.bench.plan.roofline import Device, Roofline, measure_device, roofline
from jaxspec.bench.questions import check_askable, dialogue, groups, padded
from jaxspec.bench.records import Turn, group_by
from jaxspec.bench.run import machine
from jaxspec.bench.setting import Setting, load_target, policy_at
from jaxspec.bench.summary import ALL, Summary, summarize
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

# Turns of what takes milliseconds.
_TURNS = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """Holds all that was measured, and what follows from it.

    Attributes:
      setting: what was asked for, with the questions, for JSON.
      machine: the device and the versions.
      device: its bandwidth and peak.
      acceptances: of each drafter.
      rooflines: of each batch.
      predictions: of each batch and case.
      recommendations: of each batch.
      deviations: of each batch, how far the prediction was from the run; `None` where that was too short to time.
      crossover: over all batches; `None` if there is only one.
    """

    setting: dict[str, Any]
    machine: dict[str, Any]
    device: Device
    acceptances: tuple[Acceptance, ...]
    rooflines: tuple[Roofline, ...]
    predictions: tuple[Prediction, ...]
    recommendations: tuple[Recommendation, ...]
    deviations: tuple[Deviation | None, ...]
    crossover: Crossover | None


def make_plan(
    setting: Setting, questions: Sequence[Conversation], *, tell: Callable[[str], None] = lambda _: None
) -> Plan:
    """Measures, predicts, checks and recommends.

    Args:
      setting: what to consider, at one temperature. Without `lengths` each drafter is tried with its own number of
        drafts and with half of it.
      questions: on what.
      tell: called with each step, in words.

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
    plain, *cases = load_cases(setting, target, halves=True)
    tell("the device's bandwidth and peak")
    device = measure_device(target.dtype)
    acceptances: dict[str, Acceptance] = {}
    for name, several in group_by(cases, lambda case: case.name).items():
        longest = max(several, key=lambda case: case.drafter.max_drafts)  # the most drafts tell of fewer, too
        acceptances[name] = measure_acceptance(target, longest, questions, setting, tell=tell)
    text, policy = _middle(acceptances.values(), target, cases), policy_at(setting.temperatures[0])
    room = _capacity(acceptances.values(), target, cases, text, setting.max_new_tokens)
    measure = functools.partial(measure_parts, target, text=text, capacity=room, sampling=policy, repeats=_TURNS)
    rooflines, predictions, recommendations, deviations = [], list[Prediction](), [], []
    for batch in setting.batches:
        jax.clear_caches()  # each stage has programs of its own, and each takes much memory
        tell(f"what rounds cost, batch {batch} (compiles {len(cases)} cases first)")
        seconds, costs = measure([plain, *cases], batch=batch)
        rooflines.append(roofline(target, device, batch=batch, text=text, seconds=seconds))
        asked = groups(questions, batch)
        predicted = [predict(acceptances[case.name], asked, case, costs[case.label]) for case in cases]
        best, case = max(zip(predicted, cases, strict=True), key=lambda pair: pair[0].speedup)
        measured = check(target, plain, case, questions, dataclasses.replace(setting, batches=(batch,)), tell=tell)
        tell(f"the parts of {case.label} again, batch {batch}")
        after = measure([plain, case], batch=batch)[1][case.label]
        deviations.append(deviation(best, measured, after, case.drafter.lengths[-1] + 1))
        predictions += predicted
        recommendations.append(recommend(best, measured, case, acceptances[case.name]))
    speedups = {one.predicted.batch: one.measured.speedup.median for one in recommendations if one.measured.speedup}
    return Plan(
        setting=setting.described(questions),
        machine=machine(target),
        device=device,
        acceptances=tuple(acceptances.values()),
        rooflines=tuple(rooflines),
        predictions=tuple(predictions),
        recommendations=tuple(recommendations),
        deviations=tuple(deviations),
        crossover=crossover(speedups) if len(speedups) > 1 else None,
    )


def _middle(acceptances: Iterable[Acceptance], target: LanguageModel, cases: Sequence[Case]) -> int:
    """Returns the length of a text in the middle of an answer, as far as all models have room for it."""
    middles = [one.prompt_tokens + one.tokens // 2 for found in acceptances for one in found.answers]
    middle = max(8, round(statistics.median(middles)))
    room = widest_prompt(target, cases, _two_rounds(cases))
    return middle if room is None else min(middle, room)


def _capacity(
    acceptances: Iterable[Acceptance], target: LanguageModel, cases: Sequence[Case], text: int, max_new_tokens: int
) -> int:
    """Returns the capacity of an answer's caches, as a run's have it, with room for two rounds after the text."""
    prompt = statistics.median_low([one.prompt_tokens for found in acceptances for one in found.answers])
    tokens, _ = padded([[0] * prompt], 1, widest_prompt(target, cases, max_new_tokens))
    return max(tokens.shape[1] + max_new_tokens, text + _two_rounds(cases))


def _two_rounds(cases: Sequence[Case]) -> int:
    """Returns the most tokens of two rounds."""
    return 2 * (max(case.drafter.max_drafts for case in cases) + 1)


def measure_acceptance(
    target: LanguageModel,
    case: Case,
    questions: Sequence[Conversation],
    setting: Setting,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> Acceptance:
    """Answers every question with one drafter, one by one, and counts. Later turns follow its own answers.

    Counts are those at the setting's first temperature.

    Raises:
      ValueError: no question fits a model's context.
      FloatingPointError: the target's logits were not finite.
    """
    jax.clear_caches()
    tokenizer = check_askable(setting.model, target.tokenizer, questions)
    widest, policy = widest_prompt(target, [case], setting.max_new_tokens), policy_at(setting.temperatures[0])
    budget = np.full(1, setting.max_new_tokens, np.int32)
    answers, rows = [], groups(questions, 1)
    for number, group in enumerate(rows, start=1):
        tell(f"acceptance of {case.label}: question {number} of {len(rows)}")
        for asked in dialogue(tokenizer, questions, group, widest):
            for row, prompt in asked.prompts.items():
                tokens, length = padded([prompt], 1, widest)
                arguments = (target, case.drafter, tokens, length, budget, turn_key(setting.seed, group, asked.turn))
                result = generate(*arguments, policy, new_tokens=setting.max_new_tokens)
                counts = counts_of(result, [row])
                (asked.replies[row],), (rounds,) = counts["ids"], counts["rounds"]
                drafted_at, accepted_at = tuple(counts["drafted_at"]), tuple(counts["accepted_at"])
                place = (group.members[row], asked.turn, len(prompt))
                answers.append(Answer(*place, len(asked.replies[row]), rounds, drafted_at, accepted_at))
    if not answers:
        raise ValueError("no question fits the model's context; pass shorter ones, or lower --max-new-tokens")
    return Acceptance(case.name, case.drafter.max_drafts, tuple(answers))


def check(
    target: LanguageModel,
    plain: Case,
    case: Case,
    questions: Sequence[Conversation],
    setting: Setting,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Measures one case as `jaxspec bench` does, over all tasks: whether a prediction is true.

    At least one question fits the models' contexts; the setting's first batch and temperature count.
    """
    jax.clear_caches()
    measurement = Measurement(target, [plain, case], questions, setting)
    records, asked = list[Turn](), groups(questions, setting.batches[0])
    for index, group in enumerate(asked):
        tell(f"{case.label} against plain decoding, batch {setting.batches[0]}: {index + 1} of {len(asked)}")
        records += measurement.turns(group, setting.temperatures[0])
    return next(found for found in summarize(records) if found.task == ALL and found.case == case.label)

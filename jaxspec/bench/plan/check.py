"""Whether a prediction is true: the same questions, answered with a drafter and without one, in turns."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from jaxspec.bench.cases import Case
from jaxspec.bench.groups import groups
from jaxspec.bench.measure import Measurement
from jaxspec.bench.setting import Setting
from jaxspec.bench.summary import ALL, Summary, summarize
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation


def check(
    target: LanguageModel,
    plain: Case,
    case: Case,
    questions: Sequence[Conversation],
    setting: Setting,
    *,
    batch: int,
    temperature: float,
    tell: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Summary:
    """Measures one case as `jaxspec bench` does, over all tasks.

    Args:
      target: the model that answers.
      plain: plain decoding.
      case: what is checked.
      questions: on what; at least one fits the models' contexts.
      setting: `max_new_tokens`, `repeats` and `seed` count.
      batch: rows.
      temperature: 0 is greedy decoding.
      tell: is told what is being done.
      clock: tells the time in seconds.
    """
    one = dataclasses.replace(setting, batches=(batch,), temperatures=(temperature,))
    measurement = Measurement(target, [plain, case], questions, one, clock=clock)
    labels = {"kind": "turn", "batch": batch, "temperature": temperature}
    records = []
    asked = groups(questions, batch)
    for index, group in enumerate(asked):
        tell(f"{case.label} against plain decoding, batch {batch}: {index + 1} of {len(asked)}")
        records += [{"unit": [index], **labels, **record} for record in measurement.turns(group, temperature)]
    return next(found for found in summarize(records) if found.task == ALL and found.case == case.label)

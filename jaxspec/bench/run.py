"""Runs every setting, one batch at a time, and records the results in a file."""

import dataclasses
import itertools
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from jaxspec._version import __version__
from jaxspec.bench import report
from jaxspec.bench.cases import Case, Setting, load_cases, load_plain, load_target
from jaxspec.bench.measure import Measurement, peak_memory
from jaxspec.bench.peers.panel import comparisons, open_peers
from jaxspec.bench.peers.table import PEERS
from jaxspec.bench.quality import Quality, assess, check_bleu
from jaxspec.bench.questions import Group, check_askable, groups
from jaxspec.bench.records import Results, Turn
from jaxspec.bench.summary import Against, Summary, against, summarize
from jaxspec.nn.convert import kernels_of
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation


@dataclasses.dataclass(frozen=True)
class Finished:
    """Holds a run's header, its records, and the figures computed from them."""

    header: dict[str, Any]
    records: list[Turn]
    summaries: list[Summary]
    quality: list[Quality]
    against: list[Against]

    def notes(self) -> list[str]:
        """Returns notes for readers of the tables."""
        return report.notes(self.header, self.records)

    def tables(self) -> list[report.Table]:
        """Returns the tables of all figures."""
        return [*report.tables(self.summaries), *report.peer_tables(self.against)]

    def advice(self) -> list[report.Advice]:
        """Returns the advice that follows from the figures."""
        peers, quality = report.peer_advice(self.against), report.quality_advice(self.quality)
        return [*report.advice(self.summaries), *peers, *quality]


def run(
    setting: Setting,
    questions: Sequence[Conversation],
    *,
    command: str,
    path: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    quality: bool = False,
) -> Finished:
    """Measures everything that a file of records does not yet have.

    Args:
      setting: the options of the run.
      questions: the questions to answer.
      command: the user's command, for the header.
      path: the file; `None` keeps records in memory only.
      resume: whether to resume the file.
      quiet: whether to hide progress.
      quality: whether to also compare the answers; files of runs without it have all that this needs.

    Raises:
      ValueError: if setting, models, questions and file are inconsistent.
      OSError: if a model cannot be read, or the file cannot be written.
      ImportError: if BLEU is needed and its library is missing.
      FloatingPointError: if the target's logits are not finite.
      RuntimeError: if a peer failed.
    """
    if quality and max(setting.temperatures) > 0 and any(question.references for question in questions):
        check_bleu()
    loaded, target = load_target(setting)
    tokenizer = check_askable(setting.model, target.tokenizer, questions)
    cases = load_cases(setting, target)
    peers = {"peers": {name: PEERS[name].versions() for name in setting.against}} if setting.against else {}
    header = {"setting": setting.described(questions), "machine": machine(target) | peers, "command": command}
    results = Results(path, header, resume=resume)
    _measure_missing(setting, questions, (loaded, target, cases), results, quiet=quiet)
    summaries = summarize(results.records)
    if not summaries:
        raise ValueError("no question fits the model's context; pass shorter ones, or lower --max-new-tokens")
    assessed = assess(results.records, questions, tokenizer.decode) if quality else []
    finished = Finished(header, results.records, summaries, assessed, against(results.records))
    figures = {"summary": finished.summaries, "quality": finished.quality, "against": finished.against}
    results.finish({kind: [dataclasses.asdict(one) for one in several] for kind, several in figures.items()})
    return finished


def _measure_missing(
    setting: Setting,
    questions: Sequence[Conversation],
    loaded: tuple[LanguageModel, LanguageModel, list[Case]],
    results: Results,
    *,
    quiet: bool,
) -> None:
    """Adds the missing records; `loaded` holds the target, as read and with its kernels, and the first cases."""
    plain, target, cases = loaded
    asked = []
    for one in comparisons(setting, plain):
        settings = itertools.product(one.batches, setting.temperatures)
        asked.append((one, [(group, t) for batch, t in settings for group in groups(questions, batch)]))
    with tqdm(total=sum(len(every) for _, every in asked), desc="bench", unit="batch", disable=quiet) as bar:
        for one, every in asked:
            missing = [(group, t) for group, t in every if not results.has(group.unit(t, one.weights))]
            bar.update(len(every) - len(missing))
            if not missing:
                continue
            if not one.loaded:
                plain, target = load_plain(setting)
                cases = load_cases(setting, target)
            measurement = Measurement(target, cases, questions, setting, weights=one.weights)
            with open_peers(one, setting, plain, kernels_of(target), questions) as measurement.panel:
                _measure(missing, measurement, results, bar)


def _measure(missing: Sequence[tuple[Group, float]], measurement: Measurement, results: Results, bar: tqdm) -> None:
    before = None
    for group, temperature in missing:
        words = f"batch {len(group.members)}, temperature {temperature:g}"
        of = f", {measurement.weights}" if measurement.weights else ""
        bar.set_postfix_str(f"{words}{of}, {group.task} (new shapes compile first)")
        if before != words:
            measurement.forget_programs()
        before = words
        results.add(list(measurement.turns(group, temperature)))
        bar.update()


def machine(target: LanguageModel) -> dict[str, Any]:
    """Describes the device, versions and kernels that figures are measured with, for JSON."""
    device = jax.devices()[0]
    return {
        "device": f"{device.platform} {device.device_kind} x {jax.device_count()}, {platform.machine()}",
        "dtype": target.dtype.name,
        "kernels": kernels_of(target),
        "jaxspec": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "peak_memory_of": peak_memory()[1],
    }

"""Runs every setting, one batch after the other, into a file of records."""

import contextlib
import dataclasses
import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from jaxspec.bench import advice, report
from jaxspec.bench.cases import load_cases
from jaxspec.bench.measure import Measurement
from jaxspec.bench.meters import energy_meter, peak_memory
from jaxspec.bench.peers.panel import PEERS, Panel
from jaxspec.bench.quality import Quality, assess, check_bleu
from jaxspec.bench.questions import Group, check_askable, groups, prompt_of
from jaxspec.bench.records import FIGURES, Header, Record, Results
from jaxspec.bench.rounds import split_rounds
from jaxspec.bench.setting import Setting, load_target
from jaxspec.bench.summary import Against, Summary, against, summarize
from jaxspec.checkpoints.load import load
from jaxspec.nn.convert import kernels_of
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

# Tokens of a turn that a chat template adds, and of a system message of its own.
_TEMPLATE = 256
_Unit = tuple[tuple[int | float | str, ...], str, Callable[[], Sequence[Record]]]


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run's header, its records, and the figures that follow from them."""

    header: Header
    records: list[Record]
    summaries: list[Summary]
    quality: list[Quality]
    against: list[Against]

    def notes(self) -> list[str]:
        """Lists what a reader of the tables must know."""
        return report.notes(self.header, self.records)

    def tables(self) -> list[report.Table]:
        """Returns the tables of all figures."""
        tables = [report.tables(self.summaries), report.peer_tables(self.against), report.quality_tables(self.quality)]
        return [table for several in tables for table in several]

    def advice(self) -> list[advice.Advice]:
        """Says what follows from the figures."""
        peers, quality = advice.peer_advice(self.against), advice.quality_advice(self.quality)
        return [*advice.advice(self.summaries), *peers, *quality]


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
    """Measures what a file of records does not have yet.

    Args:
      setting: what to measure.
      questions: on what.
      command: the user's command, for the header.
      path: the file; `None` keeps nothing.
      resume: go on with the file.
      quiet: show no progress.
      quality: compare the answers, too; a file that was measured without has all it needs.

    Raises:
      ValueError: setting, models, questions and file do not fit each other.
      OSError: a model cannot be read, or the file not written.
      ImportError: BLEU is needed, and its library is missing.
      FloatingPointError: the target's logits were not finite.
      RuntimeError: a peer failed.
    """
    if quality and max(setting.temperatures) > 0 and any(question.references for question in questions):
        check_bleu()
    loaded, target = load_target(setting)
    tokenizer = check_askable(setting.model, target.tokenizer, questions)
    cases = load_cases(setting, target)
    energy = energy_meter(jax.devices()[0].platform)
    peers = {"peers": {name: PEERS[name].versions() for name in setting.against}} if setting.against else {}
    header: Header = {
        "setting": setting.described(questions),
        "machine": machine(target, energy and energy.source) | peers,
        "cases": {case.label: {"name": case.name, "k": case.k} for case in cases},
        "command": command,
    }
    results = Results(path, header, resume=resume)
    measurement = Measurement(target, cases, questions, setting, energy)
    units = list(_units(setting, questions, measurement))
    with contextlib.ExitStack() as stack:
        if not all(results.has(name) for name, _, _ in units):
            measurement.panel = stack.enter_context(_open_panel(setting, loaded, questions, kernels_of(target)))
        _measure(units, measurement, results, quiet)
    summaries = summarize(results.records)
    if not summaries:
        raise ValueError("no question fits the model's context; pass shorter ones, or lower --max-new-tokens")
    assessed = assess(results.records, questions, tokenizer.decode) if quality else []
    finished = Finished(header, results.records, summaries, assessed, against(results.records))
    figures = (finished.summaries, finished.quality, finished.against)
    lines = [[dataclasses.asdict(one) for one in several] for several in figures]
    results.finish(dict(zip(FIGURES, lines, strict=True)))
    return finished


def _open_panel(setting: Setting, loaded: LanguageModel, questions: Sequence[Conversation], kernels: str) -> Panel:
    """Opens the peers that are asked for and installed; kernels with bfloat16 weights give them those.

    Raises:
      ValueError, RuntimeError: as `Panel` does.
    """
    peers = {name: PEERS[name] for name in setting.against if PEERS[name].versions() is not None}
    named = setting.against_draft if peers else None
    draft = None if named is None else load(named, dtype=setting.dtype)
    dtype = "bfloat16" if kernels == "native-bfloat16" else loaded.dtype.name
    # A token is a byte at least, but for those of the template.
    longest = max(sum(len(text.encode()) for text in one.texts()) for one in questions)
    context = longest + max(len(one.turns) for one in questions) * (setting.max_new_tokens + _TEMPLATE)
    context = context if loaded.context_length is None else min(loaded.context_length, context)
    return Panel(peers, loaded, draft, dtype=dtype, context=context)


def _measure(units: Sequence[_Unit], measurement: Measurement, results: Results, quiet: bool) -> None:
    before = None
    with tqdm(total=len(units), desc="bench", unit="batch", disable=quiet) as bar:
        for name, words, measure in units:
            if not results.has(name):
                bar.set_postfix_str(f"{words} (new shapes compile first)")
                if before != name[:2]:
                    measurement.forget_programs()
                before = name[:2]
                results.add(name, measure())
            bar.update()


def _units(setting: Setting, questions: Sequence[Conversation], measurement: Measurement) -> Iterator[_Unit]:
    """Yields batches of questions, then rounds: the key of each, its name for a person, and the call that measures."""
    for batch in setting.batches:
        rows = groups(questions, batch)
        for temperature in setting.temperatures:
            words = f"batch {batch}, temperature {temperature:g}"
            for index, group in enumerate(rows):
                turns = lambda group=group, t=temperature: list(measurement.turns(group, t))  # noqa: E731
                yield (batch, temperature, index), f"{words}, {group.task}", turns
            if setting.split_rounds:
                split = lambda group=rows[0], t=temperature: [_split(measurement, group, t)]  # noqa: E731
                yield (batch, temperature, "rounds"), f"{words}, rounds", split


def _split(measurement: Measurement, group: Group, temperature: float) -> Record:
    rows = [measurement.questions[index] for index in group.members]
    turns = [min(len(row.answers), len(row.turns) - 1) for row in rows]
    prompts = [prompt_of(measurement.tokenizer, row, turn, {}) for row, turn in zip(rows, turns, strict=True)]
    cases, repeats = measurement.cases_for(len(rows)), measurement.setting.repeats
    found = split_rounds(measurement.target, cases, prompts, temperature, repeats=repeats)
    return {"kind": "rounds", "batch": len(rows), "temperature": temperature, "cases": found}


def machine(target: LanguageModel, energy: str | None) -> dict[str, Any]:
    """Describes where figures come from, for JSON; `energy` names what counts it."""
    device = jax.devices()[0]
    try:
        version = importlib.metadata.version("jaxspec-decode")
    except importlib.metadata.PackageNotFoundError:
        version = "of a checkout"
    return {
        "device": f"{device.platform} {device.device_kind} x {jax.device_count()}, {platform.machine()}",
        "dtype": target.dtype.name,
        "kernels": kernels_of(target),
        "jaxspec": version,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "energy": energy,
        "peak_memory_of": peak_memory()[1],
    }

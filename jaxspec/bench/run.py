"""Runs every setting, one batch after the other, into a file of records."""

import contextlib
import dataclasses
import itertools
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from jaxspec._version import __version__
from jaxspec.bench import advice, report
from jaxspec.bench.cases import load_cases
from jaxspec.bench.measure import Measurement
from jaxspec.bench.meters import energy_meter, peak_memory
from jaxspec.bench.peers.panel import PEERS, Panel
from jaxspec.bench.quality import Quality, assess, check_bleu
from jaxspec.bench.questions import Group, check_askable, groups
from jaxspec.bench.records import FIGURES, Header, Results, Turn
from jaxspec.bench.setting import Setting, load_target
from jaxspec.bench.summary import Against, Summary, against, summarize
from jaxspec.checkpoints.load import load
from jaxspec.nn.convert import kernels_of
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

# Tokens of a turn that a chat template adds, and of a system message of its own.
_TEMPLATE = 256


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run's header, its records, and the figures that follow from them."""

    header: Header
    records: list[Turn]
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
    units = {
        (batch, temperature, index): group
        for batch, temperature in itertools.product(setting.batches, setting.temperatures)
        for index, group in enumerate(groups(questions, batch))
    }
    with contextlib.ExitStack() as stack:
        if not all(map(results.has, units)):
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


def _measure(
    units: Mapping[tuple[int, float, int], Group], measurement: Measurement, results: Results, quiet: bool
) -> None:
    """Adds the records of each group that has none, by its batch, temperature and index."""
    before = None
    with tqdm(total=len(units), desc="bench", unit="batch", disable=quiet) as bar:
        for unit, group in units.items():
            batch, temperature, _ = unit
            if not results.has(unit):
                words = f"batch {batch}, temperature {temperature:g}, {group.task}"
                bar.set_postfix_str(f"{words} (new shapes compile first)")
                if before != (batch, temperature):
                    measurement.forget_programs()
                before = (batch, temperature)
                results.add(unit, list(measurement.turns(group, temperature)))
            bar.update()


def machine(target: LanguageModel, energy: str | None) -> dict[str, Any]:
    """Describes where figures come from, for JSON; `energy` names what counts it."""
    device = jax.devices()[0]
    return {
        "device": f"{device.platform} {device.device_kind} x {jax.device_count()}, {platform.machine()}",
        "dtype": target.dtype.name,
        "kernels": kernels_of(target),
        "jaxspec": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "energy": energy,
        "peak_memory_of": peak_memory()[1],
    }

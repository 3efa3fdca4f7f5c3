"""A whole run: every setting, one batch after the other, into a file of records."""

import contextlib
import dataclasses
import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from jaxspec.bench.cases import load_cases
from jaxspec.bench.groups import Group, groups, is_asked, prompt_of
from jaxspec.bench.measure import Measurement
from jaxspec.bench.meters import energy_meter, peak_memory
from jaxspec.bench.peers.against import Against, against
from jaxspec.bench.peers.named import PEERS
from jaxspec.bench.peers.panel import Panel
from jaxspec.bench.quality import Quality, assess
from jaxspec.bench.results import FIGURES, Results
from jaxspec.bench.rounds import split_rounds
from jaxspec.bench.setting import Setting
from jaxspec.bench.summary import Summary, summarize
from jaxspec.checkpoints.load import load
from jaxspec.nn.convert import PRODUCTS, kernels_of
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

# Tokens of a turn that a chat template adds, and of a system message of its own.
_TEMPLATE = 256


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run's header, its records, and what follows from them."""

    header: dict[str, Any]
    records: list[dict[str, Any]]
    summaries: list[Summary]
    quality: list[Quality]
    against: list[Against]


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
      command: what the user typed, for the header.
      path: the file; `None` keeps nothing.
      resume: go on with the file.
      quiet: show no progress.
      quality: compare what was written, too; a file that was measured without has all it needs.

    Raises:
      ValueError: setting, models, questions and file do not fit each other.
      OSError: a model cannot be read, or the file not written.
      FloatingPointError: the target's logits were not finite.
      RuntimeError: a peer failed.
    """
    loaded = load(setting.model, dtype=setting.dtype)
    target = PRODUCTS[setting.products](loaded)
    check_askable(setting.model, target, questions)
    cases = load_cases(setting, target)
    energy = energy_meter(jax.devices()[0].platform)
    header = {
        "setting": setting.described(questions),
        "machine": machine(target, energy and energy.source) | _versions(setting),
        "cases": {case.label: {"name": case.name, "k": case.k} for case in cases},
        "command": command,
    }
    results = Results(path, header, resume=resume)
    measurement = Measurement(target, cases, questions, setting, energy)
    units = list(_units(setting, questions, measurement))
    with contextlib.ExitStack() as stack:
        if not all(results.has(name) for name, _, _ in units):
            measurement.panel = stack.enter_context(open_panel(setting, loaded, questions, kernels_of(target)))
        _measure(units, measurement, results, quiet)
    summaries = summarize(results.records)
    if not summaries:
        raise ValueError("no question fits the model's context; pass shorter ones, or lower --max-new-tokens")
    assessed = assess(results.records, questions, target.tokenizer.decode) if quality else []
    finished = Finished(header, results.records, summaries, assessed, against(results.records))
    as_lines = lambda figures: [dataclasses.asdict(one) for one in figures]  # noqa: E731
    lines = (finished.summaries, finished.quality, finished.against)
    results.finish(dict(zip(FIGURES, map(as_lines, lines), strict=True)))
    return finished


def open_panel(setting: Setting, loaded: LanguageModel, questions: Sequence[Conversation], products: str) -> Panel:
    """The peers that are asked for and installed.

    Args:
      setting: names them.
      loaded: the target with plain arrays as weights.
      questions: those they are asked.
      products: how ours is multiplied: with bfloat16 weights they get those.

    Raises:
      ValueError, RuntimeError: as `Panel` does.
    """
    peers = {name: PEERS[name] for name in setting.against if PEERS[name].versions() is not None}
    named = setting.against_draft if peers else None
    draft = None if named is None else load(named, dtype=setting.dtype)
    dtype = "bfloat16" if products == "native-bfloat16" else loaded.dtype.name
    # A token is a byte at least, but for those of the template.
    longest = max(sum(len(text.encode()) for text in one.texts()) for one in questions)
    turns = max(len(one.turns) for one in questions)
    context = min(loaded.context_length, longest + turns * (setting.max_new_tokens + _TEMPLATE))
    return Panel(peers, loaded, draft, dtype=dtype, context=context)


def _measure(units: Sequence["_Unit"], measurement: Measurement, results: Results, quiet: bool) -> None:
    before = None
    with tqdm(total=len(units), desc="bench", unit="batch", disable=quiet) as bar:
        for name, what, measure in units:
            if not results.has(name):
                bar.set_postfix_str(f"{what} (new shapes compile first)")
                if before != name[:2]:
                    measurement.forget_programs()
                before = name[:2]
                results.add(name, measure())
            bar.update()


def check_askable(name: str, target: LanguageModel, questions: Sequence[Conversation]) -> None:
    """Raises `ValueError` unless the model can be asked, and there is something to ask."""
    if target.tokenizer is None:
        raise ValueError(f"{name} has no tokenizer, so it cannot be asked questions; pass a model with one")
    if not any(is_asked(question, turn) for question in questions for turn in range(len(question.turns))):
        raise ValueError("every question has its answers already, so there is nothing to measure; leave answers out")


_Unit = tuple[tuple[int, float, int | str], str, Callable[[], list[dict[str, Any]]]]


def _units(setting: Setting, questions: Sequence[Conversation], measurement: Measurement) -> Iterator[_Unit]:
    """What is measured at once, how a person calls it, and what measures it: batches of questions, then rounds."""
    for batch in setting.batches:
        for temperature in setting.temperatures:
            labels = {"batch": batch, "temperature": temperature}
            rows = groups(questions, batch)
            for index, group in enumerate(rows):
                turns = lambda group=group, labels=labels: [  # noqa: E731
                    {"kind": "turn", **labels, **record} for record in measurement.turns(group, labels["temperature"])
                ]
                yield (batch, temperature, index), f"batch {batch}, temperature {temperature:g}, {group.task}", turns
            if setting.split_rounds:
                split = lambda group=rows[0], labels=labels: [  # noqa: E731
                    {"kind": "rounds", **labels, "cases": _split(measurement, group, labels["temperature"])}
                ]
                yield (batch, temperature, "rounds"), f"batch {batch}, temperature {temperature:g}, rounds", split


def _split(measurement: Measurement, group: Group, temperature: float) -> dict[str, Any]:
    tokenizer = measurement.target.tokenizer
    rows = [measurement.questions[index] for index in group.members]
    turns = [min(len(row.answers), len(row.turns) - 1) for row in rows]
    prompts = [prompt_of(tokenizer, row, turn, {}) for row, turn in zip(rows, turns, strict=True)]
    cases = measurement.cases_for(len(rows))
    return split_rounds(measurement.target, cases, prompts, temperature, repeats=measurement.setting.repeats)


def machine(target: LanguageModel, energy: str | None) -> dict[str, Any]:
    """Where figures come from, for JSON; `energy` is what counts it."""
    device = jax.devices()[0]
    return {
        "device": f"{device.platform} {device.device_kind} x {jax.device_count()}, {platform.machine()}",
        "dtype": target.dtype.name,
        "products": kernels_of(target),
        "jaxspec": _version(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "energy": energy,
        "peak_memory_of": peak_memory()[1],
    }


def _versions(setting: Setting) -> dict[str, Any]:
    """Of the peers, for JSON: nothing where none is asked for."""
    return {"peers": {name: PEERS[name].versions() for name in setting.against}} if setting.against else {}


def _version() -> str:
    try:
        return importlib.metadata.version("jaxspec-decode")
    except importlib.metadata.PackageNotFoundError:
        return "of a checkout"

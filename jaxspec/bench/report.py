"""Lays out a run's figures as tables, for the terminal and for Markdown."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from jaxspec.bench.advice import where
from jaxspec.bench.peers.panel import PEERS
from jaxspec.bench.quality import Quality
from jaxspec.bench.records import Header, Turn, group_by
from jaxspec.bench.summary import ALL, Against, Spread, Summary

_NOTHING = "-"


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells of text; every row is as long as `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def number(value: float | None, form: str = ".2f") -> str:
    """Formats a figure, or its absence."""
    return _NOTHING if value is None else format(value, form)


def spread(value: Spread | None) -> str:
    """Formats a median with the least and the largest."""
    return _NOTHING if value is None else f"{value.median:.2f} ({value.low:.2f}-{value.high:.2f})"


_SPEED: dict[str, Callable[[Summary], str]] = {
    "": lambda one: one.case,
    "tokens/s": lambda one: f"{one.tokens_per_second.median:.1f}",
    "speed-up": lambda one: spread(one.speedup),
    "decoding alone": lambda one: spread(one.decode_speedup),
    "tokens a round": lambda one: f"{one.mean_acceptance_length:.2f}",
    "accepted": lambda one: number(one.speedup and one.acceptance_rate, ".0%"),
    "J/token": lambda one: number(one.joules_per_token),
}
_WAITING: dict[str, Callable[[Summary], str]] = {
    "": lambda one: one.case,
    "prompt, ms": lambda one: f"{one.prefill_seconds * 1e3:.1f}",
    "first token, ms": lambda one: f"{one.first_token_seconds * 1e3:.1f}",
    "100 tokens, s": lambda one: number(one.hundred_tokens_seconds),
    "answer P50, s": lambda one: f"{one.latency_median:.2f}",
    "answer P99, s": lambda one: f"{one.latency_p99:.2f}",
    "requests/s": lambda one: f"{one.requests_per_second.median:.3f}",
}


def tables(summaries: Sequence[Summary]) -> list[Table]:
    """Returns three tables for each setting: the speed-up by task, speed and acceptance, and waiting times."""
    found = []
    for setting, chosen in group_by(summaries, where).items():
        totals = [one for one in chosen if one.task == ALL]
        cases = group_by((one for one in chosen if one.speedup is not None), lambda one: one.case)
        speedups = [
            (case, *(f"{one.speedup.median:.2f}" for one in several if one.speedup)) for case, several in cases.items()
        ]
        tasks = dict.fromkeys(one.task for one in chosen)
        found.append(Table(f"speed-up over plain decoding, {setting}", ("", *tasks), tuple(speedups)))
        for title, columns in (
            (f"all tasks, {setting}: median (least-largest over repeats)", _SPEED),
            (f"{totals[0].requests} requests a repeat, {setting}", _WAITING),
        ):
            rows = tuple(tuple(cell(one) for cell in columns.values()) for one in totals)
            found.append(Table(title, tuple(columns), rows))
    return found


def peer_tables(found: Sequence[Against]) -> list[Table]:
    """Returns two tables for each temperature: how fast each case was over each peer, by task, and the peers' speed."""
    tables = []
    for temperature, chosen in group_by(found, lambda one: one.temperature).items():
        ratios, speeds, tasks = [], [], dict.fromkeys(one.task for one in chosen)
        for peer, by_task in group_by(chosen, lambda one: one.peer).items():
            for case in by_task[0].ratios:
                ratios.append((f"{case} / {peer}", *(f"{one.ratios[case].median:.2f}" for one in by_task)))
            each = (f"{one.tokens_per_second.median:.1f}" for one in by_task)
            speeds.append((peer, *each, number(by_task[-1].acceptance_rate, ".0%")))
        setting = f"batch 1, temperature {temperature:g}"
        tables.append(Table(f"tokens/s of jaxspec over the peers', {setting}", ("", *tasks), tuple(ratios)))
        tables.append(Table(f"the peers' tokens/s, {setting}", ("", *tasks, "accepted"), tuple(speeds)))
    return tables


def quality_tables(found: Sequence[Quality]) -> list[Table]:
    """Returns tables of tokens where they must be the same, of perplexity and BLEU where they need not."""
    exact, drawn = [], []
    for one in found:
        setting = (one.case, f"{one.temperature:g}", str(one.batch))
        if (same := one.agreement) is not None:
            exact.append((*setting, *map(str, (same.answers, same.same, same.near_ties, same.different))))
        elif (loss := one.perplexity) is not None:
            bleu = (number(one.bleu and one.bleu.other), number(one.bleu and one.bleu.plain))
            drawn.append((*setting, str(loss.questions), f"{loss.other:.3f}", f"{loss.plain:.3f}", *bleu))
    setting = ("", "temperature", "batch")
    agreed = (*setting, "answers", "same tokens", "diverged at a near tie", "different")
    compared = (*setting, "questions", "perplexity", "plain", "BLEU", "plain")
    tables = [
        Table("quality: tokens against those of plain decoding", agreed, tuple(exact)),
        Table("quality: perplexity under the target, and BLEU against references", compared, tuple(drawn)),
    ]
    return [table for table in tables if table.rows]


def notes(header: Header, turns: Sequence[Turn]) -> list[str]:
    """Lists what a reader of the tables must know: where they come from, and what was not measured."""
    setting, machine = header["setting"], header["machine"]
    peak = max(turn["peak_memory_bytes"] for turn in turns)
    left_out = sum(len(turn["left_out"]) for turn in turns)
    energy = machine["energy"] or "unavailable on this machine"
    found = [
        f"{machine['device']}, jaxspec {machine['jaxspec']}, JAX {machine['jax']}, Python {machine['python']}; "
        f"{setting['model']}, {machine['dtype']}, {machine['kernels']} kernels",
        f"{setting['questions']} questions, at most {setting['max_new_tokens']} new tokens, {setting['repeats']} "
        "repeats in turn with plain decoding, compilation left out, token ids counted on both sides",
        f"peak memory {peak / 1e9:.2f} GB ({machine['peak_memory_of']}, all cases together); energy: {energy}",
    ]
    if left_out:
        found.append(f"{left_out} answers left out: their texts have no room in a model's context")
    for name, versions in machine.get("peers", {}).items():
        if versions is None:
            found.append(f"{name} was not measured: it is not installed; {PEERS[name].install}")
        else:
            shown = ", ".join(f"{package} {version}" for package, version in versions.items())
            found.append(f"{name}: {shown}, in a process of its own, the same weights, token ids and cores")
    return found


def markdown(command: str, notes: Iterable[str], tables: Iterable[Table], sentences: Iterable[str]) -> str:
    """Returns a run's report as one document."""
    bullets = lambda texts: "\n".join(f"* {text}" for text in texts)  # noqa: E731
    parts = [f"`{command}`", bullets(notes)]
    for table in tables:
        rows = [table.columns, ("---", *("---:" for _ in table.columns[1:])), *table.rows]
        lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
        parts.append(f"**{table.title}**\n\n" + "\n".join(lines))
    return "\n\n".join([*parts, bullets(sentences)]) + "\n"

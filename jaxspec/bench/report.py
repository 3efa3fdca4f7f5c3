"""Lays out a run's figures as tables, for the terminal and for Markdown."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jaxspec.bench.advice import where
from jaxspec.bench.peers.table import PEERS
from jaxspec.bench.records import Turn, group_by, setting_of
from jaxspec.bench.summary import ALL, Against, Summary
from jaxspec.bench.timing import Spread

_NOTHING = "-"
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Table:
    """Holds cells of text; every row is as long as `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, title: str, columns: Mapping[str, Callable[[T], str]], items: Iterable[T]) -> "Table":
        """Lays items out, one a row: of each column its cell."""
        return cls(title, tuple(columns), tuple(tuple(cell(one) for cell in columns.values()) for one in items))


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
    "prompt, ms": lambda one: f"{one.prefill_seconds * 1e3:.1f}",
    "answer, s": lambda one: f"{one.latency:.2f}",
}


def tables(summaries: Sequence[Summary]) -> list[Table]:
    """Returns two tables for each setting: the speed-up by task, and the speed and acceptance over all of them."""
    found = []
    for setting, chosen in group_by(summaries, where).items():
        totals = [one for one in chosen if one.task == ALL]
        cases = group_by((one for one in chosen if one.speedup is not None), lambda one: one.case).items()
        speedups = [(case, *(number(one.speedup and one.speedup.median) for one in several)) for case, several in cases]
        tasks = dict.fromkeys(one.task for one in chosen)
        found.append(Table(f"speed-up over plain decoding, {setting}", ("", *tasks), tuple(speedups)))
        title = f"{totals[0].requests} requests, {setting}: median (least-largest over repeats)"
        found.append(Table.of(title, _SPEED, totals))
    return found


def peer_tables(found: Sequence[Against]) -> list[Table]:
    """Returns two tables for each temperature and weights: each case over each peer, by task, and the peers' speed."""
    tables = []
    for setting, chosen in group_by(found, where).items():
        ratios, speeds, tasks = [], [], dict.fromkeys(one.task for one in chosen)
        for peer, by_task in group_by(chosen, lambda one: one.peer).items():
            for case in by_task[0].ratios:
                ratios.append((f"{case} / {peer}", *(f"{one.ratios[case].median:.2f}" for one in by_task)))
            speeds.append((peer, *(f"{one.tokens_per_second.median:.1f}" for one in by_task)))
        tables.append(Table(f"tokens/s of jaxspec over the peers', {setting}", ("", *tasks), tuple(ratios)))
        tables.append(Table(f"the peers' tokens/s, {setting}", ("", *tasks), tuple(speeds)))
    return tables


def origin(setting: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    """Says what figures are of, and where they come from."""
    return (
        f"{machine['device']}, jaxspec {machine['jaxspec']}, JAX {machine['jax']}, Python {machine['python']}; "
        f"{setting['model']}, {machine['dtype']}, {machine['kernels']} kernels"
    )


def notes(header: Mapping[str, Any], turns: Sequence[Turn]) -> list[str]:
    """Lists what a reader of the tables must know: where they come from, and what was not measured."""
    setting, machine = header["setting"], header["machine"]
    kinds = list(dict.fromkeys(setting_of(turn)[2] for turn in turns))
    # It never falls, so that what comes later would have that of what came before.
    peak = max(turn["peak_memory_bytes"] for turn in turns if setting_of(turn)[2] == kinds[0])
    left_out = sum(len(turn["left_out"]) for turn in turns)
    found = [
        origin(setting, machine),
        f"{setting['questions']} questions, at most {setting['max_new_tokens']} new tokens, {setting['repeats']} "
        "repeats in turn with plain decoding, compilation left out, token ids counted on both sides",
        f"peak memory {peak / 1e9:.2f} GB ({machine['peak_memory_of']}, all cases together{_of(kinds[0])})",
    ]
    if len(kinds) > 1:
        file, arrays = kinds
        found.append(
            f"{file}: jaxspec's model as it is loaded, and the same file in each program that reads it, by its own "
            f"arithmetic; {arrays}: the same numbers in all programs, one request at a time"
        )
    if left_out:
        found.append(f"{left_out} answers left out: their texts have no room in a model's context")
    for name, versions in machine.get("peers", {}).items():
        if versions is None:
            found.append(f"{name} was not measured: it is not installed; {PEERS[name].install}")
        else:
            shown = ", ".join(f"{package} {version}" for package, version in versions.items())
            found.append(f"{name}: {shown}, in a process of its own, the same weights, token ids and cores")
    return found


def _of(weights: str) -> str:
    return f", {weights}" if weights else ""


def markdown(command: str, notes: Iterable[str], tables: Iterable[Table], sentences: Iterable[str]) -> str:
    """Returns a run's report as one document."""
    bullets = lambda texts: "\n".join(f"* {text}" for text in texts)  # noqa: E731
    parts = [f"`{command}`", bullets(notes)]
    for table in tables:
        rows = [table.columns, ("---", *("---:" for _ in table.columns[1:])), *table.rows]
        lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
        parts.append(f"**{table.title}**\n\n" + "\n".join(lines))
    return "\n\n".join([*parts, bullets(sentences)]) + "\n"

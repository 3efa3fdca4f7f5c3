"""A run's figures as rows of text, for the terminal and for Markdown."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspec.bench.advice import verdicts, where
from jaxspec.bench.groups import in_order
from jaxspec.bench.peers.named import PEERS
from jaxspec.bench.summary import ALL, Spread, Summary

_NOTHING = "-"


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells of text; every row is as long as `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(summaries: Sequence[Summary]) -> list[Table]:
    """Three for each setting: the speed-up by task, speed and acceptance, and waiting times."""
    found = []
    for setting in dict.fromkeys((one.batch, one.temperature) for one in summaries):
        chosen = [one for one in summaries if (one.batch, one.temperature) == setting]
        whole = [one for one in chosen if one.task == ALL]
        found += [_by_task(chosen, where(chosen[0])), _speed(whole), _waiting(whole)]
    return found


def _by_task(chosen: Sequence[Summary], name: str) -> Table:
    columns = [*in_order({one.task for one in chosen} - {ALL}), ALL]
    cells = {(one.case, one.task): one for one in chosen if one.speedup is not None}
    cases = dict.fromkeys(case for case, _ in cells)
    rows = tuple((case, *(f"{cells[case, task].speedup.median:.2f}" for task in columns)) for case in cases)
    return Table(f"speed-up over plain decoding, {name}", ("", *columns), rows)


def _speed(whole: Sequence[Summary]) -> Table:
    columns = ("", "tokens/s", "speed-up", "decoding alone", "tokens a round", "accepted", "J/token")
    rows = tuple(
        (
            one.case,
            f"{one.tokens_per_second.median:.1f}",
            _spread(one.speedup),
            _spread(one.decode_speedup),
            f"{one.mean_acceptance_length:.2f}",
            _NOTHING if one.speedup is None else f"{one.acceptance_rate:.0%}",
            _NOTHING if one.joules_per_token is None else f"{one.joules_per_token:.2f}",
        )
        for one in whole
    )
    return Table(f"all tasks, {where(whole[0])}: median (least-largest over repeats)", columns, rows)


def _waiting(whole: Sequence[Summary]) -> Table:
    columns = ("", "prompt, ms", "first token, ms", "100 tokens, s", "answer P50, s", "answer P99, s", "requests/s")
    rows = tuple(
        (
            one.case,
            f"{one.prefill_seconds * 1e3:.1f}",
            f"{one.first_token_seconds * 1e3:.1f}",
            _NOTHING if one.hundred_tokens_seconds is None else f"{one.hundred_tokens_seconds:.2f}",
            f"{one.latency_median:.2f}",
            f"{one.latency_p99:.2f}",
            f"{one.requests_per_second.median:.3f}",
        )
        for one in whole
    )
    return Table(f"{whole[0].requests} requests a repeat, {where(whole[0])}", columns, rows)


def _spread(value: Spread | None) -> str:
    return _NOTHING if value is None else f"{value.median:.2f} ({value.low:.2f}-{value.high:.2f})"


def notes(header: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader of the tables must know: where they come from, and what was not measured."""
    setting, machine = header["setting"], header["machine"]
    turns = [record for record in records if record["kind"] == "turn"]
    peak = max(turn["peak_memory_bytes"] for turn in turns)
    left_out = sum(len(turn["left_out"]) for turn in turns)
    energy = machine["energy"] or "unavailable on this machine"
    told = [
        f"{machine['device']}, jaxspec {machine['jaxspec']}, JAX {machine['jax']}, Python {machine['python']}; "
        f"{setting['model']}, {machine['dtype']}, {machine['products']} products",
        f"{setting['questions']} questions, at most {setting['max_new_tokens']} new tokens, {setting['repeats']} "
        "repeats in turn with plain decoding, compilation left out, token ids counted on both sides",
        f"peak memory {peak / 1e9:.2f} GB ({machine['peak_memory_of']}, all cases together); energy: {energy}",
    ]
    if left_out:
        told.append(f"{left_out} answers left out: their texts have no room in a model's context")
    for name, versions in machine.get("peers", {}).items():
        shown = versions and ", ".join(f"{package} {version}" for package, version in versions.items())
        missing = f"{name} was not measured: it is not installed; {PEERS[name].install}"
        told.append(
            f"{name}: {shown}, in a process of its own, the same weights, token ids and cores" if shown else missing
        )
    return told


def markdown(
    header: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    summaries: Sequence[Summary],
    more: Sequence[Table] = (),
    sentences: Sequence[str] = (),
) -> str:
    """All of it as one document; `more` tables and `sentences` come last of their kind."""
    parts = [f"`{header['command']}`", "\n".join(f"* {note}" for note in notes(header, records))]
    for table in [*tables(summaries), *more]:
        rows = [table.columns, ("---", *("---:" for _ in table.columns[1:])), *table.rows]
        lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
        parts.append(f"**{table.title}**\n\n" + "\n".join(lines))
    parts.append("\n".join(f"* {text}" for text in [*(text for _, text in verdicts(summaries)), *sentences]))
    return "\n\n".join(parts) + "\n"

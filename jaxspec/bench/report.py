"""Lays out a run's figures as tables, for the terminal and for Markdown."""

import dataclasses
from collections.abc import Iterable, Sequence

from jaxspec.bench.advice import where
from jaxspec.bench.peers.named import PEERS
from jaxspec.bench.quality import Quality
from jaxspec.bench.questions import in_order
from jaxspec.bench.records import Header, Record
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


def tables(summaries: Sequence[Summary]) -> list[Table]:
    """Returns three tables for each setting: the speed-up by task, speed and acceptance, and waiting times."""
    found = []
    for setting in dict.fromkeys(map(where, summaries)):
        chosen = [one for one in summaries if where(one) == setting]
        totals = [one for one in chosen if one.task == ALL]
        found += [_by_task(chosen, setting), _speed(totals, setting), _waiting(totals, setting)]
    return found


def _by_task(chosen: Sequence[Summary], setting: str) -> Table:
    columns = [*in_order({one.task for one in chosen} - {ALL}), ALL]
    cells = {(one.case, one.task): one.speedup for one in chosen if one.speedup is not None}
    cases = dict.fromkeys(case for case, _ in cells)
    rows = tuple((case, *(f"{cells[case, task].median:.2f}" for task in columns)) for case in cases)
    return Table(f"speed-up over plain decoding, {setting}", ("", *columns), rows)


def _speed(totals: Sequence[Summary], setting: str) -> Table:
    columns = ("", "tokens/s", "speed-up", "decoding alone", "tokens a round", "accepted", "J/token")
    rows = tuple(
        (
            one.case,
            f"{one.tokens_per_second.median:.1f}",
            spread(one.speedup),
            spread(one.decode_speedup),
            f"{one.mean_acceptance_length:.2f}",
            _NOTHING if one.speedup is None else f"{one.acceptance_rate:.0%}",
            number(one.joules_per_token),
        )
        for one in totals
    )
    return Table(f"all tasks, {setting}: median (least-largest over repeats)", columns, rows)


def _waiting(totals: Sequence[Summary], setting: str) -> Table:
    columns = ("", "prompt, ms", "first token, ms", "100 tokens, s", "answer P50, s", "answer P99, s", "requests/s")
    rows = tuple(
        (
            one.case,
            f"{one.prefill_seconds * 1e3:.1f}",
            f"{one.first_token_seconds * 1e3:.1f}",
            number(one.hundred_tokens_seconds),
            f"{one.latency_median:.2f}",
            f"{one.latency_p99:.2f}",
            f"{one.requests_per_second.median:.3f}",
        )
        for one in totals
    )
    return Table(f"{totals[0].requests} requests a repeat, {setting}", columns, rows)


def peer_tables(found: Sequence[Against]) -> list[Table]:
    """Returns two tables for each temperature: how fast each case was over each peer, by task, and the peers' speed."""
    tables = []
    for temperature in dict.fromkeys(one.temperature for one in found):
        chosen = [one for one in found if one.temperature == temperature]
        tasks = tuple(dict.fromkeys(one.task for one in chosen))
        peers = tuple(dict.fromkeys(one.peer for one in chosen))
        cells = {(one.peer, one.task): one for one in chosen}
        ratios = tuple(
            (f"{case} / {peer}", *(f"{cells[peer, task].ours[case].median:.2f}" for task in tasks))
            for peer in peers
            for case in chosen[0].ours
        )
        speeds = tuple(
            (
                peer,
                *(f"{cells[peer, task].tokens_per_second.median:.1f}" for task in tasks),
                number(cells[peer, ALL].acceptance_rate, ".0%"),
            )
            for peer in peers
        )
        setting = f"batch 1, temperature {temperature:g}"
        tables.append(Table(f"tokens/s of jaxspec over the peers', {setting}", ("", *tasks), ratios))
        tables.append(Table(f"the peers' tokens/s, {setting}", ("", *tasks, "accepted"), speeds))
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
    columns = ("", "temperature", "batch")
    tables = [
        Table(
            "quality: tokens against those of plain decoding",
            (*columns, "answers", "same tokens", "diverged at a near tie", "different"),
            tuple(exact),
        ),
        Table(
            "quality: perplexity under the target, and BLEU against references",
            (*columns, "questions", "perplexity", "plain", "BLEU", "plain"),
            tuple(drawn),
        ),
    ]
    return [table for table in tables if table.rows]


def notes(header: Header, records: Sequence[Record]) -> list[str]:
    """Lists what a reader of the tables must know: where they come from, and what was not measured."""
    setting, machine = header["setting"], header["machine"]
    turns = [record for record in records if record["kind"] == "turn"]
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

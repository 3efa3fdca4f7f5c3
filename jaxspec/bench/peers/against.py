"""Ours over the peers: speed, task by task, and whether tokens are the same."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jaxspec.bench.cases import PLAIN
from jaxspec.bench.groups import in_order
from jaxspec.bench.quality import Agreement, divergences
from jaxspec.bench.quality_report import agreed
from jaxspec.bench.summary import ALL, Spread, speeds
from jaxspec.bench.tables import Table


@dataclasses.dataclass(frozen=True)
class Against:
    """One mode of a peer on one task, or on all of them, batch 1.

    Attributes:
      temperature: 0 is greedy decoding.
      peer: its name and mode.
      task: of Spec-Bench, or "all".
      tokens_per_second: the mean over questions, of whole requests.
      ours: each of our cases' tokens a second over the peer's, repeat by repeat.
      acceptance_rate: accepted over drafted tokens of the peer; `None` where it drafts none, or does not tell.
      agreement: its tokens and those of our plain decoding; `None` where they are drawn.
    """

    temperature: float
    peer: str
    task: str
    tokens_per_second: Spread
    ours: dict[str, Spread]
    acceptance_rate: float | None
    agreement: Agreement | None


def against(records: Sequence[dict[str, Any]]) -> list[Against]:
    """One for each temperature, task and mode, in the order they were measured; "all" is last."""
    found, settings = [], {}
    for record in records:
        if record.get("peers"):
            settings.setdefault(record["temperature"], []).append(record)
    for temperature, turns in settings.items():
        for task in [*in_order({turn["task"] for turn in turns}), ALL]:
            chosen = [turn for turn in turns if task in (ALL, turn["task"])]
            found += [_against(temperature, task, peer, chosen) for peer in turns[0]["peers"]]
    return found


def _against(temperature: float, task: str, peer: str, turns: list[dict[str, Any]]) -> Against:
    theirs = speeds(turns, peer, "peers")
    ours = {case: speeds(turns, case) for case in turns[0]["cases"]}
    repeats = [repeat for turn in turns for repeat in turn["peers"][peer]["repeats"]]
    drafted = sum(repeat["drafted"] or 0 for repeat in repeats)
    return Against(
        temperature,
        peer,
        task,
        Spread.of(theirs),
        {case: Spread.of(a / b for a, b in zip(own, theirs, strict=True)) for case, own in ours.items()},
        sum(repeat["accepted"] or 0 for repeat in repeats) / drafted if drafted else None,
        Agreement.of(divergences(turns, "peers", peer)) if "partings" in repeats[0] else None,
    )


def tables(found: Sequence[Against]) -> list[Table]:
    """For each temperature how fast each of our cases was over each peer: by task, and what the peers did."""
    tables = []
    for temperature in dict.fromkeys(one.temperature for one in found):
        chosen = [one for one in found if one.temperature == temperature]
        tasks = list(dict.fromkeys(one.task for one in chosen))
        cells = {(one.peer, one.task): one for one in chosen}
        peers = list(dict.fromkeys(one.peer for one in chosen))
        rows = tuple(
            (f"{case} / {peer}", *(f"{cells[peer, task].ours[case].median:.2f}" for task in tasks))
            for peer in peers
            for case in chosen[0].ours
        )
        tables.append(
            Table(f"tokens/s of ours over the peers', batch 1, temperature {temperature:g}", ("", *tasks), rows)
        )
        rows = tuple(
            (
                peer,
                *(f"{cells[peer, task].tokens_per_second.median:.1f}" for task in tasks),
                "-" if cells[peer, ALL].acceptance_rate is None else f"{cells[peer, ALL].acceptance_rate:.0%}",
            )
            for peer in peers
        )
        tables.append(
            Table(f"the peers' tokens/s, batch 1, temperature {temperature:g}", ("", *tasks, "accepted"), rows)
        )
    return tables


def verdicts(found: Sequence[Against]) -> Iterator[tuple[bool, str]]:
    """For each mode of a peer how our fastest case did against it, and whether the tokens are the same."""
    for one in found:
        if one.task != ALL:
            continue
        case, speed = max(one.ours.items(), key=lambda pair: pair[1].median)
        sense = "FASTER than" if speed.median > 1 else "SLOWER than" if speed.median < 1 else "as fast as"
        name = "plain decoding" if case == PLAIN else case
        start = f"batch 1, temperature {one.temperature:g}: our {name} was {sense} {one.peer}: {speed.median:.2f}x"
        text = f"{start} (repeats {speed.low:.2f} to {speed.high:.2f})."
        if one.agreement is not None:
            text += f" {one.peer} {agreed(one.agreement, 'our plain decoding')}"
        yield speed.median > 1, text

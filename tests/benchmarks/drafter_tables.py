"""What drafters did, as tables in Markdown."""

from collections.abc import Mapping
from typing import Any

from jaxspec.bench.questions import Counts
from tests.benchmarks.draft_bytes import speedup_by_bytes

Found = Mapping[str, Mapping[str, Mapping[str, int]]]


def markdown(found: Found) -> str:
    """A table of tokens a round: a row for each of `found`, "NAME, temperature T", and a column for each task.

    Over all tasks, rounds count and not tasks. The last column is the share of drafts that was kept.
    """
    tasks = sorted({task for counts in found.values() for task in counts})
    rows = [f"| drafter | {' | '.join(tasks)} | all | kept |", "|---" * (len(tasks) + 3) + "|"]
    for label, counts in found.items():
        total, cells = total_of(counts), []
        for task in tasks:
            one = Counts(**counts.get(task, {}))
            cells.append(f"{one.mean_acceptance_length:.2f}" if one.rounds else "")
        name = label.replace("temperature ", "T = ")
        whole = f"**{total.mean_acceptance_length:.2f}** | {total.acceptance_rate:.0%}"
        rows.append(f"| {name} | {' | '.join(cells)} | {whole} |")
    return "\n".join(rows)


def total_of(counts: Mapping[str, Mapping[str, int]]) -> Counts:
    """All tasks together."""
    total = Counts()
    for one in counts.values():
        total.add(Counts(**one))
    return total


def costs_markdown(found: Found, costs: Mapping[str, Mapping[str, Any]], measured: Mapping[str, float | None]) -> str:
    """A table of what drafters gain at temperature 0, best prediction first.

    Args:
      found: as of `markdown`, greedy rows among them.
      costs: a `DrafterCost` as a dictionary, by the drafter's name; rows are made of these.
      measured: speed-ups of whole answers without their prompts' time, by name; `None` where they were too short.
    """
    lengths = {name: total_of(found[greedy(name)]).mean_acceptance_length for name in costs}
    rows_counted = list(next(iter(costs.values()))["by_bytes"]) if costs else []
    by_bytes = "".join(f" by bytes, {rows} {'row' if rows == '1' else 'rows'} |" for rows in rows_counted)
    heads = f"| drafter | drafts | tokens a round | drafting | a round, in steps | predicted | measured |{by_bytes}"
    lines = [heads, "|---" * (7 + len(rows_counted)) + "|"]
    predicted = {name: lengths[name] / one["round"] for name, one in costs.items()}
    for name in sorted(costs, key=lambda name: -predicted[name]):
        one = costs[name]
        cells = [name, str(one["drafts"]), f"{lengths[name]:.2f}", f"{one['share']:.0%}", f"{one['round']:.2f}"]
        cells += [f"**{predicted[name]:.2f}**", "" if measured.get(name) is None else f"{measured[name]:.2f}"]
        for passes in one["by_bytes"].values():
            cells.append("" if passes is None else f"{speedup_by_bytes(lengths[name], passes):.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def greedy(name: str) -> str:
    """A drafter's label in `found` at temperature 0."""
    return f"{name}, temperature 0"

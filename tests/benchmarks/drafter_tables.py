"""Formats what drafters did as tables in Markdown."""

from collections.abc import Mapping
from typing import Any

from tests.benchmarks.counting import Counts

Found = Mapping[str, Mapping[str, Mapping[str, int]]]


def markdown(found: Found) -> str:
    """Returns a table of tokens a round: a row for each of `found`, "NAME, temperature T", and a column for each task.

    Over all tasks, rounds count and not tasks. The last column is the share of drafts that was accepted.
    """
    tasks = sorted({task for counts in found.values() for task in counts})
    rows = [f"| drafter | {' | '.join(tasks)} | all | accepted |", "|---" * (len(tasks) + 3) + "|"]
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
    """Sums the counts of all tasks."""
    total = Counts()
    for one in counts.values():
        total.add(Counts(**one))
    return total


def costs_markdown(found: Found, costs: Mapping[str, Mapping[str, Any]], measured: Mapping[str, float | None]) -> str:
    """Returns a table of what drafters cost and gain at temperature 0, in the order of `costs`.

    Args:
      found: the results, as in `markdown`, greedy rows among them.
      costs: a `DrafterCost` as a dictionary, by the drafter's name; rows are made of these.
      measured: speed-ups of whole answers without their prompts' time, by name; `None` where they were too short.
    """
    lines = ["| drafter | drafts | tokens a round | drafting | a round, in steps | measured |", "|---" * 6 + "|"]
    for name, one in costs.items():
        length, gain = total_of(found[greedy(name)]).mean_acceptance_length, measured.get(name)
        cells = [name, str(one["drafts"]), f"{length:.2f}", f"{one['share']:.0%}", f"{one['round']:.2f}"]
        cells.append("" if gain is None else f"**{gain:.2f}**")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def greedy(name: str) -> str:
    """Returns a drafter's label in `found` at temperature 0."""
    return f"{name}, temperature 0"

"""Formats a run's figures: as tables, sentences of advice, a Markdown document, and plots."""

import dataclasses
import importlib.util
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxspec.bench.cases import PLAIN
from jaxspec.bench.peers.table import PEERS
from jaxspec.bench.quality import LEVEL, NEAR, Agreement, FigureDifference, Quality
from jaxspec.bench.records import Turn, group_by, setting_of
from jaxspec.bench.summary import ALL, Against, Summary
from jaxspec.bench.timing import Spread
from jaxspec.io.files import write_bytes

_NOTHING = "-"
# Below this acceptance rate, a drafter guesses almost nothing.
_FEW_ACCEPTED = 0.3
_SENSES = {True: "within noise", False: "a REAL difference", None: "one question is not enough to tell"}
# The style of matplotlib's plots; a fixed salt makes files reproducible.
_STYLE: dict[Any, Any] = {"svg.hashsalt": "jaxspec", "axes.spines.top": False, "axes.spines.right": False}
_STYLE |= {"legend.fontsize": 8, "legend.frameon": False, "lines.markersize": 3.5, "errorbar.capsize": 2}
T = TypeVar("T")
# Whether the news is good, and one or more sentences.
Advice = tuple[bool, str]


def where(one: Summary | Quality | Against) -> str:
    """Names the setting of a summary."""
    weights = f", {one.weights}" if one.weights else ""
    return f"batch {one.batch}, temperature {one.temperature:g}{weights}"


@dataclasses.dataclass(frozen=True)
class Table:
    """Holds cells of text; every row is as long as `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, title: str, columns: Mapping[str, Callable[[T], str]], items: Iterable[T]) -> "Table":
        """Makes a table with one item per row; each column maps an item to its cell."""
        return cls(title, tuple(columns), tuple(tuple(cell(one) for cell in columns.values()) for one in items))


def number(value: float | None, form: str = ".2f") -> str:
    """Formats a figure; `None` gives a dash."""
    return _NOTHING if value is None else format(value, form)


def spread(value: Spread | None) -> str:
    """Formats a median with the minimum and the maximum; `None` gives a dash."""
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
    """Returns two tables for each setting: the speed-up by task, and the speed and acceptance over all tasks."""
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
    """Returns two tables for each setting: the speed of each case over each peer, and the peers' speed, by task."""
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
    """Describes the machine, versions, model and kernels that figures were measured with."""
    return (
        f"{machine['device']}, jaxspec {machine['jaxspec']}, JAX {machine['jax']}, Python {machine['python']}; "
        f"{setting['model']}, {machine['dtype']}, {machine['kernels']} kernels"
    )


def notes(header: Mapping[str, Any], turns: Sequence[Turn]) -> list[str]:
    """Returns notes for readers of the tables: how they were measured, and what was not measured."""
    setting, machine = header["setting"], header["machine"]
    kinds = list(dict.fromkeys(setting_of(turn)[2] for turn in turns))
    # The peak never falls, so later measurements would include that of earlier ones.
    peak = max(turn["peak_memory_bytes"] for turn in turns if setting_of(turn)[2] == kinds[0])
    left_out = sum(len(turn["left_out"]) for turn in turns)
    of = f", {kinds[0]}" if kinds[0] else ""
    found = [
        origin(setting, machine),
        f"{setting['questions']} questions, at most {setting['max_new_tokens']} new tokens, {setting['repeats']} "
        "repeats in turn with plain decoding, without compilation, token ids counted on both sides",
        f"peak memory {peak / 1e9:.2f} GB ({machine['peak_memory_of']}, all cases together{of})",
    ]
    if len(kinds) > 1:
        file, arrays = kinds
        found.append(
            f"{file}: jaxspec's model as it is loaded, and the same file in each program that reads it, by its own "
            f"arithmetic; {arrays}: the same numbers in all programs, one request at a time"
        )
    if left_out:
        found.append(f"{left_out} answers left out: their texts do not fit a model's context")
    for name, versions in machine.get("peers", {}).items():
        if versions is None:
            found.append(f"{name} was not measured: it is not installed; {PEERS[name].install}")
        else:
            shown = ", ".join(f"{package} {version}" for package, version in versions.items())
            found.append(f"{name}: {shown}, in a separate process, with the same weights, token ids and cores")
    return found


def markdown(command: str, notes: Iterable[str], tables: Iterable[Table], sentences: Iterable[str]) -> str:
    """Returns a run's report as a Markdown document."""
    bullets = lambda texts: "\n".join(f"* {text}" for text in texts)  # noqa: E731
    parts = [f"`{command}`", bullets(notes)]
    for table in tables:
        rows = [table.columns, ("---", *("---:" for _ in table.columns[1:])), *table.rows]
        lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
        parts.append(f"**{table.title}**\n\n" + "\n".join(lines))
    return "\n\n".join([*parts, bullets(sentences)]) + "\n"


def describe_speedup(speedup: Spread, other: str) -> str:
    """Says whether something was faster than `other`."""
    sense = "FASTER than" if speedup.median > 1 else "SLOWER than" if speedup.median < 1 else "as fast as"
    return f"{sense} {other}: {speedup.median:.2f}x (repeats {speedup.low:.2f} to {speedup.high:.2f})"


def advice(summaries: Sequence[Summary]) -> Iterator[Advice]:
    """Yields, for each setting and case, whether it was faster than plain decoding, and what to change if not.

    A case is faster if the median speed-up of whole requests is above 1. A gain or loss that not every repeat shows is
    reported as within their spread.
    """
    for setting, several in group_by((one for one in summaries if one.speedup is not None), where).items():
        cases = [(one, one.speedup) for one in several if one.task == ALL and one.speedup is not None]
        best = max((speedup.median, one.case) for one, speedup in cases)
        for one, speedup in cases:
            doubt = ", a difference within the spread of the repeats" if speedup.low <= 1 <= speedup.high else ""
            text = f"{setting}: {one.case} was {describe_speedup(speedup, 'plain decoding')}{doubt}."
            slower = [
                f"{other.task} {other.speedup.median:.2f}x"
                for other in several
                if other.case == one.case and other.task != ALL and other.speedup and other.speedup.median < 1
            ]
            if speedup.median <= 1 and best[0] > 1:
                text += f" {why_slower(one)}Use {best[1]}, which was {best[0]:.2f}x here."
            elif speedup.median <= 1:
                text += f" {why_slower(one)}{what_to_change(one, several)}, or decode without one (--drafter none)."
            elif slower:
                text += f" It was slower on {', '.join(slower)}: decode such texts without a drafter."
            yield speedup.median > 1, text


def why_slower(one: Summary) -> str:
    """Compares a round's time with its tokens, in a sentence and a space; empty if they were too short to time."""
    if one.round_cost is None:
        return ""
    return (
        f"A round took {one.round_cost:.2f} times as long as a plain step and gave {one.round_gain:.2f} times its "
        "tokens; it pays off where the second is larger. "
    )


def what_to_change(one: Summary, measured: Sequence[Summary]) -> str:
    """Says what to change about a case that was slower than plain decoding, without a final period.

    Args:
      one: the figures of the case.
      measured: all measurements in its setting; numbers of drafts that were already tried are not suggested.
    """
    drafts = len(one.acceptance_by_position)
    if one.acceptance_rate < _FEW_ACCEPTED:
        change = (
            f"Only {one.acceptance_rate:.0%} of the drafts were accepted: use a drafter trained for this model "
            "(`jaxspec train`)"
        )
    elif one.round_cost is not None and one.round_gain > one.round_cost:
        change = "Decoding alone was faster, but the time of the prompts outweighed it: ask for longer answers"
    else:
        change = "Its drafts were accepted but cost more than they saved: use a cheaper drafter"
    tried = {len(other.acceptance_by_position) for other in measured}
    fewer = f", draft fewer tokens (-k {drafts // 2})" if drafts > 1 and drafts // 2 not in tried else ""
    return f"{change}{fewer}{', decode smaller batches' if one.batch > 1 else ''}"


def peer_advice(found: Sequence[Against]) -> Iterator[Advice]:
    """Yields, for each mode of a peer, how the fastest case compares with it, and whether the tokens are equal."""
    for one in found:
        if one.task != ALL:
            continue
        case, speed = max(one.ratios.items(), key=lambda pair: pair[1].median)
        name = "plain decoding" if case == PLAIN else case
        text = f"{where(one)}: jaxspec's {name} was {describe_speedup(speed, one.peer)}."
        if one.agreement is not None:
            text += f" {one.peer} {agreed(one.agreement, 'plain decoding of jaxspec')}"
        yield speed.median > 1, text


def quality_advice(found: Sequence[Quality]) -> Iterator[Advice]:
    """Yields, for each case, whether its answers are as good as those of plain decoding."""
    for one in found:
        start = f"{where(one)}: {one.case}"
        if one.agreement is not None:
            yield one.agreement.different == 0, f"{start} {agreed(one.agreement, 'plain decoding')}"
        elif one.perplexity is not None:
            bleu = "no references in the questions, so no BLEU" if one.bleu is None else f"BLEU {_sense(one.bleu)}"
            good = all(side is None or side.within_noise is not False for side in (one.perplexity, one.bleu))
            loss = _sense(one.perplexity, "negative log-likelihood of a token ")
            yield good, f"{start}: perplexity {loss}; {bleu}."


def agreed(one: Agreement, other: str) -> str:
    """Compares a case's tokens with those of `other`."""
    if one.same == one.answers:
        return f"wrote the SAME tokens as {other} in all {one.answers} answers."
    text = f"as {other} in {one.same} of {one.answers} answers"
    ties = f"{one.near_ties} diverged where the target's two tokens were within {NEAR:g} of each other"
    if one.first is None:
        return f"wrote the SAME tokens {text}; {ties}."
    place = f"question {one.first['question']}, turn {one.first['turn']}, token {one.first['place']}"
    gap = one.first["distance"]
    why = "one answer ended there" if gap is None else f"the worse token was {gap:.3g} below the best"
    return f"wrote the same tokens {text} only; {ties}; {one.different} were DIFFERENT, first at {place}, where {why}."


def _sense(one: FigureDifference, of: str = "") -> str:
    text = f"{one.other:.2f} against {one.plain:.2f}, {of}{one.difference:+.4f}"
    if one.error is not None:
        text += f" ± {one.error:.4f} ({1 - LEVEL:.0%} interval {one.low:+.4f} to {one.high:+.4f})"
    return f"{text}: {_SENSES[one.within_noise]}"


def plots_need() -> str | None:
    """Returns the missing package that plots need and how to install it; `None` if it is installed."""
    if importlib.util.find_spec("matplotlib") is not None:
        return None
    return 'matplotlib, which is not installed; `pip install "jaxspec-decode[bench]"`'


def plot(folder: Path, summaries: Sequence[Summary]) -> None:
    """Plots the speed-up by task as an SVG file for each setting, in a folder that is created if needed."""
    import matplotlib
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for setting, chosen in group_by(summaries, where).items():
        file = folder / f"speed-up-by-task-{setting.replace(',', '').replace(' ', '-')}.svg"
        drawn = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=(7.5, 4.2), layout="constrained")
            _draw(figure.subplots(), [one for one in chosen if one.speedup is not None])
            figure.legend(loc="outside lower center", ncols=4)
            figure.savefig(drawn, format="svg", metadata={"Date": None})
        write_bytes(file, drawn.getvalue())


def _draw(axes, summaries: Sequence[Summary]) -> None:
    cases = group_by(summaries, lambda one: one.case)
    for index, (case, several) in enumerate(cases.items()):
        low, median, high = np.array([(s.low, s.median, s.high) for one in several if (s := one.speedup)]).T
        places = np.arange(len(several)) + (index + 0.5) / len(cases) * 0.8 - 0.4
        axes.errorbar(places, median, [median - low, high - median], label=case, fmt="o")
    axes.axhline(1, color="black", linewidth=1)
    axes.set_ylabel("speed-up over plain decoding")
    axes.set_title(where(summaries[0]), fontsize=10, loc="left")
    axes.grid(alpha=0.25, axis="y")
    tasks = [task.replace("_", "\n") for task in dict.fromkeys(one.task for one in summaries)]
    axes.set_xticks(range(len(tasks)), tasks, fontsize=8)

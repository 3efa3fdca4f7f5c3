"""Compiles the loop for TPUs, and prints a table of what it costs there: `python -m tests.benchmarks.tpu`."""

import argparse
import dataclasses
from collections.abc import Iterable, Iterator

from jaxspec.compiled.ahead_of_time import WEIGHTS, Case
from jaxspec.compiled.tpu import Report, as_json, between, kinds, report
from tests.benchmarks import machine_code

_SMOL = Case("smollm2-135m", "ngram", devices=1)
_8B, _70B = Case("llama-3.1-8b", "llama-3.2-1b"), Case("llama-3.3-70b", "llama-3.1-8b")
_405B = Case("llama-3.1-405b", "llama-3.1-8b")
_EAGLE = Case("llama-3.1-8b", "eagle")
_2026 = tuple(Case(model, "ngram") for model in ("olmo-2-7b", "olmo-3-7b", "granite-3.3-8b", "smollm3-3b"))
_SMALL3 = Case("mistral-small-3.1-24b", "ngram")
_DFLASH = tuple(Case(model, "dflash", k=15) for model in ("qwen3-4b", "qwen3-8b"))


def _on(case: Case, *topologies: str) -> tuple[Case, ...]:
    return tuple(dataclasses.replace(case, topology=topology) for topology in topologies)


CASES = {
    "quantized": tuple(dataclasses.replace(_8B, weights=name) for name in WEIGHTS),
    "small": (*_on(_SMOL, "v5e:2x2"), *_on(_8B, "v5e:2x2")),
    "all": (
        *_on(_SMOL, "v5e:2x2"),
        *_on(_8B, "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x4", "tpu7x:2x2x1"),
        *_on(_EAGLE, "v5e:2x2", "tpu7x:2x2x1"),
        *(each for case in _DFLASH for each in _on(case, "v5p:2x2x1")),
        *(each for case in _2026 for each in _on(case, "v5e:2x2")),
        *_on(_SMALL3, "v5e:2x4"),
        *_on(_70B, "v5e:4x4"),
        *_on(_405B, "v5p:4x4x4", "v6e:16x16"),
    ),
}
_COLUMNS = (
    "target, drafter",
    "topology",
    "memory, GB",
    "read a round, GB",
    "over the least",
    "a layer",
    "round, plain step (ms)",
    "speed-up at 2, 3, 4 tokens",
)


def report_with_code(case: Case) -> Report:
    """Returns the report of a case with what is known of its programs' machine code."""
    machine_code.ask_for_it()
    machine_code.collect()  # of what was compiled before
    return report(case, read_code=machine_code.read_code)


def markdown(reports: Iterable[Report]) -> Iterator[str]:
    """Yields the lines of a table, a row for each report."""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"{'|---' * len(_COLUMNS)}|"
    for one in reports:
        yield f"| {' | '.join(_cells(one))} |"


def _cells(one: Report) -> list[str]:
    case, own, plain = one.case, one.round, one.plain
    cells = [
        f"{case.model}, {case.drafter}" + ("" if case.weights == "bfloat16" else f", {case.weights}"),
        case.topology + (f" ({one.devices} used)" if case.devices else f" ({one.devices})"),
        f"{one.memory / 1e9:.1f} of {one.available / 1e9:.0f}" + ("" if one.fits else ": **no**"),
    ]
    if own is None or plain is None:
        return cells + [""] * (len(_COLUMNS) - len(cells))
    size = f", {own.layer_collective_bytes / 1e3:.0f} kB" if own.layer_collectives else ""
    return [
        *cells,
        f"{own.bytes / 1e9:.2f}",
        f"{own.bytes / own.least_bytes:.2f}",
        kinds(own.layer_collectives, " + ") + size,
        ", ".join(between(each.low * 1e3, each.high * 1e3) for each in (own, plain)),
        ", ".join(between(*one.speed_up[tokens]) for tokens in (2, 3, 4) if tokens in one.speed_up),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tpu", description=__doc__)
    parser.add_argument("--cases", choices=CASES, default="all")
    parser.add_argument("--json", action="store_true", help="one JSON object a case")
    options = parser.parse_args()
    reports = map(report_with_code, CASES[options.cases])
    for line in map(as_json, reports) if options.json else markdown(reports):
        print(line, flush=True)

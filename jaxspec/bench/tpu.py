"""Reports what the loop costs on TPUs: `python -m jaxspec.bench.tpu`, `jaxspec compile-report`.

For each case two programs are compiled, of speculative and of plain decoding. Everything is read
from them; nothing is run. Times are the compiler's estimates, without the collectives' latency.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator

from jaxspec.bench.ahead_of_time import Case, compile_case
from jaxspec.bench.round_cost import Costs, costs

_SMOL = Case("smollm2-135m", "ngram", devices=1)
_8B, _70B = Case("llama-3.1-8b", "llama-3.2-1b"), Case("llama-3.3-70b", "llama-3.1-8b")
_405B = Case("llama-3.1-405b", "llama-3.1-8b")


def _on(case: Case, *topologies: str) -> tuple[Case, ...]:
    return tuple(dataclasses.replace(case, topology=topology) for topology in topologies)


CASES = {
    "small": (*_on(_SMOL, "v5e:2x2"), *_on(_8B, "v5e:2x2")),
    "all": (
        *_on(_SMOL, "v5e:2x2"),
        *_on(_8B, "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x4", "tpu7x:2x2x1"),
        *_on(_70B, "v5e:4x4"),
        *_on(_405B, "v5p:4x4x4", "v6e:16x16"),
    ),
}
_COLUMNS = (
    "target, draft",
    "topology",
    "memory, GB",
    "read a round, GB",
    "over the least",
    "a layer",
    "round, plain step (ms)",
    "speed-up at 2, 3, 4 tokens",
)


@dataclasses.dataclass(frozen=True)
class Report:
    """The costs of a case's two programs; `round` and `plain` are `None` if one does not fit.

    Attributes:
      devices: how many run it.
      memory: bytes that each needs.
      available: bytes that each has.
      speed_up: over plain decoding, by the tokens that a round emits on average.
    """

    case: Case
    devices: int
    memory: int
    available: int
    round: Costs | None
    plain: Costs | None
    speed_up: dict[int, float]

    @property
    def fits(self) -> bool:
        """Whether the program fits the memory."""
        return self.round is not None


def report(case: Case) -> Report:
    """Compiles a case and reads its programs.

    Raises:
      ValueError: there is no such topology, model or number of devices.
      ImportError: the TPU compiler is not installed.
    """
    compiled = compile_case(case)
    sizes = (case, compiled.devices, compiled.memory, compiled.chip.memory)
    if not compiled.text:
        return Report(*sizes, round=None, plain=None, speed_up={})
    own = costs(case, compiled)
    if case.draft == "none":
        return Report(*sizes, round=own, plain=own, speed_up={1: 1.0})
    alone = dataclasses.replace(case, draft="none", k=0)
    plain = costs(alone, compile_case(alone))
    speed_up = {tokens: tokens * plain.seconds / own.seconds for tokens in range(1, case.k + 2)}
    return Report(*sizes, round=own, plain=plain, speed_up=speed_up)


def as_json(one: Report) -> str:
    """Returns a report as one line of JSON."""
    return json.dumps(dataclasses.asdict(one) | {"fits": one.fits})


def lines(one: Report) -> Iterator[tuple[str, str]]:
    """Yields a report line by line: a name and a value."""
    case, own, over = one.case, one.round, one.memory - one.available
    yield "target, draft", f"{case.model}, {case.draft}, k = {case.k}"
    yield "devices", f"{one.devices} of {case.topology}, batch {case.batch}, context {case.context}, bfloat16"
    room = f"{-over / 1e9:.1f} GB to spare" if one.fits else f"does not fit: {over / 1e9:.1f} GB too much"
    yield "memory a device", f"{one.memory / 1e9:.2f} GB of {one.available / 1e9:.1f}, {room}"
    if own is None or one.plain is None:
        return
    yield "read a round", f"{own.bytes / 1e9:.3f} GB, {own.bytes / own.least_bytes:.2f} of the least possible"
    yield "collectives a layer", f"{_kinds(own.layer_collectives, ', ')}; {own.layer_collective_bytes:,.0f} bytes"
    others = _kinds(own.other_collectives, ", ")
    yield "elsewhere in a round", f"{others}; as large as a weight: {own.gathered_bytes:,} bytes"
    yield "large copies a round", f"{own.copied_bytes:,} bytes"
    for name, program in (("round", own), ("plain step", one.plain)):
        yield name, f"{program.seconds * 1e3:.2f} ms ({program.cycles:,} cycles)"
    for tokens, ratio in one.speed_up.items():
        yield f"speed-up, {tokens} a round", f"{ratio:.2f}"


def _kinds(collectives: dict[str, float] | dict[str, int], between: str) -> str:
    return between.join(f"{count:g} {kind}" for kind, count in collectives.items()) or "none"


def markdown(reports: Iterable[Report]) -> Iterator[str]:
    """Yields the lines of a table, a row for each report."""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"{'|---' * len(_COLUMNS)}|"
    for one in reports:
        yield f"| {' | '.join(_cells(one))} |"


def _cells(one: Report) -> list[str]:
    case, own, plain = one.case, one.round, one.plain
    cells = [
        f"{case.model}, {case.draft}",
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
        _kinds(own.layer_collectives, " + ") + size,
        f"{own.seconds * 1e3:.2f}, {plain.seconds * 1e3:.2f}",
        ", ".join(f"{one.speed_up[tokens]:.2f}" for tokens in (2, 3, 4) if tokens in one.speed_up),
    ]


def main(arguments: list[str]) -> None:
    """Compiles a set of cases, and prints each as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m jaxspec.bench.tpu", description=__doc__)
    parser.add_argument("--cases", choices=CASES, default="all")
    parser.add_argument("--json", action="store_true", help="one JSON object a case")
    options = parser.parse_args(arguments)
    reports = map(report, CASES[options.cases])
    for line in map(as_json, reports) if options.json else markdown(reports):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

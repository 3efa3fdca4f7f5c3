"""`python -m jaxspec.bench.tpu`: the loop, compiled for TPUs that are not here, and what it costs there.

For each case two programs are compiled, of speculative and of plain decoding. Everything is read
from them; nothing is run. Times are the compiler's estimates, without the collectives' latency.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from jaxspec.bench.ahead_of_time import Case, compile_case
from jaxspec.bench.round_cost import Costs, costs

_SMOL = {"model": "smollm2-135m", "draft": "ngram", "devices": 1}
_8B = {"model": "llama-3.1-8b", "draft": "llama-3.2-1b"}
_70B = {"model": "llama-3.3-70b", "draft": "llama-3.1-8b"}
_405B = {"model": "llama-3.1-405b", "draft": "llama-3.1-8b"}
CASES = {
    "small": (Case(**_SMOL, topology="v5e:2x2"), Case(**_8B, topology="v5e:2x2")),
    "all": (
        Case(**_SMOL, topology="v5e:2x2"),
        Case(**_8B, topology="v4:2x2x1"),
        Case(**_8B, topology="v5e:2x2"),
        Case(**_8B, topology="v5p:2x2x1"),
        Case(**_8B, topology="v6e:2x4"),
        Case(**_8B, topology="tpu7x:2x2x1"),
        Case(**_70B, topology="v5e:4x4"),
        Case(**_405B, topology="v5p:4x4x4"),
        Case(**_405B, topology="v6e:16x16"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Report:
    """What was read from a case's two programs; `round` and `plain` are `None` if one does not fit.

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
    fixed = {"case": case, "devices": compiled.devices, "memory": compiled.memory, "available": compiled.chip.memory}
    if not compiled.text:
        return Report(**fixed, round=None, plain=None, speed_up={})
    ours = costs(case, compiled)
    if case.draft == "none":
        return Report(**fixed, round=ours, plain=ours, speed_up={1: 1.0})
    alone = dataclasses.replace(case, draft="none", k=0)
    plain = costs(alone, compile_case(alone))
    speed_up = {tokens: tokens * plain.seconds / ours.seconds for tokens in range(1, case.k + 2)}
    return Report(**fixed, round=ours, plain=plain, speed_up=speed_up)


def as_json(one: Report) -> str:
    """A report as one line of JSON."""
    return json.dumps(dataclasses.asdict(one) | {"fits": one.fits})


def rows(reports: Iterable[Report]) -> Iterator[dict[str, str]]:
    """One row of the table for each report."""
    for one in reports:
        case = one.case
        row = {
            "target, draft": f"{case.model}, {case.draft}",
            "topology": case.topology + (f" ({one.devices} used)" if case.devices else f" ({one.devices})"),
            "memory, GB": f"{one.memory / 1e9:.1f} of {one.available / 1e9:.0f}" + ("" if one.fits else ": **no**"),
        }
        yield row | (_figures(one) if one.fits else {})


def _figures(one: Report) -> dict[str, str]:
    ours, plain = one.round, one.plain
    each = " + ".join(f"{count:g} {kind}" for kind, count in ours.layer_collectives.items()) or "none"
    return {
        "read a round, GB": f"{ours.bytes / 1e9:.2f}",
        "over the least": f"{ours.bytes / ours.least_bytes:.2f}",
        "a layer": each + (f", {ours.layer_collective_bytes / 1e3:.0f} kB" if ours.layer_collectives else ""),
        "round, plain step (ms)": f"{ours.seconds * 1e3:.2f}, {plain.seconds * 1e3:.2f}",
        "speed-up at 2, 3, 4 tokens": ", ".join(f"{one.speed_up[n]:.2f}" for n in (2, 3, 4) if n in one.speed_up),
    }


def lines(one: Report) -> Iterator[tuple[str, str]]:
    """A report, a name and a value a line."""
    case, ours = one.case, one.round
    yield "target, draft", f"{case.model}, {case.draft}, k = {case.k}"
    yield "devices", f"{one.devices} of {case.topology}, batch {case.batch}, context {case.context}, bfloat16"
    over = one.memory - one.available
    room = f"{-over / 1e9:.1f} GB to spare" if one.fits else f"does not fit: {over / 1e9:.1f} GB too much"
    yield "memory a device", f"{one.memory / 1e9:.2f} GB of {one.available / 1e9:.1f}, {room}"
    if ours is None:
        return
    yield "read a round", f"{ours.bytes / 1e9:.3f} GB, {ours.bytes / ours.least_bytes:.2f} of the least possible"
    each = ", ".join(f"{count:g} {kind}" for kind, count in ours.layer_collectives.items()) or "none"
    yield "collectives a layer", f"{each}; {ours.layer_collective_bytes:,.0f} bytes"
    others = ", ".join(f"{count} {kind}" for kind, count in ours.other_collectives.items()) or "none"
    yield "elsewhere in a round", f"{others}; as large as a weight: {ours.gathered_bytes:,} bytes"
    yield "large copies a round", f"{ours.copied_bytes:,} bytes"
    yield "round", f"{ours.seconds * 1e3:.2f} ms ({ours.cycles:,} cycles)"
    yield "plain step", f"{one.plain.seconds * 1e3:.2f} ms ({one.plain.cycles:,} cycles)"
    for tokens, ratio in one.speed_up.items():
        yield f"speed-up, {tokens} a round", f"{ratio:.2f}"


def markdown(reports: Iterable[Report]) -> Iterator[str]:
    """The lines of a table."""
    names: list[str] = []
    for row in rows(reports):
        if not names:
            names = [*row, *[name for name in _HEADINGS if name not in row]]
            yield "| " + " | ".join(names) + " |"
            yield "|---" * len(names) + "|"
        yield "| " + " | ".join(row.get(name, "") for name in names) + " |"


_HEADINGS = ("read a round, GB", "over the least", "a layer", "round, plain step (ms)", "speed-up at 2, 3, 4 tokens")


def main(arguments: list[str]) -> None:
    """Compiles a set of cases, and prints each as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m jaxspec.bench.tpu", description=__doc__)
    parser.add_argument("--cases", choices=CASES, default="all")
    parser.add_argument("--json", action="store_true", help="one JSON object a case")
    options = parser.parse_args(arguments)
    reports = (report(case) for case in CASES[options.cases])
    lines: Iterable[Any] = map(as_json, reports) if options.json else markdown(reports)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

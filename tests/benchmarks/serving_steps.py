"""Compiles a server's step for TPUs, with and without drafts: `python -m tests.benchmarks.serving_steps`.

Prints for each number of live rows what a round with drafts and a plain step move, how long they take, and from how
many tokens a round on drafts pay. Whole models are extrapolated (`whole_depth`). Low ends are of bytes and products
alone, as in `jaxspec compile-report --slots N`, which compiles one case at full depth. `--slots 0` is a lone call.
"""

import argparse
from collections.abc import Iterable, Iterator

from jaxspec.compiled import devices
from jaxspec.compiled.ahead_of_time import Case, default_k
from jaxspec.compiled.bracket import Constants
from jaxspec.compiled.tpu import between
from tests.benchmarks.whole_depth import Step, step

_COLUMNS = (
    "devices",
    "rows",
    "drafts",
    "memory, GB",
    "GB",
    "over the least",
    "over plain",
    "collectives",
    "ms",
    "pays from, tokens a round",
)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yields each plain case, followed by those with drafts."""
    for topology in options.topologies:
        for slots in options.slots:
            own = {"topology": topology, "context": options.context, "slots": slots or None}
            yield Case(options.model, "none", k=0, **own)
            for drafter in options.drafters:
                yield Case(options.model, drafter, k=default_k(drafter), **own)


def low(case: Case, own: Step) -> float:
    """Returns the least seconds: reading or products, whichever takes longer with all layers, and the collectives."""
    chip = devices.tpus(case.topology)[1]
    return max(own.bytes / chip.bandwidth, own.flops / chip.flops) + own.collectives * Constants().collective.low


def rows(found: Iterable[tuple[Case, Step]]) -> Iterator[str]:
    """Yields the lines of a table; a plain case comes before those with drafts."""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"{'|---' * len(_COLUMNS)}|"
    plain = None
    for case, own in found:
        plain = own if case.drafter == "none" or plain is None else plain
        cells = [
            case.topology,
            str(case.rows),
            "none" if case.drafter == "none" else f"{case.drafter}, k = {case.k}",
            f"{own.memory / 1e9:.1f}",
            f"{own.bytes / 1e9:.2f}",
            f"{own.bytes / own.least:.2f}",
            f"{own.bytes / plain.bytes:.2f}",
            f"{own.collectives:.0f}",
            between(low(case, own) * 1e3, own.high * 1e3),
            "" if own is plain else between(*sorted((low(case, own) / low(case, plain), own.high / plain.high))),
        ]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.serving_steps", description=__doc__)
    parser.add_argument("--model", default="qwen3-8b")
    parser.add_argument("--topologies", nargs="+", default=["v5e:2x2", "tpu7x:2x2x1"])
    parser.add_argument("--slots", nargs="+", type=int, default=[8, 32, 128])
    parser.add_argument("--drafters", nargs="*", default=["dspark"])
    parser.add_argument("--context", type=int, default=1024)
    options = parser.parse_args()
    found = ((case, step(case.model, case, with_code=False)) for case in cases(options))
    for line in rows(found):
        print(line, flush=True)


if __name__ == "__main__":
    import jax

    jax.config.update("jax_platforms", "cpu")
    main()

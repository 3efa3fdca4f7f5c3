"""Compiles plain steps whose passes are filled up, for TPUs: `python -m tests.benchmarks.pass_widths`.

Prints what a step with passes of some rows (`jaxspec.nn.bit_exact`) moves, what the compiler charges it, and what it
takes at most, over a plain step as it is by XLA's attention. Programs of two and of four layers are compiled, and what
a layer adds is taken as often as the model has layers: at full depth each takes minutes.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path

from jaxspec.bench.ahead_of_time import Case, compile_case
from jaxspec.bench.tpu import costs
from jaxspec.families.shapes import SHAPES
from tests.benchmarks.same_pass import shortened

FEW, MANY = 2, 4
PLACES = {
    "v5p:2x2x1": ("qwen3-4b", 1),
    "v5e:2x2": ("llama-3.1-8b", None),
    "v6e:2x4": ("llama-3.1-8b", None),
    "tpu7x:2x2x1": ("llama-3.1-8b", None),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """Gives what a plain step of a whole model costs on one device: bytes, the compiler's cycles, most seconds."""

    bytes: float
    cycles: float
    high: float


def step(model: str, case: Case) -> Step:
    """Compiles a case with few layers and with more, and returns its costs with all."""
    found = []
    for layers in (FEW, MANY):
        with tempfile.TemporaryDirectory() as folder:
            own = dataclasses.replace(case, model=shortened(model, layers, Path(folder)))
            cost = costs(own, compile_case(own))
        found.append((cost.bytes, cost.cycles, cost.high))
    more = (SHAPES[model]["num_hidden_layers"] - FEW) / (MANY - FEW)
    return Step(*(few + (many - few) * more for few, many in zip(*found, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pass_widths", description=__doc__)
    parser.add_argument("--topologies", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 16])
    options = parser.parse_args()
    print("| model, topology | kernels, rows | GB | million cycles charged | most, ms | over XLA's |")
    print("|---|---|---|---|---|---|")
    for topology in options.topologies:
        model, devices = PLACES[topology]
        today = None
        for kernels, rows in (("xla", None), ("pallas", None), *(("pallas", rows) for rows in options.rows)):
            case = Case(model, "none", topology, 0, devices=devices, rows=rows, kernels=kernels)
            own = step(model, case)
            today = today or own
            over = ", ".join(f"{getattr(own, name) / getattr(today, name):.3f}" for name in ("bytes", "cycles", "high"))
            name = f"{kernels}, {rows or 'as it is'}"
            sizes = f"{own.bytes / 1e9:.3f} | {own.cycles / 1e6:.2f} | {own.high * 1e3:.2f}"
            print(f"| {model}, {topology} | {name} | {sizes} | {over} |", flush=True)


if __name__ == "__main__":
    import jax

    jax.config.update("jax_platforms", "cpu")
    main()

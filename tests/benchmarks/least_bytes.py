"""Prints the least bytes of a round over a plain step's, by sizes alone: `python -m tests.benchmarks.least_bytes`.

Nothing is compiled: `compile-report` divides what a program moves by these numbers.
"""

import argparse
from typing import Any

import jax

from jaxspec.compiled.ahead_of_time import Case, Compiled, _drafter, default_k, placed
from jaxspec.compiled.devices import CHIPS, mesh_of
from jaxspec.compiled.round import least_bytes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.least_bytes", description=__doc__)
    parser.add_argument("--model", default="qwen3-8b")
    parser.add_argument("--drafters", nargs="+", default=["dspark", "dflash2", "p-eagle", "mtp"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--context", type=int, default=1024)
    options = parser.parse_args()
    mesh, chip = mesh_of(jax.devices()[:1]), CHIPS["TPU v5 lite"]
    target = placed(options.model, mesh, "bfloat16")
    print(f"| drafts | k | {' | '.join(map(str, options.rows))} |")
    print(f"{'|---' * (2 + len(options.rows))}|")
    for name in options.drafters:
        k = default_k(name)
        made: Any = _drafter(Case(options.model, name, k=k), target, mesh)
        cells = []
        for rows in options.rows:
            sizes = {"batch": rows, "context": options.context}
            own = least_bytes(Case(options.model, name, k=k, **sizes), Compiled("", 0, chip, 1, target, made))
            alone = least_bytes(Case(options.model, "none", k=0, **sizes), Compiled("", 0, chip, 1, target, None))
            cells.append(f"{own / alone:.2f}")
        print(f"| {name} | {k} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()

"""Runs a micro-benchmark by name: `python -m tests.benchmarks NAME`."""

import argparse
import importlib

# The module and the function that print each.
BENCHMARKS = {
    "plain": "plain.run",
    "round": "round.run",
    "capacity": "capacity.run",
    "compile": "compile.run",
    "speculate": "speculate.run",
    "costs": "costs.run",
    "load": "load.run",
    "int8": "int8.run",
    "products": "products.run",
    "verifiers": "verifiers.run",
    "sampling": "sampling.run",
    "engine-rows": "engine.rows",
    "engine-skewed": "engine.skewed",
    "engine-turn": "engine.turn",
    "engine-prompt": "engine.prompt",
    "acceptance": "acceptance.run",
    "acceptance-over-k": "acceptance.run_over_k",
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a model of the zoo")
    parser.add_argument("--repeats", type=int, default=5, help="turns that count")
    arguments = parser.parse_args()
    module, function = BENCHMARKS[arguments.name].split(".")
    getattr(importlib.import_module(f"tests.benchmarks.{module}"), function)(arguments.model, arguments.repeats)

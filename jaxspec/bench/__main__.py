"""`python -m jaxspec.bench NAME`: the figures of the README."""

import argparse
import importlib

BENCHMARKS = ("plain", "round", "capacity", "compile", "speculate")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m jaxspec.bench", description=__doc__)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a model of the zoo")
    parser.add_argument("--repeats", type=int, default=5, help="turns that count")
    arguments = parser.parse_args()
    importlib.import_module(f"jaxspec.bench.{arguments.name}").run(arguments.model, arguments.repeats)

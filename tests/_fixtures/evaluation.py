"""Reads the questions that drafters are evaluated with."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
# Of the turns of Spec-Bench's questions that jaxspec's drafters are evaluated with: 16 digits each.
EVALUATION = (ROOT / "tests" / "golden" / "spec_bench_dev.sha256").read_text().split()

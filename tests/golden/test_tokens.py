"""Calls of `generate` return the tokens that they returned when `tokens.json` was recorded.

Tokens and accepted counts are compared, not log-probabilities: their last bits differ between CPUs. A change that means
to change tokens records the file anew, with `python -m tests.golden.test_tokens`, and says so in the changelog.
"""

import json
import pathlib

import pytest

from tests.golden import token_cases

RECORDED = pathlib.Path(__file__).parent / "tokens.json"
QUICK = (
    "none | default | greedy",
    "model, adaptive | default | sampled",
    "suffix | default | greedy",
    "hybrid | traversal | sampled",
    "tree, without replacement | tree | sampled",
)
CASES = {name: case for name, *case in token_cases.cases()}


def found(name):
    result = token_cases.run(*CASES[name])
    return {key: result[key] for key in ("accepted", "tokens")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES]
)
def test_tokens_are_those_recorded(name):
    assert found(name) == json.loads(RECORDED.read_text())[name]


def test_every_recorded_case_is_run():
    assert list(json.loads(RECORDED.read_text())) == sorted(CASES)
    assert set(QUICK) <= set(CASES)


def record():
    """Writes the file anew, one case a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(found(name), separators=(',', ':'))}" for name in sorted(CASES))
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()

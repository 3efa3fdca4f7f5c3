"""Calls of `generate` return the tokens that they returned when `tokens.json` was recorded.

Tokens and accepted counts are compared, not log-probabilities: their last bits differ between CPUs. A change that means
to change tokens records the file anew, with `python -m tests.golden.test_tokens`, and says so in the changelog.
"""

import json
import pathlib

import jax
import pytest

from tests.golden import token_cases

RECORDED = pathlib.Path(__file__).parent / "tokens.json"
SLOW_TESTS = pathlib.Path(__file__).parents[2] / ".ci" / "slow_tests"
QUICK = (
    "none | default | greedy",
    "suffix | default | greedy",
    "hybrid | traversal | sampled",
)
CASES = {name: case for name, *case in token_cases.cases()}


def spread() -> tuple[str, ...]:
    """Returns for each drafter its greedy case and a sampled one, whose verifier is another from drafter to drafter."""
    by_drafter: dict[str, list[str]] = {}
    for name in CASES:
        by_drafter.setdefault(name.split(" | ")[0], []).append(name)
    chosen = []
    for i, names in enumerate(by_drafter.values()):
        greedy, sampled = ([name for name in names if name.endswith(way)] for way in ("| greedy", "| sampled"))
        chosen += [*greedy, sampled[i % len(sampled)]]
    return tuple(chosen)


# CI always runs QUICK and FIXED, a fifth of all; the rest where the loop was touched: all take ten minutes of one core.
FIXED = tuple(name for name in spread() if name not in QUICK)
REST = tuple(name for name in CASES if name not in QUICK + FIXED)


def found(name):
    result = token_cases.run(*CASES[name])
    return {key: result[key] for key in ("accepted", "tokens")}


def check(name):
    assert found(name) == json.loads(RECORDED.read_text())[name]


@pytest.mark.parametrize("name", QUICK)
def test_tokens_are_those_recorded(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXED)
def test_tokens_of_every_drafter_are_those_recorded(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_tokens_of_all_other_cases_are_those_recorded(name):
    check(name)


def test_every_recorded_case_is_run():
    assert list(json.loads(RECORDED.read_text())) == sorted(CASES)
    assert sorted(QUICK + FIXED + REST) == sorted(CASES)


def test_what_always_runs_has_every_drafter_verifier_and_policy():
    always, every = ([name.split(" | ") for name in names] for names in (QUICK + FIXED, CASES))
    for part in range(3):
        assert {parts[part] for parts in always} == {parts[part] for parts in every}
    for policy in ("greedy", "sampled"):
        assert {parts[0] for parts in always if parts[2] == policy} == {parts[0] for parts in every}


def test_ci_always_runs_the_fixed_cases():
    if not SLOW_TESTS.exists():
        pytest.skip("not in a checkout: there is no .ci/slow_tests")
    fixed = test_tokens_of_every_drafter_are_those_recorded.__name__
    assert f"tests/golden/test_tokens.py::{fixed}" in SLOW_TESTS.read_text().splitlines()


def record():
    """Writes the file anew, one case a line."""
    lines = []
    for name in sorted(CASES):
        jax.clear_caches()  # the number of programs that a process can map is limited
        lines.append(f"{json.dumps(name)}: {json.dumps(found(name), separators=(',', ':'))}")
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()

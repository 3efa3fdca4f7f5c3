"""Some 1,700 bad calls: each ends in an error that names its argument, before anything is compiled."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from jaxspec.core import memory
from tests._fixtures import bad_calls, bad_parts, public_calls


@pytest.mark.parametrize("kind", bad_calls.KINDS)
def test_a_bad_call_names_its_argument(kind, monkeypatch):
    for place in bad_calls.DECODES:
        monkeypatch.setattr(f"jaxspec.{place}", bad_calls.accepted)
    monkeypatch.setattr(memory, "available", lambda: 2**33)
    count, faults = bad_calls.faults(kind)
    assert count > 200 and not faults


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind is bad_parts.models)) for kind in bad_parts.KINDS]
)
def test_a_bad_part_names_its_argument(kind, monkeypatch):
    """Processors, grammars, models of users' functions, and configurations of other projects."""
    for place in bad_calls.DECODES:
        monkeypatch.setattr(f"jaxspec.{place}", bad_calls.accepted)
    count, faults = bad_calls.faults(kind)
    assert count > 150 and not faults


@pytest.mark.slow
def test_bad_calls_where_nothing_checks_annotations():
    """As users make them: what the tests' type checks refuse first is refused by the calls themselves."""
    root, environment = pathlib.Path(__file__).parents[2], os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests._fixtures.bad_calls"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["calls"] > 1300 and found["faults"] == []


@pytest.mark.slow
def test_a_wrong_argument_of_any_public_function_is_named():
    """Nothing ends in another library's error, an assertion or a missing attribute."""
    assert [*public_calls.faults()] == []

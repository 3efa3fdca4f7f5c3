"""The kit's results for other projects' verifiers: their format, and the table that shows them."""

import ast
import json
import pathlib
import re

import pytest

from tests.conformance import run

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "benchmarks" / "verifiers.md"
NAMES = sorted(path.stem for path in (HERE / "peers").glob("*.py"))
VERDICTS = {"exact", "no bias found", "edge", "biased"}


def result(name):
    return json.loads((HERE / "results" / f"{name}.json").read_text())


def constants(name):
    """Returns the constants of an adapter's file, without importing it."""
    tree, found = ast.parse((HERE / "peers" / f"{name}.py").read_text()), {}
    for node in tree.body:
        match node:
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)) if names[0].id == "PROJECT":
                found |= {one.id: ast.literal_eval(value) for one, value in zip(names, values, strict=True)}
            case ast.Assign([ast.Name("CASES")], ast.Dict(titles)):
                found["CASES"] = [ast.literal_eval(title) for title in titles]
    return found


def test_each_adapter_has_a_result():
    assert len(NAMES) >= 8 and sorted(path.stem for path in (HERE / "results").glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_results_have_versions_and_cases(name):
    found, said = result(name), constants(name)
    assert found["name"] == name and re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]) and found["python"]
    if found["error"] is not None:
        assert found["cases"] == []
        return
    assert found["project"] == said["PROJECT"] and tuple(found["packages"]) == said["PACKAGES"]
    assert all(re.match(r"\d", version) for version in found["packages"].values())
    assert [case["case"] for case in found["cases"]] == said["CASES"]
    for case in found["cases"]:
        report = case["report"]
        assert case["verdict"] == run.verdict(report) in VERDICTS
        assert case["function"] and isinstance(case["arguments"], dict)
        assert (
            report["lossless"] == (report["counterexample"] is None) == (case["verdict"] in ("exact", "no bias found"))
        )
        assert len(report["cases"]) == report["num_instances"] > 0 and report["num_calls"] > 0


def test_a_bias_is_not_called_an_edge():
    edge = {"kind": "edge", "text": "u = 0 emits token 1", "biased": True}
    report = {"lossless": False, "exact": True, "findings": [edge], "total_variation": 1e-6}
    assert run.verdict(report) == "edge"
    assert run.verdict(report | {"total_variation": 0.01}) == "biased"
    assert run.verdict(report | {"findings": [edge, edge | {"kind": "NaN"}]}) == "biased"


def test_an_adapter_that_does_not_import_is_listed_with_its_error(monkeypatch):
    def fail(name):
        raise ImportError("no accelerator")

    monkeypatch.setattr(run, "load", fail)
    found = run.run("elsewhere")
    assert found["error"] == "ImportError: no accelerator" and found["cases"] == []


def test_the_rule_that_needs_numpy_alone_gives_what_is_recorded():
    """HSD's rule, with the case that its counterexample is about: the whole adapter is run in two seconds."""
    found, recorded = run.run("hsd"), result("hsd")
    for case, other in zip(found["cases"], recorded["cases"], strict=True):
        assert case["verdict"] == other["verdict"]
        assert case["report"]["counterexample"] == other["report"]["counterexample"]
        assert abs(case["report"]["total_variation"] - other["report"]["total_variation"]) < 1e-4


def test_the_table_says_what_the_results_say():
    """Each row: project and version, case, verdict and total variation where it is biased."""
    lines = PAGE.read_text().splitlines()
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines if line[:1] == "|"]
    expected = []
    for name in NAMES:
        found = result(name)
        for case in found["cases"]:
            distance = case["report"]["total_variation"]
            verdict = f"biased by {distance:.2g}" if case["verdict"] == "biased" else case["verdict"]
            expected.append((row_name(found), case["case"], verdict))
    assert sorted(row[:3] for row in rows[2:]) == sorted(expected)


def test_the_page_shows_the_adapter_that_was_run():
    adapter = (HERE / "peers" / "transformers.py").read_text()
    body = PAGE.read_text().split("def own_randomness")[1].split("\n\n\n")[0].splitlines()[1:]
    assert len(body) == 5 and all(line in adapter for line in body)


def row_name(found):
    """Returns the first cell of a project's rows: its name and the version of its package or commit."""
    version = found["source"].rpartition(" at ")[2][:7] if found["source"] else next(iter(found["packages"].values()))
    return f"{found['project']} {version}"

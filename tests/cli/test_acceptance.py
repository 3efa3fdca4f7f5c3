"""`jaxspec acceptance`: its options, its output, and one-line errors."""

import json

import numpy as np
import pytest
import typer.testing

from jaxspec.bench import acceptance
from jaxspec.bench.acceptance_report import Acceptance, MeasuredRounds
from jaxspec.cli import app as application

ROUNDS = MeasuredRounds(
    text=np.arange(4),
    context=np.array([10, 10, 70, 70]),
    reach=np.array([[1, 0.5]] * 4),
    accept=np.array([[0.4, 0.2], [0.6, 0.2], [0.5, 0.2], [0.5, 0.2]]),
)


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Records requests for measurements, and measures nothing."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "kept by the caller"))
    found = []

    def measure(target, drafter, texts, *, key, options):
        found.append((drafter, texts, options))
        return Acceptance.of(ROUNDS, texts=len(texts), given=False, rule=None)

    monkeypatch.setattr(acceptance, "expected_acceptance", measure)
    (tmp_path / "texts.txt").write_text("one\ntwo\nthree\n")
    return found


def _run(tmp_path, *arguments):
    words = ["acceptance", "--texts", str(tmp_path / "texts.txt"), *map(str, arguments)]
    return typer.testing.CliRunner().invoke(application.app, words)


def test_options_say_what_is_measured(asked, folder, tmp_path):
    words = ("-m", folder, "-d", folder, "-k", 3, "-n", 9, "--every", 2, "--limit", 2, "--batch", 5)
    result = _run(tmp_path, *words)
    assert result.exit_code == 0, result.output
    ((drafter, texts, options),) = asked
    assert drafter.max_drafts == 3 and len(texts) == 2
    assert options == acceptance.AcceptanceOptions(max_new_tokens=9, every=2, batch=5)
    assert "0.500 ± 0.041" in result.stdout and "64-127" in result.stdout
    assert "A round of 2 drafts is worth 1.600 ± 0.041 by the token rule" in result.stdout


def test_an_engine_is_compared(asked, folder, tmp_path):
    (tmp_path / "log.json").write_text('{"num_drafts": 1000, "num_accepted_tokens_per_pos": [500, 10]}')
    result = _run(tmp_path, "-m", folder, "-d", folder, "--json", "--engine-log", tmp_path / "log.json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert asked[0][2].starts == "token" == found["starts"] and found["texts"] == 3
    assert found["engine"]["first_difference"] == "draft 2" and found["positions"][0]["acceptance"]["value"] == 0.5
    (tmp_path / "log.json").write_text('{"num_drafts": 9, "num_accepted_tokens_per_pos": [5, 1, 0]}')
    result = _run(tmp_path, "-m", folder, "-d", folder, "--engine-log", tmp_path / "log.json")
    assert result.exit_code == 2 and "has 3 positions, but 2 drafts per round" in result.stderr


def test_a_drafter_without_weights_is_refused(tmp_path):
    for name in ("ngram", "none", "early-exit:3"):
        result = _run(tmp_path, "-d", name)
        assert result.exit_code == 2 and f"{name} has no weights to measure" in result.stderr

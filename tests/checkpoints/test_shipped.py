"""The drafters that ship: small enough, and as the runs that made them say."""

import json
import zlib
from pathlib import Path

import pytest

import jaxspec
from jaxspec.checkpoints import zoo

PACKAGE = Path(jaxspec.__file__).parent
# Beside the package in a checkout, inside it in a wheel.
MODELS = PACKAGE / "zoo" if (PACKAGE / "zoo").is_dir() else PACKAGE.parent / "models"
RUNS = sorted(MODELS.glob("*/*/training.json"))
WHEEL, DRAFTER = 40e6, 20e6


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read(path: Path) -> dict:
    return json.loads(path.read_text("utf-8"))


def test_they_fit_into_the_repository_and_the_wheel():
    assert len(RUNS) >= 4
    assert all(_size(path.parent) <= DRAFTER for path in RUNS)
    files = {path for folder in (MODELS, PACKAGE) for path in folder.rglob("*") if path.is_file()}
    packed = (zlib.compress(path.read_bytes()) for path in files if "__pycache__" not in path.parts)
    assert sum(map(len, packed)) <= WHEEL


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_they_are_of_their_runs(path):
    """What is read of the target, and what the card says of the run."""
    run, config, card = (
        _read(path),
        _read(path.with_name("config.json")),
        path.with_name("README.md").read_text("utf-8"),
    )
    if "eagle_config" in config:
        layers = "eagle_aux_hidden_state_layer_ids"
        assert config[layers] == [layer + 1 for layer in config["eagle_config"][layers]] == run["recipe"]["capture"]
    if "target_layer_ids" in config:
        assert [layer + 1 for layer in config["target_layer_ids"]] == run["recipe"]["capture"]
    assert run["command"] in card
    said = f"{run['tokens']:,}, of them {run['answer_tokens']:,} in answers, in {run['options']['steps']:,} updates"
    assert said in card and f"{run['seconds'] / 60:.0f} minutes" in card
    assert f"{path.with_name('model.safetensors').stat().st_size / 1e6:.1f} MB" in card


def test_the_default_model_drafts_with_what_ships():
    assert zoo.draft_name("auto", "smollm2-135m-instruct") == "ngram+smollm2-135m-instruct/eagle"

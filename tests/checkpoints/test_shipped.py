"""The drafters that ship: they are small, match the runs that made them, and the wheel holds the right ones."""

import dataclasses
import json
import zlib
from pathlib import Path

import pytest

import jaxspec
from jaxspec.checkpoints import zoo
from jaxspec.text.names import drafter_name

PACKAGE = Path(jaxspec.__file__).parent
# Next to the package in a checkout, inside it in a wheel.
IN_WHEEL = (PACKAGE / "zoo").is_dir()
MODELS = PACKAGE / "zoo" if IN_WHEEL else PACKAGE.parent / "models"
RUNS = sorted(MODELS.glob("*/*/training.json"))
WHEEL, DRAFTER = 15e6, 20e6
HEAD, OTHER = "smollm2-135m-instruct/eagle", "qwen2.5-coder-1.5b-instruct/eagle"


def _read(path: Path) -> dict:
    return json.loads(path.read_text("utf-8"))


def test_drafters_fit_into_the_repository():
    assert len(RUNS) >= (1 if IN_WHEEL else 5)
    for run in RUNS:
        assert sum(path.stat().st_size for path in run.parent.rglob("*") if path.is_file()) <= DRAFTER


@pytest.mark.slow
@pytest.mark.skipif(IN_WHEEL, reason="a wheel is built from a checkout")
def test_the_wheel_has_the_defaults_head_alone():
    from hatchling.builders.wheel import WheelBuilder

    files = {
        file.distribution_path: Path(file.path) for file in WheelBuilder(str(PACKAGE.parent)).recurse_included_files()
    }
    assert sum(len(zlib.compress(path.read_bytes())) for path in files.values()) <= WHEEL
    packed = {Path(name).relative_to("jaxspec/zoo") for name in files if name.startswith("jaxspec/zoo/")}
    assert {path for path in packed if len(path.parts) == 2} == {
        path.relative_to(MODELS) for path in MODELS.glob("*/*") if path.is_file()
    }
    assert {path for path in packed if len(path.parts) > 2} == {
        path.relative_to(MODELS) for path in (MODELS / HEAD).iterdir()
    }
    assert {f"jaxspec/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.py")} <= set(files)
    assert {"jaxspec/py.typed", "jaxspec/ops/native/product.cpp", "jaxspec/ops/native/block.h"} <= set(files)


def test_manifests_name_the_drafters():
    for entry in zoo.list_models():
        here = {path.parent.name for path in RUNS if path.parent.parent.name == entry.name}
        assert here == set(entry.drafters) - set(entry.missing_drafters)
        assert not entry.missing_drafters or IN_WHEEL


@pytest.mark.parametrize("path", RUNS, ids=lambda path: "-".join(path.parent.parts[-2:]))
def test_they_are_of_their_runs(path):
    """The layers read from the target, and the numbers on the card, are those of the run."""
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


def test_models_draft_with_what_ships():
    assert drafter_name("auto", "smollm2-135m-instruct") == f"ngram+{HEAD}"
    if not IN_WHEEL:
        assert drafter_name("auto", "qwen2.5-coder-1.5b-instruct") == f"ngram+{OTHER}"


@pytest.mark.parametrize(("drafter", "alone"), [("suffix+eagle", "suffix"), ("eagle", "ngram")])
def test_without_its_head_a_model_drafts_by_copying(monkeypatch, drafter, alone):
    """Without it, as in a wheel, a message names the missing head and where to find it."""
    name = OTHER.partition("/")[0]
    entries = {name: dataclasses.replace(zoo.find(name), drafter=drafter)}
    monkeypatch.setattr(zoo, "_entries", lambda: entries)
    monkeypatch.setattr(zoo, "_drafters", lambda: {HEAD: MODELS / HEAD})
    with pytest.warns(UserWarning, match=rf"drafting by {alone} alone: the head {OTHER} is not .*'{alone}\+PATH'"):
        assert drafter_name("auto", name) == alone

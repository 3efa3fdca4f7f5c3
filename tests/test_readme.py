"""The Python of the README runs as it stands there, block after block."""

import pathlib
import re

import pytest

import jaxspec
from tests._fixtures import examples

README = pathlib.Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=[pytest.mark.slow, pytest.mark.smollm2])])
def model(request):
    """The model that the README loads, or one of a layer in its place."""
    return examples.models()[1] if request.param == "tiny" else request.getfixturevalue("smollm2")


def test_its_python_runs(model, monkeypatch, capsys):
    monkeypatch.setattr(jaxspec, "load", {"smollm2-135m-instruct": model}.__getitem__)
    names = {}
    assert len(BLOCKS) == 4
    for block in BLOCKS:
        exec(compile(block, README.name, "exec"), names)
    assert names["result"].length.tolist() == [64]  # of the last block; it draws no stop token
    printed = capsys.readouterr().out
    assert "tokens a round" in printed and len(printed.split()) > 8

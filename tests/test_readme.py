"""The Python of the README runs as written, block after block; all pages state the same defaults."""

import inspect
import pathlib
import re

import pytest

import jaxspec
from jaxspec.cli import generate as command
from tests._fixtures import text_models

README = pathlib.Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)
# What its first block prints; the last line is the speed.
OUTPUT = re.search(r"^```text\n([^`]*times plain decoding\n)```", README.read_text(), re.M)[1]


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=[pytest.mark.smollm2])])
def decoder(request, monkeypatch):
    """The decoder that the README makes, or one of a model without a network."""
    if request.param == "tiny":
        monkeypatch.setattr(text_models.HistoryTextModel, "context_length", 1024)  # its tokens are bytes
        return jaxspec.SpeculativeDecoder(text_models.history_models()[0])
    request.getfixturevalue("smollm2")
    return jaxspec.SpeculativeDecoder("smollm2-135m-instruct")


@pytest.mark.slow
def test_its_python_runs(decoder, monkeypatch, capsys):
    """The first block prints the text that the README shows, drafted several tokens a round, and ends it."""
    monkeypatch.setattr(jaxspec, "SpeculativeDecoder", {"smollm2-135m-instruct": decoder}.__getitem__)
    names = {}
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        exec(compile(block, README.name, "exec"), names)
        if block is BLOCKS[0] and isinstance(decoder.drafter, jaxspec.HybridDrafter):
            text, speed = OUTPUT.rsplit("\n", 2)[:2]
            assert capsys.readouterr().out.startswith(text + "\n") and "times plain decoding" in speed
            first = names["result"]
            assert first.stop_reason == "stop token" and first.mean_acceptance_length > 2
    printed = capsys.readouterr().out
    assert "tokens a round" in printed and len(printed.split()) > 8
    assert 0 < names["result"].length[0] <= 96  # of the last block


DEFAULTS = (
    "Default temperature: 0.7 with top-p 0.9 in `SpeculativeDecoder` and the command `jaxspec generate`; 1.0 in "
    "`Sampling()`; 0, which is greedy, in `jaxspec.generate`."
)


def test_the_default_temperatures_are_said_in_one_line():
    pages = [README.parent / name for name in ("README.md", "docs/getting-started.md", "docs/guides/controls.md")]
    said = [path.read_text() for path in pages]
    objects = (jaxspec.generate, jaxspec.Sampling, jaxspec.SpeculativeDecoder, jaxspec.TextOptions, command.run)
    said += [inspect.getdoc(one) for one in objects]
    assert [" ".join(text.split()).count(DEFAULTS) for text in said] == [1] * len(said)


def test_the_default_temperatures_are_those():
    assert (jaxspec.TextOptions().temperature, jaxspec.TextOptions().top_p) == (0.7, 0.9)
    assert (command.Decoding().temperature, command.Decoding().top_p) == (0.7, None)  # None is that of the text
    assert jaxspec.Sampling().temperature == 1.0
    assert inspect.signature(jaxspec.generate).parameters["sampling"].default == jaxspec.Greedy()

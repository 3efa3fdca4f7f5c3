"""Damaged files of every format are refused with a reason, or read as something that they could be.

Each case is one seeded fault of one file (`tests/_fixtures/damage.py`), read in a fork that has limits of time and
memory. `python -m tests._fixtures.damaged_reads gguf:17:18` shows what comes of one.
"""

import json
import os
import subprocess
import sys

import pytest

from tests._fixtures.damaged_formats import FORMATS
from tests._fixtures.damaged_reads import DIFFERENT, EQUAL, GOOD, Outcome
from tests._fixtures.processes import ROOT

QUICK, MANY = 75, 2_500
QUICK_FORMATS = (
    "gguf",
    "folder",
    "shards",
    "tokenizer",
)  # heads take their time to be made: tests/heads/test_settings.py
# The share of changed fields that an error calls by name. Some cannot be: of a text that is no JSON any more, say.
NAMED = 0.95


def read(*words: str, how=("-m", "tests._fixtures.damaged_reads")) -> list[Outcome]:
    """Reads cases in a separate process."""
    environment = {"JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, *how, *words]
    options = {"cwd": ROOT, "env": os.environ | environment, "capture_output": True, "text": True}
    said = subprocess.run(command, **options)
    assert said.returncode == 0, said.stderr[-2000:]
    return [Outcome(**json.loads(line)) for line in said.stdout.splitlines()]


def check(found: list[Outcome]) -> None:
    bad = [one for one in found if one.outcome not in GOOD]
    assert not bad, "\n".join(map(str, bad[:50]))
    refused = [one for one in found if one.field and one.outcome not in (EQUAL, DIFFERENT)]
    unnamed = [one for one in refused if not one.named]
    assert len(unnamed) <= (1 - NAMED) * len(refused), "\n".join(map(str, unnamed[:50]))


@pytest.mark.slow
def test_damaged_files():
    found = read(*(f"{name}:0:{QUICK}" for name in QUICK_FORMATS))
    assert len(found) == QUICK * len(QUICK_FORMATS)
    check(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_damaged_files(name):
    found = read(f"{name}:0:{MANY}")
    assert len(found) == MANY
    check(found)


BAD_READERS = """
import os, pathlib, sys
import numpy as np
from tests._fixtures import damaged_formats, damaged_reads
from tests._fixtures.damage import Damage

def forever(path):
    while True:
        pass

def too_much(path):
    np.ones(2**31)

def bare(path):
    raise KeyError("width")

def nameless(path):
    raise ValueError("the file is damaged")

def wrapped(path):
    try:
        too_much(path)
    except MemoryError as error:
        raise ValueError(f"{path} is damaged") from error

def clear(path):
    raise ValueError(f"{path} is damaged")

def reader(act):
    def read(folder):
        path = folder / "x.json"
        return np.zeros(1) if path.read_text() == "{}" else act(path)
    return read

damaged_reads.SECONDS = 5.0
damaged_reads.damage = lambda file, content, rng: Damage(file, "all", b"[]", "x", ("x",))
acts = {"hang": forever, "crash": lambda path: os.abort(), "greedy": too_much, "greedy2": wrapped, "obscure": bare,
        "obscure2": nameless, "silent": lambda path: np.ones(1), "silent2": lambda path: np.full(1, np.nan),
        "equal": lambda path: np.zeros(1), "refused": clear}
for name, act in acts.items():
    write = lambda folder: (folder / "x.json").write_text("{}")
    damaged_formats.FORMATS[name] = damaged_formats.Format(write, reader(act), ("x.json",))
damaged_reads.main([f"{name}:0:1" for name in acts])
"""


@pytest.mark.slow
def test_bad_readers_are_seen():
    found = read(how=("-c", BAD_READERS))
    assert [one.outcome for one in found] == [one.format.rstrip("2") for one in found] and len(found) == 10

"""A process drops programs before it has as many memory mappings as the system allows."""

import gc
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core import programs
from jaxspec.core.program_files import HeldArrays
from jaxspec.core.programs import PROGRAMS, Kept, Programs

ROOT = pathlib.Path(__file__).parents[2]


class Jitted:
    """Stands for a jitted function with programs of ten mappings."""

    def __init__(self, process):
        self.process = process
        process.mappings += 10

    def __call__(self):
        return self

    def clear_cache(self):
        self.process.mappings -= 10


class Process:
    """Stands for a process that may have 160 mappings, and has 20 that nothing frees."""

    def __init__(self, mappings=20):
        self.mappings, self.counted = mappings, 0
        self.programs = Programs(160, self.count)

    def count(self):
        self.counted += 1
        return self.mappings

    def find(self, key):
        self.programs.compiled(1.0)
        return self.programs.find(key, lambda: Jitted(self))


@pytest.fixture
def all_cleared(monkeypatch):
    """Counts the calls of `jax.clear_caches`, which does nothing else."""
    calls = []
    monkeypatch.setattr(jax, "clear_caches", lambda: calls.append(None))
    return calls


def test_the_programs_used_longest_ago_are_dropped(messages, all_cleared):
    process = Process()
    found = [process.find(number) for number in range(11)]
    for number in (0, 2):
        found[number]()
    assert not messages()
    process.find(11)  # with 130 of 160 mappings
    assert messages() == [
        "dropped the 6 least recently used compiled programs: the process had 130 of the 160 memory mappings that the "
        "system allows it (vm.max_map_count), and now has 70; programs compile again when next used"
    ]
    assert all(process.find(number) is found[number] for number in (0, 2, 8, 9, 10))
    assert process.find(7) is not found[7] and not all_cleared


@pytest.mark.slow
def test_later_drops_are_no_warnings(caplog):
    process = Process()
    with caplog.at_level("INFO", "jaxspec"):
        for number in range(40):
            process.find(number)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", *["INFO"] * (len(levels) - 1)] and len(levels) > 3
    assert process.mappings <= 130


def test_mappings_of_other_functions_are_freed_if_those_of_programs_do_not_suffice(messages, monkeypatch):
    process = Process(145)
    monkeypatch.setattr(jax, "clear_caches", lambda: setattr(process, "mappings", process.mappings - 125))
    process.find(0)
    assert "dropped all compiled programs, including those of other functions: the process had 145" in messages()[0]
    assert process.mappings == 30


def test_too_few_mappings_are_an_error(all_cleared):
    process = Process(155)
    with pytest.raises(RuntimeError, match="155 of the 160 .* raise vm.max_map_count .`sysctl -w vm.max_map_count=640"):
        process.find(0)
    assert all_cleared


def test_mappings_that_nothing_frees_do_not_drop_programs_at_every_call(all_cleared):
    process = Process(125)  # of the other 35, three quarters are free
    for number in range(2):
        process.find(number)
    assert len(all_cleared) == 1 and len(process.programs) == 2


def test_mappings_are_counted_only_after_compiling(monkeypatch):
    process = Process()
    monkeypatch.setattr(programs, "_MOST_PROGRAMS", 3)
    for number in range(5):
        process.programs.find(number, lambda: Jitted(process))
    assert process.counted == 1 and len(process.programs) == 3 and process.mappings == 50
    unlimited = Programs(None, pytest.fail)
    unlimited.compiled(1e9)
    unlimited.find(0, lambda: None)


def test_a_dropped_program_is_compiled_again_and_no_other(monkeypatch):
    here, traced = Programs(), []
    monkeypatch.setattr(programs, "PROGRAMS", here)
    double = Kept(lambda x: traced.append(x.shape) or 2 * x)
    for size in (1, 2, 1, 2):
        assert double(jnp.ones(size)).shape == (size,)
    assert traced == [(1,), (2,)] and here._compiled > 0 and len(here) == 2
    here._drop(1)
    for size in (2, 1, 2):
        double(jnp.ones(size))
    assert traced == [(1,), (2,), (1,)]


def test_options_are_those_of_versions_that_have_them_and_of_whole_programs(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    assert programs.compiler_options() == {"xla_cpu_use_fusion_emitters": False}
    one, double = jnp.ones(()), Kept(lambda x: x + x)
    assert double(one) == jax.jit(lambda: double(one))() == jax.jit(double)(one) == 2
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 0))
    assert programs.compiler_options() is None


@pytest.mark.skipif(not programs.count_mappings(), reason="the system does not list mappings")
def test_dropping_a_program_frees_its_mappings(monkeypatch):
    here = Programs()
    monkeypatch.setattr(programs, "PROGRAMS", here)
    before, call = programs.count_mappings(), Kept(lambda x: jnp.cumsum(jnp.sort(x)) @ x)
    call(jnp.ones(5))
    compiled = programs.count_mappings()
    here._drop(1)
    gc.collect()
    assert before < compiled > programs.count_mappings()


@pytest.mark.slow
@pytest.mark.skipif(not programs.count_mappings(), reason="the system does not list mappings")
def test_a_process_survives_a_thousand_programs():
    command = [sys.executable, "-m", "tests._fixtures.many_programs", "--calls=10", "--small=990", "--limit=2500"]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True)
    assert (most := re.search(r"^1000 programs, at most (\d+) mappings$", ran.stdout, re.MULTILINE)), ran.stderr
    assert int(most[1]) < 2500
    assert ran.stderr.count("WARNING dropped the") == 1 and ran.stderr.count("INFO dropped the") > 0


def test_a_program_that_was_compiled_ahead_runs_without_compiling():
    program = PROGRAMS.find("compiled ahead", lambda: jax.jit(lambda held, x, y: (x + y, held.arrays[0] * x)))
    held, typed = HeldArrays([jnp.float32(2)]), jax.ShapeDtypeStruct((3,), jnp.float32)
    found = program.compile(held, typed, y=np.float32(1))
    assert [(x.shape, x.dtype) for x in found] == [((3,), jnp.float32)] * 2
    x = jnp.arange(3, dtype=jnp.float32)
    program(held, x, y=np.float32(1))
    assert program.jitted._cache_size() == 0
    assert program(held, x, y=np.float32(1))[1].tolist() == [0, 2, 4]
    assert program(held, x[:2], y=np.float32(1))[0].tolist() == [1, 2]  # of another shape
    assert program.jitted._cache_size() == 1

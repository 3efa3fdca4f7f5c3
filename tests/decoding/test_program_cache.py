"""Programs of `generate` and of texts on disk: found by later processes, unless the package's sources differ."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import jaxspec
from jaxspec.cli.info import describe
from jaxspec.core.programs import PROGRAMS, Programs
from jaxspec.decoding import program_cache, rounds
from jaxspec.decoding.program_cache import facts, sources_digest, use_by_default
from tests._fixtures import text_models, tiny

ROOT = pathlib.Path(__file__).parents[2]
TOKENIZER = text_models.byte_level()


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Keeps programs in a folder, and forgets those of this process when called."""
    from jaxspec.core import programs

    def forget():
        new = Programs()
        for module in (programs, program_cache, rounds):
            monkeypatch.setattr(module, "PROGRAMS", new)
        return jaxspec.use_program_cache(tmp_path / "programs")

    return forget


def traces_nothing(monkeypatch):
    def fail(*_):
        pytest.fail("it was traced")

    for name in ("initial_state", "round_of"):
        monkeypatch.setattr(f"jaxspec.decoding.generate.{name}", fail)
    monkeypatch.setattr("jaxspec.decoding.round.Round.run", fail)


@pytest.mark.slow
def test_generate_finds_its_program_without_tracing(kept, monkeypatch):
    target, prompt = tiny.transformer(), np.asarray([[1, 2, 3]], np.int32)
    call = lambda **options: jaxspec.generate(target, None, prompt, max_new_tokens=4, **options)  # noqa: E731
    folder = kept()
    expected = call()
    assert len(list(folder.iterdir())) == 1
    kept()
    traces_nothing(monkeypatch)
    np.testing.assert_array_equal(call().tokens, expected.tokens)
    with pytest.raises(pytest.fail.Exception, match="traced"):
        call(capacity=9)


@pytest.mark.slow
def test_texts_find_their_programs_without_tracing(kept, monkeypatch):
    target = jaxspec.native_kernels(tiny.transformer(vocab=TOKENIZER.vocab_size, context_length=2048), weights="int8")
    options = {"seed": 1, "max_new_tokens": 8, "stop_tokens": ()}
    decoder = lambda: jaxspec.SpeculativeDecoder(target, "ngram", k=2, tokenizer=TOKENIZER)  # noqa: E731
    folder = kept()
    expected = decoder().generate("hello", **options)
    assert len(list(folder.iterdir())) == 2
    kept()
    traces_nothing(monkeypatch)
    assert decoder().generate("hello", **options).log_probs == expected.log_probs
    stream = decoder().stream("hello, hello", **options | {"temperature": 0.3, "max_new_tokens": 20})
    assert len(list(stream)) > 0 and len(stream.result.token_ids) == 20


def test_a_source_that_differs_is_another_key(tmp_path):
    for name in ("a.py", "deep/b.cpp", "deep/b.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    found = [sources_digest(tmp_path)]
    for name in ("deep/b.pyc", "a.py", "deep/b.cpp"):
        (tmp_path / name).write_text("2")
        found.append(sources_digest(tmp_path))
    (tmp_path / "deep/b.cpp").rename(tmp_path / "deep/c.cpp")
    found.append(sources_digest(tmp_path))
    assert found[0] == found[1] and len(set(found)) == 4


def test_flags_and_settings_are_facts_and_folders_are_none(monkeypatch, tmp_path):
    before, kernels = facts(), program_cache.find_kernels()
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(program_cache, "find_kernels", lambda: kernels)
    assert facts() == before
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert facts() != before
    monkeypatch.undo()
    monkeypatch.setattr(program_cache, "find_kernels", lambda: "another build")
    assert facts() != before


def test_commands_keep_programs_unless_the_variable_is_0(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(PROGRAMS, "files", None)
    use_by_default()
    assert PROGRAMS.files is None  # tests set the variable
    monkeypatch.delenv("JAXSPEC_PROGRAM_CACHE")
    use_by_default()
    assert PROGRAMS.files and PROGRAMS.files.folder.path == tmp_path / "programs"
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "one").write_bytes(bytes(3_000_000))
    assert describe()["programs_found_without_tracing"] == f"{tmp_path / 'programs'} (3 MB)"


PROCESS = """
import json, sys, jax, numpy as np
import jaxspec
from jaxspec.testing.history_models import history_model
import jaxspec.decoding.generate as module
traced = []
before = module.initial_state
module.initial_state = lambda arguments: traced.append(1) or before(arguments)
jaxspec.use_program_cache(sys.argv[1])
target = history_model(0, vocab=7)
state = jaxspec.init(target, None, np.asarray([[1, 2, 3]], np.int32), max_new_tokens=6)
print(json.dumps([len(traced), state.limit.tolist()]))
"""


@pytest.mark.slow
def test_processes_share_programs_until_a_constant_of_the_loop_is_edited(tmp_path):
    """Also while two of them write the same file."""
    package, folder = tmp_path / "jaxspec", tmp_path / "programs"
    shutil.copytree(ROOT / "jaxspec", package, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", PROCESS, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    start = lambda: subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE)  # noqa: E731
    end = lambda process: json.loads(process.communicate()[0].splitlines()[-1])  # noqa: E731
    both = [start(), start()]
    first, second = map(end, both)
    assert first == second == [1, [9]] and len(list(folder.iterdir())) == 1
    assert end(start()) == [0, [9]]
    path = package / "decoding" / "generate.py"
    text = path.read_text()
    assert "limit=length + budget," in text
    path.write_text(text.replace("limit=length + budget,", "limit=length + budget // 2,"))
    assert end(start()) == [1, [6]]

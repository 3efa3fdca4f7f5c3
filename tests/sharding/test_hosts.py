"""Several processes on one mesh: they return the tokens of one process, one of them prints, and they end together."""

import dataclasses
import json
import pathlib
import re
import signal

import jax
import numpy as np
import pytest
import typer.testing

import jaxspec
from jaxspec.cli import app as application
from jaxspec.sharding.multihost import join
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import host_cases, host_worker, text_models
from tests._fixtures.processes import errors, started, wait_for

# Beyond the stated time there is the time that a busy machine takes to end a process.
STATED = host_worker.TIMEOUT + 10
SLACK = 30


def workers(folder, count, last, *cases):
    jaxspec.save(wide_transformer(0), folder / "model")
    module = ("-m", "tests._fixtures.host_worker")
    return started(folder, count, lambda *who: [*module, who[0], str(count), str(who[1]), str(folder), last, *cases])


def assert_same(folder, count, cases):
    """All that one process returns: tokens, lengths, status, stats and log-probabilities."""
    for name in cases:
        expected = host_cases.CASES[name](folder, None)
        for process in range(count):
            found = np.load(folder / f"{name}-{process}.npz")
            leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(expected)}
            assert set(found) == set(leaves)
            for field, leaf in leaves.items():
                np.testing.assert_allclose(found[field], leaf, rtol=0, atol=1e-4, err_msg=f"{name}{field}")


def assert_ends_with_an_error(process, folder, number):
    """Fails where it takes longer than was stated."""
    process.stdout.close()
    assert process.wait(STATED + SLACK) != 0
    # Which of JAX's messages it is depends on who notices first.
    assert re.search("another task died|crashed", (folder / f"stderr-{number}").read_text())


@pytest.mark.slow
def test_two_processes_and_then_one_is_killed(tmp_path):
    """Results are those of one process, and mismatches are reported; then no process waits for a dead one."""
    with workers(tmp_path, 2, "go on", "plain", "saved", "checkpointed") as processes:
        for process in processes:
            wait_for(process, "ready")
        processes[1].kill()
        assert_ends_with_an_error(processes[0], tmp_path, 0)
    assert_same(tmp_path, 2, ["plain", "saved", "checkpointed"])


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_the_same_tokens_as_one_process(tmp_path, count):
    with workers(tmp_path, count, "end", *host_cases.CASES) as processes:
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [0] * count, errors(tmp_path, count)
    assert_same(tmp_path, count, host_cases.CASES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "word"), [(0, signal.SIGKILL), (1, signal.SIGTERM), (0, signal.SIGSTOP), (1, signal.SIGSTOP)], ids=str
)
def test_none_waits_for_a_lost_process(tmp_path, victim, word):
    """The first process holds the list of all processes."""
    with workers(tmp_path, 2, "go on") as processes:
        for process in processes:
            wait_for(process, "ready")
        processes[victim].send_signal(word)
        assert_ends_with_an_error(processes[1 - victim], tmp_path, 1 - victim)


@pytest.mark.slow
def test_none_waits_for_a_process_that_failed(tmp_path):
    with workers(tmp_path, 2, "fail") as processes:
        wait_for(processes[0], "ready")
        assert_ends_with_an_error(processes[0], tmp_path, 0)
        processes[1].communicate()
    assert processes[1].returncode != 0
    assert "ValueError: the last thing of process 1" in (tmp_path / "stderr-1").read_text()


@pytest.mark.parametrize("given", [("host:80",), (None, 2, 0), ("host:80", 2)])
def test_a_part_of_an_address_is_refused(given):
    with pytest.raises(ValueError, match="join needs all of coordinator, num_processes, process_id or none, got no"):
        join(*given)


def commands(folder, count, *words, second=()):
    """`jaxspec generate` with a small model, in each process; the second gets more words."""
    tokenizer = text_models.byte_level()
    model = dataclasses.replace(wide_transformer(0, vocab=tokenizer.vocab_size), tokenizer=tokenizer)
    path = folder / "model"
    jaxspec.save(model, path)
    (folder / "run.py").write_text(
        "import jax\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"
        "jax.config.update('jax_disable_most_optimizations', True)\n"
        "from jaxspec.cli import main\n"
        "main()\n"
    )

    def command(coordinator, process):
        place = ("--coordinator", coordinator, "--num-processes", str(count), "--process-id", str(process))
        return [str(folder / "run.py"), "generate", "-m", str(path), *place, *words, *(second if process == 1 else ())]

    return path, started(folder, count, command)


def complaints(folder, process):
    """Standard error after the line that says for whom a process waits."""
    waiting, _, rest = (folder / f"stderr-{process}").read_text().partition("\n")
    assert re.fullmatch(r"waiting for \d processes at 127\.0\.0\.1:\d+", waiting)
    return rest


def alone(path: pathlib.Path, *words) -> str:
    result = typer.testing.CliRunner().invoke(application.app, ["generate", "-m", str(path), *words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_command_line(tmp_path, monkeypatch):
    """Processes that were given no seed share one, and only the first prints."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    words = ("hello", "-n", "12", "-t", "0.9", "--json", "--drafter", "none")
    path, running = commands(tmp_path, 2, *words, "--mesh", "data=2,model=2")
    with running as processes:
        printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors(tmp_path, 2)
    assert [printed[1], *(complaints(tmp_path, process) for process in (0, 1))] == ["", "", ""]
    ours = json.loads(printed[0])
    theirs = json.loads(alone(path, *words, "--seed", str(ours["seed"])))
    assert ours["token_ids"] == theirs["token_ids"]


@pytest.mark.slow
def test_the_command_line_streams_and_compares(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    words = ("hello", "the sea", "-n", "12", "-k", "2", "-t", "0")
    path, running = commands(tmp_path, 4, *words, "--drafter", str(tmp_path / "model"), "--compare")
    with running as processes:
        printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors(tmp_path, 4)
    assert printed == [alone(path, *words, "--drafter", str(path)), "", "", ""]
    assert "tokens: identical" in (tmp_path / "stderr-0").read_text()
    assert [complaints(tmp_path, process) for process in (1, 2, 3)] == [""] * 3


@pytest.mark.slow
def test_processes_that_jax_does_not_find(tmp_path):
    with started(tmp_path, 1, lambda *_: ["-m", "jaxspec", "generate", "hello", "--distributed"]) as (process,):
        process.communicate()
    assert process.returncode == 2
    assert (tmp_path / "stderr-0").read_text().startswith("error: JAX cannot join the processes (")


@pytest.mark.slow
def test_a_mistake_ends_every_process(tmp_path):
    _, running = commands(tmp_path, 2, "hello", "--mesh", "model=3")
    with running as processes:
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [2, 2]
    for process in (0, 1):
        error = complaints(tmp_path, process)
        assert error == "error: --mesh model=3 needs 3 devices, got 4; pass sizes whose product is 4\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [("-t", "0.7"), ("--mesh", "data=4"), ("--compare",), ("another prompt",)], ids=" ".join
)
def test_other_options_end_every_process(tmp_path, more):
    _, running = commands(tmp_path, 2, "hello", second=more)
    with running as processes:
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [2, 2], errors(tmp_path, 2)
    for process in (0, 1):
        expected = (
            "every process must pass the same options and prompts, got different ones on process 1 than on process 0"
        )
        assert complaints(tmp_path, process).splitlines()[-1] == f"error: {expected}"

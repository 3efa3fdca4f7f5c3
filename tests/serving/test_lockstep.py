"""One engine over several processes: they have the tokens of one, and end together if one of them is lost."""

import dataclasses
import json
import re
import signal
import socket
import threading
import time
import urllib.request

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.grammar import Grammar, ThinkingBudget
from jaxspec.serving import engine as engines, lockstep
from jaxspec.serving.group import Group
from jaxspec.serving.hosts import LOST_STATUS, Follower, Leader
from jaxspec.serving.lockstep import Following, Leading, decoded, encoded
from jaxspec.serving.prefixes import Prefix
from jaxspec.serving.wire import Connection
from tests._fixtures import serving_worker, text_models
from tests._fixtures.chunked import chunked
from tests._fixtures.processes import errors, started, wait_for
from tests._fixtures.serving_processes import save_model, workers

CAPACITY = 64  # those of other tests, whose programs are known
LONG = "the sea is wide and the sea is deep, hello world"
LINES = (LONG, "a", LONG + " one", "hello, hello there", LONG)
# A busy machine takes its time to end a process.
STATED, SLACK = 20, 20
# The first process is JAX's coordinator too, whose loss JAX may be the first to notice.
JAX_SAYS = "Either the leader task was preempted/died"


def stderr(folder, process):
    return (folder / f"stderr-{process}").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("count", "requests"), [(2, 20), (4, 10)])
def test_the_same_tokens_as_one_process(tmp_path, count, requests):
    """One of them begins late."""
    with workers(tmp_path, count, "end", requests) as processes:
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [0] * count, errors(tmp_path, count)
    with serving_worker.engine_of(tmp_path, None) as engine:
        expected = serving_worker.decode(engine, requests)
    assert json.loads((tmp_path / "found.json").read_text()) == expected
    assert int((tmp_path / "reused").read_text()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "what", "victim", "word", "reason"),
    [
        (2, "go on", 1, signal.SIGKILL, r"process 1 \(.*\) has ended, or closed its connection"),
        (2, "go on", 0, signal.SIGKILL, "process 0 has ended, or closed its connection"),
        (2, "go on", 1, signal.SIGSTOP, r"process 1 \(.*\) has been silent for 1\d s"),
        (2, "go on", 0, signal.SIGSTOP, "process 0 has been silent for 1\\d s"),
        (2, "hang", 1, None, r"process 1 \(.*\) hangs: it has not completed command \d+ \(advance\) within 15 s"),
        (4, "go on", 2, signal.SIGKILL, r"process 2 \(.*\) has ended, or closed its connection"),
    ],
    ids=["killed", "first killed", "stopped", "first stopped", "hangs", "one of four killed"],
)
def test_a_lost_process_ends_the_others(tmp_path, count, what, victim, word, reason):
    others = [one for one in range(count) if one != victim]
    with workers(tmp_path, count, what) as processes:
        wait_for(processes[0], "ready")
        began = time.monotonic()
        if word is not None:
            processes[victim].send_signal(word)
        processes[0].stdout.close()
        statuses = [processes[one].wait(max(0.0, began + STATED - time.monotonic())) for one in others]
    for status, said in zip(statuses, [stderr(tmp_path, one) for one in others], strict=True):
        if word == signal.SIGKILL and victim == 0 and status != LOST_STATUS:
            assert status == -signal.SIGABRT and JAX_SAYS in said
        else:
            assert status == LOST_STATUS
            assert re.search(f"error: the run on several processes ends: {reason}", said), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("version", r"process 1 \(.*\) has other versions: jaxspec: 0\.0, on process 0 \S+; install the same ones"),
        ("missing", "not all of 2 processes have connected within 3 s, missing: process 1"),
    ],
)
def test_a_process_that_does_not_belong_to_the_others_ends_them(tmp_path, what, reason):
    with workers(tmp_path, 2, what) as processes:
        assert all([process.wait(STATED + SLACK) != 0 for process in processes])  # noqa: C419 (both)
    assert re.search(f"RuntimeError: {reason}", stderr(tmp_path, 0)), stderr(tmp_path, 0)
    if what == "version":
        # The first process is JAX's coordinator too, whose end JAX may be the first to notice.
        assert re.search(f"refuses process 1: {reason}|{JAX_SAYS}", stderr(tmp_path, 1))


def flags(coordinator, process):
    return ("--coordinator", coordinator, "--num-processes", "2", "--process-id", str(process)), {}


def slurm(coordinator, process):
    """What `srun --ntasks=2` says: JAX takes one of the last 4,096 ports by the number of the job."""
    names = ("SLURM_PROCID", "SLURM_LOCALID")
    job = {"SLURM_JOB_ID": coordinator.partition(":")[2], "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    return ("--distributed",), {**job, **dict.fromkeys(names, str(process))}


def open_mpi(coordinator, process):
    """What `mpirun -n 2` says; the number of its job is a multiple of 4,096."""
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    job = int(coordinator.partition(":")[2]) << 12
    launcher = {"OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:9", "OMPI_COMM_WORLD_SIZE": "2"}
    return ("--distributed",), {**launcher, **dict.fromkeys(names, str(process))}


def commands(folder, *words, found=flags):
    """`jaxspec WORDS...` in two processes, which find each other by flags or by what their launcher says."""
    (folder / "run.py").write_text(
        "import json, os, sys\n"
        "os.environ.update(json.loads(sys.argv.pop()))\n"
        "import jax\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"
        "jax.config.update('jax_disable_most_optimizations', True)\n"
        "from jaxspec.cli import main\n"
        "main()\n"
    )
    sizes = ("-m", "model", "-d", "ngram", "--slots", "2", "--capacity", "64")

    def command(coordinator, process):
        given, variables = found(coordinator, process)
        return [str(folder / "run.py"), *words, *sizes, *given, json.dumps(variables)]

    return started(folder, 2, command)


@pytest.mark.slow
@pytest.mark.parametrize("found", [slurm, open_mpi])
def test_processes_are_found(tmp_path, found):
    save_model(tmp_path)
    rows = [{"prompt": text, "max_new_tokens": 6} for text in ("the sea", "a", "hello")]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with commands(tmp_path, "complete", "prompts.jsonl", "-o", "answers.jsonl", "-t", "0", found=found) as processes:
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0], errors(tmp_path, 2)
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    with jaxspec.Engine(tmp_path / "model", "ngram", slots=2, capacity=64) as engine:
        expected = [list(one.token_ids) for one in jaxspec.complete(engine, rows, temperature=0)]
    assert [answer["token_ids"] for answer in answers] == expected


@pytest.mark.slow
def test_a_file_is_completed_from_where_a_lost_process_ended_it(tmp_path):
    save_model(tmp_path)
    words = ("complete", "prompts.jsonl", "-o", "answers.jsonl", "-t", "0")
    rows = [{"prompt": text, "max_new_tokens": 30} for text in ("the sea", "a", "hello", "one two") * 20]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    part = tmp_path / "answers.jsonl.part"
    with commands(tmp_path, *words) as processes:
        while not part.exists() or part.read_bytes().count(b"\n") < 4:
            assert processes[0].poll() is None, errors(tmp_path, 2)
            time.sleep(0.01)
        processes[1].kill()
        assert processes[0].wait(STATED + SLACK) == LOST_STATUS
    written = part.read_bytes().count(b"\n")
    assert 4 <= written < len(rows)
    with commands(tmp_path, *words) as processes:
        printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors(tmp_path, 2)
    assert printed[1] == "" and f"{len(rows)} of {len(rows)} prompts" in (tmp_path / "stderr-0").read_text()
    found = [json.loads(line)["token_ids"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    with jaxspec.Engine(tmp_path / "model", "ngram", slots=2, capacity=64) as engine:
        expected = [one.token_ids for one in jaxspec.complete(engine, rows, temperature=0)]
    assert found == [list(ids) for ids in expected]


@pytest.mark.slow
def test_a_server_over_two_processes_answers_and_stops(tmp_path):
    """A signal to both lets the first one answer what runs; the other one ends with it."""
    pytest.importorskip("uvicorn")
    save_model(tmp_path)
    asked = {"prompt": "the sea", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    with commands(tmp_path, "serve", "--port", "0") as processes:
        address = re.search(r"at (http://\S+),", processes[0].stdout.readline())[1]
        request = urllib.request.Request(
            f"{address}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            found = json.load(response)["choices"][0]["text"]
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0], errors(tmp_path, 2)
    with jaxspec.Engine(tmp_path / "model", "ngram", slots=2, capacity=64) as engine:
        expected = engine.submit("the sea", max_new_tokens=20, temperature=0, stop_tokens=()).result()
    assert found == expected.text


class Pair:
    """Two engines of this process, of which the second follows the first over a socket."""

    def __init__(self, monkeypatch, target):
        one, other = (Connection(each) for each in socket.socketpair())
        self.lost, self.ended = [], threading.Event()
        end = lambda reason: (self.lost.append(reason), self.ended.set())  # noqa: E731
        sides = [Leader({1: ("process 1", one)}, end=end), Follower(other, end=end)]
        kinds = {Leader: Leading, Follower: Following}

        def steps(decoder, sizes, rounds, seconds):
            side = sides.pop(0)
            return kinds[type(side)](side, sizes[0], rounds)

        monkeypatch.setattr(engines, "steps_of", steps)
        options = {"k": 2, "slots": 2, "capacity": CAPACITY, "prefix_bytes": 2000}
        self.first, self.second = (jaxspec.Engine(target, "ngram", **options) for _ in range(2))
        self.error = None
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()
        while self.second._steps._calls is None:  # it begins to follow
            time.sleep(0.001)

    def _follow(self):
        try:
            self.second.follow()
        except (KeyError, RuntimeError) as error:
            self.error = error

    def end(self):
        self.first.close()
        self.thread.join(60.0)
        assert not self.thread.is_alive()


def test_a_follower_holds_what_the_first_holds(monkeypatch):
    """Prompts, groups and kept texts, after ends, cancellations, errors, other widths and texts that were dropped."""
    target = chunked(text_models.history_models()[0], 4)
    with jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        expected = [engine.submit(text, temperature=0, max_new_tokens=6).result().token_ids for text in LINES]
    pair = Pair(monkeypatch, target)
    cancelled = pair.first.submit("the sea", temperature=0, max_new_tokens=20)
    cancelled.cancel()
    handles = [pair.first.submit(text, temperature=0, max_new_tokens=6) for text in LINES]
    assert [handle.result(60.0).token_ids for handle in handles] == expected
    with pytest.raises(RuntimeError, match=r"requests go to the engine of process 0.*call engine.follow\(\)"):
        pair.second.submit("the sea", max_new_tokens=2)
    with pytest.raises(RuntimeError, match="only processes after the first follow"):
        pair.first.follow()
    first, second = (engine._steps._calls.things for engine in (pair.first, pair.second))
    pair.end()
    assert [engine._steps._calls.things for engine in (pair.first, pair.second)] == [{}, {}]
    assert {number: type(one) for number, one in first.items()} == {number: type(one) for number, one in second.items()}
    kept = sum(isinstance(one, Prefix) for one in first.values())
    assert 0 < kept < len(LINES) and len(first) == kept + sum(isinstance(one, Group) for one in first.values())
    assert (pair.lost, pair.error) == ([], None)


def test_another_request_on_a_follower_ends_the_run(monkeypatch):
    pair = Pair(monkeypatch, chunked(text_models.history_models()[0], 4))
    real = pair.second._request
    pair.second._request = lambda ids, *rest, **more: real([*ids[:-1], 7], *rest, **more)
    with pytest.raises(RuntimeError, match=r"process 1 differs from process 0 after command \d+"):
        pair.first.submit("the sea", temperature=0, max_new_tokens=6).result(60.0)
    pair.end()
    assert "differs from process 0" in pair.lost[0]
    assert "differs from process 0" in str(pair.error)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.1 + 0.2, "ü", (), [], (1, [2, (3,)]), {5: -1.5, "a": {"b": [None]}}, {"pairs": [[1]]}],
    ids=str,
)
def test_options_arrive_as_they_are(value):
    found = decoded(json.loads(json.dumps(encoded("it", value))))
    assert found == value and type(found) is type(value)


def test_options_of_numpy_arrive_as_pythons():
    assert decoded(encoded("it", np.asarray([1, 2]))) == [1, 2]
    assert decoded(encoded("it", np.int64(3))) == 3


def test_an_object_is_not_sent():
    with pytest.raises(TypeError, match=r"processors of submit cannot be sent to other processes as object; pass numb"):
        encoded("processors of submit", [object()])


def test_grammars_and_budgets_of_thinking_arrive():
    grammar = Grammar.after_thinking(Grammar.choices(["a", "b"]))
    assert decoded(json.loads(json.dumps(encoded("it", grammar)))) == grammar
    tokenizer = text_models.byte_level()
    budget = ThinkingBudget.of(tokenizer, tokenizer.vocab_size, 3, end="sea")
    (found,) = decoded(json.loads(json.dumps(encoded("it", (budget,)))))
    for one, other in zip(jax.tree.leaves(budget), jax.tree.leaves(found), strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)


def test_a_follower_that_cannot_encode_a_request_fails_it_alone(monkeypatch):
    """Such as one that is too slow for the table of its grammar."""
    pair = Pair(monkeypatch, chunked(text_models.history_models()[0], 4))
    real = pair.second._request

    def request(ids, options, **more):
        found = real(ids, options, **more)
        if options["max_new_tokens"] == 4:
            raise MemoryError("3 GiB")
        return dataclasses.replace(found, grammars=(None,)) if options["max_new_tokens"] == 5 else found

    pair.second._request = request
    expected = "another host cannot take this request.*process 1: "
    for count, reason in {4: "MemoryError: 3 GiB", 5: "the table of the grammar took it too long"}.items():
        with pytest.raises(ValueError, match=expected + reason):
            pair.first.submit("the sea", temperature=0, max_new_tokens=count).result(60.0)
    assert pair.first.submit("the sea", temperature=0, max_new_tokens=6).result(60.0).token_ids
    pair.end()
    assert (pair.lost, pair.error) == ([], None)


@pytest.mark.parametrize("side", ["first", "second"])
def test_an_error_of_a_process_is_not_said_to_be_a_hang(side, monkeypatch, caplog):
    """It is logged at once, and the others hear of it once no other process can be its cause."""
    monkeypatch.setattr(lockstep, "_LOSS_SECONDS", 0.0)
    pair = Pair(monkeypatch, chunked(text_models.history_models()[0], 4))

    def fail(*_):
        raise KeyError("it")

    if side == "first":
        pair.first._steps._calls.feed = fail
    else:
        pair.second._steps._calls.feed = fail
    with pytest.raises((KeyError, RuntimeError)):
        pair.first.submit("the sea", temperature=0, max_new_tokens=6).result(60.0)
    pair.thread.join(60.0)
    assert side == "first" or pair.ended.wait(60.0)
    said = str(pair.error) if side == "first" else pair.lost[0]
    assert re.search("process ([01] )?has failed: KeyError: 'it'", said)
    assert any("command 3 (feed) has failed" in one.message and one.exc_info for one in caplog.records)

"""Ray Data answers each row once, and Ray Serve each request, though processes and nodes die."""

import concurrent.futures
import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
import yaml

import jaxspec
from jaxspec.serving.ray import build_serve, complete_files, seed_of
from tests._fixtures import ray_engines
from tests._fixtures.ray_engines import OPTIONS
from tests._fixtures.serving_processes import save_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs Ray; `bash .ci/run ray` installs it and runs this"
    ),
]
ROOT = pathlib.Path(__file__).parents[2]
STORE = 100 * 2**20
ROWS, PORT = 120, 8123
# Workers begin faster with the programs that others have compiled, and fast; Ray's newer reader starts many processes.
ENVIRONMENT = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAXSPEC_PROGRAM_CACHE": "1",
    "RAY_DATA_USE_DATASOURCE_V2": "0",
}
PAGE = ROOT / "docs" / "guides" / "many-machines.md"


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "JAXSPEC_CACHE": str(tmp_path_factory.mktemp("cache"))}.items():
            patch.setenv(name, value)
        yield


@contextlib.contextmanager
def nodes(*cpus):
    """A cluster of a head and other nodes, which may be removed, with numbers of processors that Ray is to believe."""
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **common})
    try:
        yield cluster, [cluster.add_node(num_cpus=each, object_store_memory=STORE) for each in cpus]
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def cluster(_own_cache):
    import ray

    with nodes(4) as (cluster, _):
        ray.init(address=cluster.address, log_to_driver=False)
        yield
        ray.shutdown()


def lines(folder):
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def wait_until(reached, process=None):
    until = time.monotonic() + 600
    while not reached():
        assert process is None or process.poll() is None, "the driver has ended"
        assert time.monotonic() < until
        time.sleep(0.05)


def prompt_of(row):
    return f"the sea {row}"


def write_prompts(folder):
    rows = [{"id": row, "prompt": prompt_of(row)} for row in range(ROWS - 2)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "prompts.jsonl").write_text(text + 'oops\n{"id": "empty", "prompt": ""}\n')


def check_answers(found):
    """Each row once, with the tokens of a lone call."""
    expected = [*map(str, range(ROWS - 2)), "empty"]
    bad = [row for row in found if "error" in row]
    assert len(found) == ROWS and {row["id"] for row in found} >= set(expected) and len(bad) == 2
    answered = [row for row in found if "error" not in row]
    with ray_engines.engine() as engine:
        for row in answered:
            lone = engine.submit(prompt_of(row["id"]), seed=seed_of(row["id"]), **OPTIONS).result()
            assert (row["token_ids"], row["text"]) == (list(lone.token_ids), lone.text)
    for row in answered[:3]:
        assert row["token_ids"] == ray_engines.alone(prompt_of(row["id"]), row["seed"])


def test_each_row_is_answered_once_whatever_dies(tmp_path):
    """Workers die in the middle of batches, one between a write and its commit, then a node and the driver."""
    write_prompts(tmp_path)
    for name in ("die-0", "die-1", "uncommitted-0", "waits-0"):
        (tmp_path / name).touch()
    with nodes(2, 2, 2) as (cluster, others):
        call = [sys.executable, "-m", "tests._fixtures.ray_engines", cluster.address, str(tmp_path)]
        with subprocess.Popen(call, cwd=ROOT) as driver:
            # The driver dies while a written file waits for its commit, after a node was lost.
            try:
                wait_until(lambda: not list(tmp_path.glob("die-*")), driver)
                cluster.remove_node(others[0], allow_graceful=False)
                wait_until((tmp_path / "waiting").exists, driver)
            finally:
                driver.kill()
        pending = [path.name.partition(".")[0] for path in tmp_path.glob("answers.checkpoint/*.pending.parquet")]
        written = {path.name: path.read_bytes() for path in (tmp_path / "answers").iterdir()}
        complete = {name: text for name, text in written.items() if not name.startswith(tuple(pending))}
        assert pending and complete and len(complete) < len(written)
        assert not list(tmp_path.glob("uncommitted-*"))
        subprocess.run(call, cwd=ROOT, check=True)
        found = lines(tmp_path / "answers")
        check_answers(found)
        now = {path.name: path.read_bytes() for path in (tmp_path / "answers").iterdir()}
        assert complete.items() <= now.items() and not (written.keys() - complete.keys()) & now.keys()
        subprocess.run(call, cwd=ROOT, check=True)  # there is nothing left to do
        assert sorted(map(str, lines(tmp_path / "answers"))) == sorted(map(str, found))


def test_a_copy_has_a_mesh(cluster, tmp_path):
    """A worker's engine is over the devices of its process."""
    import ray

    save_model(tmp_path)
    source = functools.partial(ray_engines.of_mesh, str(tmp_path / "model"))
    rows = ray.data.from_items([{"id": row, "prompt": prompt_of(row)} for row in range(4)])
    found = rows.map_batches(
        jaxspec.serving.Completer,
        fn_constructor_args=(source,),
        fn_constructor_kwargs=OPTIONS,
        runtime_env={"env_vars": {"JAX_NUM_CPU_DEVICES": "2"}},
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=1),
    ).take_all()
    decoder = jaxspec.SpeculativeDecoder(str(tmp_path / "model"), "ngram", k=2, verifier=jaxspec.CoupledVerifier())
    assert {row["id"]: row["token_ids"] for row in found} == {
        row: list(decoder.generate(prompt_of(row), seed=seed_of(row), **OPTIONS).token_ids) for row in range(4)
    }


def test_tables_in_and_out(cluster, tmp_path):
    """Options of rows are columns, others are passed on, and columns have their types where all values are null."""
    import pyarrow
    from pyarrow import parquet

    rows = {"key": [3, 4, 5], "prompt": ["the sea", None, ""], "source": ["a", "b", "c"]}
    rows["messages"] = [None, [{"role": "user", "content": "the sea"}], None]
    parquet.write_table(pyarrow.table(rows), tmp_path / "rows.parquet")
    given = {"id_column": "key", "keep": ["source"], "batch_size": 2, **OPTIONS}
    call = functools.partial(complete_files, ray_engines.engine, str(tmp_path / "rows.parquet"), **given)
    call(str(tmp_path / "answers"))
    found = parquet.read_table(tmp_path / "answers").sort_by("key").to_pylist()
    assert [(row["key"], row["source"], row["seed"]) for row in found] == [
        (key, source, seed_of(key)) for key, source in zip(rows["key"], rows["source"], strict=True)
    ]
    assert found[0]["token_ids"] == ray_engines.alone("the sea", seed_of(3))
    assert len(found[1]["token_ids"]) == 8 and "empty" in found[2]["error"] and found[2]["text"] is None
    # The program had died after a file was written, and before it was finished.
    (ids,) = (tmp_path / "answers.checkpoint").glob("*.parquet")
    (unfinished,) = (tmp_path / "answers").iterdir()
    ids.rename(ids.with_suffix(".pending.parquet"))
    call(str(tmp_path / "answers"))
    assert not unfinished.exists()
    assert parquet.read_table(tmp_path / "answers").sort_by("key").to_pylist() == found
    with pytest.raises(ValueError, match="was begun with other options"):
        call(str(tmp_path / "answers"), temperature=0.5)
    with pytest.raises(ValueError, match="holds other files; pass a new folder"):
        call(str(tmp_path))


def test_no_request_fails_in_an_update_and_a_scale_down(cluster):
    from ray import serve

    def application(**given):
        small = {"slots": ray_engines.SLOTS, "model": "small", "actor_options": {"num_cpus": 0.5}}
        return build_serve(ray_engines.engine, **{**small, **given})

    statuses, stopped = [], threading.Event()

    def ask(client):
        place = 0
        while not stopped.is_set():
            place += 1
            body = {"model": "small", "prompt": f"the sea {client} {place}", "max_tokens": 6, "seed": place}
            request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode())
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    statuses.append((answer.status, json.load(answer)["usage"]["completion_tokens"]))
            except OSError as error:
                statuses.append((error, 0))

    def copies():
        (found,) = serve.status().applications["default"].deployments.values()
        return found

    def settled(count):
        return copies().replica_states == {"RUNNING": count} and copies().status == "HEALTHY"

    serve.start(http_options={"port": PORT})
    serve.run(application(replicas=2))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask, client) for client in range(4)]
        try:
            wait_until(lambda: len(statuses) > 20)
            serve.run(application(replicas=2, most_waiting=512))  # other copies take over
            before = len(statuses)
            wait_until(lambda: len(statuses) > before + 20)
            serve.run(application(replicas=1, most_waiting=512))
            wait_until(lambda: settled(1))
            before = len(statuses)
            wait_until(lambda: len(statuses) > before + 20)
        finally:
            stopped.set()
    assert all(client.exception() is None for client in clients)
    serve.shutdown()
    assert len(statuses) > 60 and {status for status, _ in statuses} == {200}, set(map(str, statuses))


def test_the_page_runs_as_written(cluster, tmp_path, monkeypatch, capsys):
    """But for the name of the model, and where a cluster comes from."""
    from ray import serve

    save_model(tmp_path)
    text = PAGE.read_text().replace("smollm2-135m-instruct", str(tmp_path / "model"))
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", text, re.M | re.S)
    assert [kind for kind, _ in blocks] == ["bash", "bash", "python", "python", "python", "bash"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    serve.start(http_options={"port": PORT})
    for kind, block in blocks[1:]:  # the first one installs
        if kind == "bash":
            subprocess.run(["bash", "-euc", block], check=True)
        else:
            exec(compile(block, PAGE.name, "exec"), {})
    answers = lines(tmp_path / "answers")
    assert sorted(row["id"] for row in answers) == ["a", "b"] and all(row["token_ids"] for row in answers)
    assert capsys.readouterr().out.strip()
    body = json.dumps({"model": "smollm2", "prompt": "The sea", "max_tokens": 2}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/completions", body, timeout=120) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 2
    serve.shutdown()
    assert [one["kind"] for one in yaml.safe_load_all((tmp_path / "serve.yaml").read_text())] == ["JobSet", "Service"]

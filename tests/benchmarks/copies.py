"""Times Ray Data with two workers against two lone processes: python -m tests.benchmarks.copies [--kills 5]

Each process has an engine of a random model, and is pinned to one core. All begin together, when the last one is ready,
and the time is up to the last answer: the start of Python, Ray and the engines is not counted. With kills of workers, a
node and the driver are lost too, all at random times, and what is printed of the time has all starts after that.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import jaxspec
from jaxspec.serving.ray import complete_files, seed_of
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import text_models

OPTIONS = {"temperature": 0.9, "max_new_tokens": 48, "stop_tokens": ()}
WORKERS, STORE = 2, 200 * 2**20


def engine(folder: str) -> jaxspec.Engine:
    """An engine whose process says that it lives, and is warm."""
    import dataclasses

    tokenizer = text_models.byte_level()
    model = dataclasses.replace(wide_transformer(0, vocab=tokenizer.vocab_size), tokenizer=tokenizer)
    kinds = [{**OPTIONS, "seed": 1}]
    found = jaxspec.Engine(model, "ngram", k=2, slots=8, capacity=96, prompt_share=1.0, kinds=kinds)
    for handle in [found.submit("a", seed=1, **OPTIONS) for _ in range(16)]:
        handle.result()
    while not found.ready:
        time.sleep(0.1)
    pin(pathlib.Path(folder))
    pathlib.Path(folder, f"worker-{os.getpid()}").touch()
    while len(list(pathlib.Path(folder).glob("worker-*"))) < WORKERS:
        time.sleep(0.05)
    return found


def pin(folder: pathlib.Path) -> None:
    """Pins all threads of this process, and so those that they start, to a core that no earlier process took."""
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            (folder / f"place-{number}").touch(exist_ok=False)
            break
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {number % (os.cpu_count() or 1)})


def alone(folder: str, rows: int, of: int) -> None:
    """Completes every second row, and writes when it began and ended."""
    found = engine(folder)
    prompts = [{"prompt": f"the sea {row}", "seed": seed_of(row)} for row in range(of, rows, WORKERS)]
    began = time.time()
    ids = [list(result.token_ids) for result in jaxspec.complete(found, prompts, **OPTIONS)]
    pathlib.Path(folder, f"times-{of}").write_text(json.dumps([began, time.time(), ids]))


def _on_core(number: int) -> list[str]:
    return ["taskset", "--cpu-list", str(number % (os.cpu_count() or 1))]


def lone_processes(rows: int) -> tuple[float, list]:
    """Returns the seconds of two processes, and the tokens of each row."""
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", "tests.benchmarks.copies", "--rows", str(rows), "--folder", folder, "--alone"]
        # As Ray starts workers: with more threads than its core, a process takes twice as long.
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen([*_on_core(of), *call, str(of)], env=environment) for of in range(WORKERS)]
        assert [process.wait() for process in processes] == [0] * WORKERS
        found = [json.loads(pathlib.Path(folder, f"times-{of}").read_text()) for of in range(WORKERS)]
    ids = [found[row % WORKERS][2][row // WORKERS] for row in range(rows)]
    return max(one[1] for one in found) - min(one[0] for one in found), ids


def completed(folder: str, rows: int) -> None:
    """Runs Ray Data with two workers over all rows."""
    module = sys.modules["tests.benchmarks.copies"]
    complete_files(
        functools.partial(module.engine, folder),
        f"{folder}/prompts.jsonl",
        f"{folder}/answers",
        workers=WORKERS,
        rows_per_file=min(256, max(1, rows // 8)),
        actor_options={"num_cpus": 1},
        **OPTIONS,
    )


def with_ray(folder: pathlib.Path, rows: int) -> float:
    """Returns the seconds of two workers of Ray Data."""
    import ray

    ray.init(num_cpus=WORKERS + 2, object_store_memory=STORE, log_to_driver=False, include_dashboard=False)
    completed(str(folder), rows)
    ended = time.time()
    ray.shutdown()
    return ended - max(path.stat().st_mtime for path in folder.glob("worker-*"))


def with_deaths(folder: pathlib.Path, rows: int, kills: int) -> tuple[float, list[str]]:
    """Returns the seconds of all drivers on a cluster of several nodes, and what has died."""
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **common})
    nodes = [cluster.add_node(num_cpus=2, object_store_memory=STORE) for _ in range(3)]
    words = ("--rows", str(rows), "--folder", str(folder), "--driver", cluster.address)
    drive = lambda: subprocess.Popen([sys.executable, "-m", "tests.benchmarks.copies", *words])
    dice, began, driver, died = random.Random(0), time.time(), drive(), []
    deaths = ["worker"] * kills + ["node", "driver"]
    dice.shuffle(deaths)
    for victim in deaths:
        while driver.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(dice.uniform(2, 6))
            if len(living := at_work(folder)) >= WORKERS:
                break
        if driver.poll() is not None:  # all is done
            break
        died.append(victim)
        if victim == "worker":
            os.kill(dice.choice(living), signal.SIGKILL)
        elif victim == "node":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            cluster.add_node(num_cpus=2, object_store_memory=STORE)
        else:
            driver.kill()
            driver.wait()
            driver = drive()
    assert driver.wait() == 0
    seconds = time.time() - began
    cluster.shutdown()
    return seconds, died


def at_work(folder: pathlib.Path) -> list[int]:
    """Returns the processes of workers that live."""
    numbers = sorted(int(path.name.partition("-")[2]) for path in folder.glob("worker-*"))
    return [number for number in numbers if pathlib.Path(f"/proc/{number}").exists()]


def main(rows: int, kills: int) -> None:
    """Prints the ratio of the two, and what was lost, doubled or other."""
    alone_seconds, ids = lone_processes(rows)
    with tempfile.TemporaryDirectory() as name:
        folder, died = pathlib.Path(name), []
        lines = (json.dumps({"id": row, "prompt": f"the sea {row}"}) + "\n" for row in range(rows))
        (folder / "prompts.jsonl").write_text("".join(lines))
        if kills:
            seconds, died = with_deaths(folder, rows, kills)
        else:
            seconds = with_ray(folder, rows)
        answers = [json.loads(line) for path in folder.glob("answers/*") for line in path.read_text().splitlines()]
    named = {int(row["id"]): row["token_ids"] for row in answers}
    other = sum(named[row] != ids[row] for row in named)
    print(f"{rows} rows: two processes {alone_seconds:.1f} s, Ray Data {seconds:.1f} s: {alone_seconds / seconds:.2f}")
    dead = ", ".join(died) or "nothing"
    print(f"{rows - len(named)} lost, {len(answers) - len(named)} doubled, {other} with other tokens; died: {dead}")


if __name__ == "__main__":
    import tests.benchmarks.copies  # noqa: F401 (by its name, for workers)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--folder")
    parser.add_argument("--alone", type=int)
    parser.add_argument("--driver", metavar="ADDRESS")
    given = parser.parse_args()
    if given.driver is not None:
        import ray

        ray.init(address=given.driver, log_to_driver=False)
        completed(given.folder, given.rows)
    elif given.alone is not None:
        alone(given.folder, given.rows, given.alone)
    else:
        main(given.rows, given.kills)

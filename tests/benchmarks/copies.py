"""Times Ray Data with two workers against two lone processes: python -m tests.benchmarks.copies [--kills 5]

Each process has an engine of a random model, and is pinned to one core. All begin together, when the last one is ready,
and the time is up to the last answer: the start of Python, Ray and the engines is not counted. With kills, the starts
after them are.
"""

import argparse
import functools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import jaxspec
from jaxspec.serving.ray import complete_files, seed_of
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import text_models

OPTIONS = {"temperature": 0.9, "max_new_tokens": 48, "stop_tokens": ()}
WORKERS = 2


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
    begun = list(pathlib.Path(folder).glob("worker-*"))
    os.sched_setaffinity(0, {len(begun) % (os.cpu_count() or 1)})
    pathlib.Path(folder, f"worker-{os.getpid()}").touch()
    while len(list(pathlib.Path(folder).glob("worker-*"))) < WORKERS:
        time.sleep(0.05)
    return found


def alone(folder: str, rows: int, of: int) -> None:
    """Completes every second row, and writes when it began and ended."""
    found = engine(folder)
    prompts = [{"prompt": f"the sea {row}", "seed": seed_of(row)} for row in range(of, rows, WORKERS)]
    began = time.time()
    ids = [list(result.token_ids) for result in jaxspec.complete(found, prompts, **OPTIONS)]
    pathlib.Path(folder, f"times-{of}").write_text(json.dumps([began, time.time(), ids]))


def lone_processes(rows: int) -> tuple[float, list]:
    """Returns the seconds of two processes, and the tokens of each row."""
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", "tests.benchmarks.copies", "--rows", str(rows), "--folder", folder, "--alone"]
        processes = [subprocess.Popen([*call, str(of)]) for of in range(WORKERS)]
        assert [process.wait() for process in processes] == [0] * WORKERS
        found = [json.loads(pathlib.Path(folder, f"times-{of}").read_text()) for of in range(WORKERS)]
    ids = [found[row % WORKERS][2][row // WORKERS] for row in range(rows)]
    return max(one[1] for one in found) - min(one[0] for one in found), ids


def kill_some(folder: pathlib.Path, kills: int, done: threading.Event, killed: list[str]) -> None:
    """Kills a random worker, each time that all have been at work for some seconds; `killed` lists them."""
    dice, known = random.Random(0), set()
    for _ in range(kills):
        while not done.is_set() and len(living := {*folder.glob("worker-*")} - known) < WORKERS:
            time.sleep(0.1)
        if done.wait(dice.uniform(2, 6)):
            return
        victim = dice.choice(sorted(living))
        known.add(victim)
        os.kill(int(victim.name.partition("-")[2]), signal.SIGKILL)
        killed.append(victim.name)


def with_ray(rows: int, kills: int) -> tuple[float, list, int]:
    """Returns the seconds of two workers of Ray Data, the rows of its answers, and how many workers were killed."""
    import ray

    ray.init(num_cpus=WORKERS + 2, object_store_memory=200 * 2**20, log_to_driver=False, include_dashboard=False)
    with tempfile.TemporaryDirectory() as name:
        folder, done, killed = pathlib.Path(name), threading.Event(), []
        lines = (json.dumps({"id": row, "prompt": f"the sea {row}"}) + "\n" for row in range(rows))
        (folder / "prompts.jsonl").write_text("".join(lines))
        killer = threading.Thread(target=kill_some, args=(folder, kills, done, killed))
        killer.start()
        module = sys.modules["tests.benchmarks.copies"]
        complete_files(
            functools.partial(module.engine, name),
            str(folder / "prompts.jsonl"),
            str(folder / "answers"),
            workers=WORKERS,
            rows_per_file=256,
            **OPTIONS,
        )
        ended = time.time()
        done.set()
        killer.join()
        began = max(path.stat().st_mtime for path in sorted(folder.glob("worker-*"), key=os.path.getmtime)[:WORKERS])
        paths = (folder / "answers").glob("*.jsonl")
        answers = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return ended - began, answers, len(killed)


def main(rows: int, kills: int) -> None:
    """Prints the ratio of the two, and what was lost, doubled or other."""
    alone_seconds, ids = lone_processes(rows)
    seconds, answers, killed = with_ray(rows, kills)
    named = {int(row["id"]): row["token_ids"] for row in answers}
    other = sum(named[row] != ids[row] for row in named)
    print(f"{rows} rows: two processes {alone_seconds:.1f} s, Ray Data {seconds:.1f} s: {alone_seconds / seconds:.2f}")
    print(f"{rows - len(named)} lost, {len(answers) - len(named)} doubled, {other} with other tokens, {killed} kills")


if __name__ == "__main__":
    import tests.benchmarks.copies  # noqa: F401 (by its name, for workers)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--folder")
    parser.add_argument("--alone", type=int)
    given = parser.parse_args()
    if given.alone is None:
        main(given.rows, given.kills)
    else:
        alone(given.folder, given.rows, given.alone)

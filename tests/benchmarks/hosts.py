"""Counts requests whose tokens over several processes are not those of one: python -m tests.benchmarks.hosts

`tests/serving/test_lockstep.py` has few requests, since processes that share a processor take long.
"""

import argparse
import json
import pathlib
import tempfile

from tests._fixtures import serving_worker
from tests._fixtures.processes import errors
from tests._fixtures.serving_processes import workers


def main(requests: int, count: int) -> None:
    """Prints how many differ."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with workers(folder, count, "end", requests) as processes:
            for process in processes:
                process.communicate()
        assert [process.returncode for process in processes] == [0] * count, errors(folder, count)
        found = json.loads((folder / "found.json").read_text())
        with serving_worker.engine_of(folder, None) as engine:
            expected = serving_worker.decode(engine, requests)
    differ = sum(one != other for one, other in zip(found, expected, strict=True))
    tokens = sum(len(one[0]) for one in found)
    print(f"{count} processes, {requests} requests, {tokens} tokens: {differ} requests differ from one process")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    main(given.requests, given.processes)

"""`host_worker COORDINATOR PROCESSES ID FOLDER LAST CASE...`: one of several processes of a test.

Writes each case's result to the folder, says "ready", and then does the last thing: "end", "fail", or "go on".
"""

import pathlib
import sys

import jax
import numpy as np
import pytest

from jaxspec.sharding.multihost import join

TIMEOUT = 10


def main(coordinator, processes, process, folder, last, *cases):
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_disable_most_optimizations", True)
    folder, process, continue_ = pathlib.Path(folder), int(process), last == "go on"
    join(coordinator, int(processes), process, timeout=TIMEOUT if continue_ or last == "fail" else 60)
    from tests._fixtures.host_cases import CASES

    # Over both axes some devices belong to other processes.
    mesh = jax.make_mesh((2, int(processes)), ("data", "model"))
    for name in cases:
        result = CASES[name](folder, mesh)
        values = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(result)}
        np.savez(folder / f"{name}-{process}.npz", **values)
    differ(folder, mesh)
    print("ready", flush=True)
    if last == "fail" and process == 1:
        raise ValueError("the last thing of process 1")
    while last != "end":
        CASES["plain"](folder, mesh)


def differ(folder, mesh):
    """Makes a different call on each process: all raise an error that names the difference."""
    import jaxspec
    from tests._fixtures.host_cases import MISMATCHES

    target = jaxspec.load(folder / "model", mesh=mesh)
    for case, what in MISMATCHES.items():
        message = (
            f"every process must pass the same {what}.* got different ones on process 1(, 2, 3)? than on process 0"
        )
        with pytest.raises(ValueError, match=message):
            case(target, min(jax.process_index(), 1), mesh)


if __name__ == "__main__":
    main(*sys.argv[1:])

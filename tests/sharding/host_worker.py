"""`host_worker COORDINATOR PROCESSES ID FOLDER LAST CASE...`: one of several processes of a test.

Writes each case's tokens to the folder, says "ready", and then does the last thing: "end", "fail", or "go on".
"""

import pathlib
import sys

import jax
import numpy as np

from jaxspec.sharding import join

TIMEOUT = 10


def main(coordinator, processes, process, folder, last, *cases):
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_disable_most_optimizations", True)
    folder, process, goes_on = pathlib.Path(folder), int(process), last == "go on"
    join(coordinator, int(processes), process, timeout=TIMEOUT if goes_on or last == "fail" else 60)
    from tests.sharding.host_cases import CASES

    # Over both axes some devices belong to other processes.
    mesh = jax.make_mesh((2, int(processes)), ("data", "model"))
    for name in cases:
        result = CASES[name](folder, mesh)
        assert all(np.asarray(leaf) is not None for leaf in jax.tree.leaves(result))
        np.save(folder / f"{name}-{process}.npy", np.asarray(result.tokens))
    differ(folder, mesh)
    print("ready", flush=True)
    if last == "fail" and process == 1:
        raise ValueError("the last thing of process 1")
    while last != "end":
        CASES["plain"](folder, mesh)


def differ(folder, mesh):
    """Every process passes a key of its own."""
    import jaxspec
    from tests.sharding.host_cases import PROMPT, SAMPLED

    target = jaxspec.load(folder / "model", mesh=mesh)
    try:
        jaxspec.generate(target, None, PROMPT, key=jax.random.key(jax.process_index()), **SAMPLED)
    except ValueError as error:
        assert "every process must pass the same prompts" in str(error)
        return
    raise AssertionError("keys that differ were taken")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Meshes over several processes: joining them, and what they tell each other on the host.

Every process runs the same program on the same inputs, and holds the parts of each array that lie
on its own devices. Nothing here is needed, or does anything, on a mesh of one process.
"""

import hashlib
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = 60,
    start_timeout: int = 300,
) -> None:
    """Makes one JAX program of several processes, on one host or on many. Call it before anything of JAX runs.

    Each process then calls the same functions of jaxspec with the same arguments, and a mesh over `jax.devices()`.

    If a process dies, is stopped, cannot be reached or ends with an error, JAX ends the others with an error message
    and a status other than 0 within `timeout` and ten more seconds, whatever they are doing. The same happens to those
    that reach their own end so much earlier than the last one. A process that is alive and never makes its next call
    is not noticed by that. A signal to terminate ends a process, as usual; JAX by itself would only take note of it.
    JAX's collectives on CPUs also end with an error where a process makes its first one half a minute before another
    process does, and print a line about each connection.

    Args:
      coordinator: `host:port` of the first process, reachable by all of them; any free port. `None` lets JAX find
        this and the other two on Cloud TPU, Slurm and Open MPI.
      num_processes: how many there are.
      process_id: which of them this is, from 0.
      timeout: seconds without a sign of life after which a process is taken for dead.
      start_timeout: seconds to wait for all processes to start; then JAX ends those that came, with an error.

    Raises:
      ValueError: some of the three are given and some not, or they do not fit; or none, where JAX cannot find them.
      RuntimeError: JAX has run something already.
    """
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise ValueError(f"join needs all of {', '.join(given)} or none, got no {', '.join(missing)}")
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method=None if missing else "deactivate",
            initialization_timeout=start_timeout,
            heartbeat_timeout_seconds=timeout,
            shutdown_timeout_seconds=timeout,
        )
    except ValueError as error:
        raise ValueError(
            f"JAX cannot join the processes ({error}); pass coordinator, num_processes, and process_id from 0 on"
        ) from error


def put_from_host(x: Any, sharding: NamedSharding) -> Array:
    """An array that this process has whole, and the others too, as one array over all of them.

    Unlike `jax.device_put` it sends nothing, and takes no look at whether the others have the same. An array that
    lies on several processes already is moved by `jax.device_put`.
    """
    if isinstance(x, Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    if _is_key(x):
        # Key data has an axis more; one that is not named is not split.
        return jax.random.wrap_key_data(put_from_host(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    values = np.asarray(x)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _is_key(x: Any) -> bool:
    return isinstance(x, Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def is_tracing() -> bool:
    """Whether JAX traces a function here, so that constants too must stay out of arrays over several processes."""
    return isinstance(jax.device_put(0), jax.core.Tracer)


def spans_processes(mesh: Mesh) -> bool:
    """Whether some devices of a mesh belong to other processes."""
    return any(device.process_index != jax.process_index() for device in mesh.devices.flat)


def check_same(inputs: Any, mesh: Mesh) -> None:
    """Compares a digest of the inputs, one exchange of 32 bytes, over the processes of a mesh.

    Arrays that lie on the devices of several processes already are left out, and while JAX traces there is nothing
    to compare.

    Raises:
      ValueError: on every process, if some process has others.
    """
    leaves = jax.tree.leaves(inputs)
    if not spans_processes(mesh) or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return
    digest = hashlib.sha256()
    for leaf in leaves:
        if isinstance(leaf, Array) and not leaf.is_fully_addressable:
            continue
        values = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        digest.update(repr((values.shape, values.dtype)).encode() + values.tobytes())
    rows = _everyones(np.frombuffer(digest.digest(), np.uint32), mesh)
    differ = {
        device.process_index for device, row in zip(mesh.devices.flat, rows, strict=True) if np.any(row != rows[0])
    }
    if differ:
        raise ValueError(
            "every process must pass the same prompts, lengths, keys, sampling parameters and budgets, got others on "
            f"process {', '.join(map(str, sorted(differ)))} than on process {mesh.devices.flat[0].process_index}"
        )


def from_first(number: int, mesh: Mesh) -> int:
    """The number below 2^32 that the process of the mesh's first device has."""
    if not spans_processes(mesh):
        return number
    return int(_everyones(np.array([number], np.uint32), mesh)[0, 0])


def _everyones(row: np.ndarray, mesh: Mesh) -> np.ndarray:
    """The row of the process of each device, in the mesh's order, on every process."""
    spread = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    rows = jax.make_array_from_callback((mesh.size, row.size), spread, lambda index: row[None])
    return np.asarray(jax.device_put(rows, NamedSharding(mesh, PartitionSpec())))

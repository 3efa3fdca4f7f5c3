"""Joins the processes of a mesh, and exchanges values between their hosts.

Every process runs the same program on the same inputs, and holds the parts of each array that lie
on its own devices. Nothing here is needed, or does anything, on a mesh of one process.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxspec.sharding.describe import describe


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = 60,
    start_timeout: int = 300,
) -> None:
    """Joins several processes to one JAX program, on one host or on many. Call it before any other function of JAX.

    Each process then calls the same functions of jaxspec with the same arguments, and a mesh over `jax.devices()`.

    If a process dies, is stopped, cannot be reached or ends with an error, JAX ends the others with an error message
    and a status other than 0 within `timeout` and ten more seconds, whatever they are doing. The same happens to those
    that reach their own end so much earlier than the last one. A process that is alive and never makes its next call
    is not detected. A signal to terminate ends a process, as usual; JAX by itself would only take note of it.
    JAX's collectives on CPUs also end with an error if a process makes its first one half a minute before another
    process does, and print a line about each connection.

    Args:
      coordinator: `host:port` of the first process, reachable by all of them; any free port. `None` lets JAX find
        this and the other two on Cloud TPU, Slurm and Open MPI.
      num_processes: the number of processes.
      process_id: the number of this one, from 0.
      timeout: seconds without a sign of life after which a process is taken for dead.
      start_timeout: seconds to wait for all processes to start; then JAX ends those that came, with an error.

    Raises:
      ValueError: some of the three are given and some not, or they do not fit; or none, and JAX cannot find them.
      RuntimeError: JAX has run something already.

    Example:
        >>> jaxspec.sharding.join("localhost:1234", num_processes=2)
        Traceback (most recent call last):
          ...
        ValueError: join needs all of coordinator, num_processes, process_id or none, got no process_id
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
    """Makes one array over all processes of equal arrays that each process has completely.

    Unlike `jax.device_put` it sends nothing, and does not check that the others have the same. An array that
    is on several processes already is moved by `jax.device_put`.
    """
    if isinstance(x, Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    if _is_key(x):
        # Key data has an axis more; one that is not named is not split.
        return jax.random.wrap_key_data(put_from_host(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    values = np.asarray(x)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _is_key(x: Any) -> bool:
    return isinstance(x, Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def is_tracing() -> bool:
    """Returns whether JAX is tracing: then constants too must stay out of arrays over several processes."""
    return isinstance(jax.device_put(0), Tracer)


def spans_processes(mesh: Mesh) -> bool:
    """Returns whether some devices of a mesh belong to other processes."""
    return any(device.process_index != jax.process_index() for device in mesh.devices.flat)


def check_same(parts: dict[str, Any], mesh: Mesh, number: int = 0) -> int:
    """Compares the values that the processes of a mesh pass, and shares a number: one exchange of 32 bytes.

    Each part is compared by `describe`. While JAX traces there is nothing to compare.

    Args:
      parts: the values that must be the same, by the names that the error tells.
      mesh: the processes that its devices belong to take part.
      number: below 2^32.

    Returns:
      The number of the process of the first device.

    Raises:
      ValueError: on every process, if some process passes something else.
    """
    if not spans_processes(mesh) or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(parts)):
        return number
    size = 28 // len(parts)
    digests = [hashlib.sha256(b"".join(describe(part))).digest()[:size] for part in parts.values()]
    devices = sorted(mesh.devices.flat, key=lambda device: device.id)
    rows = _gather(number.to_bytes(4, "little") + b"".join(digests), devices)
    theirs = rows[:, 4:].reshape(len(devices), len(parts), size)
    differ = (theirs != theirs[0]).any(-1)
    if differ.any():
        names = ", ".join(name for name, others in zip(parts, differ.T, strict=True) if others.any())
        who = sorted({device.process_index for device, others in zip(devices, differ, strict=True) if others.any()})
        raise ValueError(
            f"every process must pass the same {names}, got others on process {', '.join(map(str, who))} than on "
            f"process {devices[0].process_index}"
        )
    return int.from_bytes(rows[0, :4].tobytes(), "little")


def _gather(row: bytes, devices: Sequence[Any]) -> np.ndarray:
    """Returns the rows of the processes of all devices, on every process."""
    # Not the caller's mesh: that of another process may have other axes.
    line = Mesh(np.array(devices), ("devices",))
    own = np.frombuffer(row, np.uint8)[None]
    rows = jax.make_array_from_callback(
        (len(devices), len(row)), NamedSharding(line, PartitionSpec("devices")), lambda index: own
    )
    return np.asarray(jax.device_put(rows, NamedSharding(line, PartitionSpec())))


def by_first(step: Callable[[], None]) -> None:
    """Runs a step on the first of all of JAX's processes, while the others wait for its end.

    Raises:
      Exception: that of the step; on the other processes `RuntimeError`, or `FileExistsError` if it is one.
    """
    error = None
    if jax.process_index() == 0:
        try:
            step()
        except Exception as caught:  # whatever it is, the others must not wait for ever
            error = caught
    kind = 0 if error is None else 2 if isinstance(error, FileExistsError) else 1
    kind = int(multihost_utils.broadcast_one_to_all(np.int32(kind)))
    if error is not None:
        raise error
    if kind:
        raise (RuntimeError, FileExistsError)[kind - 1]("the first process could not do it; its error says why")

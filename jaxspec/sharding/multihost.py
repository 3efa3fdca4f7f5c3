"""Joins the processes of a mesh, and exchanges values between their hosts.

Every process runs the same program on the same inputs, and holds the parts of each array that are on its own devices.
On a mesh of one process, nothing here is needed, and nothing has an effect.
"""

import contextlib
import contextvars
import dataclasses
import enum
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import default_registry

from jaxspec.core.model import Model

_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.dtype)
_MOST_VALUES = 2**24
_AGREED = contextvars.ContextVar("agreed", default=False)


def describe(value: object, *, with_values: bool = True) -> Iterator[bytes]:
    """Yields a value's classes, static fields, shapes and dtypes, and the values of its arrays, as bytes.

    Omits the values of arrays inside a `Model`, of arrays of more than 2^24 elements, and of arrays that this process
    holds only in part. For an object that is not plain, a container, a dataclass or a pytree, yields only the class,
    as its `repr` may differ between processes.
    """
    yield f"({_name(type(value))} ".encode()
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        yield _name(value).encode()
    elif isinstance(value, enum.Enum):
        yield value.name.encode()
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif isinstance(value, Mesh):
        yield repr(tuple(value.shape.items())).encode()
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield from _describe_array(value, with_values)
    else:
        yield from _describe_parts(value, with_values and not isinstance(value, Model))
    yield b")"


def _describe_parts(value: object, with_values: bool) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        pairs = (b"".join(describe(pair, with_values=with_values)) for pair in value.items())
        yield from sorted(pairs)
    elif isinstance(value, Set):
        yield from sorted(b"".join(describe(part, with_values=with_values)) for part in value)
    elif dataclasses.is_dataclass(value):
        # Fields that `repr` omits, such as the parent of a Flax module, may be circular.
        for field in dataclasses.fields(value):
            if field.repr and hasattr(value, field.name):
                yield field.name.encode()
                yield from describe(getattr(value, field.name), with_values=with_values)
    else:
        for part in _pytree_parts(value):
            yield from describe(part, with_values=with_values)


def _pytree_parts(value: object) -> tuple[Any, ...]:
    if isinstance(value, tuple | list):
        return tuple(value)
    children, static = default_registry.flatten_one_level(value) or ((), None)
    # A node registered as static is its own static part.
    return (*children, None if static is value else static)


def _describe_array(x: Any, with_values: bool) -> Iterator[bytes]:
    yield f"{tuple(x.shape)} {x.dtype} {getattr(x, 'weak_type', False)}".encode()
    if not with_values or isinstance(x, jax.ShapeDtypeStruct) or x.size > _MOST_VALUES:
        return
    if not isinstance(x, Array) or x.is_fully_addressable:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        yield np.asarray(jax.random.key_data(x) if is_key else x).tobytes()


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = 60,
    start_timeout: int = 300,
) -> None:
    """Joins several processes into one JAX program, on one or many hosts. Call it before any other JAX function.

    Each process then calls the same functions of jaxspec with the same arguments, and a mesh over `jax.devices()`.

    If a process dies, is stopped, becomes unreachable or fails, JAX terminates the others with an error message and a
    nonzero status. This happens within `timeout` plus ten seconds, regardless of what they are doing. It also happens
    to processes that finish that much earlier than the last one. A process that is alive but never makes its next call
    is not detected, except by an `Engine`, which also ends its processes earlier. A termination signal ends a process,
    as usual; by default, JAX would only take note of it.
    JAX's collectives on CPUs also fail if a process makes its first one half a minute before another process does, and
    print a line for each connection.

    Args:
      coordinator: `host:port` of the first process, with any free port, reachable by all processes. `None` lets JAX
        find this and the next two arguments on Cloud TPU, Slurm and Open MPI.
      num_processes: the number of processes.
      process_id: the index of this process, from 0.
      timeout: the seconds without a heartbeat after which a process is considered dead.
      start_timeout: the seconds to wait for all processes to start; then JAX terminates those that did, with an error.

    Raises:
      ValueError: if only some of the first three are given, if they are inconsistent, or if JAX cannot find them.
      RuntimeError: if JAX has already run a computation.

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
    """Makes one array over all processes from equal arrays, of which each process holds a complete copy.

    Unlike `jax.device_put`, it communicates nothing, and does not check that the copies are equal. An array that
    already spans several processes is moved by `jax.device_put`.
    """
    if isinstance(x, Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    if isinstance(x, Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        # Key data has one more axis; an axis that is not named is not split.
        return jax.random.wrap_key_data(put_from_host(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    values = np.asarray(x)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def spans_processes(mesh: Mesh) -> bool:
    """Returns whether any device of a mesh belongs to another process."""
    return any(device.process_index != jax.process_index() for device in mesh.devices.flat)


def check_same(parts: dict[str, Any], mesh: Mesh, number: int = 0) -> int:
    """Checks that all processes of a mesh pass the same values, and shares a number, in one exchange of 32 bytes.

    Compares each part by `describe`. Compares nothing while JAX is tracing, and within `agreed`.

    Args:
      parts: the values that must be the same, by the names to use in the error.
      mesh: the mesh whose processes take part.
      number: an integer below 2^32.

    Returns:
      The number passed by the first device's process.

    Raises:
      ValueError: on every process, if any process passes other values.
    """
    if not spans_processes(mesh) or _AGREED.get() or any(isinstance(one, Tracer) for one in jax.tree.leaves(parts)):
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
            f"every process must pass the same {names}, got different ones on process {', '.join(map(str, who))} than "
            f"on process {devices[0].process_index}"
        )
    return int.from_bytes(rows[0, :4].tobytes(), "little")


@contextlib.contextmanager
def agreed() -> Iterator[None]:
    """Makes `check_same` return its number without an exchange: other processes do not call it at the same time."""
    token = _AGREED.set(True)
    try:
        yield
    finally:
        _AGREED.reset(token)


def share(data: bytes, mesh: Mesh, size: int) -> bytes:
    """Returns the data of the first of JAX's processes, on all processes of a mesh.

    Args:
      data: at most `size` bytes; those of other processes do not matter.
      mesh: a mesh with devices of the first process.
      size: the number of bytes to exchange.
    """
    devices = sorted(mesh.devices.flat, key=lambda device: (device.process_index, device.id))
    return _gather(data.ljust(size, b"\0"), devices)[0].tobytes().rstrip(b"\0")


def _gather(row: bytes, devices: Sequence[Any]) -> np.ndarray:
    # Not the caller's mesh, which may have other axes on another process.
    line = Mesh(np.array(devices), ("devices",))
    own = np.frombuffer(row, np.uint8)[None]
    rows = jax.make_array_from_callback(
        (len(devices), len(row)), NamedSharding(line, PartitionSpec("devices")), lambda index: own
    )
    return np.asarray(jax.device_put(rows, NamedSharding(line, PartitionSpec())))


def by_first(step: Callable[[], None]) -> None:
    """Runs a step on the first of JAX's processes, while the others wait for it to finish.

    Raises:
      Exception: the exception of the step; on the other processes, `FileExistsError` if it is one, else `RuntimeError`.
    """
    error = None
    if jax.process_index() == 0:
        try:
            step()
        except Exception as caught:  # for any error, as the others must not wait forever
            error = caught
    kind = 0 if error is None else 2 if isinstance(error, FileExistsError) else 1
    kind = int(multihost_utils.broadcast_one_to_all(np.int32(kind)))
    if error is not None:
        raise error
    if kind:
        raise (RuntimeError, FileExistsError)[kind - 1]("the first process failed; its error says why")

"""The processes and devices that a command runs on: `--mesh`, `--coordinator` and their kin."""

import contextlib
import dataclasses
import math
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import Mesh

from jaxspec.sharding.multihost import check_same, join

_AXES = ("data", "model")
_ADDRESS = re.compile(r".+:(\d+)")
_LAST_PORT = 65535
_EXAMPLE = "--mesh data=2,model=4"


@dataclasses.dataclass(frozen=True)
class Processes:
    """Where a command runs.

    Attributes:
      axes: the mesh's axes with their sizes; `None` is no mesh in one process, and all devices as `model` in several.
      address: what `jaxspec.sharding.join` takes; nothing where JAX finds it, `None` for this process alone.
    """

    axes: dict[str, int] | None
    address: tuple[str, int, int] | tuple[()] | None

    @classmethod
    def parse(
        cls,
        mesh: str | None,
        coordinator: str | None,
        num_processes: int | None,
        process_id: int | None,
        distributed: bool,
    ) -> Self:
        """The options as typed.

        Raises:
          ValueError: if they do not fit each other.
        """
        axes = None if mesh is None else _parse_axes(mesh)
        given = {"--coordinator": coordinator, "--num-processes": num_processes, "--process-id": process_id}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == len(given):
            return cls(axes, () if distributed else None)
        if distributed:
            raise ValueError(f"--distributed finds the processes by itself; leave out it, or {', '.join(given)}")
        if missing:
            raise ValueError(f"{', '.join(given)} belong together; pass {' and '.join(missing)} too")
        address = _ADDRESS.fullmatch(coordinator)
        if address is None or int(address[1]) > _LAST_PORT:
            raise ValueError(
                f"--coordinator must be HOST:PORT of the first process, the port at most {_LAST_PORT}, "
                f"got {coordinator!r}"
            )
        if not 0 <= process_id < num_processes:
            raise ValueError(
                f"--process-id must be at least 0 and below --num-processes, got {process_id} of {num_processes}"
            )
        return cls(axes, (coordinator, num_processes, process_id))

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Joins the other processes, if there are any. Meanwhile only the first process prints.

        Raises:
          ValueError: JAX finds no processes.
        """
        if self.address is None:
            yield
            return
        if not jax.distributed.is_initialized():  # what started this command may have joined already
            if self.address:
                print(f"waiting for {self.address[1]} processes at {self.address[0]}", file=sys.stderr, flush=True)
            join(*self.address)
        with _first_prints(jax.process_index() == 0):
            yield

    def check_same(self, options: Any, number: int) -> int:
        """Compares the command's options over the joined processes, and returns the first one's number.

        Raises:
          ValueError: on every process, if some process has other options.
        """
        everyone = Mesh(np.array(jax.devices()), ("devices",))
        return check_same({"options and prompts": (options, self.axes)}, everyone, number)

    def mesh(self) -> Mesh | None:
        """The mesh, if there is one.

        Raises:
          ValueError: the sizes of the mesh do not give the number of devices.
        """
        if self.axes is None and self.address is None:
            return None
        return _make_mesh(self.axes or {"model": jax.device_count()})


def _parse_axes(text: str) -> dict[str, int]:
    axes = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name not in _AXES or name in axes or not size.isdecimal() or int(size) == 0:
            raise ValueError(
                f"--mesh takes sizes of the axes {' and '.join(_AXES)}, each once at most, got {text!r}; "
                f"pass such as {_EXAMPLE}"
            )
        axes[name] = int(size)
    return axes


def _make_mesh(axes: dict[str, int]) -> Mesh:
    needed, count = math.prod(axes.values()), jax.device_count()
    if needed != count:
        raise ValueError(
            f"--mesh {','.join(f'{name}={size}' for name, size in axes.items())} is of {needed} devices, got {count}; "
            "pass sizes whose product that is"
        )
    return jax.make_mesh(tuple(axes.values()), tuple(axes))


@contextlib.contextmanager
def _first_prints(first: bool) -> Iterator[None]:
    """Silences the others, and what JAX's collectives on CPUs write to the file descriptor itself."""
    sys.stdout.flush()
    with open(os.devnull, "w") as nowhere, os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding) as own:
        os.dup2(nowhere.fileno(), 1)
        with contextlib.ExitStack() as redirected:
            redirected.enter_context(contextlib.redirect_stdout(own if first else nowhere))
            if not first:
                redirected.enter_context(contextlib.redirect_stderr(nowhere))
            yield
        own.flush()
        os.dup2(own.fileno(), 1)

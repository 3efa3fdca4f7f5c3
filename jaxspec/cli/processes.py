"""Sets up the processes and devices that a command runs on: `--mesh`, `--coordinator` and related options."""

import contextlib
import dataclasses
import logging
import math
import os
import re
import sys
from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from jax.sharding import Mesh

_AXES = ("data", "model")
_ADDRESS = re.compile(r".+:(\d+)")
_LAST_PORT = 65535
_EXAMPLE = "--mesh data=2,model=4"
DeadlineOption = Annotated[
    float | None,
    typer.Option(metavar="S", min=1, help="With several processes: a command that takes longer hangs.  [default: 15]"),
]
# The group of these options in the help of commands.
PROCESSES = MappingProxyType(
    {"Devices and processes": ("mesh", "coordinator", "num_processes", "process_id", "distributed")}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """Defines the options for processes and devices, which are listed among a command's own.

    Raises:
      ValueError: if the options do not fit each other.
    """

    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXES",
            help="Split prompts and models over devices: 'data=2,model=4'.  "
            "[default: one device; with several processes, model=ALL]",
        ),
    ] = None
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of the first of several processes.")
    ] = None
    num_processes: Annotated[int | None, typer.Option(help="With --coordinator: number of processes.")] = None
    process_id: Annotated[
        int | None, typer.Option(help="With --coordinator: index of this process. Only process 0 prints.")
    ] = None
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Join the processes that JAX finds: on TPU, Slurm or Open MPI.")
    ] = False

    def __post_init__(self):
        parse_axes(self.mesh)
        self._address()

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Joins the other processes, if any; within the context only the first one prints.

        Raises:
          ValueError: if JAX finds no processes.
        """
        import jax

        from jaxspec.sharding.multihost import join

        address = self._address()
        if address is None and not self.distributed:
            yield
            return
        if not jax.distributed.is_initialized():  # the caller may have joined already
            if address is None:
                join()
            else:
                print(f"waiting for {address[1]} processes at {address[0]}", file=sys.stderr, flush=True)
                join(*address)
        with _first_prints(jax.process_index() == 0):
            yield

    @property
    def first(self) -> bool:
        """Whether this is the first of the joined processes."""
        import jax

        return jax.process_index() == 0

    @property
    def alone(self) -> bool:
        """Whether no other process has joined."""
        import jax

        return jax.process_count() == 1

    def check_same(self, options: Any, number: int) -> int:
        """Checks that all joined processes have equal options, and returns the number of the first process.

        Raises:
          ValueError: on every process, if options differ.
        """
        import jax
        import numpy as np
        from jax.sharding import Mesh

        from jaxspec.sharding.multihost import check_same

        devices = Mesh(np.array(jax.devices()), ("devices",))
        return check_same({"options and prompts": (options, parse_axes(self.mesh))}, devices, number)

    def make_mesh(self) -> "Mesh | None":
        """Makes the mesh, if any; with several processes it defaults to a `model` axis of all devices.

        Raises:
          ValueError: if the sizes of the mesh do not multiply to the number of devices.
        """
        import jax

        if self.mesh is None and self._address() is None and not self.distributed:
            return None
        return make_mesh(parse_axes(self.mesh) or {"model": jax.device_count()})

    def _address(self) -> tuple[str, int, int] | None:
        """Returns the arguments of `jaxspec.sharding.join`; `None` if JAX finds them, and for a single process."""
        given = {
            "--coordinator": self.coordinator,
            "--num-processes": self.num_processes,
            "--process-id": self.process_id,
        }
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == len(given):
            return None
        if self.distributed:
            raise ValueError(f"--distributed finds the processes; leave out --distributed or {', '.join(given)}")
        if self.coordinator is None or self.num_processes is None or self.process_id is None:
            raise ValueError(f"{', '.join(given)} belong together; pass {' and '.join(missing)} too")
        address = _ADDRESS.fullmatch(self.coordinator)
        if address is None or int(address[1]) > _LAST_PORT:
            raise ValueError(
                f"--coordinator must be HOST:PORT of the first process, the port at most {_LAST_PORT}, "
                f"got {self.coordinator!r}"
            )
        if not 0 <= self.process_id < self.num_processes:
            raise ValueError(
                f"--process-id must be at least 0 and below --num-processes, got {self.process_id} of "
                f"{self.num_processes}"
            )
        return self.coordinator, self.num_processes, self.process_id


def parse_axes(text: str | None) -> dict[str, int] | None:
    """Returns the axes of a mesh with their sizes; `None` without text.

    Raises:
      ValueError: if the text is not such a list.
    """
    if text is None:
        return None
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


def make_mesh(axes: dict[str, int]) -> "Mesh":
    """Makes a mesh of all devices.

    Raises:
      ValueError: if the sizes do not multiply to the number of devices.
    """
    import jax

    needed, count = math.prod(axes.values()), jax.device_count()
    if needed != count:
        raise ValueError(
            f"--mesh {','.join(f'{name}={size}' for name, size in axes.items())} needs {needed} devices, got {count}; "
            f"pass sizes whose product is {count}"
        )
    return jax.make_mesh(tuple(axes.values()), tuple(axes))


@contextlib.contextmanager
def _first_prints(first: bool) -> Iterator[None]:
    """Silences the other processes but for logged errors, and what JAX's CPU collectives write to the descriptor."""
    sys.stdout.flush()
    with open(os.devnull, "w") as nowhere, os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding) as own:
        os.dup2(nowhere.fileno(), 1)
        with contextlib.ExitStack() as redirected:
            redirected.enter_context(contextlib.redirect_stdout(own if first else nowhere))
            if not first:
                redirected.enter_context(_errors_logged())
                redirected.enter_context(contextlib.redirect_stderr(nowhere))
            yield
        own.flush()
        os.dup2(own.fileno(), 1)


@contextlib.contextmanager
def _errors_logged() -> Iterator[None]:
    """Shows logged errors on what is stderr now."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    handler.setFormatter(logging.Formatter("jaxspec: %(message)s"))
    logger = logging.getLogger("jaxspec")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)

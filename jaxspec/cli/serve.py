"""Implements `jaxspec serve`: a server that OpenAI's clients talk to."""

import contextlib
import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxspec.cli.help import Help
from jaxspec.cli.options import DEFAULT_MODEL, DrafterOption, DtypeOption, KernelsOption, LengthOption, ModelOption
from jaxspec.cli.processes import PROCESSES, DeadlineOption, Processes

if TYPE_CHECKING:
    from jaxspec.serving.engine import Engine

# The environment variable with the key that clients must send.
_KEY = "JAXSPEC_API_KEY"
# Seconds that a server which is to stop waits for running requests, if they have no time limit.
_LONGEST = 600
_INSTALL = 'pip install "jaxspec-decode[serve]"'

HELP = Help(
    "jaxspec serve --port 8000",
    {
        "Address": ("host", "port", "name"),
        "Model": ("model", "dtype", "float16_cache", "kernels"),
        "Speculation": ("drafter", "k"),
        "Engine": ("slots", "capacity", "most_waiting", "timeout", "deadline"),
        **PROCESSES,
    },
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec serve`."""

    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of this machine's.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 takes a free one.")] = 8000
    name: Annotated[str | None, typer.Option(help="Name that clients ask for.  [default: that of --model]")] = None
    model: ModelOption = DEFAULT_MODEL
    dtype: DtypeOption = None
    float16_cache: Annotated[
        bool, typer.Option("--float16-cache", help="Keep the target's cache in float16; faster for long texts.")
    ] = False
    kernels: KernelsOption = "auto"
    drafter: DrafterOption = "auto"
    k: LengthOption = None
    slots: Annotated[int, typer.Option(metavar="N", min=1, help="Requests to decode at a time.")] = 8
    capacity: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens of a request, its prompt included.  [default: at most 1024]"),
    ] = None
    most_waiting: Annotated[int, typer.Option(metavar="N", min=1, help="Requests that may wait for a slot.")] = 1024
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Drop a request after S seconds.  [default: never]")
    ] = None
    deadline: DeadlineOption = None
    processes: Processes = dataclasses.field(default_factory=Processes)


def run(options: Options) -> None:
    """Serves a model to OpenAI's clients, and to a browser."""
    try:
        import uvicorn

        from jaxspec.serving.app import build_app
    except ImportError as error:
        raise ImportError(f"jaxspec serve needs {error.name}, which is not installed; run {_INSTALL}") from error

    with options.processes.joined():
        options.processes.check_same(dataclasses.replace(options, processes=Processes()), 0)
        if options.processes.first:
            _serve(options, uvicorn, build_app)
            return
        with _engine(options) as engine:
            _ignore_signals()
            engine.follow()


def _serve(options: Options, uvicorn: Any, build_app: Callable[..., Any]) -> None:
    from jaxspec.serving.kinds import warm

    name = options.name or os.path.basename(options.model.rstrip("/")) or options.model
    key = os.environ.get(_KEY) or None
    with contextlib.closing(_listen(options.host, options.port)) as listening, _engine(options) as engine:
        app = build_app(engine, model=name, api_key=key, timeout=options.timeout)
        warm(engine)
        host, port = listening.getsockname()[:2]
        at = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"serving {name} at {at}, drafter {options.drafter}, {engine.slots} slots of {engine.capacity} tokens")
        print(f"in a browser: {at}/")
        shown = "your key" if key else "none"
        print(f'in Python: openai.OpenAI(base_url="{at}/v1", api_key="{shown}")', flush=True)
        longest = int(options.timeout or _LONGEST) + 1
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=longest)
        if not options.processes.alone:
            _ignore_signals()
        _server_of(uvicorn, app, config).run(sockets=[listening])


def _ignore_signals() -> None:
    """Lets several processes end together: the first one, after its running requests, and then the others.

    While it serves, the first one has other handlers; at the end the signal is raised once more, for the one set here.
    """
    for word in (signal.SIGINT, signal.SIGTERM):
        signal.signal(word, signal.SIG_IGN)


def _listen(host: str, port: int) -> socket.socket:
    """Opens the port before the model is loaded, so that one in use is reported at once."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}; pass another --port") from error
    return listening


def _engine(options: Options) -> "Engine":
    from jaxspec.checkpoints.load import load
    from jaxspec.decoding.program_cache import use_by_default
    from jaxspec.nn.convert import KERNELS, quantize_cache, weights_for
    from jaxspec.serving.engine import Engine
    from jaxspec.text.names import has_weights, load_drafter

    use_by_default()
    mesh = options.processes.make_mesh()
    target = load(options.model, dtype=options.dtype, mesh=mesh, weights=weights_for(options.kernels))
    target = KERNELS[options.kernels](quantize_cache(target, "float16") if options.float16_cache else target)
    weighted: dict[str, Any] = {"dtype": options.dtype, "mesh": mesh} if has_weights(options.drafter) else {}
    drafter = load_drafter(options.drafter, target, target_name=options.model, k=options.k, **weighted)
    sizes: dict[str, Any] = {"slots": options.slots, "capacity": options.capacity, "most_waiting": options.most_waiting}
    if options.deadline is not None:
        sizes["deadline"] = options.deadline
    return Engine(target, drafter, **sizes)


def _server_of(uvicorn: Any, app: Any, config: Any) -> Any:
    class Server(uvicorn.Server):
        """Refuses new requests before it waits for running ones."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            if app.state.draining:
                self.force_exit = True
            else:
                print("stopping: running requests end first; once more stops at once", file=sys.stderr, flush=True)
            app.state.draining = True
            super().handle_exit(sig, frame)

    return Server(config)

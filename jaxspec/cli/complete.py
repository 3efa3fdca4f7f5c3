"""Implements `jaxspec complete`: answers to a file of prompts."""

import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxspec.cli.generate import HELP as GENERATE, Decoding
from jaxspec.cli.help import Help
from jaxspec.cli.options import DEFAULT_MODEL, DrafterOption, DtypeOption, KernelsOption, LengthOption, ModelOption
from jaxspec.cli.processes import PROCESSES, DeadlineOption, Processes

if TYPE_CHECKING:
    from jaxspec.serving.rows import Outcome

# Groups of options that this command shares with `jaxspec generate`.
_DECODING = ("Sampling", "Length and end", "Choice of tokens", "Grammar")

HELP = Help(
    "jaxspec complete prompts.jsonl --out answers.jsonl --temperature 0",
    {
        "Files": ("out",),
        "Models": ("model", "drafter", "k", "dtype", "kernels"),
        "Engine": ("slots", "capacity", "prediction", "deadline"),
        **{title: GENERATE.groups[title] for title in _DECODING},
        **PROCESSES,
    },
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec complete`."""

    prompts: Annotated[
        str,
        typer.Argument(
            metavar="PROMPTS",
            help='JSON lines: {"prompt": "..."} or {"messages": [...]}, with an "id" and options; or an OpenAI batch.',
        ),
    ]
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="JSON lines to write, one per prompt.")]
    model: ModelOption = DEFAULT_MODEL
    drafter: DrafterOption = "auto"
    k: LengthOption = None
    dtype: DtypeOption = None
    kernels: KernelsOption = "auto"
    slots: Annotated[int, typer.Option(help="Prompts to decode at a time.", min=1)] = 8
    capacity: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens that a row has room for.  [default: the context, at most 1024]"),
    ] = None
    deadline: DeadlineOption = None
    decoding: Decoding = dataclasses.field(default_factory=Decoding)
    processes: Processes = dataclasses.field(default_factory=Processes)

    def __post_init__(self):
        if self.decoding.answers is not None:
            raise ValueError("--answers is for one prompt; repeat its line, with another seed in each")


def run(options: Options) -> None:
    """Completes a file of prompts, many at a time; an interrupted run continues where it ended."""
    with options.processes.joined():
        options.processes.check_same(dataclasses.replace(options, processes=Processes()), 0)
        _run(options)


def _run(options: Options) -> None:
    from jaxspec.checkpoints.load import load
    from jaxspec.decoding.program_cache import use_by_default
    from jaxspec.nn.convert import KERNELS, weights_for
    from jaxspec.serving.completion import complete_file
    from jaxspec.serving.engine import Engine
    from jaxspec.text.names import has_weights, load_drafter

    use_by_default()
    mesh = options.processes.make_mesh()
    weighted: dict[str, Any] = {"dtype": options.dtype, "mesh": mesh} if has_weights(options.drafter) else {}
    target = load(options.model, dtype=options.dtype, mesh=mesh, weights=weights_for(options.kernels))
    target = KERNELS[options.kernels](target)
    drafter = load_drafter(
        options.drafter,
        target,
        target_name=options.model,
        k=options.k,
        batch=options.slots,
        **weighted,
    )
    sizes: dict[str, Any] = {"slots": options.slots, "capacity": options.capacity}
    if options.deadline is not None:
        sizes["deadline"] = options.deadline
    with Engine(target, drafter, prompt_share=1.0, **sizes) as engine:
        if not options.processes.first:
            engine.follow()
            return
        bar = _Progress()
        failed = complete_file(engine, options.prompts, options.out, progress=bar, **options.decoding.keywords())
    bar.close()
    if failed:
        print(f"{options.out} lacks {failed} of the answers; their lines have an error", file=sys.stderr)
        raise typer.Exit(1)


class _Progress:
    """Shows the number of answers, tokens/s and tokens a round: on one line of a terminal, else at the end."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._tokens = self._counted = self._rounds = 0
        self._text = ""

    def __call__(self, done: int, rows: int, result: "Outcome | None") -> None:
        if isinstance(result, dict):
            body = result["response"]["body"]
            tokens = body.get("usage", {}).get("completion_tokens", 0)
            self._add(tokens, body.get("metrics", {}).get("speculative_decoding", {}).get("num_spec_steps", 0))
        elif result is not None and not isinstance(result, Exception):
            self._add(len(result.token_ids), int(result.stats.rounds[0]))
        seconds = time.perf_counter() - self._began
        speed = f"{self._tokens / seconds:.1f} tokens/s"
        mean = f", {self._counted / self._rounds:.2f} tokens a round" if self._rounds else ""
        self._text = f"{done} of {rows} prompts, {speed}, compilation included{mean}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{self._text}", end="", file=sys.stderr, flush=True)

    def _add(self, tokens: int, rounds: int) -> None:
        self._tokens += tokens
        self._rounds += rounds
        self._counted += tokens if rounds else 0  # several answers to a prompt do not report their rounds

    def close(self) -> None:
        """Ends the line."""
        print("" if sys.stderr.isatty() else self._text, file=sys.stderr)

"""`jaxspec generate`: from options to printed text."""

import dataclasses
import secrets
from collections.abc import Iterator
from typing import Any

import typer
from jax.sharding import Mesh
from rich.console import Console

from jaxspec.checkpoints.load import load
from jaxspec.cli.compare import Comparison, compare_results
from jaxspec.cli.compilation import enable_compilation_cache
from jaxspec.cli.processes import Processes
from jaxspec.cli.report import comparison_lines, header, json_line, summary_line, vocabulary_line
from jaxspec.drafters.adapting import describe
from jaxspec.drafters.cross_vocabulary import CrossVocabularyDrafter
from jaxspec.named import load_drafter
from jaxspec.named_verifiers import VERIFIERS
from jaxspec.nn.convert import PRODUCTS
from jaxspec.nn.quantize import quantize_cache, quantize_weights
from jaxspec.text.decoder import SpeculativeDecoder
from jaxspec.text.result import TextResult
from jaxspec.text.stream import TextStream

_INT8 = {"weights": quantize_weights, "cache": quantize_cache}


@dataclasses.dataclass(frozen=True)
class Job:
    """The command's arguments.

    Attributes:
      texts: the prompts.
      options: those of `SpeculativeDecoder.generate`.
      model: the target's name.
      draft: what `load_drafter` takes.
      k: drafted tokens a round, as `load_drafter` takes them, or `None`.
      num_drafts: drafts of a draft model that compete in each round.
      verifier: a name of `VERIFIERS`, or `None` for the draft's default.
      dtype: of both models, or `None`.
      chat: whether the prompts are messages.
      system: the system message before each of them, or `None`.
      int8: what of the target is held in int8: names of `_INT8`.
      products: how the target is multiplied: a name of `PRODUCTS`.
    """

    texts: list[str]
    options: dict[str, Any]
    model: str
    draft: str
    k: str | None
    num_drafts: int
    verifier: str | None
    dtype: str | None
    chat: bool
    system: str | None
    int8: tuple[str, ...] = ()
    products: str = "auto"

    def decoder(self, mesh: Mesh | None) -> SpeculativeDecoder:
        """Loads the models, split over the mesh if there is one."""
        target = load(self.model, dtype=self.dtype, mesh=mesh)
        for part in self.int8:
            target = _INT8[part](target)
        target = PRODUCTS[self.products](target)
        draft = load_drafter(
            self.draft,
            target,
            target_name=self.model,
            k=self.k,
            num_drafts=self.num_drafts,
            dtype=self.dtype,
            mesh=mesh,
            batch=len(self.texts),
        )
        verifier = None if self.verifier is None else VERIFIERS[self.verifier]()
        return SpeculativeDecoder(target, draft, verifier=verifier)

    def stream(self, decoder: SpeculativeDecoder, **changes: Any) -> TextStream:
        """A stream of the prompts, as `(row, piece)`."""
        options = self.options | changes
        if not self.chat:
            return decoder.stream(self.texts, **options)
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        return decoder.stream_chat([[*opening, {"role": "user", "content": text}] for text in self.texts], **options)


def run(job: Job, processes: Processes, *, as_json: bool, compare: bool) -> None:
    """Decodes and prints: text or JSON on stdout, everything else on stderr."""
    enable_compilation_cache()
    with processes.joined():
        # First of all: processes that go different ways would wait for each other.
        seed = processes.check_same((job, as_json, compare), secrets.randbits(32))
        if job.options["temperature"] != 0:
            job = dataclasses.replace(job, options={"seed": seed} | job.options)
        _run(job, processes.mesh(), as_json=as_json, compare=compare)


def _run(job: Job, mesh: Mesh | None, *, as_json: bool, compare: bool) -> None:
    console = Console(stderr=True, highlight=False)
    decoder = job.decoder(mesh)
    if isinstance(decoder.drafter, CrossVocabularyDrafter):
        console.print(vocabulary_line(decoder.drafter.token_map), soft_wrap=True)
    plain = SpeculativeDecoder(decoder.target, tokenizer=decoder.tokenizer)
    if compare:
        with console.status("compiling both ways of decoding ..."):
            for one in (decoder, plain):
                next(job.stream(one), None)
    stream = job.stream(decoder)
    pieces = _with_status(console, stream)
    show = _show_nothing if as_json else _show_one if len(job.texts) == 1 else _show_several
    show(job, pieces, stream)
    results = stream.result
    comparison = _compare(job, console, plain, results) if compare else None
    drafts = describe(decoder.drafter, decoder.target, batch=len(job.texts))
    if as_json:
        for index, result in enumerate(results):
            typer.echo(json_line(job, decoder.drafter.max_drafts, drafts, index, result, comparison))
        return
    console.print(summary_line(results, drafts=drafts if decoder.drafter.max_drafts > 0 else None), soft_wrap=True)
    if comparison is not None:
        for line in comparison_lines(comparison, coupled=job.verifier == "coupled"):
            console.print(line, soft_wrap=True)


def _with_status(console: Console, stream: TextStream) -> Iterator[tuple[int, str]]:
    with console.status("reading the prompt (the first run of a shape compiles) ..."):
        first = next(stream, None)
    if first is not None:
        yield first
        yield from stream


def _show_nothing(job: Job, pieces: Iterator[tuple[int, str]], stream: TextStream) -> None:
    for _ in pieces:
        pass


def _show_one(job: Job, pieces: Iterator[tuple[int, str]], stream: TextStream) -> None:
    for _, piece in pieces:
        typer.echo(piece, nl=False)
    typer.echo()


def _show_several(job: Job, pieces: Iterator[tuple[int, str]], stream: TextStream) -> None:
    """Prints each text when it is complete."""
    texts = [""] * len(job.texts)
    waiting = set(range(len(texts)))

    def show_ended() -> None:
        for row in sorted(row for row in waiting if stream.ended[row]):
            typer.secho(header(row, job.texts[row]), bold=True)
            typer.echo(texts[row] + "\n")
            waiting.remove(row)

    for row, piece in pieces:
        texts[row] += piece
        show_ended()
    show_ended()


def _compare(job: Job, console: Console, plain: SpeculativeDecoder, results: list[TextResult]) -> Comparison:
    with console.status("decoding without speculation ..."):
        stream = job.stream(plain, seed=results[0].seed)
        for _ in stream:
            pass
    return compare_results(plain, results, stream.result, stream.prompts)

"""Implements `jaxspec generate`: prompts in, text or JSON out."""

import dataclasses
import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxspec.cli.decoding import Decoding
from jaxspec.cli.options import DEFAULT_MODEL, DRAFTERS, KERNELS, VERIFIERS, DtypeOption, ModelOption, OneOf
from jaxspec.cli.processes import Processes
from jaxspec.cli.prompts import read_prompts

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from rich.console import Console

    from jaxspec.text.comparison import Comparison
    from jaxspec.text.decoder import SpeculativeDecoder
    from jaxspec.text.result import TextResult
    from jaxspec.text.stream import TextStream


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec generate`."""

    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT...", help="Texts to continue; '-' is standard input.")
    ] = None
    file: Annotated[
        list[str] | None, typer.Option("--file", "-f", metavar="PATH", help="A file with one more prompt; repeatable.")
    ] = None
    model: ModelOption = DEFAULT_MODEL
    draft: Annotated[
        str,
        DRAFTERS,
        typer.Option(
            "--draft",
            "-d",
            help="{names}, 'none', a drafter that ships with the model, such as 'eagle', a folder, or a model as for "
            "--model, with the same tokenizer or another. 'auto' is what the model's manifest names, else 'ngram'.",
        ),
    ] = "auto"
    k: Annotated[
        str | None,
        typer.Option(
            "-k",
            metavar="NUMBER|adaptive[:MOST]|fixed",
            help="Drafted tokens a round. 'adaptive' drafts as many as pay, at most 8; 'fixed' as many as suit the "
            "draft.  [default: adaptive]",
            show_default=False,
        ),
    ] = None
    num_drafts: Annotated[
        int, typer.Option("--num-drafts", help="With a draft model: drafts that compete in each round.")
    ] = 1
    draft_vocabulary: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With a draft model: it drafts the N lowest token ids and special tokens alone, and reads less.",
        ),
    ] = None
    verifier: Annotated[
        str | None,
        VERIFIERS,
        typer.Option(
            help="'coupled': a seed gives the same text with any draft, and without one.  "
            "[default: block, or what suits the draft]",
            show_default=False,
        ),
    ] = None
    bit_exact: Annotated[
        bool,
        typer.Option(
            "--bit-exact",
            help="Write what plain decoding with --bit-exact writes, to the bit, in bfloat16 and on accelerators too; "
            "at a temperature with --verifier coupled.",
        ),
    ] = False
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --bit-exact: fill the target's passes up to N tokens, if not by native kernels.  [default: 16]",
        ),
    ] = None
    decoding: Decoding = dataclasses.field(default_factory=Decoding)
    chat: Annotated[bool, typer.Option("--chat", help="Each prompt is a user's message to an assistant.")] = False
    system: Annotated[str | None, typer.Option(help="With --chat: the system message.")] = None
    dtype: DtypeOption = None
    int8: Annotated[
        list[str] | None,
        OneOf(lambda: ("weights", "cache")),
        typer.Option(help="Hold these of the target in int8; repeatable. What is exact is exact relative to that."),
    ] = None
    kernels: Annotated[
        str,
        KERNELS,
        typer.Option(
            help="On a CPU, with a C++ compiler: 'stored' multiplies by a GGUF file's blocks as they are; 'native' "
            "reads weights once for several tokens, in bfloat16 where that has them exactly, 'native-float32' never in "
            "that, 'native-bfloat16' always, rounded. 'auto' is stored, else native, where they can be had, else xla. "
            "On TPUs and GPUs 'pallas' is by kernels of our own, 'xla' is without; 'auto' is by their kind."
        ),
    ] = "auto"
    processes: Processes = dataclasses.field(default_factory=Processes)
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a prompt.")] = False
    alternatives: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --json: the N most likely tokens in the place of each, too.")
    ] = 0
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode without speculation too, and compare speeds and tokens.")
    ] = False
    show_drafts: Annotated[
        bool,
        typer.Option("--show-drafts", help="Color accepted drafts, and mark where each round ends."),
    ] = False

    def __post_init__(self):
        if self.system is not None and not self.chat:
            raise ValueError("--system is a message of a conversation; pass --chat too")
        if self.rows is not None and not self.bit_exact:
            raise ValueError("--rows fills passes up so that they agree to the bit; pass --bit-exact too")
        if self.alternatives and not self.as_json:
            raise ValueError("--alternatives are printed as JSON; pass --json too")
        if self.compare and self.draft == "none":
            raise ValueError("--compare needs a draft to compare with plain decoding; leave out --draft none")
        if self.num_drafts != 1:
            from jaxspec.named import has_weights  # which loads JAX: only for who asks for several

            if not has_weights(self.draft):
                raise ValueError(f"--num-drafts {self.num_drafts} needs a draft model; pass --draft too")

    def decoder(self, mesh: "Mesh | None", *, batch: int) -> "SpeculativeDecoder":
        """Loads the models for so many prompts, split over the mesh if there is one."""
        from jaxspec.checkpoints.load import load
        from jaxspec.named import VERIFIERS, has_weights, load_drafter
        from jaxspec.nn.convert import KERNELS, quantize_cache, quantize_weights, weights_for
        from jaxspec.text.decoder import SpeculativeDecoder

        weights = "dequantized" if self.int8 else weights_for(self.kernels)
        target = load(self.model, dtype=self.dtype, mesh=mesh, weights=weights)
        for part in dict.fromkeys(self.int8 or ()):
            target = {"weights": quantize_weights, "cache": quantize_cache}[part](target)
        target = KERNELS[self.kernels](target)
        draft = load_drafter(
            self.draft,
            target,
            target_name=self.model,
            k=self.k,
            num_drafts=self.num_drafts,
            draft_vocabulary=self.draft_vocabulary,
            batch=batch,
            **({"dtype": self.dtype, "mesh": mesh} if has_weights(self.draft) else {}),
        )
        return SpeculativeDecoder(
            target,
            draft,
            verifier=None if self.verifier is None else VERIFIERS[self.verifier](),
            bit_exact=self.bit_exact,
            rows=self.rows,
        )

    def stream(self, decoder: "SpeculativeDecoder", texts: list[str], **changes: Any) -> "TextStream":
        """Streams what follows the prompts, as `(row, piece)`."""
        keywords: dict[str, Any] = self.decoding.keywords() | {"alternatives": self.alternatives} | changes
        if not self.chat:
            return decoder.stream(texts, **keywords)
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        return decoder.stream_chat([[*opening, {"role": "user", "content": text}] for text in texts], **keywords)


def run(options: Options) -> None:
    """Continues a prompt, or several as one batch."""
    from jaxspec.cli.compilation import enable_compilation_cache

    texts = read_prompts(options.prompts or [], options.file or [])
    enable_compilation_cache()
    with options.processes.joined():
        # First of all: processes that go different ways would wait for each other.
        alike = dataclasses.replace(options, prompts=None, file=None, processes=Processes())
        seed = options.processes.check_same((texts, alike), secrets.randbits(32))
        if options.decoding.temperature != 0 and options.decoding.seed is None:
            options = dataclasses.replace(options, decoding=dataclasses.replace(options.decoding, seed=seed))
        _run(options, texts)


def _run(options: Options, texts: list[str]) -> None:
    """Decodes and prints: text or JSON on stdout, everything else on stderr."""
    from rich.console import Console

    from jaxspec.cli import report
    from jaxspec.cli.show import show
    from jaxspec.drafters.adapt import describe

    console = Console(stderr=True, highlight=False)
    answered = [text for text in texts for _ in range(options.decoding.answers or 1)]
    decoder = options.decoder(options.processes.make_mesh(), batch=len(answered))
    if (line := report.vocabulary_line(decoder.drafter)) is not None:
        console.print(line, soft_wrap=True)
    if options.compare:
        with console.status("compiling both ways of decoding ..."):
            next(options.stream(decoder, texts), None)
            next(options.stream(_plain(decoder), texts, prediction=None), None)
    stream = options.stream(decoder, texts)
    show(answered, stream, console, drafts=options.show_drafts, silent=options.as_json)
    results = _results(stream)
    comparison = _compare(options, texts, decoder, results, console) if options.compare else None
    drafts = describe(decoder.drafter, decoder.target, batch=len(answered))
    if options.as_json:
        shared = {"model": options.model, "draft": options.draft, "k": decoder.drafter.max_drafts, "drafts": drafts}
        for row, (text, result) in enumerate(zip(answered, results, strict=True)):
            own = shared | ({"spans": result.spans} if options.show_drafts else {})
            own |= {"alternatives": report.alternatives(result)} if options.alternatives else {}
            typer.echo(report.json_line(text, result, own, comparison, row=row))
        return
    draft, drafted = (_drafter_name(options), drafts) if decoder.drafter.max_drafts > 0 else (None, None)
    console.print(report.summary_line(results, draft=draft, drafts=drafted), soft_wrap=True)
    if comparison is not None:
        for line in report.comparison_lines(comparison, same_tokens=decoder.verifier.same_tokens):
            console.print(line, soft_wrap=True)


def _drafter_name(options: Options) -> str:
    """Returns the drafter's name, which "auto" may stand for, without the model's."""
    from jaxspec.checkpoints.zoo import draft_name

    return str(draft_name(options.draft or "", options.model)).replace(f"{options.model}/", "")


def _compare(
    options: Options,
    texts: list[str],
    decoder: "SpeculativeDecoder",
    results: "list[TextResult]",
    console: "Console",
) -> "Comparison":
    """Decodes once more, without speculation, by the same seed."""
    from jaxspec.text.comparison import compare_results

    plain = _plain(decoder)
    with console.status("decoding without speculation ..."):
        stream = options.stream(plain, texts, seed=results[0].seed, prediction=None)
        for _ in stream:
            pass
    return compare_results(plain, results, _results(stream), stream.prompts)


def _plain(decoder: "SpeculativeDecoder") -> "SpeculativeDecoder":
    from jaxspec.text.decoder import SpeculativeDecoder

    return SpeculativeDecoder(decoder.target, tokenizer=decoder.tokenizer)


def _results(stream: "TextStream") -> "list[TextResult]":
    """Returns the results of an ended stream of several prompts."""
    result = stream.result
    return result if isinstance(result, list) else [result]

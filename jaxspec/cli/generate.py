"""Implements `jaxspec generate`: prompts in, text or JSON out."""

import dataclasses
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxspec.cli.help import Help
from jaxspec.cli.options import (
    DEFAULT_MODEL,
    KERNELS,
    VERIFIERS,
    DrafterOption,
    DtypeOption,
    LengthOption,
    ModelOption,
    OneOf,
)
from jaxspec.cli.processes import PROCESSES, Processes

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from rich.console import Console

    from jaxspec.text.comparison import Comparison
    from jaxspec.text.decoder import SpeculativeDecoder
    from jaxspec.text.result import TextResult
    from jaxspec.text.stream import TextStream

_SAMPLING = ("top_p", "top_k", "min_p", "seed", "answers")
# Options whose value is the path of a file; the decoder takes its text.
_FILES = ("grammar", "prediction")
_STDIN = "-"


HELP = Help(
    'jaxspec generate --chat --max-new-tokens 64 "Name three rivers."',
    {
        "Prompts": ("file", "chat", "system"),
        "Model": ("model", "dtype", "int8", "float16_cache", "kernels"),
        "Speculation": ("drafter", "k", "num_drafts", "draft_vocabulary", "verifier", "prediction"),
        "Exactness": ("bit_exact", "pass_tokens"),
        "Sampling": ("temperature", "top_p", "top_k", "min_p", "seed", "answers"),
        "Length and end": ("max_new_tokens", "min_new_tokens", "stop"),
        "Choice of tokens": (
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "logit_bias",
            "bad_words",
        ),
        "Grammar": ("schema", "regex", "choice", "grammar"),
        "Output": ("as_json", "alternatives", "compare", "show_drafts"),
        **PROCESSES,
    },
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Defines the options that `SpeculativeDecoder.generate` takes; `None` is its default."""

    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Maximum number of new tokens.")] = 128
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="Sampling temperature; 0 for greedy.")] = 0.7
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens of this total probability.  [default: 0.9]")
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Sample from the K most likely tokens.")] = None
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this fraction of the highest probability.")] = (
        None
    )
    answers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of answers per prompt, which is fed once.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Seed for sampling; repeats a text.  [default: chosen and reported]")
    ] = None
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string; repeatable.")] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divide positive logits of tokens already in the text, multiply negative ones.")
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtract this from the logits of tokens in the answer.")
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtract this from a token's logit for each time it occurs in the answer.")
    ] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="Add this to the logit of a token; repeatable.")
    ] = None
    bad_words: Annotated[list[str] | None, typer.Option(help="Never generate this text; repeatable.")] = None
    min_new_tokens: Annotated[
        int | None, typer.Option(help="Minimum number of new tokens before the text may end.")
    ] = None
    schema: Annotated[
        str | None, typer.Option(metavar="PATH", help="Constrain the answer to a JSON schema: a file, or '{...}'.")
    ] = None
    regex: Annotated[str | None, typer.Option(help="Regular expression that the whole answer must match.")] = None
    choice: Annotated[list[str] | None, typer.Option(help="Constrain the answer to one of these; repeatable.")] = None
    grammar: Annotated[
        str | None, typer.Option(metavar="PATH", help="Constrain the answer to a context-free grammar (Lark).")
    ] = None
    prediction: Annotated[
        str | None, typer.Option(metavar="PATH", help="Expected answer, which drafters that copy read.")
    ] = None

    def __post_init__(self):
        if self.temperature == 0 and (idle := [name for name in _SAMPLING if getattr(self, name) is not None]):
            flags = ", ".join("--" + name.replace("_", "-") for name in idle)
            raise ValueError(f"{flags} would change nothing at temperature 0; pass another --temperature, such as 0.7")
        _biases(self.logit_bias or ())

    def keywords(self) -> dict[str, Any]:
        """Returns the options as `SpeculativeDecoder.generate` takes them."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.schema is not None and not self.schema.lstrip().startswith("{"):
            given["schema"] = _text_of("schema", self.schema)
        given |= {name: _text_of(name, given[name]) for name in _FILES if name in given}
        if self.logit_bias is not None:
            given["logit_bias"] = _biases(self.logit_bias)
        named = {"choice": "choices"}
        return {named.get(name, name): value for name, value in given.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec generate`."""

    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT...", help="Texts to continue; '-' for standard input.")
    ] = None
    file: Annotated[
        list[str] | None, typer.Option("--file", "-f", metavar="PATH", help="File with one more prompt; repeatable.")
    ] = None
    model: ModelOption = DEFAULT_MODEL
    drafter: DrafterOption = "auto"
    k: LengthOption = None
    num_drafts: Annotated[int, typer.Option("--num-drafts", help="With a draft model: number of chains per round.")] = 1
    draft_vocabulary: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With a draft model: draft only the N lowest token ids and special tokens.",
        ),
    ] = None
    verifier: Annotated[
        str | None,
        VERIFIERS,
        typer.Option(
            help="Verifier; with 'coupled', any drafter gives the same text.  [default: block, or the drafter's]"
        ),
    ] = None
    bit_exact: Annotated[
        bool,
        typer.Option(
            "--bit-exact",
            help="Equal plain decoding to the bit; when sampling, with --verifier coupled.",
        ),
    ] = False
    pass_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="With --bit-exact, without native kernels: pad the target's passes to N tokens.  [default: 16]",
        ),
    ] = None
    decoding: Decoding = dataclasses.field(default_factory=Decoding)
    chat: Annotated[bool, typer.Option("--chat", help="Treat each prompt as a user's message to an assistant.")] = False
    system: Annotated[str | None, typer.Option(help="With --chat: system message.")] = None
    dtype: DtypeOption = None
    int8: Annotated[
        list[str] | None,
        OneOf(("weights", "cache")),
        typer.Option(help="Quantize the target's weights or cache to int8; exactness is relative to that; repeatable."),
    ] = None
    float16_cache: Annotated[
        bool, typer.Option("--float16-cache", help="Keep the target's cache in float16; faster for long texts.")
    ] = False
    kernels: Annotated[
        str,
        KERNELS,
        typer.Option(help="CPU: 'stored' (GGUF blocks) or 'native', in C++; TPU and GPU: 'pallas'; 'auto' chooses."),
    ] = "auto"
    processes: Processes = dataclasses.field(default_factory=Processes)
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False
    alternatives: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --json: report the N most likely tokens at each position.")
    ] = 0
    compare: Annotated[
        bool, typer.Option("--compare", help="Also decode without speculation, and compare speeds and tokens.")
    ] = False
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Color accepted drafts, and mark the end of each round.")
    ] = False

    def __post_init__(self):
        if self.system is not None and not self.chat:
            raise ValueError("--system is a message of a conversation; pass --chat too")
        if self.pass_tokens is not None and not self.bit_exact:
            raise ValueError("--pass-tokens pads passes so that they agree to the bit; pass --bit-exact too")
        if self.alternatives and not self.as_json:
            raise ValueError("--alternatives are printed as JSON; pass --json too")
        if self.compare and self.drafter == "none":
            raise ValueError("--compare needs a drafter to compare with plain decoding; leave out --drafter none")
        if self.float16_cache and "cache" in (self.int8 or ()):
            raise ValueError("--float16-cache and --int8 cache exclude each other; pass one of them")
        if self.num_drafts != 1:
            from jaxspec.text.names import has_weights  # loads JAX, so only with several drafts

            if not has_weights(self.drafter):
                raise ValueError(
                    f"--num-drafts {self.num_drafts} needs a draft model, got --drafter {self.drafter}; name another"
                )

    def decoder(self, mesh: "Mesh | None", *, batch: int) -> "SpeculativeDecoder":
        """Loads the models for `batch` prompts, split over the mesh if there is one."""
        from jaxspec.checkpoints.load import load
        from jaxspec.nn.convert import KERNELS, quantize_cache, quantize_weights, weights_for
        from jaxspec.text.decoder import SpeculativeDecoder
        from jaxspec.text.names import has_weights, load_drafter
        from jaxspec.verifiers.table import VERIFIERS

        weights = "dequantized" if self.int8 else weights_for(self.kernels)
        target = load(self.model, dtype=self.dtype, mesh=mesh, weights=weights)
        for part in dict.fromkeys(self.int8 or ()):
            target = {"weights": quantize_weights, "cache": quantize_cache}[part](target)
        target = quantize_cache(target, "float16") if self.float16_cache else target
        target = KERNELS[self.kernels](target)
        drafter = load_drafter(
            self.drafter,
            target,
            target_name=self.model,
            k=self.k,
            num_drafts=self.num_drafts,
            draft_vocabulary=self.draft_vocabulary,
            batch=batch,
            **({"dtype": self.dtype, "mesh": mesh} if has_weights(self.drafter) else {}),
        )
        return SpeculativeDecoder(
            target,
            drafter,
            verifier=None if self.verifier is None else VERIFIERS[self.verifier](),
            bit_exact=self.bit_exact,
            pass_tokens=self.pass_tokens,
        )

    def stream(self, decoder: "SpeculativeDecoder", texts: list[str], **changes: Any) -> "TextStream":
        """Streams the continuations of the prompts as `(row, piece)`."""
        keywords: dict[str, Any] = self.decoding.keywords() | {"alternatives": self.alternatives} | changes
        if not self.chat:
            return decoder.stream(texts, **keywords)
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        return decoder.stream_chat([[*opening, {"role": "user", "content": text}] for text in texts], **keywords)


def run(options: Options) -> None:
    """Continues a prompt, or several as one batch.

    Default temperature: 0.7 with top-p 0.9 in `SpeculativeDecoder` and the command `jaxspec generate`; 1.0 in
    `Sampling()`; 0, which is greedy, in `jaxspec.generate`.
    """
    from jaxspec.decoding.program_cache import use_by_default
    from jaxspec.io.cache import enable_compilation_cache

    texts = read_prompts(options.prompts or [], options.file or [])
    enable_compilation_cache()
    with options.processes.joined():
        use_by_default()
        # First, since processes with different options would wait for each other.
        alike = dataclasses.replace(options, prompts=None, file=None, processes=Processes())
        seed = options.processes.check_same((texts, alike), secrets.randbits(32))
        if options.decoding.temperature != 0 and options.decoding.seed is None:
            options = dataclasses.replace(options, decoding=dataclasses.replace(options.decoding, seed=seed))
        _run(options, texts)


def _run(options: Options, texts: list[str]) -> None:
    """Decodes and prints: text or JSON on stdout, everything else on stderr."""
    from rich.console import Console

    from jaxspec.cli import output
    from jaxspec.drafters.adapt import describe
    from jaxspec.text.names import short_name
    from jaxspec.text.result import listed_alternatives

    console = Console(stderr=True, highlight=False)
    answered = [text for text in texts for _ in range(options.decoding.answers or 1)]
    decoder = options.decoder(options.processes.make_mesh(), batch=len(answered))
    if (line := output.vocabulary_line(decoder.drafter)) is not None:
        console.print(line, soft_wrap=True)
    if options.compare:
        with console.status(output.Compiling("decoding both ways")):
            next(options.stream(decoder, texts), None)
            next(options.stream(_plain(decoder), texts, prediction=None), None)
    stream = options.stream(decoder, texts)
    output.show(answered, stream, console, drafts=options.show_drafts, silent=options.as_json)
    results = _results(stream)
    comparison = _compare(options, texts, decoder, results, console) if options.compare else None
    drafts = describe(decoder.drafter, decoder.target, batch=len(answered))
    name = short_name(options.drafter, options.model)
    if options.as_json:
        shared = {"model": options.model, "drafter": name, "k": decoder.drafter.max_drafts, "drafts": drafts}
        shared["max_new_tokens"] = options.decoding.max_new_tokens
        for row, (text, result) in enumerate(zip(answered, results, strict=True)):
            own = shared | ({"spans": result.spans} if options.show_drafts else {})
            own |= {"alternatives": listed_alternatives(result)} if options.alternatives else {}
            typer.echo(output.json_line(text, result, own, comparison, row=row))
        return
    drafter, drafted = (name, drafts) if decoder.drafter.max_drafts > 0 else (None, None)
    console.print(output.summary_line(results, drafter=drafter, drafts=drafted), soft_wrap=True)
    if comparison is not None:
        for line in output.comparison_lines(comparison, same_tokens=decoder.verifier.same_tokens):
            console.print(line, soft_wrap=True)


def _compare(
    options: Options, texts: list[str], decoder: "SpeculativeDecoder", results: "list[TextResult]", console: "Console"
) -> "Comparison":
    from jaxspec.text.comparison import compare_results

    plain = _plain(decoder)
    with console.status("decoding without speculation ..."):
        stream = options.stream(plain, texts, seed=results[0].seed, prediction=None)
        for _ in stream:
            pass
    return compare_results(plain, results, _results(stream), stream.prompts)


def _plain(decoder: "SpeculativeDecoder") -> "SpeculativeDecoder":
    from jaxspec.text.decoder import SpeculativeDecoder

    return SpeculativeDecoder(decoder.target, None, tokenizer=decoder.tokenizer)


def _results(stream: "TextStream") -> "list[TextResult]":
    result = stream.result
    return result if isinstance(result, list) else [result]


def read_prompts(arguments: Sequence[str], files: Sequence[str]) -> list[str]:
    """Returns the prompts: each argument, then each file's text; `-` or no prompt is standard input.

    One newline at the end of a file or of standard input is dropped.

    Raises:
      ValueError: if there is no prompt, or standard input is named twice.
      OSError: if a file cannot be read.
    """
    if [*arguments, *files].count(_STDIN) > 1:
        raise ValueError("standard input can be read once only, got '-' several times")
    texts = [_read_stdin() if text == _STDIN else text for text in arguments]
    texts += [_read_stdin() if name == _STDIN else _read_file(name) for name in files]
    if not texts and not sys.stdin.isatty() and (piped := _read_stdin()):
        texts = [piped]
    if not texts:
        raise ValueError("there is no prompt; pass one as an argument, with --file, or through standard input")
    return texts


def _read_stdin() -> str:
    return _decode(sys.stdin.buffer.read(), "standard input").removesuffix("\n")


def _read_file(name: str) -> str:
    if not name:
        raise ValueError("--file has no name; pass the path of a text, or - for standard input")
    return _decode(Path(name).read_bytes(), name).removesuffix("\n")


def _decode(data: bytes, name: str) -> str:
    from jaxspec.io.files import decode_text

    try:
        return decode_text(data)
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _text_of(name: str, path: str) -> str:
    """Returns the text of the file that option `name` gives."""
    if not path:
        raise ValueError(f"--{name} must be the path of a file, got nothing; pass ./{name}.txt, say")
    return _decode(Path(path).read_bytes(), f"--{name}: {path}")


def _biases(given: Sequence[str]) -> dict[int, float]:
    try:
        found = [(int(token), float(bias)) for token, bias in (one.split("=") for one in given)]
    except ValueError:
        raise ValueError(
            f"--logit-bias must be a token id and a number, got {' '.join(given)}; pass 42=-1.5, say"
        ) from None
    if len(dict(found)) < len(found):
        raise ValueError(f"--logit-bias has a token twice, got {' '.join(given)}; pass each once")
    return dict(found)

"""Reads the options of decoding from the command line."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

_SAMPLING = ("top_p", "top_k", "min_p", "seed", "answers")
# Those whose value is the text of a file.
_FILES = ("grammar", "prediction")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Defines the options of decoding: those of `SpeculativeDecoder.generate`, where `None` is its own default."""

    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="The most tokens to add.")] = 128
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy decoding.")] = 0.0
    top_p: Annotated[float | None, typer.Option(help="Keep the most likely tokens of this mass.  [default: 0.9]")] = (
        None
    )
    top_k: Annotated[int | None, typer.Option(help="Keep so many of the most likely tokens.")] = None
    min_p: Annotated[
        float | None, typer.Option(help="Keep tokens of this share of the most likely one's probability.")
    ] = None
    answers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Continue each prompt N times; it is read once.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Repeats a sampled text.  [default: chosen and reported]")] = None
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string; repeatable.")] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divide positive logits of tokens that are there already, multiply others.")
    ] = None
    presence_penalty: Annotated[float | None, typer.Option(help="Lower tokens that the answer has.")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="Lower them for each time.")] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="Add this to the logit of a token; repeatable.")
    ] = None
    bad_words: Annotated[list[str] | None, typer.Option(help="Never write this word; repeatable.")] = None
    min_new_tokens: Annotated[int | None, typer.Option(help="End no text before so many tokens.")] = None
    schema: Annotated[
        str | None, typer.Option(metavar="PATH", help="A JSON schema that the answer keeps to; '{...}' is one itself.")
    ] = None
    regex: Annotated[str | None, typer.Option(help="An expression that the answer matches as a whole.")] = None
    choice: Annotated[list[str] | None, typer.Option(help="The answer is one of these; repeatable.")] = None
    grammar: Annotated[
        str | None, typer.Option(metavar="PATH", help="A context-free grammar that the answer keeps to (Lark).")
    ] = None
    prediction: Annotated[
        str | None, typer.Option(metavar="PATH", help="A text that the answer is expected to be like; drafts copy it.")
    ] = None

    def __post_init__(self):
        if self.temperature == 0 and (idle := [name for name in _SAMPLING if getattr(self, name) is not None]):
            flags = ", ".join("--" + name.replace("_", "-") for name in idle)
            raise ValueError(f"{flags} would change nothing at temperature 0; pass --temperature too, such as 0.7")
        _biases(self.logit_bias or ())

    def keywords(self) -> dict[str, Any]:
        """Returns the options as `SpeculativeDecoder.generate` takes them."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.schema is not None and not self.schema.lstrip().startswith("{"):
            given["schema"] = _text_of("schema", self.schema)
        given |= {name: _text_of(name, given[name]) for name in _FILES if name in given}
        if self.logit_bias is not None:
            given["logit_bias"] = _biases(self.logit_bias)
        named = {"choice": "choices", "answers": "n"}
        return {named.get(name, name): value for name, value in given.items()}


def _text_of(name: str, path: str) -> str:
    """Returns the text of a file, which option `name` is the path of."""
    if not path:
        raise ValueError(f"--{name} is the path of a file, got nothing; pass ./{name}.txt, say")
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--{name}: {path} is no UTF-8 text: {error.reason} at byte {error.start}") from None


def _biases(given: Sequence[str]) -> dict[int, float]:
    """Returns biases by token id, each given as `ID=BIAS`."""
    try:
        found = [(int(token), float(bias)) for token, bias in (one.split("=") for one in given)]
    except ValueError:
        raise ValueError(f"--logit-bias is a token id and a number, got {' '.join(given)}; pass 42=-1.5, say") from None
    if len(dict(found)) < len(found):
        raise ValueError(f"--logit-bias has a token twice, got {' '.join(given)}; pass each once")
    return dict(found)

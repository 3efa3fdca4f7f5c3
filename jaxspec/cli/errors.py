"""Ends commands with one line for a mistake, spelled in the options of the command line."""

import functools
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import typer
from typer.models import ArgumentInfo

_MISTAKE, _INTERRUPTED, _PIPE_CLOSED = 2, 130, 141
# Kept unchanged: options with their values, and what the user wrote, which errors quote.
_KEPT = r"""(?<![\w-])--?[a-z][\w-]*(?:\s[^\s;]+)?|(?<!\w)'[^']*'|(?<!\w)"[^"]*\""""
# What errors say about Python, and what to type instead; the tests look for each in the package.
_PYTHON = MappingProxyType(
    {
        "pass a model from jaxspec.load or jaxspec.adopt": "pass another model",
        "pass a model from jaxspec.load": "pass another model",
        "native_kernels takes": "--kernels native takes",
        "weights='stored', but": "--kernels stored, but",
        "weights='stored' needs": "--kernels stored needs",
        "pass dtype='float32' to load": "pass --dtype float32",
        "lower the drafter's k": "lower -k",
        "load the target with jaxspec.load": "pass another model",
        "pass tokenizer=, such as jaxspec.Tokenizer.from_folder(path), or use jaxspec.generate with token ids": (
            "pass a folder or a file that holds one"
        ),
        "pass the text to encode() instead": "leave out --chat",
        "pass text.encode(errors='replace').decode()": "pass text in UTF-8",
        " or dataclasses.replace(data, whole_texts=True)": "",
        "a dictionary, JSON, or a class with model_json_schema()": "JSON",
        " or a pydantic model": "",
    }
)
_CLASSES = r"\b(?P<name>[A-Z]\w*(?:Drafter|Verifier))\b(?P<call>\(\))?"
_VALUE = r"""'[^']*'|\([^)]*\)|\[[^]]*\]|[^\s,;:)]*"""


def reported(command: Callable[..., None], options: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """Makes a command print one line for an error, `error: ...` on stderr, and nothing for an interruption.

    Args:
      command: runs with what was given for its options.
      options: parameters as typer takes them; errors of Python arguments name these instead.
    """
    flags = flags_of(options)

    @functools.wraps(command)
    def wrapper(*args, **kwargs):
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            # Python flushes stdout again at exit, which would print an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_PIPE_CLOSED) from None
        except (typer.Exit, typer.Abort):  # they are RuntimeErrors too
            raise
        except (ValueError, TypeError, OSError, FloatingPointError, ImportError, RuntimeError) as error:
            # JAX's errors are RuntimeErrors of many lines.
            text = str(error).strip().partition("\n")[0] if isinstance(error, RuntimeError) else str(error)
            if isinstance(error, OSError) and error.filename and error.strerror:
                text = f"{error.filename}: {error.strerror}"
            typer.secho(f"error: {spelled(text, flags) or type(error).__name__}", fg=typer.colors.RED, err=True)
            raise typer.Exit(_MISTAKE) from None

    return wrapper


def flags_of(options: Iterable[inspect.Parameter]) -> dict[str, str]:
    """Returns how the command line spells each option: "max_new_tokens" is "--max-new-tokens", "k" is "-k"."""
    found = {}
    for one in options:
        # Within `Annotated` typer keeps the first name as the default.
        marks = typing.get_args(one.annotation)[1:]
        if any(isinstance(mark, ArgumentInfo) for mark in marks):  # passed by its place, not by a name
            continue
        declared = [flag for mark in marks for flag in (mark.default, *(mark.param_decls or ()))]
        words = [flag.partition("/")[0] for flag in declared if isinstance(flag, str) and flag.startswith("-")]
        found[one.name] = next(iter(sorted(words, key=len, reverse=True)), f"--{one.name.replace('_', '-')}")
    return found


def spelled(text: str, flags: Mapping[str, str]) -> str:
    """Spells the Python arguments that an error names as options: `top_k=3` becomes `--top-k 3`.

    A name of one word is an option where it is assigned, begins the error (in the plural too), is needed or left out;
    elsewhere it is a word.
    Arguments that are not options lose their equals sign.

    Example:
      >>> from jaxspec.cli.errors import spelled
      >>> spelled("k must be at least 0, got -1; pass k=0, or top_p=None", {"k": "-k", "top_p": "--top-p"})
      '-k must be at least 0, got -1; pass -k 0, or no --top-p'
    """
    named = "|".join(map(re.escape, sorted(flags, key=len, reverse=True)))
    long = "|".join(re.escape(name) for name in flags if "_" in name) or r"(?!)"
    for python, words in _PYTHON.items():
        text = text.replace(python, words)
    text = re.sub(_CLASSES, lambda found: _named(found["name"], found["call"], flags) or found[0], text)
    text = re.sub(r"(?<=got )\w+(?: and \w+)+(?=;)", lambda found: _all_spelled(found[0], flags), text)
    pattern = rf"{_KEPT}|(?P<name>\b[a-z]\w*)=(?!=)(?P<value>{_VALUE})|\b(?P<long>{long})\b"
    pattern += rf"|(?P<word>(?:^|(?<=leave )|(?<=fixed )|(?<=lower )|(?<=needs ))(?:{named})s?"
    pattern += r"\b(?= must| is | has | of | above | at (?:least|most) | between | needs | out\b|$))"

    def spell(found: re.Match[str]) -> str:
        name, value = found["name"] or found["long"] or found["word"], found["value"]
        if name is None:
            return found[0]
        flag = flags.get(name) or flags.get(name.removesuffix("s"))
        if value is None:
            return found[0] if flag is None else flag
        if flag is None:
            return f"{name.replace('_', ' ')} {value}".rstrip()
        if value in ("None", "False"):
            return f"no {flag}"
        return flag if value in ("True", "") else f"{flag} {value.strip(chr(39))}"

    return re.sub(pattern, spell, text)


def _named(name: str, call: str | None, flags: Mapping[str, str]) -> str | None:
    """Returns the option that makes an object of a class; `None` if there is none, or an argument is missing."""
    from jaxspec.text.names import DRAFTERS  # loads JAX
    from jaxspec.verifiers.table import VERIFIERS

    for option, kinds in (("verifier", VERIFIERS), ("drafter", {key: row.kind for key, row in DRAFTERS.items()})):
        found = next((key for key, kind in kinds.items() if kind.__name__ == name), None)
        if found is not None and option in flags:
            return f"{flags[option]} {found}" if call or option == "verifier" else None
    return None


def _all_spelled(text: str, flags: Mapping[str, str]) -> str:
    """Spells a list of options, "regex and choices"; returns it unchanged if a word is not an option."""
    words = text.split(" and ")
    found = [flags.get(word) or flags.get(word.removesuffix("s")) for word in words]
    return text if None in found else " and ".join(map(str, found))

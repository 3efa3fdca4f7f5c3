"""Reads damaged files in a fork of a warmed process, and says what came of each.

    python -m tests._fixtures.damaged_reads gguf:0:250 folder:0:100 >outcomes.jsonl

prints a line of JSON for each of the numbered cases of each format. The process imports what reading needs, and starts
no JAX backend; a fork reads one case after another, with a limit of memory. Where one takes too long or kills the fork,
that is its outcome, and another fork goes on after it.
"""

import dataclasses
import json
import os
import pathlib
import random
import resource
import selectors
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator

import jaxspec
from tests._fixtures.damage import Damage, damage
from tests._fixtures.damaged_formats import BY_FAMILY, FORMATS, fingerprint

SECONDS, MEMORY = 30.0, 4 * 2**30
EQUAL, DIFFERENT, REFUSED = "equal", "different", "refused"
OBSCURE, SILENT, HANG, CRASH, GREEDY = "obscure", "silent", "hang", "crash", "greedy"
GOOD = (EQUAL, DIFFERENT, REFUSED)
_MOST_TEXT = 300


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one damaged file.

    Attributes:
      format, number: which case.
      file, kind, field: what was damaged, and how.
      outcome: `EQUAL`: read as if it were whole; `DIFFERENT`: read as one that it could be, in a format without
        checksums; `REFUSED`: an error that names the file. Not good are `OBSCURE`: another error; `SILENT`: read as
        something that it cannot be; `HANG`, `CRASH`, and `GREEDY` of memory.
      named: whether the answer names the field.
      text: of the error.
    """

    format: str
    number: int
    file: str = ""
    kind: str = ""
    field: str = ""
    outcome: str = ""
    named: bool = False
    text: str = ""


def outcomes(cases: list[tuple[str, int]]) -> Iterator[Outcome]:
    """Yields the outcome of each case, a format and a number."""
    done = 0
    while done < len(cases):
        for outcome in _fork(cases[done:]):
            done += 1
            yield outcome


def _fork(cases: list[tuple[str, int]]) -> Iterator[Outcome]:
    """Yields the outcomes of the first cases, up to one that ends the fork."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks; this process has started no backend
        child = os.fork()
    if not child:
        os.close(reader)
        _in_child(cases, writer)
    os.close(writer)
    number, outcome, ended = 0, Outcome(*cases[0]), CRASH
    for line in _lines(reader):
        if line is None:
            os.kill(child, signal.SIGKILL)
            ended = HANG
            break
        outcome = Outcome(**json.loads(line))
        if outcome.outcome:
            number += 1
            yield outcome
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number < len(cases):
        yield dataclasses.replace(outcome, outcome=ended, text=f"status {status}")


def _lines(reader: int) -> Iterator[bytes | None]:
    """Yields the lines of a pipe up to its end; `None` where the next takes too long."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while selector.select(SECONDS):
            if not (chunk := os.read(reader, 2**16)):
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
    yield None


def _in_child(cases: list[tuple[str, int]], writer: int) -> None:
    """Reads the cases and writes, before and after each, what is known of it; ends the process."""
    status = 70
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        used = int(pathlib.Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, resource.RLIM_INFINITY))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        with tempfile.TemporaryDirectory() as folder, os.fdopen(writer, "w") as output:
            _read_all(cases, pathlib.Path(folder), output)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _read_all(cases: list[tuple[str, int]], folder: pathlib.Path, output) -> None:
    whole: dict[str, str] = {}
    for name, number in cases:
        form, base = (FORMATS | BY_FAMILY)[name], folder / name
        if name not in whole:
            base.mkdir()
            form.write(base)
            whole[name] = fingerprint(form.read(base))
        rng = random.Random(f"{name} {number}")
        file = rng.choice(form.files)
        content = (base / file).read_bytes()
        case = damage(file, content, rng)
        begun = Outcome(name, number, case.file, case.kind, case.field)
        for outcome in (begun, None):
            if outcome is None:
                (base / file).write_bytes(case.content)
                outcome = _judge(begun, case, base, whole[name])
                (base / file).write_bytes(content)
            print(json.dumps(dataclasses.asdict(outcome)), file=output, flush=True)


def _judge(begun: Outcome, case: Damage, base: pathlib.Path, whole: str) -> Outcome:
    """Reads one damaged file."""
    ended = lambda outcome, text="": dataclasses.replace(
        begun, outcome=outcome, text=text[:_MOST_TEXT], named=any(name in text for name in case.names if name)
    )
    try:
        found = fingerprint((FORMATS | BY_FAMILY)[begun.format].read(base))
    except MemoryError as error:
        return ended(GREEDY, repr(error))
    except (ValueError, FileNotFoundError) as error:
        text = str(error)
        if isinstance(error.__cause__, MemoryError):
            return ended(GREEDY, text)
        path = base / case.file
        # The folder's name is enough where not a file but what several of them say together is wrong.
        return ended(REFUSED if str(path) in text or str(path.parent) in text else OBSCURE, text)
    except AssertionError as error:
        return ended(SILENT, str(error))
    except Exception as error:
        return ended(OBSCURE, f"{type(error).__name__}: {error}")
    same = found == whole
    return ended(EQUAL if same else DIFFERENT if case.may_differ else SILENT)


def main(words: list[str]) -> None:
    """Prints the outcomes of cases such as `gguf:0:250`, a format and its first and last numbers."""
    cases = []
    for word in words:
        name, first, last = word.split(":")
        cases += [(name, number) for number in range(int(first), int(last))]
    # Lazy modules are imported here, or every fork would import them.
    assert jaxspec.load and jaxspec.load_head
    if any(name == "tokenizer" for name, _ in cases):
        import transformers

        assert transformers.AutoTokenizer and transformers.PreTrainedTokenizerFast
    for outcome in outcomes(cases):
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

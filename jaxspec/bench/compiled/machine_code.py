"""Reads the machine code that the TPU compiler made of each operation: how many instruction words, and where it waits.

libtpu writes them into a folder as it compiles, if it was told to before it was loaded: for each operation that is a
function of its own `NUMBER-NAME-NN-final_bundles.txt`, the very long instruction words ("bundles", one a cycle). What
is too small for a function stands in the program's own, `TLP`, with an analysis that counts each operation's words,
`...-schedule-analysis_final_bundles.txt`. Of operations that are alike one is written.

Words of the longest path are counted (`jaxspec.bench.compiled.paths`). That is no bound from above: loops inside an
operation count once, and stalls not at all. An operation that starts a copy from the main memory and waits for it
takes that memory's latency besides.
"""

import functools
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jaxspec.bench.compiled.paths import longest_path
from jaxspec.bench.hlo import Instruction, Program

_FLAGS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
_VARIABLE = "LIBTPU_INIT_ARGS"
_FILE = re.compile(r"\d+-(.+)-\d+-(schedule-analysis_)?final_bundles\.txt")
_PART = re.compile(r"^\s+([\d.]+) scheduled bundles \([^)]*\): %(\S+) = ", re.MULTILINE)
_START, _WAIT = re.compile(r"= dma\.(?!done)"), re.compile(r"= dma\.done\.wait (?!\()")
_WHOLE = "TLP"
_NAMES, _PLACE = re.compile(r"%[^\s,(){}]+"), re.compile(r", (metadata=\{[^}]*\}|backend_config=.*)")


class Code(NamedTuple):
    """Gives what an operation's machine code says.

    Attributes:
      bundles: instruction words of its longest path.
      waits: waits for copies from or to the main memory that it started itself; of several at once, one.
    """

    bundles: float
    waits: int


class Written(NamedTuple):
    """Holds the machine code of a program as it was written, by the operations' names.

    Attributes:
      functions: of operations that are functions; of those that are alike, one.
      within: words of operations in the program's own code, the calls of functions among them.
    """

    functions: Mapping[str, Code]
    within: Mapping[str, float]


NOTHING = Written({}, {})


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    """Makes the folder of this process, which is deleted with it: libtpu is told of it once."""
    return tempfile.TemporaryDirectory(prefix="jaxspec-tpu-code-")


def ask_for_it() -> None:
    """Has libtpu write machine code from now on, if it was not loaded before; what is in its variable stays."""
    flags, given = _FLAGS.format(_folder().name), os.environ.get(_VARIABLE, "")
    if flags not in given:
        os.environ[_VARIABLE] = f"{given} {flags}".strip()


def collect() -> Written:
    """Returns the machine code of what was compiled since the last call; nothing if libtpu writes none.

    The files are deleted: of a large model they are tens of megabytes.
    """
    folder = Path(_folder().name)
    found = read(folder)
    for path in folder.iterdir():
        path.unlink()
    return found


def read(folder: Path) -> Written:
    """Reads the files of one compilation in a folder."""
    functions: dict[str, Code] = {}
    parts: dict[str, float] = {}
    for path in sorted(folder.iterdir()):
        if (match := _FILE.fullmatch(path.name)) is None:
            continue
        name, text = match[1], path.read_text(errors="replace")
        if match[2] is None:
            functions[name] = Code(longest_path(text), _waits(text))
        elif name == _WHOLE:
            parts |= {part: float(count) for count, part in _PART.findall(text)}
    return Written(functions, parts)


def _waits(text: str) -> int:
    """Counts the waits that a copy was started before, since the last one; those under a condition do not count."""
    count, started = 0, False
    for line in text.splitlines():
        if _WAIT.search(line):
            count, started = count + started, False
        elif _START.search(line):
            started = True
    return count


def of_instructions(program: Program, written: Written) -> dict[str, Code]:
    """Returns the machine code of every instruction of a program that it is known of, by its name.

    Args:
      program: the compiled program.
      written: its machine code.
    """
    every = {one.name: (one, inside) for inside in program.computations.values() for one in inside.values()}
    alike = lambda name: _signature(program, *every[name])  # noqa: E731
    functions = {alike(name): code for name, code in written.functions.items() if name in every}
    found = {}
    for name in every:
        code = written.functions.get(name) or functions.get(alike(name))
        if code is not None or name in written.within:
            bundles, waits = code or Code(0, 0)
            found[name] = Code(bundles + written.within.get(name, 0), waits)
    return found


def _signature(program: Program, one: Instruction, inside: Mapping[str, Instruction]) -> tuple:
    """Returns what two instructions share that are compiled alike: all but names and where they were traced."""
    operands = tuple(inside[name].arrays if name in inside else None for name in one.operands)
    return (one.opcode, one.arrays, operands, _attributes(one), _body(program, one.computation("calls")))


def _body(program: Program, name: str) -> tuple:
    """Returns the same of a computation that an instruction calls."""
    body = program.computations.get(name, {})
    places = {each: index for index, each in enumerate(body)}
    return tuple(
        (
            one.opcode,
            one.arrays,
            tuple(places.get(each, -1) for each in one.operands),
            "" if one.operands else one.inside,
            _attributes(one),
            _body(program, one.computation("calls")),
        )
        for one in body.values()
    )


def _attributes(one: Instruction) -> str:
    return _NAMES.sub("%", _PLACE.sub("", one.text))

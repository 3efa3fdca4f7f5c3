"""Reads the machine code that the TPU compiler made of each operation: how many instruction words, and where it waits.

libtpu writes it into a folder as it compiles, if a flag is set before it is loaded. Each operation that is a separate
function has a `NUMBER-NAME-NN-final_bundles.txt`: the very long instruction words ("bundles", one a cycle). Operations
too small for a function are in the program's own, `TLP`, with an analysis that counts each operation's words,
`...-schedule-analysis_final_bundles.txt`. Of identical operations one is written.

Words of the longest path are counted (`longest_path`). That is no bound from above: loops inside an
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

from jaxspec.compiled.bracket import Code
from jaxspec.compiled.hlo import Instruction, Program

_FLAGS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
_VARIABLE = "LIBTPU_INIT_ARGS"
_FILE = re.compile(r"\d+-(.+)-\d+-(schedule-analysis_)?final_bundles\.txt")
_PART = re.compile(r"^\s+([\d.]+) scheduled bundles \([^)]*\): %(\S+) = ", re.MULTILINE)
_WORD = re.compile(r"\s*(?:0x[0-9a-f]+|0) +(?:[A-Z]{2})? *:")
_BRANCH = re.compile(r"sbr\.rel \((!?)(%\w+)\) target = \$region(\d+)")
_COMPARISON = re.compile(r"(%\w+) = scmp\.(\w\w)\.\w+\.totalorder (?:\([^)]*\), )?([^\s,;]+), ([^\s,;]+)")
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)\b")
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_START, _WAIT = re.compile(r"= dma\.(?!done)"), re.compile(r"= dma\.done\.wait (?!\()")
_WHOLE = "TLP"
_NAMES, _PLACE = re.compile(r"%[^\s,(){}]+"), re.compile(r", (metadata=\{[^}]*\}|backend_config=.*)")


class Written(NamedTuple):
    """Holds the machine code of a program as it was written, by the operations' names.

    Attributes:
      functions: of operations that are functions; of those that are alike, one.
      within: words of operations in the program's own code, the calls of functions among them.
    """

    functions: Mapping[str, Code]
    within: Mapping[str, float]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    """Makes the folder of this process, which is deleted with it: libtpu reads its path once."""
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


def read_code(program: Program) -> dict[str, Code]:
    """Returns the machine code of the program that was compiled since the last call of `collect`, by instruction."""
    return of_instructions(program, collect())


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


class _Stretch(NamedTuple):
    """Gives the words from `first` up to `last`, and the comparison that skips them."""

    first: int
    last: int
    skipped_if: tuple[str, ...]


def longest_path(text: str) -> int:
    """Returns how many instruction words one run executes at most.

    A forward branch skips the words up to its target. Two stretches that are skipped on opposite comparisons of the
    same numbers exclude each other, and the longer one counts; any other is taken to run. Loops count once.

    Args:
      text: the words as libtpu writes them, one a line, with `Start region N` where branches lead.
    """
    count, regions, branches, compared = 0, {}, [], {}
    for line in text.splitlines():
        count += _WORD.match(line) is not None
        compared |= {name: (kind, *numbers) for name, kind, *numbers in _COMPARISON.findall(line)}
        regions |= {int(region): count - 1 for region in _REGION.findall(line)}
        branches += [(count - 1, *found) for found in _BRANCH.findall(line)]
    stretches = []
    for first, negated, name, target in branches:
        kind, *numbers = compared.get(name, (name,))
        kind = _OPPOSITE.get(kind, f"!{kind}") if negated else kind
        last = regions.get(int(target), first)
        stretches += [_Stretch(first, last, (kind, *numbers))] if last > first else []
    return _longest(0, count, stretches)


def _longest(first: int, last: int, stretches: list[_Stretch]) -> int:
    """Returns the longest path from one word to before another."""
    inside = [one for one in stretches if first <= one.first and one.last <= last]
    total, lengths, place = last - first, {}, first
    for one in sorted(inside, key=lambda each: (each.first, -each.last)):
        if one.first < place:
            continue  # within the stretch before
        place = one.last
        total -= one.last - one.first
        within = [each for each in inside if each != one]
        lengths[one.skipped_if] = lengths.get(one.skipped_if, 0) + _longest(one.first, one.last, within)
    while lengths:
        key, length = lengths.popitem()
        total += max(length, lengths.pop(_opposite(key), 0))
    return total


def _opposite(skipped_if: tuple[str, ...]) -> tuple[str, ...]:
    return _OPPOSITE.get(skipped_if[0], ""), *skipped_if[1:]

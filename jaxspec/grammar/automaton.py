"""Compiles regular expressions to automata, first over bytes and then over tokens.

Tokens that lead to equal next states from every state form a class. A token's class follows from that of its prefix and
its last byte. So each step is computed once for a class and a kind of byte, regardless of the vocabulary's size.
"""

import dataclasses
import importlib
import marshal
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
from jaxtyping import Bool, Int


def needed(module: str) -> Any:
    """Imports a module of the optional dependencies.

    Raises:
      ModuleNotFoundError: the module is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"grammars need {error.name}, which is not installed; pip install 'jaxspec-decode[grammar]'"
        ) from error


# The parts of an expression: an escape, the beginning of a class, a group with flags, or one character.
_PART = re.compile(r"\\.|\[\^?\]?|\(\?[a-zA-Z-]+[:)]|.", re.DOTALL)
# With the sets that escapes name, and the beginnings of classes, which may be nested.
_CLASS_PART = re.compile(r"\\[pP]\{[^}]*\}|\\[pP].|\\.|\[\^?\]?|\(\?[a-zA-Z-]+[:)]|.", re.DOTALL)
_OTHERS = {"\\b", "\\B", "\\Z", "\\G"}
_STARTS, _ENDS = {"^", "\\A"}, {"$", "\\z"}


def without_anchors(pattern: str) -> str:
    """Returns an expression without anchors at the ends of its alternatives, as answers are matched as a whole.

    Raises:
      ValueError: the expression has other anchors, an unmatched closing parenthesis, or a flag that ignores white
        space.
    """
    parts, depth, in_class = _parts(pattern), 0, False
    kept: list[str] = []
    for place, part in enumerate(parts):
        if in_class:
            in_class = part != "]"
        elif part.startswith("["):
            in_class = True
        elif part.startswith("(?") and "x" in part.split("-")[0]:
            raise ValueError(f"regex {pattern!r:.80} has the flag x, which ignores white space; leave it out")
        elif part.startswith("("):
            depth += not part.endswith(")")
        elif part == ")":
            depth -= 1
            if depth < 0:
                raise ValueError(f"regex {pattern!r:.80} has a closing parenthesis without an opening one")
        elif part in _STARTS | _ENDS | _OTHERS:
            neighbor = parts[place - 1 : place] if part in _STARTS else parts[place + 1 : place + 2]
            if part in _OTHERS or depth or neighbor not in ([], ["|"]):
                raise ValueError(
                    f"regex {pattern!r:.80} has {part} inside it, but an answer matches it as a whole: leave it out"
                )
            continue
        kept.append(part)
    return "".join(kept)


def _parts(pattern: str) -> list[str]:
    return _PART.findall(pattern)


def without_nul(pattern: str) -> str:
    """Returns an expression of the same texts, except that dots and classes do not match NUL."""
    found: list[str] = []
    all_dots = [False]  # whether a dot matches a new line, in each group around
    depth, start = 0, 0
    for part in _CLASS_PART.findall(pattern):
        if depth or part.startswith("["):
            start = start if depth else len(found)
            depth += part.startswith("[") - (part == "]")
            found.append(part)
            if not depth:
                found[start:] = [f"[{''.join(found[start:])}&&[^\\x00]]"]
            continue
        if part.startswith("("):
            on, _, off = part.strip("(?:)").partition("-")
            if not part.endswith(")"):
                all_dots.append(all_dots[-1])
            if part.startswith("(?"):
                all_dots[-1] = (all_dots[-1] or "s" in on) and "s" not in off
        elif part == ")":
            all_dots = all_dots[:-1] or [False]
        is_set = re.fullmatch(r"\\[DWSpP].*", part, re.DOTALL)
        dot = r"[^\x00]" if all_dots[-1] else r"[^\n\x00]"
        found.append(dot if part == "." else f"[{part}&&[^\\x00]]" if is_set else part)
    return "".join(found)


_BEFORE = b"\x00"
# The largest automaton over bytes, and the longest time to build it. Some short expressions, such as
# (a|b)*a(a|b){17}, have more states than there is memory for. States are counted so that all hosts decide alike.
MOST_STATES, MOST_SECONDS = 2**16, 30.0
# The larger count of a repetition; each one makes a state.
_COUNT = re.compile(r"(?<!\\)\{(?:\d+,)?(\d{5,10}),?\}")
# The most states times classes of tokens, 4 bytes each, while the automaton over tokens is made.
_MOST_CELLS = 2**28
_BUILD = """
import marshal, sys
path, pattern = marshal.load(sys.stdin.buffer)
sys.path.append(path)
import outlines_core
single = outlines_core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
try:
    index = outlines_core.Index(pattern, single)
    found = index.get_transitions(), index.get_initial_state(), set(index.get_final_states()), None
except ValueError as error:
    found = {}, 0, set(), str(error)
sys.stdout.buffer.write(marshal.dumps(found))
"""


class TableTooLargeError(ValueError):
    """Reports a grammar whose table is larger than allowed, or that is not known to have one.

    Example:
        >>> grammar = jaxspec.grammar.Grammar.regex("[a-z]{20}")
        >>> try:
        ...     table = grammar.table(target.tokenizer, target.vocab_size, max_bytes=1000)
        ... except jaxspec.grammar.TableTooLargeError as error:
        ...     print(str(error).startswith("the grammar's 21 states"))
        True
    """


@dataclasses.dataclass(frozen=True)
class Automaton:
    """Holds an automaton over tokens. Its last state is the dead state, from which no text can match.

    Attributes:
      following: the next state, by state and class.
      classes: the class of each token.
      final: the accepting states, where a text may end.
      start: the first state.
    """

    following: Int[np.ndarray, "s c"]
    classes: Int[np.ndarray, "v"]
    final: Bool[np.ndarray, "s"]
    start: int

    @property
    def allowed(self) -> Bool[np.ndarray, "s c"]:
        """Whether each class of tokens is allowed in each state."""
        return self.following != len(self.final) - 1


def over_bytes(
    pattern: str, *, states: int = MOST_STATES, seconds: float = MOST_SECONDS, name: str = "the regular expression"
) -> Automaton:
    """Compiles an expression to an automaton over single bytes.

    Args:
      pattern: the expression. It must not match NUL, as `without_nul` ensures: the library looks for a beginning
        everywhere, and each NUL would be one.
      states: the largest number of states to make.
      seconds: the longest time to take.
      name: name of the expression in errors.

    Raises:
      ValueError: the expression is invalid or cannot match any text.
      TableTooLargeError: it takes more states or more time.
    """
    many = any(int(count) > states for count in _COUNT.findall(pattern))
    # The library rejects an expression that may match the empty text before `\\z`, unless something precedes it. The
    # anchor is needed: otherwise an alternative that is a prefix of a later one would hide it.
    built = (None, 0, set[int](), None) if many else _built(rf"\x00(?:{pattern})\z", seconds)
    edges, initial, ends, problem = built
    if problem is not None:
        reason = (
            "it has unclosed brackets, reversed ranges or counts, repetitions of nothing, look-around, backreferences, "
            "or unknown escapes or class names"
        )
        if "no transitions" in problem:
            reason = "a part of it can match no text; leave that part out"
        raise ValueError(f"{name} has no automaton: {reason}")
    if edges is None or len(edges) > states:
        raise TableTooLargeError(
            f"the automaton of {name} has more than {states:,} states, or took more "
            f"than {seconds:g} seconds; shorten a counted repetition that follows an open one, or use the text "
            "interface, where the host computes the allowed tokens"
        )
    first = edges.pop(initial).get(_BEFORE[0])
    names = {name: place for place, name in enumerate(sorted({*edges, *ends}))}
    following = np.full((len(names) + 1, 256), len(names), np.int32)
    for name, found in edges.items():
        for byte, to in found.items():
            if byte < 256:
                following[names[name], byte] = names.get(to, len(names))
    final = np.zeros(len(following), np.bool_)
    final[[names[name] for name in ends]] = True
    kinds, classes = np.unique(following, axis=1, return_inverse=True)
    start = len(names) if first is None else names.get(first, len(names))
    return _trimmed(Automaton(kinds, classes.reshape(-1).astype(np.int32), final, start))[0]


def _built(pattern: str, seconds: float) -> tuple[Any, int, set[int], str | None]:
    """Returns the transitions of an expression, its initial and final states, and what is wrong with it.

    Another process builds them, since the library cannot be interrupted. There are no transitions if it takes longer
    than `seconds`, or more memory than there is.
    """
    library = pathlib.Path(needed("outlines_core").__file__).parents[1]
    given = marshal.dumps((str(library), pattern))
    command = [sys.executable, "-I", "-S", "-c", _BUILD]
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return None, 0, set(), None
    if done.returncode < 0 or b"MemoryError" in done.stderr:  # a signal killed it
        return None, 0, set(), None
    if done.returncode:
        raise RuntimeError(f"the program that builds automata failed: {done.stderr.decode(errors='replace')[-300:]}")
    return marshal.loads(done.stdout)


def over_tokens(bytewise: Automaton, tokens: list[bytes]) -> tuple[Automaton, Int[np.ndarray, "s"]]:
    """Converts an automaton over bytes to one over tokens.

    Args:
      bytewise: the automaton over bytes.
      tokens: the bytes of each token; a token without bytes is never allowed.

    Returns:
      The automaton over tokens, without states that are unreachable or cannot reach an accepting state, and the state
      of `bytewise` for each of its states.
    """
    left = len(bytewise.final) - 1
    columns, classes = columns_of(bytewise, tokens)
    classes = np.where([len(text) > 0 for text in tokens], classes, len(columns))
    used, classes = np.unique(classes, return_inverse=True)
    columns.append(np.full(left + 1, left, np.int32))  # dead
    whole = Automaton(np.stack([columns[number] for number in used], axis=1), classes, bytewise.final, bytewise.start)
    return _trimmed(whole)


def columns_of(
    bytewise: Automaton, tokens: list[bytes], *, most: int | None = None
) -> tuple[list[Int[np.ndarray, "s"]], Int[np.ndarray, "v"]]:
    """Returns the distinct functions from state to next state, and the number of each token's function.

    The first is the identity, that of a token without bytes.

    Raises:
      TableTooLargeError: they have more than `most` entries; `None` means as many as take 1 GiB.
    """
    most = _MOST_CELLS if most is None else most
    columns = [np.arange(len(bytewise.final), dtype=np.int32)]
    numbers = {column.tobytes(): number for number, column in enumerate(columns)}
    steps: dict[tuple[int, int], int] = {}
    kinds = bytewise.classes.tolist()

    def step(number: int, byte: int) -> int:
        found = steps.get((number, kinds[byte]))
        if found is None:
            column = bytewise.following[columns[number], kinds[byte]]
            found = numbers.setdefault(column.tobytes(), len(columns))
            if len(columns) * len(column) > most:
                raise TableTooLargeError(
                    f"the automaton's {len(column) - 1} states times more than {len(columns)} classes of tokens take "
                    "over 1 GiB; use it in the text interface, where the host computes the allowed tokens"
                )
            if found == len(columns):
                columns.append(column)
            steps[number, kinds[byte]] = found
        return found

    classes = np.zeros(len(tokens), np.int32)
    before, path = b"", [0]  # the previous token, and the class of each of its prefixes
    for token in sorted(range(len(tokens)), key=tokens.__getitem__):
        text, shared = tokens[token], 0
        while shared < len(before) and shared < len(text) and text[shared] == before[shared]:
            shared += 1
        del path[shared + 1 :]
        for byte in text[shared:]:
            path.append(step(path[-1], byte))
        before = text
        classes[token] = path[-1]
    return columns, classes


def chain(bytewise: Automaton, state: int, most: int) -> bytes:
    """Returns the bytes that every text from a state must continue with, at most `most` of them.

    Args:
      bytewise: an automaton over bytes, all of whose states can reach an accepting state.
      state: the state to continue from.
      most: the largest number of bytes to return.
    """
    found, left = bytearray(), len(bytewise.final) - 1
    while len(found) < most and not bytewise.final[state]:
        kinds = np.flatnonzero(bytewise.following[state] != left)
        members = np.flatnonzero(bytewise.classes == kinds[0]) if len(kinds) == 1 else ()
        if len(members) != 1:
            break
        found.append(members[0])
        state = int(bytewise.following[state, kinds[0]])
    return bytes(found)


def _trimmed(whole: Automaton) -> tuple[Automaton, Int[np.ndarray, "s"]]:
    """Drops states that are unreachable or dead, except the last; returns the automaton and the states kept."""
    left = len(whole.final) - 1
    edges = np.unique(np.arange(left)[:, None] * (left + 1) + whole.following[:left])
    before, after = edges // (left + 1), edges % (left + 1)
    before, after = before[after != left], after[after != left]
    start = [] if whole.start == left else [whole.start]
    useful = _reached(before, after, start, left) & _reached(after, before, np.flatnonzero(whole.final), left)
    kept = np.flatnonzero(useful)
    names = np.full(left + 1, len(kept), np.int32)
    names[kept] = np.arange(len(kept))
    following = names[whole.following[[*kept, left]]]
    following[-1] = len(kept)
    final = np.append(whole.final[kept], False)
    kinds, again = np.unique(following, axis=1, return_inverse=True)
    trimmed = Automaton(kinds, again.reshape(-1)[whole.classes].astype(np.int32), final, int(names[whole.start]))
    return trimmed, kept


def _reached(before: Any, after: Any, first: Any, count: int) -> Bool[np.ndarray, "s"]:
    """Returns which states are reachable from the first ones."""
    order = np.argsort(before, kind="stable")
    after, starts = after[order], np.searchsorted(before[order], np.arange(count + 1))
    reached, waiting = np.zeros(count, np.bool_), [int(state) for state in first]
    reached[waiting] = True
    while waiting:
        state = waiting.pop()
        for to in after[starts[state] : starts[state + 1]].tolist():
            if not reached[to]:
                reached[to] = True
                waiting.append(to)
    return reached

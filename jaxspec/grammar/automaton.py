"""Makes the automaton of a regular expression, first over bytes, and then over tokens.

Many tokens lead from every state to the same one: they are a class. A token's class is that of its beginning, stepped
by its last byte, so that only the steps of a class by a kind of byte are worked out, whatever the vocabulary's size.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from jaxspec.grammar.extra import needed

_BEFORE = b"\x00"


@dataclasses.dataclass(frozen=True)
class Automaton:
    """Holds an automaton over tokens. Its last state is that of texts which can match no more.

    Attributes:
      following: the state after each class of tokens.
      classes: the class of each token.
      final: the states where a text may end.
      start: the first state.
    """

    following: Int[np.ndarray, "s c"]
    classes: Int[np.ndarray, "v"]
    final: Bool[np.ndarray, "s"]
    start: int

    @property
    def allowed(self) -> Bool[np.ndarray, "s c"]:
        """Whether the tokens of each class may come in each state."""
        return self.following != len(self.final) - 1


def over_bytes(pattern: str) -> Automaton:
    """Makes the automaton of an expression over single bytes.

    Raises:
      ValueError: if it is none.
    """
    outlines = needed("outlines_core")
    # The library refuses an expression that may match nothing with `\\z` behind it, unless something stands before it.
    # To the end: else an alternative that is the beginning of a later one would hide that.
    single = {bytes([byte]): [byte] for byte in range(256)}
    try:
        index = outlines.Index(rf"\x00(?:{pattern})\z", outlines.Vocabulary(256, single))
    except ValueError as error:
        problem = "it has brackets that are not closed, look-around, references back or unknown names of classes"
        if "no transitions" in str(error):
            problem = "a part of it can match no text; leave that out"
        raise ValueError(f"the regular expression {pattern!r:.120} has no automaton: {problem}") from None
    edges: dict[int, dict[int, int]] = index.get_transitions()
    ends = set(index.get_final_states())
    first = edges.pop(index.get_initial_state()).get(_BEFORE[0])
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


def over_tokens(bytewise: Automaton, tokens: list[bytes]) -> tuple[Automaton, Int[np.ndarray, "s"]]:
    """Returns the same automaton over tokens, whose texts are `tokens`; an empty one may never come.

    States that no text of these tokens reaches, or from which none can match, are left out: which of `bytewise` its
    states are is returned too.
    """
    left = len(bytewise.final) - 1
    columns = [np.arange(left + 1, dtype=np.int32), np.full(left + 1, left, np.int32)]  # of no bytes, and of no text
    numbers = {column.tobytes(): number for number, column in enumerate(columns)}
    steps: dict[tuple[int, int], int] = {}
    kinds = bytewise.classes.tolist()

    def step(number: int, byte: int) -> int:
        found = steps.get((number, kinds[byte]))
        if found is None:
            column = bytewise.following[columns[number], kinds[byte]]
            found = numbers.setdefault(column.tobytes(), len(columns))
            if found == len(columns):
                columns.append(column)
            steps[number, kinds[byte]] = found
        return found

    classes = np.ones(len(tokens), np.int32)
    before, behind = b"", [0]  # the token before, and the class of each of its beginnings
    for token in sorted(range(len(tokens)), key=tokens.__getitem__):
        text, shared = tokens[token], 0
        while shared < len(before) and shared < len(text) and text[shared] == before[shared]:
            shared += 1
        del behind[shared + 1 :]
        for byte in text[shared:]:
            behind.append(step(behind[-1], byte))
        before = text
        classes[token] = behind[-1] if text else 1
    used, classes = np.unique(classes, return_inverse=True)
    whole = Automaton(np.stack([columns[number] for number in used], axis=1), classes, bytewise.final, bytewise.start)
    return _trimmed(whole)


def chain(bytewise: Automaton, state: int, most: int) -> bytes:
    """Returns the bytes that every text goes on with from a state, at most so many.

    Args:
      bytewise: an automaton over bytes, of states from which a text can match alone.
      state: one of them.
      most: the most bytes to return.
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
    """Returns an automaton without the states that are of no use, but for the last; and which are left."""
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
    """Returns which of the states are reached from the first ones by edges."""
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

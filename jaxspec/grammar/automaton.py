"""Makes the automaton of a regular expression, first over bytes, and then over tokens.

Many tokens lead from every state to the same one: they are a class. A token's class is that of its beginning, stepped
by its last byte, so that only the steps of a class by a kind of byte are worked out, whatever the vocabulary's size.
"""

import dataclasses

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
        raise ValueError(f"the regular expression {pattern!r:.120} has no automaton: {error}") from None
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
    return Automaton(kinds, classes.reshape(-1).astype(np.int32), final, start)


def over_tokens(bytewise: Automaton, tokens: list[bytes]) -> Automaton:
    """Returns the same automaton over tokens, whose texts are `tokens`; an empty one may never come.

    States that no text of these tokens reaches, or from which none can match, are left out.
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


def _trimmed(whole: Automaton) -> Automaton:
    """Returns an automaton without the states that are of no use, but for the last; the start is the first."""
    left, allowed = len(whole.final) - 1, whole.allowed
    reached = np.zeros(left + 1, np.bool_)
    new = np.array([whole.start]) if whole.start != left else np.zeros(0, np.int32)
    while len(new):
        reached[new] = True
        after = np.unique(whole.following[new])
        new = after[~reached[after] & (after != left)]
    matching, grown = np.zeros(left + 1, np.bool_), whole.final.copy()
    while np.any(grown & ~matching):
        matching |= grown
        grown = np.any(matching[whole.following] & allowed, axis=1)
    kept = np.flatnonzero(reached & matching)
    names = np.full(left + 1, len(kept), np.int32)
    names[kept] = np.arange(len(kept))
    following = names[whole.following[[*kept, left]]]
    following[-1] = len(kept)
    final = np.append(whole.final[kept], False)
    kinds, again = np.unique(following, axis=1, return_inverse=True)
    return Automaton(kinds, again.reshape(-1)[whole.classes].astype(np.int32), final, int(names[whole.start]))

"""Calls a user's verification function, and parses its result."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxspec.testing.given_uniforms import GivenUniforms, check_given
from jaxspec.testing.instances import Draft, Instance, Kind, Text

PADDING = -1


class Fault(NamedTuple):
    """Describes a result that is not an emitted text.

    Attributes:
      kind: kind of the fault, one word.
      words: description of the problem.
    """

    kind: str
    words: str


@dataclasses.dataclass
class EngineCall:
    """Calls a verification function with the arrays of one draft.

    Attributes:
      verify: verification function.
      kind: a chain, several drafts or a tree.
      instance: target and draft.
      draft: drafted tokens, with their distributions.
      keywords: arguments passed by name.
      copies: whether each call gets fresh arrays.
      from_generator: whether the function takes a generator; given uniforms are then passed as one.
      called: function without arguments that is run at each call, to show progress.
      count: number of calls.
    """

    verify: Callable[..., Any]
    kind: Kind
    instance: Instance
    draft: Draft
    keywords: Mapping[str, Any]
    copies: bool = False
    from_generator: bool = False
    called: Callable[[], object] = lambda: None
    count: int = 0

    def __post_init__(self):
        self._fresh = self.arrays()
        self._passed = tuple(array.copy() for array in self._fresh)

    def __call__(self, randomness: Any) -> Text | Fault:
        """Returns the emitted tokens.

        Raises:
          NotPartitionedError: if it takes a generator, and its result is not a function of the given uniforms.
        """
        self.count += 1
        self.called()
        if self.copies:
            self.restore()
        if self.from_generator and isinstance(randomness, np.ndarray):
            randomness = GivenUniforms(randomness)
        try:
            result = self.verify(*self._passed, randomness, **self.keywords)
        except Exception as error:  # of any kind: the report names it
            words = str(error).strip().partition("\n")[0]
            result = Fault("raises", f"raises {type(error).__name__}: {words}{_hint(error, randomness)}")
        if isinstance(randomness, GivenUniforms):
            check_given(randomness)
        return result if isinstance(result, Fault) else self._read(result)

    def restore(self) -> bool:
        """Restores the arguments; returns whether the function had changed them."""
        changed = any(not np.array_equal(one, other) for one, other in zip(self._fresh, self._passed, strict=True))
        self._passed = tuple(array.copy() for array in self._fresh)
        return changed

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Returns the arguments before the randomness."""
        draft, parents = self.draft, np.array(self.instance.parents)
        if self.kind == "chain":
            return draft.target_rows, draft.draft_probs, draft.tokens
        if self.kind == "tree":
            return draft.target_rows, draft.draft_probs, draft.tokens, parents
        first = np.flatnonzero(parents < 0)
        count = parents.size // first.size
        rows = [
            np.concatenate([draft.target_rows[:1], draft.target_rows[1 + at : 1 + at + count]]) for at in first.tolist()
        ]
        of_chain = lambda array: array.reshape(first.size, count, *array.shape[1:])  # noqa: E731
        return np.stack(rows), of_chain(draft.draft_probs), of_chain(draft.tokens)

    def _read(self, result: Any) -> Text | Fault:
        tokens = self._counted(result) if isinstance(result, tuple) else _as_list(result)
        if isinstance(tokens, Fault):
            return tokens
        while len(tokens) > 1 and tokens[-1] == PADDING and not isinstance(result, tuple):
            tokens = tokens[:-1]
        if not tokens:
            return Fault("nothing", "emits nothing")
        if any(token != token for token in tokens):
            return Fault("NaN", f"returns NaN: {tokens}")
        if not all(token in range(self.instance.vocab) for token in tokens):
            return Fault("vocabulary", f"returns {tokens}, outside of the vocabulary of {self.instance.vocab}")
        found = tuple(map(int, tokens))
        if found[:-1] not in self.draft.paths:
            return Fault("path", f"emits {list(found)}: all of it but the last token must be drafts, in their order")
        return found

    def _counted(self, result: tuple) -> list | Fault:
        """Returns the tokens that `(num_accepted, next_token)` describes."""
        if self.kind != "chain":
            return Fault("form", "returns a tuple; where drafts branch, return the emitted tokens as a list or array")
        try:
            accepted, token = (float(np.asarray(each).item()) for each in result)
        except (TypeError, ValueError, OverflowError):
            words = f"returns {result!r:.80}; a tuple must be (num_accepted, next_token), and tokens a list or array"
            return Fault("form", words)
        if accepted != accepted or token != token:
            return Fault("NaN", f"returns NaN: {result!r:.80}")
        if accepted not in range(self.draft.tokens.size + 1):
            return Fault("form", f"accepts {accepted:g} of {self.draft.tokens.size} drafts")
        return [*self.draft.tokens[: int(accepted)].tolist(), token]


def _as_list(result: Any) -> list | Fault:
    try:
        tokens = result.tolist() if hasattr(result, "tolist") else result
        return [float(token) for token in (tokens if isinstance(tokens, list) else [tokens])]
    except (TypeError, ValueError, OverflowError):
        return Fault("form", f"returns {result!r:.80}; return the emitted tokens or (num_accepted, next_token)")


def _hint(error: Exception, randomness: Any) -> str:
    """Returns what to pass to a function that expects the other kind of randomness, an array or a generator."""
    if isinstance(error, AttributeError) and isinstance(randomness, np.ndarray):
        return "; its last argument was an array of uniforms: leave uniforms out for a function that takes a generator"
    if "Generator" in str(error) and not isinstance(randomness, np.ndarray):
        return "; its last argument was a generator: pass uniforms=4 for a function that takes an array of 4 uniforms"
    return ""

"""Holds the groups of rows of an engine, and compiles their programs while others run.

kind 0, width 2     a b        runs
kind 0, width 4                compiles, since c waits for a slot of this kind
kind 1, width 1                compiles next, since d is of another kind
"""

import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from jaxspec.core.layout import Unsharded
from jaxspec.decoding.options import Arguments
from jaxspec.serving.compiler import Compiler
from jaxspec.serving.group import Group, kind_of, shared_arrays, widths
from jaxspec.serving.prompt import Prompt, compile_feeding, compile_reuse, compile_scoring
from jaxspec.serving.steps import Steps

_Job = TypeVar("_Job")

# The number of a kind, and the arrays that rows share.
Signature = tuple[int, Hashable]


class Groups(Generic[_Job]):
    """Holds the groups of rows by signature. Only `signature_of`, `warm` and `prepare` may be called by any thread.

    Attributes:
      by_signature: the groups.
    """

    def __init__(
        self,
        slots: int,
        rounds: int,
        *,
        reuses: bool,
        changed: Callable[[], None],
        idle: Callable[[], bool] = lambda: True,
        steps: Steps[_Job] | None = None,
    ) -> None:
        """Starts without groups.

        Args:
          slots: the largest number of rows.
          rounds: the largest number of rounds of one turn.
          reuses: whether prompts may continue texts that have ended.
          changed: is called by another thread when programs are compiled.
          idle: returns whether nothing is decoded, so that what is needed later may be compiled.
          steps: makes the device calls; `None` makes them in this process alone.
        """
        self.by_signature: dict[Signature, Group[_Job]] = {}
        self._slots, self._rounds, self._reuses = slots, rounds, reuses
        self._kinds: dict[Hashable, int] = {}
        self._lock, self._steps = threading.Lock(), Steps[_Job]() if steps is None else steps
        self._programs = Compiler(changed, idle)

    @property
    def live(self) -> int:
        """The number of rows."""
        return sum(len(group.live) for group in list(self.by_signature.values()))

    def signature_of(self, arguments: Arguments) -> Signature:
        """Returns what requests must share to be rows of one group."""
        kind = kind_of(arguments)
        with self._lock:
            return self._kinds.setdefault(kind, len(self._kinds)), shared_arrays(arguments)

    def width_for(self, signature: Signature, arguments: Arguments, more: int, waiting: int = 0) -> int | None:
        """Returns a width of a group with room for more rows; `None` while programs are being compiled.

        Args:
          signature: that of the group, which may not exist yet.
          arguments: those of a row.
          more: the number of rows.
          waiting: the number of further rows that wait for slots.
        """
        group = self.by_signature.get(signature)
        width, taken = (0, more) if group is None else (group.width, len(group.live) + more)
        if taken <= width:
            return width
        larger = [one for one in widths(self._slots) if one >= taken]
        best = next((one for one in larger if one >= taken + waiting), self._slots)
        if not _compiles_ahead(arguments):
            return best
        moves = [(signature[0], width, one) for one in larger]
        done = [one for _, _, one in filter(self._programs.done, moves)]
        if not done and not any(map(self._programs.asked, moves)):
            self._can_move(signature[0], arguments, width, best)
        return next((one for one in done if one >= best), done[-1] if done else None)

    def start(self, signature: Signature, prompt: Prompt[_Job]) -> tuple[Group[_Job], int]:
        """Gives a slot to a prompt that was fed; returns the group and the slot.

        Raises:
          ValueError: the group has no free slot, and the programs of larger ones are not compiled.
        """
        if (width := self.width_for(signature, prompt.arguments, 1)) is None:
            raise ValueError("there is no slot for the row")
        if signature not in self.by_signature:
            self.by_signature[signature] = self._steps.open(prompt, self._slots, self._rounds)
        group = self.by_signature[signature]
        if width != group.width:
            self._steps.resize(group, width, prompt)
        return group, self._steps.add(group, prompt)

    def settle(self, signature: Signature) -> None:
        """Moves few rows to a smaller width after some turns, and drops a group without rows, with its caches."""
        group = self.by_signature[signature]
        width = group.shrinks_to()
        if width is not None and self._can_move(signature[0], group.arguments, group.width, width):
            self._steps.resize(group, width)
        if not group.live and len(self.by_signature) > 1:
            self.drop(signature)

    def drop(self, signature: Signature) -> None:
        """Drops a group with its rows, and their caches."""
        self._steps.close(self.by_signature.pop(signature))

    def warm(self, kinds: Sequence[Arguments]) -> Callable[[], bool]:
        """Compiles for kinds of requests; returns what says whether each can start. Not for a mesh."""
        (first, *others) = [(0, width) for width in widths(self._slots)]
        others += [(old, new) for old, new in itertools.permutations(widths(self._slots), 2) if new >= old // 2]
        numbers = [self.signature_of(arguments)[0] for arguments in kinds]
        for number, arguments in zip(numbers, kinds, strict=True):
            self._can_move(number, arguments, *first)
        for (number, arguments), move in itertools.product(zip(numbers, kinds, strict=True), others):
            self._can_move(number, arguments, *move)
        return lambda: all(self._programs.done((number, *first)) for number in numbers)

    def prepare(self, kinds: Sequence[Arguments]) -> None:
        """Compiles what one row of each kind needs, while nothing is decoded. Not for a mesh."""
        first = (0, widths(self._slots)[0])
        for arguments in kinds:
            task = functools.partial(self._compile, arguments, *first)
            self._programs.ask((self.signature_of(arguments)[0], *first), task, later=True)

    def can_score(self, signature: Signature, arguments: Arguments, alternatives: int | None) -> bool:
        """Returns whether a prompt can be scored, with this number of likely tokens; asks for the program if not."""
        if alternatives is None or not _compiles_ahead(arguments):
            return True
        task = functools.partial(compile_scoring, arguments, alternatives)
        return self._programs.has(("scores", signature[0], alternatives), task)

    @property
    def compiling(self) -> bool:
        """Whether programs are being compiled."""
        return self._programs.busy

    def close(self) -> None:
        """Drops all rows, and ends the thread that compiles."""
        self.by_signature.clear()
        self._programs.close()

    def _can_move(self, kind: int, arguments: Arguments, before: int, after: int) -> bool:
        """Returns whether rows can move from one width to another; asks for the programs if they cannot."""
        task = functools.partial(self._compile, arguments, before, after)
        return not _compiles_ahead(arguments) or self._programs.has((kind, before, after), task)

    def _compile(self, arguments: Arguments, before: int, after: int) -> Iterator[Any]:
        row: Any = None
        feeding = compile_feeding(arguments)
        yield feeding
        for row in Group[_Job](arguments, self._slots, self._rounds, ahead=True).compile(feeding, before, after):
            yield row
        if self._reuses:
            yield from compile_reuse(arguments, feeding, row)


def _compiles_ahead(arguments: Arguments) -> bool:
    """Returns whether programs compile before they run: those for a mesh depend on where earlier ones put results."""
    return isinstance(arguments.target.traits.placement, Unsharded)

"""Makes the device calls of an engine, each by one method, so that other processes can make them too (`lockstep`)."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax

from jaxspec.core.results import Generation
from jaxspec.core.state import GenerationState
from jaxspec.decoding.prompt_scores import PromptScores
from jaxspec.decoding.slots import Advance
from jaxspec.serving.group import Group
from jaxspec.serving.prefixes import Prefixes
from jaxspec.serving.prompt import Prompt
from jaxspec.sharding.placement import to_host
from jaxspec.text.request import TextRequest

_Job = TypeVar("_Job")


class Steps(Generic[_Job]):
    """Makes the device calls of an engine in one process. All but `check` and `follow` are for the engine's thread.

    Attributes:
      follows: whether the engine of another process decides.
    """

    follows = False

    def follow(self, request_of: Callable[[list[int], dict[str, Any], bool], TextRequest]) -> None:
        """Makes the calls of the process that decides, until it ends.

        Args:
          request_of: encodes token ids with options of `submit`, and whether a seed was given.

        Raises:
          RuntimeError: this process decides, or the other one has failed.
        """
        del request_of
        raise RuntimeError("only processes after the first follow; submit requests to this engine instead")

    def check(self, request: TextRequest, options: dict[str, object]) -> object:
        """Returns what other processes need to know of a request.

        Raises:
          TypeError, ValueError: they cannot take it.
        """
        del request, options
        return None

    def begin(
        self, job: _Job, request: TextRequest, asked: object, *, salt: str | None, alternatives: int | None
    ) -> Prompt[_Job]:
        """Begins the prompt of a request; `asked` is the result of `check`."""
        del asked
        return Prompt(job, request.arguments, request.prompts[0], salt=salt, alternatives=alternatives)

    def take_from(self, prompt: Prompt[_Job], prefixes: Prefixes) -> None:
        """Takes the first chunks of a prompt from a text that begins like it, if there is one."""
        prompt.take_from(prefixes)

    def feed(self, prompt: Prompt[_Job], chunks: int) -> None:
        """Feeds chunks of a prompt."""
        prompt.feed(chunks)

    def scores(self, prompt: Prompt[_Job]) -> PromptScores:
        """Returns the scores of a prompt on the host."""
        return jax.device_get(to_host(prompt.scores))

    def drop(self, prompt: Prompt[_Job]) -> None:
        """Forgets a prompt that gets no slot."""

    def open(self, prompt: Prompt[_Job], slots: int, rounds: int) -> Group[_Job]:
        """Returns a group for rows like that of a prompt."""
        return Group(prompt.arguments, slots, rounds)

    def resize(self, group: Group[_Job], width: int, prompt: Prompt[_Job] | None = None) -> None:
        """Moves rows to another width; for the first one, with the row of a prompt."""
        group.resize(width, None if prompt is None else prompt.feeding.row)

    def add(self, group: Group[_Job], prompt: Prompt[_Job]) -> int:
        """Puts the row of a prompt that was fed into a slot; returns the slot."""
        return group.add(prompt.job, prompt.finish())

    def advance(self, group: Group[_Job], rounds: int, *, until_end: bool) -> Advance:
        """Runs rounds of a group."""
        return group.advance(rounds, until_end)

    def take(self, group: Group[_Job], slot: int) -> tuple[GenerationState, Generation]:
        """Returns the row of a slot, and its result on the host."""
        return group.take(slot)

    def keep(
        self, prompt: Prompt[_Job], prefixes: Prefixes, row: GenerationState, generation: Generation, slots: int
    ) -> None:
        """Keeps the caches of the row that was taken last, if other prompts can begin with them."""
        if prompt.keeps(generation):
            prefixes.add(prompt.prefix(row, prompt.text(generation), slots))

    def release(self, group: Group[_Job], slot: int) -> None:
        """Frees a slot."""
        group.release(slot)

    def close(self, group: Group[_Job]) -> None:
        """Forgets a group, with its rows."""

    def end(self, error: BaseException | None) -> None:
        """Ends the run, because of an error or without one."""

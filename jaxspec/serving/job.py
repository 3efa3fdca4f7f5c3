"""Defines `Job`, a request on its way through an engine."""

import dataclasses
import time
from collections.abc import Callable

from jaxspec.decoding.slots import Advance
from jaxspec.serving.groups import Signature
from jaxspec.serving.handle import CancelledError, Handle
from jaxspec.serving.prompt import Prompt
from jaxspec.text.request import TextRequest
from jaxspec.text.result import RowText, TextResult
from jaxspec.text.stream import TextStream


@dataclasses.dataclass(eq=False)
class Job:
    """Holds a request on its way through an engine.

    Attributes:
      request: the request.
      text: what is decoded so far.
      handle: what the caller holds.
      deadline: when to drop it, on the clock of `time.perf_counter`; `None` for no limit.
      priority: requests with a smaller number start first.
      signature: that of its group.
      began: when it was submitted.
      first: the seconds until its first tokens, and their number.
      tokens: the number of tokens so far.
      cancelled: whether nobody waits for it.
      salt: only texts with an equal one continue each other.
      prompt_alternatives: the number of likely tokens to report at each position of the prompt; `None` for no report.
      prompt: the prompt, from when it is fed.
      asked: what other processes need to know of the request.
    """

    request: TextRequest
    text: RowText
    handle: Handle
    deadline: float | None
    priority: int
    signature: Signature
    began: float = dataclasses.field(default_factory=time.perf_counter)
    first: tuple[float | None, int] = (None, 0)
    tokens: int = 0
    cancelled: bool = False
    salt: str | None = None
    prompt_alternatives: int | None = None
    prompt: Prompt["Job"] | None = None
    asked: object = None

    @property
    def over(self) -> BaseException | None:
        """The reason to drop the request, if there is one."""
        if self.cancelled:
            return CancelledError("the request was cancelled")
        if self.deadline is not None and time.perf_counter() > self.deadline:
            return TimeoutError("the request was not complete within its time limit")
        return None

    def take(self, found: Advance, slot: int) -> None:
        """Hands out the tokens that the rounds of one turn have emitted in a slot."""
        rounds = int(found.count)
        for at in range(rounds):
            count, accepted = int(found.rounds.count[at, slot]), int(found.rounds.accepted[at, slot])
            ids = found.rounds.tokens[at, slot, :count].tolist()
            last = bool(found.done[slot]) and not found.rounds.count[at + 1 : rounds, slot].any()
            shown = len(self.text.spans)
            piece = self.text.push(ids, [place < accepted for place in range(count)], last=last)
            self.tokens += count
            self.handle.push(piece, self.text.spans[shown:])
            if last:
                break
        if self.first[0] is None:
            self.first = time.perf_counter() - self.began, self.tokens

    def follow(self, closed: Callable[[], bool]) -> None:
        """Decodes a text whose grammar the host follows, without the others; `closed` says whether to give up."""
        stream = TextStream[str, TextResult](self.request)
        try:
            for piece in stream:
                self.handle.push(piece)
                ended = CancelledError("the request was cancelled") if closed() else None
                if reason := self.over or ended:
                    stream.close()
                    self.handle.end(reason)
                    return
            self.handle.end(stream.result)
        except (FloatingPointError, ValueError) as error:
            self.handle.end(error)

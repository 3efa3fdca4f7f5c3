"""Runs the one host loop over rounds, for streams, text, grammars, and drafts that the host reads.

device     propose            pass over the drafts ............   verdict, commit
host               reads the drafts, computes what may follow each
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from jaxspec.core import validate
from jaxspec.core.compiler import traced_for
from jaxspec.core.model import Model, ModelOutput
from jaxspec.core.program_files import HeldArrays
from jaxspec.core.programs import PROGRAMS, compiler_options
from jaxspec.core.random import Rng
from jaxspec.core.results import Generation
from jaxspec.core.state import GenerationState, Proposal, RoundInfo
from jaxspec.decoding.generate import finish, round_of, start
from jaxspec.decoding.options import Arguments, Keywords, Options, TokenIds
from jaxspec.decoding.round import Round
from jaxspec.drafters.base import Drafter
from jaxspec.sharding.placement import automatic_axes, on_automatic_axes


def stream(
    target: Model, drafter: Drafter | None, prompt: TokenIds, **options: Unpack[Keywords]
) -> Generator[list[np.ndarray], None, Generation]:
    """Yields the new token ids of each row after each round, until every row has ended.

    Runs a loop on the host. Takes the arguments of `generate`, which describes them, and checks them immediately.

    Yields:
      A list of the new ids of each row, `int32[count]` each.

    Returns:
      The final `Generation`, as the value of `yield from`.

    Raises:
      TypeError, ValueError: as in `generate`.

    Example:
        >>> rounds = list(jaxspec.stream(target, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4))
        >>> sum(len(new) for new, _ in rounds)
        4
    """
    arguments, _ = Arguments.check(target, drafter, prompt, Options.of(options))
    return _stream(arguments)


def _stream(arguments: Arguments) -> Generator[list[np.ndarray], None, Generation]:
    rounds = Rounds(arguments)
    for emitted in rounds:
        yield [row[:count] for row, count in zip(emitted.tokens, emitted.count, strict=True)]
    return rounds.finish()


class Host:
    """Takes part in rounds from the host. This base class does nothing; subclasses override its methods.

    Attributes:
      reads_drafts: whether it reads the drafts of each round while the device runs the pass over them.
    """

    reads_drafts: ClassVar[bool] = False

    def before(self, state: GenerationState) -> GenerationState:
        """Returns the state to begin a round with."""
        return state

    def after_drafts(
        self,
        state: GenerationState,
        tokens: Int[np.ndarray, "b n"],
        valid: Bool[np.ndarray, "b n"],
        parents: Int[np.ndarray, "b n"] | None,
    ) -> GenerationState:
        """Returns the state to verify drafts with, given arrays of a `Proposal`; called if `reads_drafts`."""
        del tokens, valid, parents
        return state

    def after(self, tokens: Int[np.ndarray, "b n"], count: Int[np.ndarray, "b"]) -> None:
        """Receives the tokens that a round emitted: row `b` got `tokens[b, :count[b]]`."""


@dataclasses.dataclass(frozen=True)
class Emitted:
    """Holds a round's output on the host: row `b` got `tokens[b, :count[b]]`, `accepted[b]` drafts first."""

    tokens: Int[np.ndarray, "b n"]
    count: Int[np.ndarray, "b"]
    accepted: Int[np.ndarray, "b"]


class Rounds:
    """Iterates over the rounds of a call, until every row has ended.

    Attributes:
      state: the state after the latest round; the next round consumes it.
      done: which rows have ended.
      seconds: the time spent so far, including that of reading the prompts, but not that of the caller's loop.
    """

    def __init__(self, arguments: Arguments, host: Host | None = None) -> None:
        """Reads the prompts.

        Args:
          arguments: the arguments of the call.
          host: takes part in the rounds; `None` if nothing does.
        """
        began = time.perf_counter()
        arguments = on_automatic_axes(arguments)
        self._host = Host() if host is None else host
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(arguments.rows))
        self._advance = _advance(round_of(arguments), self._host, (shapes, arguments.room))
        self._replicate = arguments.placement.replicate  # each host reads all rows
        self._lossless = arguments.verifier.lossless
        with automatic_axes():
            if not self._host.reads_drafts and (state := start.prepare(arguments)) is not None:
                # The program of the rounds is traced while that of the prompt compiles, and both compile at once.
                program = _program(round_of(arguments), (shapes, arguments.room))
                program.func.prepare(*program.args, state=state, most=np.int32(1))
            self.state = start(arguments)
            self.done: Bool[np.ndarray, "b"] = np.array(self._replicate(self.state.done))
        self.seconds = time.perf_counter() - began

    def __iter__(self) -> Iterator[Emitted]:
        while not self.done.all():
            began = time.perf_counter()
            with automatic_axes():
                self.state, info = self._advance(self._host.before(self.state), 1)
                found = self._replicate((info.tokens, info.count, info.accepted, self.state.done))
                tokens, count, accepted, done = jax.device_get(found)
            self._host.after(tokens, count)
            self.done = np.array(done)
            self.seconds += time.perf_counter() - began
            yield Emitted(tokens, count, accepted)

    def run(self) -> Generation:
        """Runs all remaining rounds without the host, and returns the result of `generate`."""
        began = time.perf_counter()
        if not self.done.all():
            with automatic_axes():
                self.state, _ = self._advance(self.state, validate.LARGEST)
            self.done = np.ones_like(self.done)
        result = self.finish()
        self.seconds += time.perf_counter() - began
        return result

    def finish(self) -> Generation:
        """Returns the tokens generated so far."""
        with automatic_axes():
            return finish(self.state, lossless=self._lossless)

    def end(self, rows: Bool[np.ndarray, "b"]) -> None:
        """Marks rows as done, so that they take part in no further round."""
        if np.any(rows & ~self.done):
            self.done = self.done | rows
            self.state = self.state.with_done(self.state.done | rows)


def _advance(
    one: Round, host: Host, shapes: Hashable
) -> Callable[[GenerationState, int], tuple[GenerationState, RoundInfo]]:
    """Returns a function that runs rounds and consumes their state.

    It runs as one program, or split for a host that reads, which takes one round at a time.
    """
    if not host.reads_drafts:
        advance = _program(one, shapes)
        return lambda state, most: advance(state=state, most=np.int32(most))
    # A tree's state is larger between drafting and verdict, so its buffers cannot be reused.
    own = () if one.drafter.tree else ("drafter_state",)
    propose = jit_of(_propose, (one,), donate=own, shapes=shapes)
    feed = jit_of(_feed, (one,), static=("count",), shapes=shapes)
    judge = jit_of(_judge, (one,), donate=("state", *own), static=("count",), shapes=shapes)

    def advance_once(state: GenerationState, most: int) -> tuple[GenerationState, RoundInfo]:
        assert most == 1
        rng, proposal, drafter_state = propose(**_split(state))
        tokens, valid, parents = jax.device_get((proposal.tokens, proposal.valid, proposal.parents))
        needed = int(np.max(np.where(valid, np.arange(1, valid.shape[1] + 1), 0), initial=0))
        count = next(length for length in one.lengths(state) if length >= needed)
        output = feed(proposal=proposal, state=_split(state)["state"], count=count)
        # The pass runs in the meantime, since none of its results has been read.
        read = (tokens[:, :count], valid[:, :count], None if parents is None else parents[:, :count])
        state = dataclasses.replace(host.after_drafts(state, *read), drafter_state=drafter_state)
        return judge(rng=rng, proposal=proposal, output=output, count=count, **_split(state))

    return advance_once


def _program(one: Round, shapes: Hashable) -> Any:
    return jit_of(_advanced, (one,), donate=("state",), shapes=shapes)


def _advanced(one: Round, state: GenerationState, most: Int[jax.Array, ""]) -> tuple[GenerationState, RoundInfo]:
    """Runs rounds until all rows have ended, at most `most`, and returns what the last of them emitted."""
    nothing = RoundInfo.empty(state.length, one.drafter.max_drafts)

    def advance(carry):
        count, state, _ = carry
        return count + 1, *one.run(state)

    with jax.named_scope("rounds"):
        goes_on = lambda carry: (carry[0] < most) & ~jnp.all(carry[1].done)  # noqa: E731
        _, state, info = jax.lax.while_loop(goes_on, advance, (jnp.int32(0), state, nothing))
    replicate = one.target.traits.placement.replicate
    return state.with_done(replicate(state.done)), replicate(info)


def _split(state: GenerationState) -> dict[str, Any]:
    """Returns a state as two arguments, with the drafter's state separate."""
    return {"state": dataclasses.replace(state, drafter_state=()), "drafter_state": state.drafter_state}


def _propose(one: Round, state: GenerationState, drafter_state: Any) -> tuple[Rng, Proposal, Any]:
    with traced_for(one.target):
        rng, proposal, state = one.propose(dataclasses.replace(state, drafter_state=drafter_state))
    return rng, proposal, state.drafter_state


def _feed(one: Round, proposal: Proposal, state: GenerationState, count: int) -> ModelOutput:
    with traced_for(one.target):
        return one.feed(proposal.first(count), state.context.of(one.target))


def _judge(
    one: Round,
    rng: Rng,
    proposal: Proposal,
    output: ModelOutput,
    state: GenerationState,
    drafter_state: Any,
    count: int,
) -> tuple[GenerationState, RoundInfo]:
    state, proposal = dataclasses.replace(state, drafter_state=drafter_state), proposal.first(count)
    with traced_for(one.target):
        context = state.context.of(one.target)
        verified = one.judge(rng, proposal, output, context, one.drafter.max_drafts)
        state, info = one.commit(proposal, verified, state)
        return state, one.target.traits.placement.replicate(info)


def jit_of(
    function: Callable[..., Any],
    models: tuple[Any, ...],
    *,
    donate: tuple[str, ...] = (),
    static: tuple[str, ...] = (),
    shapes: Hashable = (),
) -> Any:
    """Returns `function(*models, ...)`, jitted for many calls with fixed models.

    A model has hundreds of arrays, which every call of a jitted function would flatten again. Calls for models of one
    structure share a compiled program.

    Args:
      function: takes the models first.
      models: pytrees.
      donate: the names of arguments whose buffers to reuse.
      static: the names of static arguments.
      shapes: identifies the shapes of the other arguments; programs of different shapes are dropped separately.
    """
    leaves, structure = jax.tree.flatten(models)

    def jit() -> Any:
        options = compiler_options()

        @functools.partial(jax.jit, donate_argnames=donate, static_argnames=static, compiler_options=options)
        @functools.wraps(function)
        def program(held, **arguments):
            return function(*jax.tree.unflatten(structure, held.arrays), **arguments)

        return program

    return functools.partial(PROGRAMS.find((function, structure, donate, static, shapes), jit), HeldArrays(leaves))

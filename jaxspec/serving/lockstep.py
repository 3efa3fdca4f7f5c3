"""Makes every process of a mesh make the device calls of one engine, in one order, which the first process chooses.

first      requests, clocks, cancellations -> engine -> command 7: advance group 2 by 4 rounds -> the call
others                                                  command 7: advance group 2 by 4 rounds -> the call
all        what each has read of the result is the same, before the first process hands it out
"""

import base64
import contextlib
import hashlib
import importlib.metadata
import io
import json
import logging
import platform
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed

from jaxspec._version import __version__
from jaxspec.core.results import Generation
from jaxspec.core.state import GenerationState
from jaxspec.decoding.program_cache import sources_digest
from jaxspec.decoding.prompt_scores import PromptScores
from jaxspec.decoding.slots import Advance
from jaxspec.grammar.budget import ThinkingBudget
from jaxspec.grammar.grammar import Grammar
from jaxspec.serving.group import Group, kind_of
from jaxspec.serving.hosts import Follower, Leader
from jaxspec.serving.liveness import CompileTime
from jaxspec.serving.meeting import enter, gather, listen
from jaxspec.serving.prefixes import Prefix, Prefixes
from jaxspec.serving.prompt import Prompt
from jaxspec.serving.steps import Steps
from jaxspec.sharding.multihost import describe, share, spans_processes
from jaxspec.sharding.placement import Placement
from jaxspec.text.decoder import SpeculativeDecoder
from jaxspec.text.request import TextRequest

_Job = TypeVar("_Job")
_LOGGER = logging.getLogger("jaxspec")
# Returns the job, the request and the salt of a command that begins a prompt.
_Asked = Callable[[list[int], dict[str, Any], bool], tuple[Any, TextRequest, str | None]]
# Seconds in which the end of a process, whose peers' devices fail at once, is noticed.
_LOSS_SECONDS = 3.0
# The packages that texts and programs depend on.
_PACKAGES = ("jax", "jaxlib", "numpy", "tokenizers", "llguidance", "outlines-core")
# The bytes of the address and the secret, as JSON.
_INVITATION_BYTES = 512


class CannotEncodeError(Exception):
    """Reports that this process cannot encode a request that the first one has encoded."""


class _Calls:
    """Makes device calls by name on things by number; the same code on every process.

    Each returns its result, and what other processes must have read of it too.

    Attributes:
      things: requests, prompts, groups and kept texts.
    """

    NAMES = frozenset(
        {"encode", "begin", "reuse", "feed", "scores", "drop", "open", "resize", "add", "advance", "take", "keep"}
        | {"forget", "release", "close"}
    )

    def __init__(self, slots: int, rounds: int, asked: _Asked) -> None:
        """Takes the sizes of groups, and what makes requests."""
        self.things: dict[int, Any] = {}
        self._slots, self._rounds, self._asked = slots, rounds, asked
        self._in_slots: dict[int, dict[int, int]] = {}  # the prompt in each slot of each group
        self._taken: Any = None  # the newest row that was taken, and its result

    def __call__(self, name: str, arguments: Any) -> tuple[Any, str]:
        """Makes a call; returns its result and a digest of what must be the same."""
        if name not in self.NAMES:
            raise RuntimeError(f"there is no command {name}")
        result, read = getattr(self, name)(*arguments)
        return result, hashlib.sha256(b"".join(describe(read))).hexdigest()[:16]

    def end(self) -> None:
        """Forgets everything, with what is on devices."""
        self.things, self._in_slots, self._taken = {}, {}, None

    def encode(self, number: int, ids: list[int], options: Any, seeded: bool) -> Any:
        self.things[number] = None
        asked = self.things[number] = self._asked(ids, options, seeded)
        arguments = asked[1].arguments
        shapes = str(cast("tuple[Any, Any]", kind_of(arguments))[1])
        return asked, (shapes, [*map(_local, jax.tree.leaves(arguments.rows))])

    def begin(self, number: int, alternatives: int | None) -> Any:
        job, request, salt = self.things.pop(number)
        prompt = Prompt(job, request.arguments, request.prompts[0], salt=salt, alternatives=alternatives)
        self.things[number] = prompt
        return prompt, prompt.left

    def reuse(self, prompt: int, prefix: int, chunks: int) -> Any:
        self.things[prompt].reuse(self.things[prefix], chunks)
        return None, self.things[prompt].left

    def feed(self, prompt: int, chunks: int) -> Any:
        self.things[prompt].feed(chunks)
        return None, self.things[prompt].left

    def scores(self, prompt: int) -> Any:
        scores = Steps().scores(self.things[prompt])
        return scores, _whole_numbers(scores)

    def drop(self, prompt: int) -> Any:
        del self.things[prompt]
        return None, None

    def open(self, number: int, prompt: int) -> Any:
        group = Group[Any](self.things[prompt].arguments, self._slots, self._rounds)
        self.things[number], self._in_slots[number] = group, {}
        return group, None

    def resize(self, group: int, width: int, prompt: int | None) -> Any:
        Steps().resize(self.things[group], width, None if prompt is None else self.things[prompt])
        self._in_slots[group] = dict(enumerate(self._in_slots[group].values()))
        return None, list(self.things[group].live)

    def add(self, group: int, prompt: int) -> Any:
        slot = Steps().add(self.things[group], self.things[prompt])
        self._in_slots[group][slot] = prompt
        return slot, slot

    def advance(self, group: int, rounds: int, until_end: bool) -> Any:
        found = self.things[group].advance(rounds, until_end)
        return found, _whole_numbers(found)

    def take(self, group: int, slot: int) -> Any:
        self._taken = self.things[group].take(slot)
        return self._taken, _whole_numbers(self._taken[1])

    def keep(self, number: int, prompt: int) -> Any:
        (row, generation), asked = self._taken, self.things[prompt]
        kept = self.things[number] = asked.prefix(row, asked.text(generation), self._slots)
        return kept, kept.valid

    def forget(self, prefixes: list[int]) -> Any:
        for number in prefixes:
            del self.things[number]
        return None, None

    def release(self, group: int, slot: int) -> Any:
        self.things[group].release(slot)
        self._taken = None
        del self.things[self._in_slots[group].pop(slot)]
        return None, None

    def close(self, group: int) -> Any:
        for number in (group, *self._in_slots.pop(group).values()):
            del self.things[number]
        return None, None


class Leading(Steps[_Job]):
    """Makes the device calls of an engine on all processes; for the first one, whose engine decides."""

    def __init__(self, leader: Leader, slots: int, rounds: int, *, ended: Callable[[], None] = lambda: None) -> None:
        self._leader, self._count, self._ended = leader, 0, ended
        self._asked: Any = None
        self._calls = _Calls(slots, rounds, lambda *_: self._asked)

    def check(self, request: TextRequest, options: dict[str, object]) -> object:
        if request.grammars:
            raise ValueError(
                "a grammar without a table is followed by one host, got one on a mesh of several; pass a smaller "
                "grammar, or leave it out"
            )
        given = {**options, "seed": request.seed}
        sent = {name: encoded(f"{name} of submit", value) for name, value in given.items()}
        return request.prompts[0], sent, options.get("seed") is not None

    def begin(
        self, job: _Job, request: TextRequest, asked: object, *, salt: str | None, alternatives: int | None
    ) -> Prompt[_Job]:
        number, self._asked = self._new(), (job, request, salt)
        try:
            self._do("encode", number, *cast("tuple[Any, ...]", asked), agreed=True)
        except CannotEncodeError as error:
            self._do("drop", number)
            advice = "ask for less, such as a smaller grammar"
            raise ValueError(f"another host cannot take this request; {advice}: {error}") from None
        finally:
            self._asked = None
        return self._do("begin", number, alternatives)

    def take_from(self, prompt: Prompt[_Job], prefixes: Prefixes) -> None:
        if (found := prompt.source(prefixes)) is not None:
            self._do("reuse", self._number(prompt), self._number(found[0]), found[1])

    def feed(self, prompt: Prompt[_Job], chunks: int) -> None:
        self._do("feed", self._number(prompt), chunks)

    def scores(self, prompt: Prompt[_Job]) -> PromptScores:
        return self._do("scores", self._number(prompt), agreed=True)

    def drop(self, prompt: Prompt[_Job]) -> None:
        self._do("drop", self._number(prompt))

    def open(self, prompt: Prompt[_Job], slots: int, rounds: int) -> Group[_Job]:
        return self._do("open", self._new(), self._number(prompt))

    def resize(self, group: Group[_Job], width: int, prompt: Prompt[_Job] | None = None) -> None:
        self._do("resize", self._number(group), width, None if prompt is None else self._number(prompt))

    def add(self, group: Group[_Job], prompt: Prompt[_Job]) -> int:
        return self._do("add", self._number(group), self._number(prompt))

    def advance(self, group: Group[_Job], rounds: int, *, until_end: bool) -> Advance:
        return self._do("advance", self._number(group), rounds, until_end, agreed=True)

    def take(self, group: Group[_Job], slot: int) -> tuple[GenerationState, Generation]:
        return self._do("take", self._number(group), slot, agreed=True)

    def keep(
        self, prompt: Prompt[_Job], prefixes: Prefixes, row: GenerationState, generation: Generation, slots: int
    ) -> None:
        if prompt.keeps(generation):
            dropped = prefixes.add(self._do("keep", self._new(), self._number(prompt)))
            self._do("forget", [self._number(one) for one in dropped])

    def release(self, group: Group[_Job], slot: int) -> None:
        self._do("release", self._number(group), slot)

    def close(self, group: Group[_Job]) -> None:
        self._do("close", self._number(group))

    def end(self, error: BaseException | None) -> None:
        self._calls.end()
        self._leader.close(None if error is None else f"{type(error).__name__}: {error}")
        self._ended()

    def _do(self, name: str, *arguments: Any, agreed: bool = False) -> Any:
        """Sends a command and makes its call; with `agreed`, waits until all have the same result.

        Raises:
          CannotEncodeError: another process refuses a request.
        """
        number = self._leader.tell(name, *arguments)
        try:
            result, read = self._calls(name, arguments)
        except (TypeError, ValueError) as error:  # of one request, on all processes
            self._leader.done(number, type(error).__name__)
            raise
        except Exception:  # devices fail at once if one of their processes is lost
            _LOGGER.exception("command %d (%s) has failed", number, name)
            self._leader.wait_for_loss(_LOSS_SECONDS)
            raise
        self._leader.done(number, read)
        if agreed and (refused := self._leader.agree(number)) is not None:
            raise CannotEncodeError(refused)
        return result

    def _new(self) -> int:
        self._count += 1
        return self._count

    def _number(self, thing: Prompt[_Job] | Group[_Job] | Prefix) -> int:
        return next(number for number, one in self._calls.things.items() if one is thing)


class Following(Steps[_Job]):
    """Makes the device calls of the first process's engine."""

    follows = True

    def __init__(
        self,
        follower: Follower,
        slots: int,
        rounds: int,
        *,
        untimed: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes the sizes of groups, what excuses the time of a block, and what to call at the end."""
        self._follower, self._sizes, self._untimed, self._ended = follower, (slots, rounds), untimed, ended
        self._calls: _Calls | None = None

    def check(self, request: TextRequest, options: dict[str, object]) -> object:
        raise RuntimeError(
            f"requests go to the engine of process 0, got one on process {jax.process_index()}; call engine.follow() "
            "here, which returns when process 0 closes its engine"
        )

    def follow(self, request_of: Callable[[list[int], dict[str, Any], bool], TextRequest]) -> None:
        def asked(ids: list[int], options: dict[str, Any], seeded: bool) -> tuple[None, TextRequest, None]:
            try:
                with self._untimed():  # the table of a grammar may take a while
                    request = request_of(ids, _all_decoded(options), seeded)
            except Exception as error:  # the first process has encoded it
                raise CannotEncodeError(f"{type(error).__name__}: {error}") from error
            if request.grammars:
                raise CannotEncodeError("the table of the grammar took it too long, or too much memory")
            return None, request, None

        calls = self._calls = _Calls(*self._sizes, asked)
        try:
            for number, name, arguments in self._follower:
                self._make(calls, number, name, arguments)
        finally:
            calls.end()

    def _make(self, calls: _Calls, number: int, name: str, arguments: list[Any]) -> None:
        """Makes a call, and says what it has read of the result."""
        try:
            _, read = calls(name, arguments)
        except CannotEncodeError as error:
            _LOGGER.warning("command %d (%s) is refused: %s", number, name, error)
            self._follower.done(number, "", refused=str(error))
            return
        except (TypeError, ValueError) as error:  # of one request, if it is the same on the first process
            _LOGGER.info("command %d (%s) has failed: %s", number, name, error)
            read = type(error).__name__
        except Exception as error:
            _LOGGER.exception("command %d (%s) has failed", number, name)
            self._follower.wait_for_loss(_LOSS_SECONDS)
            self._follower.fail(f"{type(error).__name__}: {error}")
            raise
        self._follower.done(number, read)

    def end(self, error: BaseException | None) -> None:
        self._follower.close()
        self._ended()


def steps_of(decoder: SpeculativeDecoder, sizes: tuple[int, int], rounds: int, seconds: float) -> Steps[Any]:
    """Returns what makes the device calls of an engine: alone, or with the other processes of the target's mesh.

    Args:
      decoder: holds the models.
      sizes: the largest number of rows, and the number of tokens that a row has room for.
      rounds: the largest number of rounds of one turn.
      seconds: the time that a command may take.

    Raises:
      ValueError: models or sizes differ between processes, or the mesh lacks some of JAX's processes.
      RuntimeError: the processes do not find each other, or have other packages.
    """
    placement = decoder.target.traits.placement
    if not isinstance(placement, Placement) or not spans_processes(placement.mesh):
        return Steps()
    found = {device.process_index for device in placement.mesh.devices.flat}
    if missing := sorted({*range(jax.process_count())} - found):
        raise ValueError(
            f"the mesh of Engine must have devices of all {jax.process_count()} processes, got none of process "
            f"{', '.join(map(str, missing))}; make it of jax.devices()"
        )
    measured, side = CompileTime(), None
    try:
        leads = jax.process_index() == 0
        side = _lead(placement, seconds, measured) if leads else _follow(placement, measured)
        models = {"target": decoder.target, "drafter": decoder.drafter, "verifier": decoder.verifier}
        side.start()  # what follows may take longer than a silence may
        placement.check_same(models | {"slots and capacity": sizes})
    except BaseException as error:
        measured.close()
        if isinstance(side, Leader) and not isinstance(error, ValueError):  # which is raised on all
            side.close(f"{type(error).__name__}: {error}")
        elif side is not None:
            side.close()
        raise
    if isinstance(side, Leader):
        return Leading(side, sizes[0], rounds, ended=measured.close)
    return Following(side, sizes[0], rounds, untimed=measured.counted, ended=measured.close)


def _lead(placement: Placement, seconds: float, measured: CompileTime) -> Leader:
    secret = secrets.token_bytes(32)
    # No public function returns it. Without a coordinator, as on some TPUs, others know this host by its name.
    listening, host = listen(distributed.global_state.coordinator_address or f"{socket.gethostname()}:0")
    with listening:
        invitation = json.dumps([host, listening.getsockname()[1], secret.hex()]).encode()
        share(invitation, placement.mesh, _INVITATION_BYTES)
        others = gather(listening, secret, jax.process_count(), _facts())
    return Leader(others, seconds=seconds, compiled=measured.seconds)


def _follow(placement: Placement, measured: CompileTime) -> Follower:
    host, port, secret = json.loads(share(b"", placement.mesh, _INVITATION_BYTES))
    connection = enter((host, port), bytes.fromhex(secret), jax.process_index(), _facts())
    return Follower(connection, compiled=measured.seconds)


def _facts() -> dict[str, str]:
    """Returns what must be the same in all processes of a run."""

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    return {
        "jaxspec": __version__,
        "sources of jaxspec": sources_digest(Path(__file__).parents[1])[:12],
        "Python": ".".join(platform.python_version_tuple()[:2]),
        **{name: version(name) for name in _PACKAGES},
    }


def encoded(name: str, value: Any) -> Any:
    """Returns a value in a form that JSON has, which `decoded` reads.

    Raises:
      TypeError: other processes cannot be sent it.

    Example:
        >>> from jaxspec.serving.lockstep import decoded, encoded
        >>> decoded(encoded("logit_bias", {5: -1.5, 7: 2}))
        {5: -1.5, 7: 2}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return encoded(name, value.tolist())
    if isinstance(value, tuple | list):
        return [type(value) is tuple, *(encoded(name, one) for one in value)]
    if isinstance(value, Mapping):
        return {"pairs": [[encoded(name, one) for one in pair] for pair in value.items()]}
    if isinstance(value, Grammar):
        return {"grammar": [value.kind, value.source]}
    if isinstance(value, ThinkingBudget):
        return {"thinking": _packed(jax.tree.leaves(value))}
    raise TypeError(
        f"{name} cannot be sent to other processes as {type(value).__name__}; pass numbers, texts, lists or "
        "dictionaries, or decode it on one process"
    )


def decoded(value: Any) -> Any:
    """Returns a value from what `encoded` returned."""
    if isinstance(value, dict) and "grammar" in value:
        return Grammar(*value["grammar"])
    if isinstance(value, dict) and "thinking" in value:
        return ThinkingBudget(*_unpacked(value["thinking"]))
    if isinstance(value, dict):
        return {decoded(key): decoded(one) for key, one in value["pairs"]}
    if isinstance(value, list):
        values = [decoded(one) for one in value[1:]]
        return tuple(values) if value[0] else values
    return value


def _all_decoded(options: dict[str, Any]) -> dict[str, Any]:
    return {name: decoded(value) for name, value in options.items()}


def _packed(arrays: list[Any]) -> str:
    """Returns arrays as a text; most classes of tokens repeat."""
    data = io.BytesIO()
    np.savez_compressed(data, *map(np.asarray, arrays))
    return base64.b64encode(data.getvalue()).decode()


def _unpacked(text: str) -> list[Any]:
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as found:
        return [jnp.asarray(found[name]) for name in found.files]


def _local(x: Any) -> Any:
    """Returns an array that every process has, on the host; of another one its shape alone."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x) if x.is_fully_replicated else x.shape


def _whole_numbers(tree: Any) -> list[Any]:
    """Returns the arrays of whole numbers and flags; the last bits of others may differ between processors."""
    return [x for x in jax.tree.leaves(tree) if not np.issubdtype(np.asarray(x).dtype, np.floating)]

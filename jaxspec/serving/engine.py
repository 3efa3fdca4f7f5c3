"""Defines `Engine`, which decodes requests that come and go on one thread.

a turn     1  drops what was cancelled or is out of time
           2  feeds chunks of a prompt, if a slot is free and the share of the time for prompts is not used up
           3  runs some rounds of each group of rows that share a program
           4  hands out text, and frees the slots of rows that ended
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from jaxspec.core import validate
from jaxspec.core.layout import Unsharded
from jaxspec.core.programs import PROGRAMS
from jaxspec.decoding.options import Arguments
from jaxspec.decoding.room import bucket
from jaxspec.decoding.slots import MOST_ROUNDS
from jaxspec.serving.group import Group
from jaxspec.serving.groups import Groups
from jaxspec.serving.handle import CancelledError, Handle, QueueFullError
from jaxspec.serving.job import Job
from jaxspec.serving.liveness import COMMAND_SECONDS
from jaxspec.serving.lockstep import steps_of
from jaxspec.serving.memory import keep_freed_memory
from jaxspec.serving.order import due_prompt, has_slot, next_job
from jaxspec.serving.pace import Pace
from jaxspec.serving.prefixes import Prefixes
from jaxspec.serving.prompt import Prompt
from jaxspec.serving.share import Share
from jaxspec.serving.steps import Steps
from jaxspec.serving.waiting import Waiting
from jaxspec.sharding.multihost import agreed
from jaxspec.text.decoder import SpeculativeDecoder
from jaxspec.text.request import TextOptions, TextRequest
from jaxspec.text.result import Timing, collect, new_rows
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.table import seeded_verifier

_LOGGER = logging.getLogger("jaxspec")
# The capacity of a slot if none is given and the context of the model is larger.
_CAPACITY = 1024
# The time that a turn should take; then text is handed out.
_TURN_SECONDS = 0.05
# The number of chunks of a prompt that are fed at a time while rows are decoded, and while there are none.
_CHUNKS, _IDLE_CHUNKS = 1, 4
# The bytes of texts that have ended.
_PREFIX_BYTES = 2**28
# The number of prompts that are fed at a time: a long one, and a short one that passes it.
_PROMPTS = 2
# Options of `submit` that make no other kind.
_OF_SUBMIT = ("priority", "timeout", "cache_salt", "prompt_alternatives")
# Seconds after which time limits are checked while all requests wait for their programs.
_LOOK_SECONDS = 0.1


class Engine:
    """Decodes requests that come and go, each with the text of a separate call.

    A request with a `seed` is verified by `CoupledVerifier`, so that its text is that of a lone call with this verifier
    and seed under any load. Other requests follow the target's distribution by the default verifier, and so do those of
    a drafter of trees, which no coupling verifies.

    Requests of one kind share a program. Another kind compiles in a thread when it first arrives, while the others are
    decoded; on a mesh, they wait. Kinds differ by: greedy or sampled, a seed or none, which processors there are, and
    the size of a grammar's table. Grammars that the host follows are decoded one text at a time.

    Attributes:
      decoder: encodes prompts, and holds the models.
      slots: the number of rows that are decoded at a time.
      capacity: the number of tokens that a row has room for, prompt included.
      most_waiting: the number of requests that may wait; `None` means any number.
      reused_tokens: the number of tokens of prompts that were not fed, as an earlier text begins with them.

    Example:
        >>> with jaxspec.Engine(target, "ngram", slots=2, capacity=32) as engine:
        ...     handles = [engine.submit(text, max_new_tokens=4, temperature=0) for text in ("the sea", "a", "b")]
        ...     [len(handle.result().token_ids) <= 4 for handle in handles]
        [True, True, True]
    """

    def __init__(
        self,
        target: Any,
        drafter: Any = "auto",
        *,
        slots: int = 8,
        capacity: int | None = None,
        most_waiting: int | None = None,
        prompt_share: float = 0.5,
        prefix_bytes: int = _PREFIX_BYTES,
        kinds: Sequence[Mapping[str, Any]] = (),
        deadline: float = COMMAND_SECONDS,
        **options: Any,
    ) -> None:
        """Loads the models, and starts the thread. From then on, freed memory is kept (`keep_freed_memory`).

        Args:
          target: the target, as for `SpeculativeDecoder`.
          drafter: the drafter, as for `SpeculativeDecoder`.
          slots: the number of rows that are decoded at a time.
          capacity: the number of tokens that a row has room for, prompt included; `None` is the model's context, at
            most 1,024. Rounded up to 16, 24, 32, 48, 64, ...
          most_waiting: the number of requests that may wait; `None` means any number.
          prompt_share: the largest share of the time in which prompts are fed while rows are decoded. With 1, a free
            slot is filled first, which is the fastest if nobody reads along; less keeps the pauses of rows short.
          prefix_bytes: the bytes of caches of texts that have ended, which prompts that begin like them are continued
            from; 0 keeps none.
          kinds: options of `submit`, for each kind of request whose programs to compile before the first one arrives.
          deadline: on several processes, the seconds that a command may take, compilations not included; then one
            hangs, and all end.
          **options: the other arguments of `SpeculativeDecoder`.

        Raises:
          TypeError, ValueError: as in `SpeculativeDecoder`; a number is out of range; or processes differ.
          RuntimeError: the processes of the target's mesh do not find each other, or have other packages.
        """
        validate.counts("Engine", slots=slots)
        if most_waiting is not None:
            validate.counts("Engine", most_waiting=most_waiting)
        validate.in_range("Engine", prompt_share=(prompt_share, 0.0, 1.0))
        if prompt_share == 0:
            raise ValueError("prompt_share of Engine must be above 0, got 0, with which no prompt is ever fed")
        validate.integers("Engine", prefix_bytes=(prefix_bytes, 0, 2**62))
        validate.in_range("Engine", deadline=(deadline, 1.0, float("inf")))
        given = validate.capacity(capacity)
        self._verifier: Verifier | None = options.get("verifier")
        self.decoder = SpeculativeDecoder(target, drafter, **options)
        context = self.decoder.target.context_length
        room = bucket(given or min(_CAPACITY, context or _CAPACITY))
        self.capacity = room if context is None else min(room, context)
        self.slots, self.most_waiting, self.reused_tokens = int(slots), most_waiting, 0
        self._waiting: Waiting[Job] = Waiting()
        self._prompts: list[Prompt[Job]] = []
        self._share, self._pace = Share(prompt_share), Pace(_TURN_SECONDS, MOST_ROUNDS)
        self._prefixes = Prefixes(int(prefix_bytes))
        self._news = threading.Condition()
        self._changes = self._seen = 0
        self._idle = self._closing = self._drain = False
        self._failure: BaseException | None = None
        self._steps: Steps[Job] = steps_of(self.decoder, (self.slots, self.capacity), MOST_ROUNDS, deadline)
        idle = lambda: not (self._waiting or self.running)  # noqa: E731
        self._groups: Groups[Job] = Groups(
            self.slots, MOST_ROUNDS, reuses=self._prefixes.keeps, changed=self._changed, idle=idle, steps=self._steps
        )
        keep_freed_memory()
        self._thread = threading.Thread(target=self._run, name="jaxspec-engine", daemon=True)
        self._first: Callable[[], bool] = lambda: False
        # A thread that is within XLA when Python ends ends the process by a fault.
        atexit.register(self.close)
        if self._steps.follows:
            return
        self._thread.start()
        try:
            self._first = self._warm(kinds)
        except BaseException:
            self.close()
            raise

    def submit(
        self,
        prompt: str | Sequence[Mapping[str, Any]] | Sequence[int],
        *,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
        prompt_alternatives: int | None = None,
        **options: Any,
    ) -> Handle:
        """Queues a request, and returns immediately.

        Args:
          prompt: a text, the messages of a conversation, or token ids.
          priority: requests with a smaller number start first; those that have waited long move up.
          timeout: seconds from now after which the request is dropped; `None` means no limit.
          cache_salt: only requests with an equal one continue each other's texts, so that nobody learns from the time
            of an answer what others have asked.
          prompt_alternatives: the number of likely tokens that `Handle.prompt_scores` reports at each position of the
            prompt; `None` scores no prompt. A scored prompt is fed from its first token.
          **options: those of `SpeculativeDecoder.generate`, except `answers` and `capacity`.

        Returns:
          The handle.

        Raises:
          TypeError, ValueError: the prompt or an option is invalid, or they do not fit the capacity.
          QueueFullError: too many requests are waiting.
          RuntimeError: the engine is closed or has failed.
        """
        for name in options.keys() & {"answers", "capacity"}:
            raise TypeError(f"submit got {name}; submit a request for each answer, and set the engine's capacity")
        validate.integers("submit", priority=(priority, -(2**31), 2**31))
        if timeout is not None:
            validate.in_range("submit", timeout=(timeout, 0.0, float("inf")))
        if cache_salt is not None:
            validate.text("cache_salt", cache_salt)
        request = self._request(prompt, options)
        if prompt_alternatives is not None:
            most = self.decoder.target.vocab_size
            validate.integers("submit", prompt_alternatives=(prompt_alternatives, 0, most))
            if request.grammars:
                raise ValueError("prompt_alternatives is not for grammars without a table; leave one of the two out")
        asked = self._steps.check(request, options)
        handle = Handle(lambda: self._cancel(job))
        deadline = None if timeout is None else time.perf_counter() + timeout
        signature = self._groups.signature_of(request.arguments)
        job = Job(request, new_rows(request)[0], handle, deadline, priority, signature)
        job.salt, job.prompt_alternatives, job.asked = cache_salt, prompt_alternatives, asked
        with self._news:
            self._check_open()
            if self.most_waiting is not None and len(self._waiting) >= self.most_waiting:
                raise QueueFullError(f"{len(self._waiting)} requests are waiting, as many as may; try again later")
            self._waiting.add(job, priority)
            self._changed()
        return handle

    def prepare(self, kinds: Sequence[Mapping[str, Any]]) -> None:
        """Compiles for more kinds of requests in a thread, while no request is decoded; `ready` does not wait for it.

        One row of each can start then. Nothing happens on a mesh, where programs compile when they are called.

        Args:
          kinds: options of `submit`, for each kind.

        Raises:
          TypeError, ValueError: an option is invalid.
        """
        if isinstance(self.decoder.target.traits.placement, Unsharded):
            self._groups.prepare(self._arguments_of(kinds))

    @property
    def open(self) -> bool:
        """Whether it takes requests: it is neither closed nor has failed."""
        return self._failure is None and not self._closing

    @property
    def ready(self) -> bool:
        """Whether it takes requests, and those of its `kinds` start without waiting for a program.

        Programs for several rows of them may still be compiled, in a thread.
        """
        return self.open and self._first()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """The number of requests that are being decoded, or whose prompt is being fed."""
        return self._groups.live + len(self._prompts)

    def close(self, *, drain: bool = False) -> None:
        """Ends the thread, and waits for it.

        Args:
          drain: whether to complete all requests first; otherwise they end with a `CancelledError`.
        """
        validate.flag("drain", drain)
        atexit.unregister(self.close)
        with self._news:
            self._closing, self._drain = True, drain
            self._news.notify_all()
        if self._steps.follows:
            self._steps.end(None)
        else:
            self._thread.join()

    def follow(self) -> None:
        """Takes part in decoding the requests of process 0, until it closes its engine; for all other processes.

        On a mesh of several processes, each of them creates the engine; requests go to that of process 0.

        Raises:
          RuntimeError: this is process 0, or that one has failed.
        """
        self._steps.follow(lambda ids, options, seeded: self._request(ids, options, seeded=seeded))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.close(drain=kind is None)

    def _request(self, prompt: Any, options: dict[str, Any], *, seeded: bool = True) -> TextRequest:
        """Checks and encodes a request, with the capacity of a slot; `seeded` says whether a seed is the caller's."""
        given = TextOptions.of(options)
        sampled = seeded and given.seed is not None and given.temperature != 0
        coupled = sampled and self._verifier is None and not self.decoder.drafter.tree
        verifier = seeded_verifier() if coupled else None
        with agreed():  # other processes encode it when they are sent it
            request = self.decoder.encode(prompt, given, verifier=verifier, room=self.capacity)
        if (count := len(request.prompts)) != 1:
            raise ValueError(f"a request has one prompt, got {count}; submit them one by one")
        return request

    def _warm(self, kinds: Sequence[Mapping[str, Any]]) -> Callable[[], bool]:
        """Compiles for kinds of requests; returns what says whether each can start."""
        if isinstance(self.decoder.target.traits.placement, Unsharded):
            return self._groups.warm(self._arguments_of(kinds))
        handles = [self.submit([0], **options) for options in self._brief(kinds)]
        return lambda: all(handle.done for handle in handles)

    def _arguments_of(self, kinds: Sequence[Mapping[str, Any]]) -> list[Arguments]:
        """Returns the arguments of a request of each kind, without those that the host follows."""
        asked = [self._request([0], options) for options in self._brief(kinds)]
        return [one.arguments for one in asked if not one.grammars]

    def _brief(self, kinds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        validate.mappings("kinds", kinds, "pass [{'temperature': 0}], say")
        most = {"max_new_tokens": min(2, self.capacity - 1)}
        return [{**most, **{name: one for name, one in kind.items() if name not in _OF_SUBMIT}} for kind in kinds]

    def _cancel(self, job: Job) -> None:
        job.cancelled = True
        self._changed()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise RuntimeError("the engine has failed; create another one") from self._failure
        if self._closing:
            raise RuntimeError("the engine is closed; create another one")

    def _changed(self) -> None:
        """Wakes the thread."""
        with self._news:
            self._changes += 1
            self._news.notify_all()

    def _run(self) -> None:
        try:
            while self._wait():
                self._turn()
        except BaseException as error:  # each request must hear of it
            _LOGGER.exception("the engine has failed")
            self._failure = error
        self._end_all(self._failure or CancelledError("the request was cancelled"))
        self._groups.close()
        self._steps.end(self._failure)

    def _wait(self) -> bool:
        """Waits until there is something to do; returns whether to go on."""
        with self._news:
            # Programs are being compiled, and time limits may pass.
            if self._idle and (self._drain or not self._closing):
                self._news.wait_for(lambda: self._changes != self._seen, _LOOK_SECONDS)
            self._news.wait_for(lambda: self._waiting or self.running or self._closing)
            self._seen = self._changes
            return not self._closing or (self._drain and bool(self._waiting or self.running))

    def _turn(self) -> None:
        fed = False
        while self._feed():
            fed = True
        began = _work_time()
        self._idle = not fed and not self._groups.live
        for signature, group in list(self._groups.by_signature.items()):
            if group.live:
                try:
                    self._advance(signature[0], group)
                except (TypeError, ValueError) as error:  # of this kind of request, such as a wrong processor
                    self._groups.drop(signature)
                    for job in group.live.values():
                        job.handle.end(error)
                    continue
            self._groups.settle(signature)
        self._share.decoded(_work_time() - began)

    def _drop(self) -> None:
        """Ends requests that were cancelled or are out of time, before they have a slot."""
        with self._news:
            over = [(job, reason) for job in self._waiting if (reason := job.over)]
            for job, _ in over:
                self._waiting.remove(job)
        for job, reason in over:
            job.handle.end(reason)
        for prompt in list(self._prompts):
            if reason := prompt.job.over:
                self._end_prompt(prompt, reason)

    def _end_prompt(self, prompt: Prompt[Job], reason: BaseException) -> None:
        """Ends a request whose prompt is being fed, and drops its row."""
        if prompt in self._prompts:  # otherwise its row has ended
            self._prompts.remove(prompt)
            self._steps.drop(prompt)
        prompt.job.prompt = None
        prompt.job.handle.end(reason)

    def _feed(self) -> bool:
        """Feeds chunks of a prompt, if it is the turn of prompts; returns whether it was."""
        self._drop()
        decoded = self._groups.live
        if decoded == 0:
            self._share.forgive()
        if (self._closing and not self._drain) or not self._share.allows:
            return False
        began = _work_time()
        if (job := self._next(decoded)) is not None:
            self._take_up(job)
        if (prompt := due_prompt(self._prompts, self._groups)) is not None:
            try:
                if prompt.left > 0:
                    self._steps.feed(prompt, _CHUNKS if decoded else _IDLE_CHUNKS)
                if prompt.left == 0 and has_slot(prompt, self._groups):
                    self._start(prompt)
            except (TypeError, ValueError) as error:  # of this request alone
                self._end_prompt(prompt, error)
        if decoded:
            self._share.fed(_work_time() - began)
        return job is not None or prompt is not None

    def _next(self, decoded: int) -> Job | None:
        """Removes the request that is to begin from those that wait; `None` if none can."""
        if decoded + len(self._prompts) >= self.slots or len(self._prompts) == _PROMPTS:
            return None
        with self._news:
            return next_job(self._waiting, self._prompts, self._groups)

    def _take_up(self, job: Job) -> None:
        """Begins a request, or decodes its text if it cannot share a program."""
        prompt, job.handle.queue_seconds = None, time.perf_counter() - job.began
        try:
            if job.request.grammars:
                job.follow(lambda: self._closing and not self._drain)
            else:
                said: dict[str, Any] = {"salt": job.salt, "alternatives": job.prompt_alternatives}
                prompt = job.prompt = self._steps.begin(job, job.request, job.asked, **said)
                self._prompts.append(prompt)
                self._steps.take_from(prompt, self._prefixes)
                job.handle.reused_tokens = prompt.reused
                self.reused_tokens += prompt.reused
        except (TypeError, ValueError) as error:  # of this request alone
            if prompt is None:
                job.handle.end(error)
            else:
                self._end_prompt(prompt, error)
        except BaseException as error:  # the request may be in no list that `_end_all` reads
            job.handle.end(error)
            raise

    def _start(self, prompt: Prompt[Job]) -> None:
        """Gives a slot to a prompt that was fed."""
        if prompt.scores is not None:
            prompt.job.handle.prompt_scores = self._steps.scores(prompt)
        handle = prompt.job.handle
        handle.prompt_seconds = time.perf_counter() - prompt.job.began - (handle.queue_seconds or 0.0)
        group, slot = self._groups.start(prompt.job.signature, prompt)
        self._prompts.remove(prompt)
        if prompt.done:
            self._complete(group, slot, prompt.job)

    def _advance(self, kind: int, group: Group[Job]) -> None:
        for slot, job in list(group.live.items()):
            if reason := job.over:
                self._steps.release(group, slot)
                job.handle.end(reason)
        if not group.live:
            return
        program, began = (kind, group.width), _work_time()
        found = self._steps.advance(group, self._pace.rounds(program), until_end=bool(self._waiting))
        self._pace.ran(program, int(found.count), _work_time() - began)
        for slot, job in list(group.live.items()):
            job.take(found, slot)
            if found.done[slot] or job.text.stopped:
                self._complete(group, slot, job)

    def _complete(self, group: Group[Job], slot: int, job: Job) -> None:
        """Hands out the result of a row that has ended, and frees its slot."""
        row, generation = self._steps.take(group, slot)
        timing = Timing(time.perf_counter() - job.began, job.tokens, *job.first)
        try:
            job.handle.end(collect(job.request, [job.text], generation, timing)[0])
        except (FloatingPointError, ValueError) as error:  # of this request alone
            job.handle.end(error)
        try:
            if job.prompt is not None:
                self._steps.keep(job.prompt, self._prefixes, row, generation, self.slots)
        finally:
            self._steps.release(group, slot)

    def _end_all(self, reason: BaseException) -> None:
        with self._news:
            jobs = self._waiting.clear()
        jobs += [prompt.job for prompt in self._prompts]
        self._prompts.clear()
        for group in self._groups.by_signature.values():
            jobs += group.live.values()
        self._prefixes = Prefixes(0)
        for job in jobs:
            job.prompt = None
            job.handle.end(reason)


def _work_time() -> float:
    """Returns a time in seconds that stands still while a program compiles."""
    return time.perf_counter() - PROGRAMS.first_seconds

"""Drops compiled programs before a process has as many memory mappings as Linux allows.

XLA maps the code of each kernel on a CPU separately, in three mappings: a program has 300 to 1,700. Linux allows a
process 65,530. Beyond that, LLVM cannot allocate memory and the process ends with a segmentation fault.

One setting of XLA maps less, and takes less time (`compiler_options`). The number of LLVM modules
(`xla_cpu_parallel_codegen_split_count`) alone changes nothing.
"""

import contextlib
import functools
import gc
import itertools
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, ParamSpec, TypeVar

import jax
from jax.core import Tracer

from jaxspec.core.program_files import FiledProgram, HeldArrays, ProgramFiles, trace_settings, type_of

_P = ParamSpec("_P")
_R = TypeVar("_R")
_logger = logging.getLogger(__name__)
_MAPS, _LIMIT = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/sys/vm/max_map_count")
# Programs are dropped when this fraction of the mappings is in use, until at most the second fraction is.
_FULL, _EMPTIER = 3 / 4, 1 / 2
# The fraction of the mappings without which no program is compiled.
_RESERVE = 1 / 16
# Compilation makes fewer mappings a second, and so does loading what was compiled. Counting takes 1 us a mapping.
_MAPPED_PER_SECOND = 10_000
# Loading a file makes more mappings a second than compiling, by at most this factor.
_LOADED_PER_COMPILED = 4
# The versions of JAX that are known to have fusion emitters, and to be able to do without.
_EMITTERS = (0, 10)
# The number of programs held where mappings do not limit it.
_MOST_PROGRAMS = 512
_COMPILED = "/jax/core/compile/backend_compile_duration"


def compiler_options() -> dict[str, bool] | None:
    """Returns the options of XLA that programs of this library are compiled with; `None` is the default.

    Without fusion emitters (jaxlib 0.10.2), SmolLM2's default greedy program has 528 mappings instead of 1,262, and
    takes 7.9 s instead of 11.1 s of processor time to compile. Its results have the same bits.
    """
    known = jax.__version_info__[:2] == _EMITTERS and jax.default_backend() == "cpu"
    return {"xla_cpu_use_fusion_emitters": False} if known else None


def is_tracing() -> bool:
    """Returns whether JAX is tracing: even constants must then not become arrays over several processes."""
    return isinstance(jax.device_put(0), Tracer)


def count_mappings() -> int:
    """Returns the number of memory mappings of this process; 0 if the system does not list them."""
    try:
        return _MAPS.read_bytes().count(b"\n")
    except OSError:
        return 0


def max_mappings() -> int | None:
    """Returns the number of memory mappings that the system allows a process; `None` if it does not say."""
    try:
        return int(_LIMIT.read_text())
    except (OSError, ValueError):
        return None


class Program:
    """Calls a jitted function, and records the order of calls."""

    _turns = itertools.count()

    def __init__(self, jitted: Any, compiling: Callable[[], AbstractContextManager[None]]) -> None:
        """Takes the result of `jax.jit`, and what returns a context for the first call."""
        self.jitted = jitted
        self.used = next(self._turns)
        self._compiling, self._called = compiling, False
        self._ahead: dict[Hashable, Any] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.used = next(self._turns)
        if self._ahead and (found := self._ahead.get(_types(arguments, keywords))) is not None:
            with contextlib.suppress(TypeError, ValueError):  # on another device, which is found before anything runs
                return found(*arguments, **keywords)
        if self._called:
            return self.jitted(*arguments, **keywords)
        with self._compiling():
            found = self.jitted(*arguments, **keywords)
        self._called = True
        return found

    def prepare(self, *arguments: Any, **keywords: Any) -> Any:
        """Starts to compile in a thread, if programs are kept in files and none is known for these types.

        Args:
          *arguments: arguments of the function; arrays may be `jax.ShapeDtypeStruct`.
          **keywords: its keywords, likewise.

        Returns:
          The shapes and types of the function's result; `None` if nothing is compiled.
        """
        if self._called or not isinstance(self.jitted, FiledProgram):
            return None
        with self._compiling():
            return self.jitted.prepare(*arguments, **keywords)

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        """Compiles for arguments of these types in the calling thread, so that calls of any thread need not.

        Nothing runs, and the time does not count as that of a first call.

        Args:
          *arguments: arguments of the function, none static; arrays may be `jax.ShapeDtypeStruct`. Models that are the
            same in all calls may be `HeldArrays`, the first of them.
          **keywords: its keywords, likewise.

        Returns:
          The shapes and types of the function's result.
        """
        if isinstance(self.jitted, FiledProgram):
            return self.jitted.compile(*arguments, **keywords)
        if (types := _types(arguments, keywords)) not in self._ahead:
            self._ahead[types] = self.jitted.lower(*arguments, **keywords).compile()
        return self.jitted.eval_shape(*arguments, **keywords)  # traced once for both


class Programs:
    """Holds programs by key, and drops the least recently used when mappings run out.

    Attributes:
      limit: the number of mappings that the process may have; `None` is unlimited.
      files: where new programs are looked for, and written to; `None` for nowhere.
    """

    def __init__(self, limit: int | None = None, count: Callable[[], int] = count_mappings) -> None:
        """Starts without programs.

        Args:
          limit: the number of mappings that the process may have; `None` is unlimited.
          count: returns the number of mappings of the process.
        """
        self.limit = limit
        self.files: ProgramFiles | None = None
        self._count = count
        self._held: dict[Hashable, Program] = {}
        self._lock = threading.RLock()
        self._compiled = self._due = 0.0  # seconds of compilation since mappings were counted, and to the next time
        self._permanent = 0
        self._first_calls: list[float] = []
        self._first_seconds = 0.0
        self._warned = False

    def __len__(self) -> int:
        return len(self._held)

    def find(self, key: Hashable, jit: Callable[[], Any]) -> Program:
        """Returns the program of a key, and makes room for others.

        Args:
          key: identifies the program. A jitted function compiles again for other shapes, so a key may stand for
            several programs, which are then dropped together.
          jit: returns a jitted function that no other key has; called for a new key.

        Raises:
          RuntimeError: too few mappings are left for a program.
        """
        self.make_room()
        with self._lock:
            program = self._held.get(key)
            if program is None:
                if len(self._held) >= _MOST_PROGRAMS:
                    self._drop(1)
                jitted = jit() if self.files is None else self.files.wrap(jit(), key, self.loaded)
                program = self._held[key] = Program(jitted, self._first_call)
            return program

    @property
    def compiling(self) -> bool:
        """Whether a program is called for the first time, which compiles it."""
        return bool(self._first_calls)

    @property
    def first_seconds(self) -> float:
        """Seconds spent in first calls so far, including unfinished ones."""
        now = time.perf_counter()
        return self._first_seconds + now - min([*self._first_calls, now])

    @contextlib.contextmanager
    def _first_call(self) -> Iterator[None]:
        began = time.perf_counter()
        self._first_calls.append(began)
        try:
            yield
        finally:
            seconds = self.first_seconds
            self._first_calls.remove(began)
            if not self._first_calls:  # others began before this one ended
                self._first_seconds = seconds

    def compiled(self, seconds: float) -> None:
        """Records that a program of this process was compiled, by this library or not, in the given time."""
        self._compiled += seconds

    def loaded(self, seconds: float) -> None:
        """Records that a program was loaded from a file in the given time."""
        self.compiled(_LOADED_PER_COMPILED * seconds)

    def make_room(self) -> None:
        """Drops programs if many mappings are in use; counts them only if enough was compiled since.

        Raises:
          RuntimeError: too few mappings are left, though all programs were dropped.
        """
        if self.limit is None or self._compiled < self._due:
            return
        with self._lock:
            count = self._count()
            if count > self._part(_FULL, self.limit):
                count = self._free(count, self.limit)
            self._compiled, self._due = 0.0, (self._part(_FULL, self.limit) - count) / _MAPPED_PER_SECOND

    def _part(self, fraction: float, limit: int) -> float:
        """Returns a fraction of the mappings that dropping programs can free."""
        return self._permanent + fraction * (limit - self._permanent)

    def _free(self, found: int, limit: int) -> int:
        """Drops programs, and returns the number of mappings that are left."""
        before, count = len(self._held), found
        while self._held and count > self._part(_EMPTIER, limit):
            self._drop((len(self._held) + 1) // 2)
            gc.collect()
            count = self._count()
        what = f"the {before - len(self._held)} least recently used compiled programs"
        if count > self._part(_FULL, limit):
            jax.clear_caches()
            gc.collect()
            self._permanent = count = self._count()
            what = "all compiled programs, including those of other functions"
        self._say(
            f"dropped {what}: the process had {found} of the {limit} memory mappings that the system allows it "
            f"(vm.max_map_count), and now has {count}; programs compile again when next used"
        )
        if limit - count < _RESERVE * limit:
            raise RuntimeError(
                f"the process has {count} of the {limit} memory mappings that the system allows it, too many to "
                "compile another program, though all programs were dropped; raise vm.max_map_count (`sysctl -w "
                f"vm.max_map_count={4 * limit}`), or start another process"
            )
        return count

    def _drop(self, number: int) -> None:
        """Drops the given number of least recently used programs."""
        for key in sorted(self._held, key=lambda key: self._held[key].used)[:number]:
            self._held.pop(key).jitted.clear_cache()

    def _say(self, message: str) -> None:
        """Logs a warning the first time, and information after that."""
        _logger.log(logging.INFO if self._warned else logging.WARNING, message)
        self._warned = True


def _types(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Hashable:
    """Returns what a compiled program depends on, but the types of held arrays: another model's are refused."""
    rest = arguments[1:] if arguments and isinstance(arguments[0], HeldArrays) else arguments
    leaves, structure = jax.tree.flatten((rest, keywords))
    return structure, trace_settings(), tuple(map(type_of, leaves))


PROGRAMS = Programs(max_mappings())
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration_secs, **_: PROGRAMS.compiled(duration_secs) if event == _COMPILED else None
)


class Kept(Generic[_P, _R]):
    """Jits a function separately for each structure and shapes of its arguments, so that each program can be dropped.

    Finding a program flattens the arguments: 0.2 ms for a model of 30 layers.

    Example:
        >>> jaxspec.core.programs.Kept(jnp.sin)(jnp.zeros(()))
        Array(0., dtype=float32)
    """

    def __init__(self, function: Callable[_P, _R]) -> None:
        """Takes the function to jit."""
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *arguments: _P.args, **keywords: _P.kwargs) -> _R:
        return self._program(arguments, keywords)(*arguments, **keywords)

    def prepare(self, *arguments: _P.args, **keywords: _P.kwargs) -> Any:
        """Starts to compile the program of these arguments, as `Program.prepare` does."""
        return self._program(arguments, keywords).prepare(*arguments, **keywords)

    def compile(self, *arguments: _P.args, **keywords: _P.kwargs) -> Any:
        """Compiles the program of these arguments without running it, as `Program.compile` does."""
        return self._program(arguments, keywords).compile(*arguments, **keywords)

    def _program(self, arguments: Any, keywords: Any) -> Program:
        function = self._function

        def jit() -> Any:
            @functools.partial(jax.jit, compiler_options=options)
            @functools.wraps(function)
            def program(*arguments: Any, **keywords: Any) -> _R:  # a new function, as jit has a cache for each
                return function(*arguments, **keywords)

            return program

        leaves, structure = jax.tree.flatten((arguments, keywords))
        key = function, structure, tuple(getattr(leaf, "shape", ()) for leaf in leaves)
        options = compiler_options()
        if options is not None and (any(isinstance(leaf, Tracer) for leaf in leaves) or is_tracing()):
            options = None  # they are those of the outer program
        return PROGRAMS.find((key, options is None), jit)

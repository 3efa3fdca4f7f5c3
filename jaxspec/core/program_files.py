"""Keeps compiled programs on disk, where they are found without tracing.

facts about this machine and the package; key of `Programs`, arguments' types, settings of JAX
    -> canonical bytes -> FACTS-KEY, two SHA-256: the file's name    (a part of an unknown class: no file, traced)
    -> the file: the program as XLA writes it, its number of arguments, and the structure of its result
"""

import dataclasses
import functools
import hashlib
import logging
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.experimental.compilation_cache import compilation_cache
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.sharding import SingleDeviceSharding

from jaxspec.core.canonical import UnknownValueError, canonical_bytes
from jaxspec.core.pytree import register_dataclass
from jaxspec.io.private_folder import PrivateFolder

_logger = logging.getLogger(__name__)
_ENABLED = "jax_enable_compilation_cache"
# Settings of JAX that change no program.
_IDLE_SETTINGS = (
    "jax_compilation_cache",
    _ENABLED,
    "jax_explain",
    "jax_log",
    "jax_persistent_cache",
    "jax_raise_persistent_cache",
    "jax_traceback",
)


@register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class HeldArrays:
    """Holds the arrays of models that are the same in many calls of a program."""

    arrays: list[Any]


class ProgramFiles:
    """Finds the files of programs, reads them and writes them."""

    def __init__(self, folder: PrivateFolder, facts: Callable[[], Hashable]) -> None:
        """Keeps programs in a folder.

        Args:
          folder: the folder; only its owner may use it, since reading a program runs code.
          facts: returns what programs depend on besides their arguments: sources, versions, processor. Called once.
        """
        self.folder = folder
        self._facts = functools.cache(lambda: _digest(facts()))
        self._preloaded: dict[str, Future[Any]] = {}

    def wrap(self, jitted: Any, key: Hashable, loaded: Callable[[float], None]) -> "FiledProgram":
        """Returns a jitted function that looks for its programs in the folder, and writes those that it compiles.

        Args:
          jitted: the result of `jax.jit`.
          key: identifies the function, with everything that its trace depends on besides its arguments.
          loaded: called with the seconds that loading a program took.
        """
        return FiledProgram(self, jitted, key, loaded)

    def name(self, key: Hashable, structure: Any, types: tuple[Any, ...]) -> str | None:
        """Returns the name of a program's file; `None` if a part of its key is of an unknown class."""
        types = tuple((shape, str(dtype), weak) for shape, dtype, weak in types)
        settings = {
            name: value for name, value in sorted(jax.config.values.items()) if not name.startswith(_IDLE_SETTINGS)
        }
        try:
            return f"{self._facts()}-{_digest((key, structure, types, settings, _named_context()))}"
        except UnknownValueError as error:
            _logger.debug("a program is traced, since %s has no canonical form", error)
            return None

    def preload(self, number: int) -> None:
        """Starts to load the most recently used programs in a thread, so that they are ready when they are called.

        Only those of the same facts: another version of XLA may not be able to read them. The kernels that they call
        must be registered.
        """
        names = [name for name in self.folder.names() if name.startswith(f"{self._facts()}-")][-number:]
        pool, device = ThreadPoolExecutor(1), jax.devices()[0]
        self._preloaded = {name: pool.submit(self._load, name, device) for name in names}
        pool.shutdown(wait=False)

    def holds(self, name: str) -> bool:
        """Returns whether there is a file of this name."""
        return name in self._preloaded or name in self.folder.names()

    def read(self, name: str, device: Any) -> Any:
        """Returns a program that takes the leaves of its arguments; `None` if there is none, or it does not load."""
        preloaded = self._preloaded.pop(name, None)
        found = None if preloaded is None else preloaded.result()
        return self._load(name, device) if found is None else found

    def _load(self, name: str, device: Any) -> Any:
        if (found := self.folder.read(name)) is None:
            return None
        try:
            data, count, result = pickle.loads(found)  # from a folder that only this user may write
            leaves = jax.tree.structure(((0,) * count, {}))
            return deserialize_and_load(data, leaves, result, device.client, [device])
        except Exception as error:  # a file of another build may raise anything
            _logger.debug("the program %s does not load: %s", name, error)
            return None

    def write(self, name: str, program: Any) -> None:
        """Writes a program that was compiled by this process, if it can be written."""
        try:
            data, structure, result = serialize(program)
            made = pickle.dumps((data, structure.num_leaves, result))
            if pickle.loads(made)[2] == result:
                self.folder.write(name, made)
        except Exception as error:  # it runs anyway
            _logger.debug("the program %s is not kept: %s", name, error)


class FiledProgram:
    """Calls a jitted function, with programs from files where there are some."""

    def __init__(self, files: ProgramFiles, jitted: Any, key: Hashable, loaded: Callable[[float], None]) -> None:
        self._files, self._jitted, self._key, self._loaded = files, jitted, key, loaded
        self._held: tuple[Callable[[], Any], tuple[Any, ...]] = (lambda: None), ()
        self._programs: dict[Hashable, tuple[Any, bool]] = {}  # and whether it takes the leaves of its arguments
        self._prepared: dict[str, Future[Any]] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        leaves, structure = jax.tree.flatten((arguments, keywords))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._jitted(*arguments, **keywords)
        types, others = self._types(arguments, leaves)
        seen = structure, trace_settings(), types, others
        found = self._programs.get(seen)
        if found is None:
            found = self._programs[seen] = self._find(leaves, structure, (*types, *others), arguments, keywords)
        program, takes_leaves = found
        try:
            return program(*leaves) if takes_leaves else program(*arguments, **keywords)
        except (TypeError, ValueError):  # on another device than before, which is found before anything runs
            return self._jitted(*arguments, **keywords)

    def prepare(self, *arguments: Any, **keywords: Any) -> Any:
        """Starts to compile in a thread, as `jaxspec.core.programs.Program.prepare` does."""
        leaves, structure = jax.tree.flatten((arguments, keywords))
        types, others = self._types(arguments, leaves)
        device = jax.devices()[0]
        if not all(map(functools.partial(_is_on, SingleDeviceSharding(device)), leaves)):
            return None
        name = self._files.name(self._key, structure, (*types, *others))
        if name is None or self._files.holds(name):
            return None
        lowered = self._jitted.lower(*arguments, **keywords)
        pool = ThreadPoolExecutor(1)
        self._prepared[name] = pool.submit(_compile_afresh, lowered)
        pool.shutdown(wait=False)
        return self._jitted.eval_shape(*arguments, **keywords)  # traced once for both

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        """Finds or compiles the program of these types, as `jaxspec.core.programs.Program.compile` does."""
        leaves, structure = jax.tree.flatten((arguments, keywords))
        types, others = self._types(arguments, leaves)
        seen = structure, trace_settings(), types, others
        if seen not in self._programs:
            found = self._find(leaves, structure, (*types, *others), arguments, keywords)
            if found[0] is self._jitted:
                found = self._jitted.lower(*arguments, **keywords).compile(), False
            self._programs[seen] = found
        return self._jitted.eval_shape(*arguments, **keywords)

    def clear_cache(self) -> None:
        """Drops the programs from memory."""
        self._prepared.clear()
        self._programs.clear()
        self._jitted.clear_cache()

    def _types(self, arguments: tuple[Any, ...], leaves: list[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the types of the leaves: those of a first argument that holds arrays, found once, and all others."""
        first = arguments[0] if arguments else None
        if not isinstance(first, HeldArrays):
            return (), tuple(map(type_of, leaves))
        held, types = self._held
        if held() is not first:
            types = tuple(map(type_of, first.arrays))
            self._held = weakref.ref(first), types  # an unused model is freed
        return types, tuple(map(type_of, leaves[len(types) :]))

    def _find(
        self, leaves: list[Any], structure: Any, types: tuple[Any, ...], arguments: Any, keywords: Any
    ) -> tuple[Any, bool]:
        device = jax.devices()[0]
        if not all(map(functools.partial(_is_on, SingleDeviceSharding(device)), leaves)):
            return self._jitted, False
        if (name := self._files.name(self._key, structure, types)) is None:
            return self._jitted, False
        prepared, began = self._prepared.pop(name, None), time.perf_counter()
        if prepared is None and (program := self._files.read(name, device)) is not None:
            self._loaded(time.perf_counter() - began)
            return program, True
        program = prepared.result() if prepared else _compile_afresh(self._jitted.lower(*arguments, **keywords))
        self._files.write(name, program)
        return program, False


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def type_of(leaf: Any) -> tuple[Any, ...]:
    """Returns the shape and dtype of a leaf, and whether its type is weak; `None` for those of other values."""
    return getattr(leaf, "shape", None), getattr(leaf, "dtype", None), getattr(leaf, "weak_type", False)


def _is_on(place: SingleDeviceSharding, leaf: Any) -> bool:
    """Returns whether a leaf is an array of the host, or lies entirely in the default memory of a device."""
    if not isinstance(leaf, jax.Array):
        return isinstance(leaf, np.ndarray | np.generic | jax.ShapeDtypeStruct)
    return isinstance(leaf.sharding, SingleDeviceSharding) and leaf.sharding == place


def trace_settings() -> tuple[Any, ...]:
    """Returns the settings of JAX that a trace of this thread depends on."""
    try:
        from jax._src import config  # no public function returns them

        return config.trace_context()
    except (ImportError, AttributeError):
        return str(sorted(jax.config.values.items())), str(jax.sharding.get_abstract_mesh())


def _named_context() -> tuple[Any, ...]:
    """Returns `trace_settings` with the names of mapped axes, which are an object of JAX, as a dictionary."""
    # A mesh has a tuple of sizes, and no canonical form.
    sizes = [(one, getattr(one, "axis_sizes", None)) for one in trace_settings()]
    return tuple(dict(found) if isinstance(found, Mapping) else one for one, found in sizes)


def _compile_afresh(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles without JAX's own cache: XLA writes CPU programs that it read from there without their kernels."""
    with _WITHOUT_CACHE:
        return lowered.compile()


class _WithoutCache:
    """Turns JAX's own cache off while any thread is within this context."""

    def __init__(self) -> None:
        self._lock, self._threads, self._was_used = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if self._threads == 0:
                folder = jax.config.values["jax_compilation_cache_dir"]
                self._was_used = bool(jax.config.values[_ENABLED] and folder)
                self._switch(on=False)
            self._threads += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                self._switch(on=True)

    def _switch(self, *, on: bool) -> None:
        if self._was_used:
            jax.config.update(_ENABLED, on)
            compilation_cache.reset_cache()  # which remembers whether it is used


_WITHOUT_CACHE = _WithoutCache()

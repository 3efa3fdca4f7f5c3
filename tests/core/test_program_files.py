"""Programs on disk: found without tracing, and only where everything that they depend on is the same."""

import gc
import os
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import program_files
from jaxspec.core.program_files import HeldArrays, ProgramFiles
from jaxspec.core.programs import Programs
from jaxspec.io.private_folder import PrivateFolder

KEY = jaxspec.generate  # a function that has a name everywhere


@pytest.fixture
def traced():
    return []


@pytest.fixture
def made(tmp_path, traced):
    """Returns a function that makes a program as a new process would, and its folder."""
    folder = PrivateFolder(tmp_path / "programs", max_bytes=10**6)

    def make(key=KEY, facts=("sources",), **options):
        def function(x, more=None):
            traced.append(jnp.shape(x["x"]))
            return {"double": 2 * x["x"], "more": more}

        programs = Programs()
        programs.files = ProgramFiles(folder, lambda: facts)
        return programs.find(key, lambda: jax.jit(function, **options))

    return make, folder


def arguments(size=3, dtype=jnp.int32):
    return {"x": jnp.arange(size, dtype=dtype)}


def test_a_program_of_another_process_runs_without_tracing(made, traced):
    make, folder = made
    first = make()(arguments())
    assert len(traced) == 1 and len(list(folder.path.iterdir())) == 1
    again = make()
    for found in (again(arguments()), again(arguments())):
        assert jax.tree.structure(found) == jax.tree.structure(first) and found["double"].tolist() == [0, 2, 4]
    assert len(traced) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "call"),
    [
        ({"key": jaxspec.stream}, arguments()),
        ({"key": (KEY, jax.tree.structure(jaxspec.NGramDrafter(k=2)))}, arguments()),
        ({"facts": ("other sources",)}, arguments()),
        ({}, arguments(4)),
        ({}, {"x": jnp.ones(3)}),
        ({}, {"x": jnp.asarray(1)}),
        ({}, {"x": jnp.ones(3), "y": None}),
    ],
)
def test_where_anything_differs_a_program_is_traced(made, traced, changed, call):
    make, folder = made
    make()(arguments())
    make(**changed)(call)
    assert len(traced) == 2 == len(list(folder.path.iterdir()))
    make(**changed)(call)
    assert len(traced) == 2


def test_arrays_of_a_model_are_not_kept_alive(made, traced):
    program = made[0]()
    held = HeldArrays([jnp.arange(3)])
    first = weakref.ref(held.arrays[0])
    with pytest.raises(TypeError):  # the function takes other arguments, which are read after their types
        program(held)
    del held
    gc.collect()
    assert first() is None


def test_settings_of_jax_are_part_of_the_key(made, traced):
    make, _ = made
    make()(arguments())
    with jax.default_matmul_precision("highest"):
        make()(arguments())
    assert len(traced) == 2
    program = make()
    program(arguments())
    with jax.default_matmul_precision("highest"):
        program(arguments())
    assert len(traced) == 2


@pytest.mark.slow
def test_the_programs_used_last_are_loaded_before_they_are_called(made, traced, monkeypatch):
    make, folder = made
    for size in (1, 2, 3):
        make()(arguments(size))
    make()(arguments(1))
    make(facts=("other sources",))(arguments(4))
    files = make().jitted._files
    files.preload(2)
    for future in files._preloaded.values():
        future.result()
    monkeypatch.setattr(program_files, "deserialize_and_load", None)
    for size in (1, 3):
        program = files.wrap(make().jitted._jitted, KEY, float)
        assert program(arguments(size))["double"].tolist() == [2 * number for number in range(size)]
    assert len(traced) == 4


class Own:
    """A class of the user's own."""


@pytest.mark.parametrize("key", [(KEY, Own()), (KEY, Own), lambda: None], ids=["instance", "class", "function"])
def test_what_is_the_users_own_is_traced(made, traced, key):
    make, folder = made
    for _ in range(2):
        assert make(key)(arguments())["double"].tolist() == [0, 2, 4]
    assert len(traced) == 2 and not folder.path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"", lambda data: os.urandom(len(data))])
def test_a_damaged_file_is_traced_without_a_word(made, traced, caplog, damage):
    make, folder = made
    make()(arguments())
    (path,) = folder.path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert make()(arguments())["double"].tolist() == [0, 2, 4]
    make()(arguments())
    assert len(traced) == 2 and not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", b"\x80\x04.", b"no pickle"])
def test_a_file_of_another_form_is_traced_without_a_word(made, traced, caplog, data):
    make, folder = made
    make()(arguments())
    (path,) = folder.path.iterdir()
    folder.write(path.name, data)
    assert make()(arguments())["double"].tolist() == [0, 2, 4]
    assert len(traced) == 2 and not caplog.records


def test_nothing_is_unpickled_from_a_folder_of_others(made, traced, monkeypatch):
    make, folder = made
    make()(arguments())
    folder.path.chmod(0o777)
    loaded = []
    monkeypatch.setattr(program_files.pickle, "loads", loaded.append)
    monkeypatch.setattr(ProgramFiles, "write", lambda *_: None)  # it reads what it is about to write
    make()(arguments())
    assert len(traced) == 2 and not loaded


@pytest.mark.slow
def test_buffers_are_donated_as_without_files(made):
    make, _ = made
    for _ in range(2):
        given = arguments()
        make(donate_argnames="x")(given)
        assert given["x"].is_deleted()


@pytest.mark.slow
def test_traced_arguments_other_devices_and_static_ones_go_to_jit(made, traced):
    make, folder = made
    program = make(static_argnames="more")
    assert jax.jit(program)(arguments())["double"].tolist() == [0, 2, 4]
    assert program(arguments(), more=1)["more"] == 1
    moved = jax.device_put(arguments(), jax.devices()[-1])
    assert program(moved)["double"].devices() == {jax.devices()[-1]}
    assert not folder.path.exists() and len(traced) == 2  # jit traces once for all devices
    program(arguments())
    assert program(moved)["double"].devices() == {jax.devices()[-1]}


@pytest.mark.slow
def test_a_program_from_the_cache_of_jax_is_compiled_for_its_file(made, traced, tmp_path):
    """XLA cannot write what it read: `Function ... not found` when it runs."""
    make, folder = made
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    reset = program_files.compilation_cache.reset_cache
    for name, value in zip(names, (str(tmp_path / "jax"), 0), strict=True):
        jax.config.update(name, value)
    reset()
    try:
        jax.jit(lambda x: {"double": 2 * x["x"], "more": None})(arguments())
        for _ in range(3):
            assert make()(arguments())["double"].tolist() == [0, 2, 4]
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        reset()
    assert len(traced) == 1 and jax.config.values["jax_enable_compilation_cache"]


def test_a_program_compiles_while_another_is_traced(made, traced):
    make, folder = made
    program = make()
    assert program.prepare(arguments())["double"] == jax.ShapeDtypeStruct((3,), jnp.int32)
    assert len(traced) == 1 and not program.prepare({"x": jnp.arange(3)}, 4)  # a number of Python has no file
    assert program(arguments())["double"].tolist() == [0, 2, 4] and len(traced) == 1 and len(folder.names()) == 1
    assert make().prepare(arguments()) is None and len(traced) == 1  # there is a file


def test_a_program_that_was_compiled_ahead_is_found_by_calls_and_in_its_file(made, traced):
    make, folder = made
    program, types = make(), {"x": jax.ShapeDtypeStruct((3,), jnp.int32)}
    assert program.compile(types)["double"] == jax.ShapeDtypeStruct((3,), jnp.int32)
    assert program(arguments())["double"].tolist() == [0, 2, 4]
    assert len(traced) == 1 == len(list(folder.path.iterdir()))
    again = make()
    again.compile(types)
    before = len(traced)  # for the types of its result
    assert again(arguments())["double"].tolist() == [0, 2, 4] and len(traced) == before


def test_under_a_mesh_that_the_caller_has_set_programs_are_traced(made, traced):
    make, folder = made
    with jax.set_mesh(jax.make_mesh((1,), ("model",))):
        assert make()({"x": np.arange(3)})["double"].tolist() == [0, 2, 4]
    assert len(traced) == 1 and not folder.names()


def test_where_jax_does_not_say_what_a_trace_depends_on_all_settings_count(monkeypatch):
    from jax._src import config

    monkeypatch.delattr(config, "trace_context")
    before = program_files.trace_settings()
    assert before == program_files.trace_settings() and hash(before)
    with jax.set_mesh(jax.make_mesh((1,), ("model",))):
        assert program_files.trace_settings() != before

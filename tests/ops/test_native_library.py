"""The cache of compiled kernels: damaged, shared, full, without a compiler, and with one that is killed."""

import contextlib
import errno
import hashlib
import os
import re
import select
import shutil
import signal
from pathlib import Path

import pytest

from jaxspec.io.cache import cache_root
from jaxspec.ops.native import build, library
from jaxspec.ops.native.build import NoCompilerError, register
from tests._fixtures import native_cache
from tests._fixtures.native_cache import KEY, SYMBOLS, load_by, runs

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)
WHOLE = next((cache_root() / "native").glob(f"kernels-{build._digest()}-*.so"))
BYTES = WHOLE.read_bytes()
DIGEST = hashlib.sha256(BYTES).hexdigest()
COPY = f'cp "{WHOLE}" "$library"'
LONGEST = 60


def _cut(count):
    return lambda path: path.write_bytes(BYTES[:count])


def _flip(place, count=1):
    def damage(path):
        changed = bytearray(BYTES)
        for i in range(count):
            changed[place + i] ^= 0xFF
        path.write_bytes(changed)

    return damage


def _replace(make):
    def damage(path):
        path.unlink()
        make(path)

    return damage


def _folder_with_a_file(path):
    path.mkdir()
    (path / "file").write_text("")


def _lacking_symbols(path):
    other = BYTES.replace(b"JaxspecProduct", b"JaxspecProducT")
    path.rename(path.with_name(f"kernels-{KEY}-{hashlib.sha256(other).hexdigest()}.so")).write_bytes(other)


DAMAGED = {
    "empty": _cut(0),
    "one byte": _cut(1),
    "half of its header": _cut(32),
    "its header": _cut(64),
    "a page": _cut(4096),
    "half of it": _cut(len(BYTES) // 2),
    "all but a byte": _cut(-1),
    "another header": _flip(16),
    "another segment": _flip(64 + 16, 8),
    "another byte of code": _flip(len(BYTES) // 2),
    "other code": _flip(len(BYTES) // 3, 4096),
    "another last byte": _flip(len(BYTES) - 1),
    "more": lambda path: path.write_bytes(BYTES + b"more"),
    "text": lambda path: path.write_text("no library"),
    "a folder": _replace(_folder_with_a_file),
    "a pipe": _replace(os.mkfifo),
    "a link to nothing": _replace(lambda path: path.symlink_to("nothing")),
    "a link to itself": _replace(lambda path: path.symlink_to(path.name)),
    "unreadable": lambda path: path.chmod(0),
    "another digest": lambda path: path.rename(path.with_name(f"kernels-{KEY}-{'0' * 64}.so")),
    "no digest": lambda path: path.rename(path.with_name(f"kernels-{KEY}-.so")),
    "another library of its digest": _lacking_symbols,
}
FAILING = {
    "and no compiler": ("exit 1", "NoCompilerError: .*failed"),
    "and a compiler that makes half a header": (
        f'head -c 32 "{WHOLE}" > "$library"',
        "NoCompilerError: .*cannot be loaded: .*; .*set JAXSPEC_CACHE",
    ),
    "and a compiler that makes nothing": ("", "NoCompilerError: .*cannot be loaded: .*No such file"),
}


def _prepared(root, name, text=COPY):
    folder = root / name.replace(" ", "-")
    (folder / "native").mkdir(parents=True)
    native_cache.compiler(folder / "compiler", text)
    kept = folder / "native" / f"kernels-{KEY}-{DIGEST}.so"
    shutil.copy(WHOLE, kept)
    return folder, kept


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What loading says of each damaged cache, and a second time."""
    root = tmp_path_factory.mktemp("caches")
    for name, damage in DAMAGED.items():
        damage(_prepared(root, name)[1])
    for name, (text, _) in FAILING.items():
        _cut(100)(_prepared(root, name, text)[1])
    read_only = {name: _prepared(root, name) for name in ("read-only", "read-only-and-damaged")}
    _cut(100)(read_only["read-only-and-damaged"][1])
    for folder, _ in read_only.values():
        (folder / "native").chmod(0o555)
    file, _ = _prepared(root, "a-file")
    shutil.rmtree(file / "native")
    (file / "native").write_text("")
    folders = sorted(root.iterdir())
    first = native_cache.load_all(folders)
    return root, first, native_cache.load_all(folders)


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_is_compiled_again_once(loaded, name):
    root, first, second = loaded
    folder = root / name.replace(" ", "-")
    status, said = first[folder]
    assert status == 0
    assert len(re.findall("^jaxspec: .*kernels-.* is damaged: .*; compiling it again$", said, re.M)) == 1
    assert runs(folder) == 1 and _names(folder / "native") == [f"kernels-{KEY}-{DIGEST}.so"]
    assert (folder / "native" / f"kernels-{KEY}-{DIGEST}.so").read_bytes() == BYTES
    assert second[folder] == (0, said)  # nothing was added


@pytest.mark.parametrize("name", FAILING)
def test_what_cannot_be_compiled_again_is_as_without_a_compiler(loaded, name):
    root, first, _ = loaded
    folder = root / name.replace(" ", "-")
    status, said = first[folder]
    assert status == 1 and "is damaged" in said and re.search(FAILING[name][1], said)
    assert not _names(folder / "native")


def test_a_folder_that_cannot_be_written(loaded):
    """It is used if the library is whole; else the variable to set is named."""
    root, first, second = loaded
    assert first[root / "read-only"] == second[root / "read-only"] == (0, "")
    status, said = first[root / "read-only-and-damaged"]
    assert status == 1 and "is damaged" in said
    assert "Permission denied" in said and "set JAXSPEC_CACHE" in said
    status, said = first[root / "a-file"]
    assert status == 1 and re.search("File exists.*set JAXSPEC_CACHE", said)
    assert runs(root / "a-file") == runs(root / "read-only") == 0


def test_no_compiler_is_needed_where_the_library_is(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    with pytest.raises(NoCompilerError, match="is on the path"):
        register.__wrapped__()
    path = tmp_path / "native" / f"kernels-{build._digest()}-{DIGEST}.so"
    shutil.copy(WHOLE, path)
    found = library.load(path.parent, build._digest(), SYMBOLS, build._compile)
    assert found._name == str(path)
    monkeypatch.setattr(build, "_processor", lambda: "another machine")
    assert build._digest() not in path.name
    monkeypatch.undo()
    monkeypatch.setenv("CXX", "another compiler")
    assert build._digest() not in path.name


def test_what_another_machine_can_load_stays(tmp_path, messages):
    """Here a library that it needs may be missing or too old; its bytes are those that were compiled."""
    other = tmp_path / f"kernels-{KEY}-{hashlib.sha256(b'for another').hexdigest()}.so"
    other.write_bytes(b"for another")

    def none(path):
        raise NoCompilerError("there is none")

    with pytest.raises(NoCompilerError, match="there is none"):
        library.load(tmp_path, KEY, SYMBOLS, none)
    (said,) = messages()
    assert other.exists() and said.startswith(f"{other} cannot be loaded here: ") and "damaged" not in said
    library.load(tmp_path, KEY, SYMBOLS, lambda path: shutil.copy(WHOLE, path))
    messages()
    kept = tmp_path / f"kernels-{KEY}-{DIGEST}.so"
    assert library.load(tmp_path, KEY, SYMBOLS, none)._name == str(kept)
    assert other.exists() and not messages()


def test_a_library_is_of_its_sources(monkeypatch):
    """All files of the folder, and the jaxlib that calls it."""
    folder = Path(build.__file__).parent
    assert {*build._SOURCES, *build._HEADERS} == {*folder.glob("*.cpp"), *folder.rglob("*.h")}
    digests = {build._digest()}
    for name in ("_HEADERS", "_SOURCES", "_OPTIONS"):
        with monkeypatch.context() as changed:
            changed.setattr(build, name, ())
            digests.add(build._digest())
    monkeypatch.setattr(build.importlib.metadata, "version", lambda package: f"another {package}")
    assert len(digests | {build._digest()}) == 5


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", str(native_cache.compiler(tmp_path / "full", "LC_ALL=C cat /dev/zero > /dev/full")))
    with pytest.raises(OSError, match="No space left on device.*set JAXSPEC_CACHE") as caught:
        register.__wrapped__()
    assert caught.value.errno == errno.ENOSPC
    # A killed linker prints nothing.
    monkeypatch.setenv("CXX", str(native_cache.compiler(tmp_path / "killed", "kill -BUS $$")))
    with pytest.raises(NoCompilerError, match="failed"):
        register.__wrapped__()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(library.shutil, "disk_usage", lambda path: usage._replace(free=0))
    with pytest.raises(OSError, match="No space left on device"):
        register.__wrapped__()
    assert not _names(tmp_path / "native")


def test_a_folder_is_shared(tmp_path):
    """A library that one user compiled is readable by others, and nobody removes a file that another is writing."""
    native = tmp_path / "native"

    def make(path):
        assert len(list(native.iterdir())) == 1
        library._remove_stale(native)
        shutil.copy(WHOLE, path)
        path.chmod(0o700)

    before = os.umask(0o077)
    try:
        library.load(native, KEY, SYMBOLS, make)
    finally:
        os.umask(before)
    (kept,) = native.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o755
    # Two that compiled at once, a damaged one of a third.
    (native / f"kernels-{KEY}-{'0' * 64}.so").write_bytes(b"")
    (native / f"kernels-{KEY}-{'f' * 64}.so").write_bytes(b"")
    assert library.load(native, KEY, SYMBOLS, make)._name == str(kept)


# Writes a part of the library, and then waits forever in a separate process that has `alive` open: a reader of `alive`
# sees when all have ended.
_WAITS = """
exec 9> "{folder}/alive"
echo some > "$TMPDIR/some.s"
head -c {count} "{whole}" > "$library"
(echo started >&9; cat "{folder}/never") &
cat "{folder}/never"
"""


def _waiting_compiler(folder, count=1000):
    for name in ("alive", "never"):
        os.mkfifo(folder / name)
    return native_cache.compiler(folder / "compiler", _WAITS.format(folder=folder, count=count, whole=WHOLE))


def _read(descriptor):
    """Reads what comes; nothing when all writers have ended."""
    assert select.select([descriptor], [], [], LONGEST)[0], "processes are left"
    return os.read(descriptor, 100)


@pytest.mark.parametrize("count", [0, 1000, len(BYTES)])
def test_a_killed_compile_leaves_nothing(tmp_path, count):
    """No process, and what it wrote is removed by the next one."""
    path = _waiting_compiler(tmp_path, count)
    _kill_a_compile(path, tmp_path / "native")
    assert [name[:9] for name in _names(tmp_path / "native")] == [".partial-"]
    load_by(native_cache.compiler(tmp_path / "whole", COPY), tmp_path / "native")
    assert _names(tmp_path / "native") == [f"kernels-{KEY}-{DIGEST}.so"]


def _kill_a_compile(path: Path, native: Path):
    alive = os.open(path.parent / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with native_cache.start("one", path, native) as process:
            assert _read(alive) == b"started\n"
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert _read(alive) == b""
    finally:
        os.close(alive)
        with contextlib.suppress(OSError):  # what is left, where this failed, waits for it
            os.close(os.open(path.parent / "never", os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.slow
def test_many_killed_compiles(tmp_path):
    """One after another in the same folder, each with more of the library written."""
    for number in range(25):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = _waiting_compiler(folder, len(BYTES) * number // 24)
        _kill_a_compile(path, tmp_path / "native")
        assert len(_names(tmp_path / "native")) == 1
    load_by(native_cache.compiler(tmp_path / "whole", COPY), tmp_path / "native")
    assert _names(tmp_path / "native") == [f"kernels-{KEY}-{DIGEST}.so"]


def test_a_compiler_that_takes_too_long_is_ended(monkeypatch, tmp_path):
    path = _waiting_compiler(tmp_path)
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    os.close(os.open(tmp_path / "alive", os.O_WRONLY))  # so that it ends even if the compiler has not opened it
    monkeypatch.setattr(library, "_SECONDS", 0.3)
    with pytest.raises(NoCompilerError, match=r"took more than 0\.3 seconds"):
        load_by(path, tmp_path / "native")
    while _read(alive):
        pass
    os.close(alive)
    assert not _names(tmp_path / "native")

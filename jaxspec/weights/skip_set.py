"""The blocks that a model can draft without, in a small file beside it; `jaxspec calibrate` writes it."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Self

from jaxspec.model import LanguageModel
from jaxspec.nn import TransformerConfig
from jaxspec.weights import zoo

FILE = "skipping.json"
_KIND, _VERSION = "jaxspec skipping", 1


@dataclasses.dataclass(frozen=True)
class SkipSet:
    """Blocks to skip, and what was predicted of them.

    Attributes:
      attention: the layers whose attention is skipped.
      mlp: the layers whose MLP is skipped.
      k: drafted tokens a round that they were chosen for.
      temperature: that they were chosen at; 0 is greedy.
      acceptance: the chance that a draft is accepted if those before it were.
      cost: of a draft step, in steps of the target: its share of the bytes of weights.
      verify_cost: of verification, the same.
      tokens_per_round: expected.
      speedup: over plain decoding, expected.
      places: of the text that was looked at.
      measured: how many sets were compared.
      model: sizes of the model, of which a model is known to be another one.
    """

    attention: tuple[int, ...]
    mlp: tuple[int, ...]
    k: int
    temperature: float
    acceptance: float
    cost: float
    verify_cost: float
    tokens_per_round: float
    speedup: float
    places: int
    measured: int
    model: dict[str, int]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a file, in place of one that was there; whole or not at all.

        Raises:
          OSError: it cannot be written.
        """
        path = Path(path)
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"kind": _KIND, "version": _VERSION} | dataclasses.asdict(self), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    @classmethod
    def read(cls, path: str | os.PathLike[str], target: LanguageModel) -> Self:
        """Reads what `write` wrote, for the model that it was found for.

        Raises:
          ValueError: the file is damaged, or of another model.
          OSError: it cannot be read.
        """
        text = Path(path).read_text("utf-8")
        try:
            fields = json.loads(text)
            kind, version = fields.pop("kind"), fields.pop("version")
            if (kind, version) != (_KIND, _VERSION):
                raise ValueError(f"{kind!r} of version {version}, expected {_KIND!r} of version {_VERSION}")
            found = cls(**{name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no set of blocks to skip ({error}); run `jaxspec calibrate` again") from None
        if found.model != (sizes := sizes_of(target.module.config)):
            raise ValueError(
                f"{path} was found for a model of {_told(found.model)}, got one of {_told(sizes)}; run `jaxspec "
                "calibrate` for it"
            )
        return found


def sizes_of(config: TransformerConfig) -> dict[str, int]:
    """What is kept of a model, to know it again."""
    return {name: getattr(config, name) for name in ("num_layers", "width", "mlp_width", "vocab_size")}


def skip_set_path(model: str | os.PathLike[str]) -> Path:
    """Where the set of a model is kept.

    That is in a model's folder, or beside its file; for a name of the zoo, or of the model hub, in jaxspec's cache.

    Args:
      model: what `jaxspec.load` takes.
    """
    if isinstance(model, str) and (entry := zoo.find(model)) is not None:
        return entry.path.with_name(FILE)
    path = Path(model).expanduser()
    if path.is_dir() and not (isinstance(model, str) and zoo.find_drafter(model) is not None):
        return path / FILE
    if path.is_file():
        return path.with_name(f"{path.name}.{FILE}")
    return zoo.cache_folder() / os.fspath(model).replace("/", "--") / FILE


def locate_skip_set(model: str | os.PathLike[str] | None) -> Path:
    """The file of a model's set.

    Raises:
      FileNotFoundError: there is none; says how to make one.
    """
    if model is None:
        raise FileNotFoundError(
            "which blocks to skip is kept beside a model, and this one has no name: pass target_name, the path of a "
            f"{FILE}, or SkippingDrafter(attention, mlp)"
        )
    path = skip_set_path(model)
    if not path.is_file():
        raise FileNotFoundError(
            f"which blocks {model} can draft without is not known yet, there is no {path}; run `jaxspec calibrate "
            f"{model}`"
        )
    return path


def is_skip_set(name: Any) -> bool:
    """Whether this is the path of such a file."""
    return isinstance(name, str | os.PathLike) and os.fspath(name).endswith(FILE) and Path(name).expanduser().is_file()


def _told(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())

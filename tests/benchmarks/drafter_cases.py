"""Chooses the drafters to measure: those that ship with a model, and others by name."""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.load import load
from jaxspec.core.tree import best_tree
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.drafters.ngram import NGramDrafter
from jaxspec.heads.dflash.constructions.beam import Beam
from jaxspec.heads.dflash.constructions.table import CONSTRUCTIONS
from jaxspec.heads.dflash.tree import DFlashTreeDrafter
from jaxspec.heads.medusa.head import MedusaDrafter
from jaxspec.nn.convert import native_like
from jaxspec.nn.language_model import LanguageModel
from jaxspec.text.names import drafter_of, has_weights, load_drafter, load_head

K = 4
# Loaded when its turn comes: a model may be large.
Cases = dict[str, Callable[[], Drafter]]


def choose_cases(
    model_name: str, target: LanguageModel, shipped: Sequence[str], drafts: Sequence[str], dtype: str | None
) -> Cases:
    """Returns those of `shipped_cases` and `block_trees` that are named, the former where none is; and `drafts`.

    Raises:
      ValueError: a name is unknown, or is in both.
    """
    usual = shipped_cases(model_name, target)
    known = usual | block_trees(model_name, target)
    if unknown := [name for name in shipped if name not in known]:
        raise ValueError(f"there is no drafter {unknown[0]!r} with {model_name}; choose from {', '.join(known)}")
    found = {name: make for name, make in known.items() if (name in shipped if shipped else name in usual)}
    for name in drafts:
        if name in found:
            raise ValueError(f"the drafter {name!r} is measured already; name it once")
        own = dtype if has_weights(name) else None
        found[name] = lambda name=name, own=own: load_drafter(name, target, target_name=model_name, k=K, dtype=own)
    return found


def shipped_cases(model_name: str, target: LanguageModel) -> Cases:
    """Returns every drafter that ships with the model, in chains and in trees, and n-grams."""
    found: Cases = {"n-gram": lambda: NGramDrafter(k=K)}
    here = zoo.drafter_names()
    if f"{model_name}/distilled" in here:
        found["distilled"] = lambda: drafter_of(native_like(target, load(f"{model_name}/distilled")))
    for kind, others in _TREES.items():
        name = f"{model_name}/{kind}"
        if name not in here:
            continue
        head = lambda name=name: native_like(target, load_head(name, target))  # noqa: E731
        found[kind] = lambda head=head: drafter_of(head())
        found[f"{kind}, or n-gram"] = lambda head=head: _beside(drafter_of(head()))
        for label, make in others.items():
            found[f"{kind}, {label}"] = lambda head=head, make=make: make(head())
    return found


def block_trees(model_name: str, target: LanguageModel) -> Cases:
    """Returns trees of 20, 32 and 63 nodes by each construction, if a DFlash head ships with the model."""
    name, found = f"{model_name}/dflash", {}
    if name not in zoo.drafter_names():
        return found
    made = {word: kind for word, kind in CONSTRUCTIONS.items() if word != "beam"}
    for (word, kind), nodes in itertools.product(made.items(), (20, 32, 63)):
        found[f"dflash, {word} of {nodes}"] = lambda kind=kind, nodes=nodes: DFlashTreeDrafter.named(
            kind, native_like(target, load_head(name, target)), target, nodes
        )
    found["dflash, tree of 32"] = lambda: DFlashTreeDrafter(
        native_like(target, load_head(name, target)), nodes=32, construction=Beam(8)
    )
    return found


def weights_of(model_name: str, name: str) -> str | None:
    """Returns a digest of a drafter's file of weights; `None` for a drafter without a folder."""
    own = name.partition(", ")[0].rpartition("+")[2]
    file = (zoo.find_drafter(f"{model_name}/{own}") or Path(own).expanduser()) / "model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else None


def _beside(drafter: Drafter) -> Drafter:
    """Adds n-grams, used where they promise more."""
    return HybridDrafter(NGramDrafter(k=drafter.max_drafts), drafter)


_TREES: dict[str, dict[str, Callable[[Any], Drafter]]] = {
    "medusa": {"tree": lambda head: MedusaDrafter(head, topology=best_tree(head.accuracies, 20))},
    "eagle": {
        "tree": lambda head: DynamicTreeDrafter(head, top_k=6, depth=5, nodes=20),
        "wide tree": lambda head: DynamicTreeDrafter(head, top_k=8, depth=6, nodes=63),
    },
    # In one pass of the head: what a chain of its block costs but for the verification.
    "dflash": {
        "tree": lambda head: DFlashTreeDrafter(head, nodes=20, construction=Beam(6)),
        "wide tree": lambda head: DFlashTreeDrafter(head, nodes=63, construction=Beam(8)),
    },
}

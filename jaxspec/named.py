"""Drafters by name: those that ship with a model, folders of heads and of models, and those that need neither."""

import functools
import os
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.load import load
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.contrib.exit_head.head import EarlyExitHead
from jaxspec.contrib.sparse_cache import SparseCacheDrafter
from jaxspec.core.model import Model
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.adapting import Wish, adapt, spare
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.cross_vocabulary import CrossVocabularyDrafter
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.drafters.ngram import NGramDrafter
from jaxspec.drafters.suffix import SuffixDrafter
from jaxspec.drafters.token_map import TokenMap
from jaxspec.heads.dflash.drafter import DFlashDrafter
from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.heads.eagle.drafter import EagleDrafter
from jaxspec.heads.eagle.head import EagleHead
from jaxspec.heads.files import is_head, load_head
from jaxspec.heads.medusa.drafter import MedusaDrafter
from jaxspec.heads.medusa.head import MedusaHead
from jaxspec.heads.tandem.drafter import TandemDrafter
from jaxspec.heads.tandem.head import TandemHead
from jaxspec.nn.convert import native_like
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.rules import Rules

DEFAULT_K = 4
# What each kind of head is drafted from by.
_OF_HEADS = {
    EagleHead: EagleDrafter,
    DFlashHead: DFlashDrafter,
    MedusaHead: MedusaDrafter,
    TandemHead: TandemDrafter,
    EarlyExitHead: lambda head, **options: EarlyExitDrafter(head.layers, head=head, **options),
}


def drafter_of(
    draft: Any,
    k: int | DraftLength | str | None = None,
    num_drafts: int = 1,
    *,
    target: Any = None,
    tokenizer: Tokenizer | None = None,
    batch: int = 1,
) -> Drafter:
    """A chain of drafts from a model or a head.

    Args:
      draft: a `Model`, or what `jaxspec.load_head` gives.
      k: drafted tokens a round, a `DraftLength`, or a word as of `load_drafter`; `None` is the default of the kind.
      num_drafts: how many chains of a draft model compete in each round.
      target: the model to draft for; "adaptive" needs it. A draft model of another tokenizer drafts the tokens that
        both have; `None` takes it to have the target's.
      tokenizer: the target's; `None` is the one it brings.
      batch: how many rows "adaptive" counts on.

    Raises:
      TypeError: it is neither.
      ValueError: `k` or `num_drafts` does not fit.
    """
    wish = Wish.parse(k)
    if wish.adaptive:
        _check_adaptive(k, num_drafts)
        if target is None:
            raise ValueError(f"k is {k!r}, which depends on the target; pass target too, or a number")
        return adapt(drafter_of(draft, target=target, tokenizer=tokenizer), target, wish.most, batch=batch)
    k = wish.k
    for kind, drafter in _OF_HEADS.items():
        if isinstance(draft, kind):
            if num_drafts != 1:
                raise ValueError(f"num_drafts is {num_drafts}, but only a draft model draws several drafts")
            return drafter(draft) if k is None else drafter(draft, k=k)
    if isinstance(draft, type) or not isinstance(draft, Model):
        raise TypeError(
            f"draft must be a model, a head or the name of one, got {type(draft).__name__}; jaxspec.load, "
            "jaxspec.load_head, jaxspec.from_function and jaxspec.from_nnx make one"
        )
    k = DEFAULT_K if k is None else k
    token_map = _token_map(draft, target, tokenizer or getattr(target, "tokenizer", None))
    if token_map is None:
        return ModelDrafter(draft, k=k, num_drafts=num_drafts)
    if num_drafts != 1:
        raise ValueError(
            f"num_drafts is {num_drafts}, but this draft model has another tokenizer than its target, and then draws "
            "one draft a round; leave num_drafts out"
        )
    return CrossVocabularyDrafter(draft, token_map, k=k)


def _token_map(draft: Model, target: Any, tokenizer: Tokenizer | None) -> TokenMap | None:
    """How a draft model reads the target's tokens, if its vocabulary is another; as far as tokenizers tell."""
    other = getattr(draft, "tokenizer", None)
    if tokenizer is None or other is None:
        return None
    sizes = {"target_size": target.vocab_size, "draft_size": draft.vocab_size}
    if target.vocab_size == draft.vocab_size and tokenizer.has_tokens_of(other):
        return None
    token_map = TokenMap.between(tokenizer, other, **sizes)
    return None if token_map.keeps_ids() else token_map


def load_drafter(
    name_or_path: str | os.PathLike[str],
    target: LanguageModel,
    *,
    target_name: str | None = None,
    k: int | DraftLength | str | None = None,
    num_drafts: int = 1,
    tokenizer: Tokenizer | None = None,
    dtype: Any = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    batch: int = 1,
) -> Drafter:
    """A drafter by its name, ready for `jaxspec.generate`.

    Args:
      name_or_path: "ngram" or "suffix" (they copy from the text itself), "none"; "early-exit" (a quarter of the
        target's layers) or "early-exit:5" (five of them); "sparse-cache" (the target over a part of the text); "auto",
        what the target's manifest names, else "ngram" (of "ngram+eagle" n-grams alone where the head would save little
        in a batch of so many rows); a drafter that ships with the target, such as "eagle" or
        "smollm2-135m-instruct/eagle"; or a head or a draft model as for `jaxspec.load_head` and `jaxspec.load`. A draft
        model of another tokenizer drafts the tokens that both have (`CrossVocabularyDrafter`). "ngram+" or "suffix+"
        before one of these copies where that promises more (`HybridDrafter`).
      target: the model to draft for. Beside one of `native_kernels` a float32 head or draft model is one too, of
        bfloat16 weights.
      target_name: what it was loaded by, for the names of its own drafters.
      k: drafted tokens a round, a `DraftLength`, or a word: "adaptive", as many as pay and at most 8 (`Adaptive`),
        "adaptive:16" at most as many; "fixed", the number of the kind. `None` is "adaptive", and "fixed" where drafts
        compete.
      num_drafts: how many chains of a draft model compete in each round.
      tokenizer: the target's; `None` is the one it brings.
      dtype: of weights and activations; `None` is what `load` chooses.
      mesh: splits models and heads over devices.
      rules: how.
      batch: how many rows the costs of "adaptive" are for. With fewer it drafts less than would pay, with more it may
        lose more than `Adaptive` says.

    Raises:
      TypeError, ValueError: for arguments that do not fit each other.
      OSError: it cannot be read or downloaded.
    """
    name = zoo.draft_name(name_or_path, target_name)
    wish = Wish.parse("adaptive" if k is None and num_drafts == 1 and name != "none" else k)
    options = {"target_name": target_name, "num_drafts": num_drafts, "tokenizer": tokenizer}
    options |= {"dtype": dtype, "mesh": mesh, "rules": rules}
    if not wish.adaptive:
        return _by_name(name, target, k=wish.k, **options)
    if name == "none":
        raise ValueError(f"k is {k!r}, but there is nothing to draft with; pass a draft, or leave k out")
    _check_adaptive(k, num_drafts)
    drafter = _by_name(name, target, k=None, **options)
    if name_or_path == "auto":
        drafter = spare(drafter, target, wish.most, batch=batch)
    return adapt(drafter, target, wish.most, batch=batch)


def _check_adaptive(k: Any, num_drafts: int) -> None:
    if num_drafts != 1:
        raise ValueError(f"k is {k!r}, but drafts that compete need a fixed number; pass k=4, or leave num_drafts out")


def _by_name(
    name: str | os.PathLike[str],
    target: LanguageModel,
    *,
    target_name: str | None,
    k: int | DraftLength | None,
    num_drafts: int,
    **options: Any,
) -> Drafter:
    """Loads it; `k=None` is the default of the kind."""
    alone = _alone(name)
    if alone is not None or name == "none":
        if num_drafts != 1:
            raise ValueError(f"num_drafts is {num_drafts}, but only a draft model draws several drafts; leave it out")
        if alone is not None:
            return alone(target, k)
        if k:
            raise ValueError(f"k is {k}, but there is nothing to draft with; pass a draft, or leave k out")
        return NoDrafter()
    copying, plus, other = str(name).partition("+")
    if plus and copying in zoo.COPYING:
        if num_drafts != 1:
            raise ValueError(f"{name} takes one draft a round, got num_drafts={num_drafts}; leave it out")
        other = zoo.draft_name(other, target_name)
        drafter = _by_name(other, target, target_name=target_name, k=k, num_drafts=1, **options)
        return HybridDrafter(_ALONE[copying](target, drafter.max_drafts), drafter)
    tokenizer = options.pop("tokenizer")
    if is_head(name):
        return drafter_of(native_like(target, load_head(name, target, **options)), k, num_drafts)
    draft = native_like(target, load(name, **options))
    return drafter_of(draft, k, num_drafts, target=target, tokenizer=tokenizer)


def _alone(name: str | os.PathLike[str]) -> Callable[[Model, int | DraftLength | None], Drafter] | None:
    """What makes the drafter of this name, if that needs no weights of its own."""
    word, colon, layers = str(name).partition(":")
    if word != "early-exit" or not colon:
        return _ALONE.get(name)
    if not layers.isdecimal():
        raise ValueError(f"{name!r} says no number of layers; pass such as 'early-exit:4'")
    return functools.partial(_early_exit, layers=int(layers))


def _ngram(target: Model, k: int | DraftLength | None) -> Drafter:
    return NGramDrafter(k=DEFAULT_K if k is None else k)


def _suffix(target: Model, k: int | DraftLength | None) -> Drafter:
    return SuffixDrafter() if k is None else SuffixDrafter(k=k)


def _early_exit(target: Model, k: int | DraftLength | None, *, layers: int | None = None) -> Drafter:
    EarlyExitDrafter(1).check(target)  # it has layers to count
    layers = max(1, target.module.config.num_layers // 4) if layers is None else layers
    drafter = EarlyExitDrafter(layers, k=DEFAULT_K if k is None else k)
    drafter.check(target)
    return drafter


def _sparse_cache(target: Model, k: int | DraftLength | None) -> Drafter:
    return SparseCacheDrafter(k=DEFAULT_K if k is None else k)


# Drafters that need no weights of their own.
_ALONE = {"ngram": _ngram, "suffix": _suffix, "early-exit": _early_exit, "sparse-cache": _sparse_cache}

"""Maps names to drafters: shipped with a model, in folders of heads and models, or without weights.

A new drafter or head is one file and one row in a table here.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.load import load, parse_dtype
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.contrib import exit_head, tandem
from jaxspec.contrib.sparse_cache import SparseCacheDrafter
from jaxspec.core import validate
from jaxspec.core.model import Model, kind_given
from jaxspec.core.typed import typed
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.adapt import LengthOption, adapt, check_one_draft, check_single, spare, with_length
from jaxspec.drafters.base import Drafter, NoDrafter, draft_length_of
from jaxspec.drafters.cross_vocabulary import CrossVocabularyDrafter
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.drafters.hybrid import HybridDrafter, halves
from jaxspec.drafters.lookup import LookupDrafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.drafters.ngram import NGramDrafter
from jaxspec.drafters.resized import for_target
from jaxspec.drafters.suffix import SuffixDrafter
from jaxspec.drafters.token_map import TokenMap
from jaxspec.drafters.trimmed import DraftVocabulary, trim
from jaxspec.heads import dflash, eagle, medusa
from jaxspec.heads.base import HeadKind
from jaxspec.heads.dflash.constructions.table import CONSTRUCTIONS
from jaxspec.heads.files import kind_in, read_head
from jaxspec.io.files import as_path
from jaxspec.nn.chosen_kernels import kernels_like
from jaxspec.nn.convert import native_like, weights_like
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network
from jaxspec.sharding.rules import Rules

# The name of plain decoding.
NONE = "none"


@dataclasses.dataclass(frozen=True)
class NamedDrafter:
    """Makes drafters without weights from a name.

    Attributes:
      kind: class of the drafter.
      argument: what the argument after the name and a colon is called, such as "LAYERS"; empty without one.
      options: function `options(target, argument)` that returns keyword arguments of `kind`; the argument is `None`
        if the name has none.
    """

    kind: type[Drafter]
    argument: str = ""
    options: Callable[[Model, str | None], dict[str, Any]] = lambda target, argument: {}

    def make(self, name: str, target: Model, k: int | DraftLength | None = None) -> Drafter:
        """Makes the drafter of `name`, which may end with ":argument"; `k=None` is its default.

        Raises:
          TypeError: if the drafter takes no `k`, but one was given.
          ValueError: if the argument or `k` is invalid.
        """
        word, colon, argument = name.partition(":")
        if colon and not self.argument:
            raise ValueError(f"{word} takes no argument, got {name}; leave it out")
        drafter = self.kind(**self.options(target, argument if colon else None))
        return drafter if k is None else with_length(drafter, k)


def _layers(target: Model, argument: str | None) -> dict[str, Any]:
    """Returns the number of layers before the exit: the argument, else a quarter of the target's."""
    if argument is not None and not argument.isdecimal():
        raise ValueError(f"'early-exit:{argument}' has no number of layers; pass 'early-exit:4', say")
    EarlyExitDrafter(1).check(target)  # raises if the target has no layers to count
    config = cast(LanguageModel, target).module.config
    layers = int(argument) if argument else max(1, config.num_layers // 4)
    EarlyExitDrafter(layers).check(target)
    return {"layers": layers}


DRAFTERS: Mapping[str, NamedDrafter] = MappingProxyType(
    {
        "ngram": NamedDrafter(NGramDrafter),
        "suffix": NamedDrafter(SuffixDrafter),
        "early-exit": NamedDrafter(EarlyExitDrafter, "LAYERS", _layers),
        "sparse-cache": NamedDrafter(SparseCacheDrafter),
    }
)
# The drafter of "auto" if a manifest names none.
AUTO = next(iter(DRAFTERS))
# Kinds of trained heads, in the order in which they are tried on a folder.
HEADS: tuple[HeadKind, ...] = (tandem.KIND, exit_head.KIND, dflash.KIND, eagle.KIND, medusa.KIND, eagle.MTP)


def copying_drafter(*, several: bool) -> Drafter:
    """Makes a drafter without weights that copies from the text, or by frequency from `several` earlier texts too."""
    return DRAFTERS["suffix" if several else "ngram"].kind()


def load_head(
    name_or_path: str | os.PathLike[str],
    target: LanguageModel,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
) -> Network:
    """Loads a head that drafts from a target's hidden states.

    Args:
      name_or_path: one of these, tried in this order:
        * a model of the zoo and one of its drafters: "smollm2-135m-instruct/eagle";
        * a local folder with `config.json` and safetensors: EAGLE-1, EAGLE-3, P-EAGLE, DFlash, DFlash2, DSpark,
          JetSpec, Domino, Medusa, tandem decoders and early exits; heads in the container of `speculators`; or a
          checkpoint with a multi-token prediction module in DeepSeek-V3's layout;
        * a repository on the model hub, `organization/name`.
      target: model that the head was trained for; it provides the tensors that the folder lacks, and the kernels.
      dtype: dtype of weights and activations; `None` is the target's.
      mesh: mesh to split the head over; `None` replicates it on each of the target's devices.
      rules: sharding rules; `None` uses the mesh axes `data`, `model` and `draft`.

    Returns:
      An `EagleHead`, `DFlashHead`, `MedusaHead`, `TandemHead` or `EarlyExitHead`.

    Raises:
      TypeError: if `target` is not a `LanguageModel`.
      ValueError: if the folder is of no known kind, damaged, or for another target.
      FileNotFoundError: if the path does not exist, or the drafter is not in this installation.
      OSError: if a download fails.

    Example:
      >>> from jaxspec.heads.eagle import EagleRecipe
      >>> recipe = EagleRecipe.of(target)
      >>> counts = np.ones(target.vocab_size, int)
      >>> recipe.save(recipe.init(key, target, counts), target, counts, folder / "head")
      >>> jaxspec.load_head(folder / "head", target).vocab_size
      310
    """
    return kernels_like(target, read_head(name_or_path, target, HEADS, dtype=dtype, mesh=mesh, rules=rules))


def drafter_of(
    draft: Model | Network,
    k: int | DraftLength | str | None = None,
    num_drafts: int = 1,
    *,
    target: Model | None = None,
    tokenizer: Tokenizer | None = None,
    batch: int = 1,
) -> Drafter:
    """Makes a drafter of chains from a model or a head.

    Args:
      draft: a `Model`, or a head from `jaxspec.load_head`.
      k: number of tokens to draft per round, a `DraftLength`, or a word that `load_drafter` takes; `None` is the
        drafter's default.
      num_drafts: number of chains that a draft model proposes per round.
      target: model to draft for; "adaptive" needs it. A draft model with another tokenizer drafts the tokens that
        both tokenizers have; `None` assumes that they are equal.
      tokenizer: tokenizer of the target; `None` is the one loaded with it.
      batch: number of rows for which "adaptive" computes costs.

    Raises:
      TypeError: if `draft` is neither a model nor a head.
      ValueError: if `k` or `num_drafts` is invalid.
    """
    option = LengthOption.parse(k)
    if not option.adaptive:
        return _of_network(draft, option.k, num_drafts, target, tokenizer)
    check_one_draft(k, num_drafts)
    if target is None:
        raise ValueError(f"k is {k!r}, which depends on the target; pass target too, or a number")
    return adapt(_of_network(draft, None, 1, target, tokenizer), target, option.longest, batch=batch)


def _of_network(
    draft: Any, k: int | DraftLength | None, num_drafts: int, target: Model | None, tokenizer: Tokenizer | None
) -> Drafter:
    """Makes a drafter from a model or a head; `k=None` is its default."""
    options: dict[str, Any] = {} if k is None else {"k": k}
    for kind in HEADS:
        if isinstance(draft, kind.head):
            check_single(num_drafts)
            return kind.drafter(draft, **options)
    if isinstance(draft, type) or not isinstance(draft, Model):
        raise TypeError(
            f"drafter must be a drafter, a model, a head or the name of one, got {kind_given(draft)}; jaxspec.load, "
            "jaxspec.load_head, jaxspec.from_function and jaxspec.from_nnx make one"
        )
    token_map = TokenMap.of_models(draft, target, tokenizer)
    if token_map is None:
        return ModelDrafter(for_target(draft, target, tokenizer), num_drafts=num_drafts, **options)
    if num_drafts != 1:
        raise ValueError(
            f"num_drafts is {num_drafts}, but this draft model has another tokenizer than its target, and then draws "
            "one draft a round; leave num_drafts out"
        )
    return CrossVocabularyDrafter(draft, token_map, **options)


@typed("target", "tokenizer")
def load_drafter(
    name_or_path: str | os.PathLike[str],
    target: Model,
    *,
    target_name: str | os.PathLike[str] | None = None,
    k: int | DraftLength | str | None = None,
    num_drafts: int = 1,
    draft_vocabulary: DraftVocabulary | None = None,
    tokenizer: Tokenizer | None = None,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    batch: int = 1,
) -> Drafter:
    """Loads a drafter for `jaxspec.generate` by its name.

    Args:
      name_or_path: one of these:
        * "none", or a name in `DRAFTERS`, such as "ngram" or "early-exit:5" (five of the target's layers);
        * "auto": the drafter in the target's manifest, else "ngram"; of a hybrid, only the lookup half if the other
          would save little in a batch of `batch` rows;
        * a drafter that ships with the target, such as "eagle" or "smollm2-135m-instruct/eagle";
        * a head or a draft model, as for `jaxspec.load_head` and `jaxspec.load`; a draft model with another tokenizer
          drafts the tokens that both tokenizers have (`CrossVocabularyDrafter`);
        * "ngram+eagle": the copying drafter where it promises more, else the other (`HybridDrafter`);
        * "ddtree:dflash", or another name in `CONSTRUCTIONS`: a tree from a head that drafts in one pass. Its `k` is
          the number of nodes.
      target: model to draft for. For a target with `native_kernels`, a float32 head or draft model gets native kernels
        and bfloat16 weights too; caches use the target's kernels (`load(kernels=)`).
      target_name: name or path that the target was loaded by, for the names of its drafters. A GGUF file of the zoo
        is recognized by its bytes, wherever it lies.
      k: number of tokens to draft per round, a `DraftLength`, or a word: "adaptive" (`Adaptive`, at most 8),
        "adaptive:16" (at most 16) or "fixed" (the drafter's own number). `None` is "adaptive", but "fixed" if
        drafts compete or the drafter takes no `k`.
      num_drafts: number of chains that a draft model proposes per round.
      draft_vocabulary: tokens that a draft model may draft, or the number of the lowest ones; see `TrimmedModel.of`.
      tokenizer: tokenizer of the target; `None` is the one loaded with it.
      dtype: dtype of weights and activations, for drafters with weights; `None` is the choice of `load`.
      mesh: mesh to split models and heads over.
      rules: sharding rules.
      batch: number of rows for which "adaptive" computes costs. Smaller batches draft fewer tokens than is best,
        larger ones may draft more.

    Raises:
      TypeError, ValueError: if arguments are invalid or do not fit each other.
      OSError: if a file cannot be read or downloaded.

    Example:
      >>> drafter = jaxspec.load_drafter("ngram", target)
      >>> type(drafter).__name__, drafter.lengths
      ('NGramDrafter', (0, 2, 4, 8))
    """
    validate.counts("load_drafter", batch=batch, num_drafts=num_drafts)
    target_name = None if target_name is None else zoo.name_of(as_path("target_name", target_name))
    name = drafter_name(name_or_path, target_name)
    option = LengthOption.parse("adaptive" if k is None and num_drafts == 1 and name != NONE else k)
    placed = {key: value for key, value in (("dtype", dtype), ("mesh", mesh), ("rules", rules)) if value is not None}
    if placed and name_or_path != "auto" and not has_weights(name):
        asked = ", ".join(f"{key}={value!r}" for key, value in placed.items())
        raise ValueError(f"{name} has no weights, got {asked}; leave {' and '.join(placed)} out")
    dtype = None if dtype is None else parse_dtype(dtype)
    loader = _Loader(target, target_name, draft_vocabulary, tokenizer, dtype, mesh, rules)
    if not option.adaptive:
        return loader.load(name, option.k, num_drafts)
    if name == NONE:
        raise ValueError(f"k is {k!r}, but there is nothing to draft with; pass a drafter, or leave k out")
    check_one_draft(k, num_drafts)
    drafter = loader.load(name, None, 1)
    if k is None and draft_length_of(halves(drafter)[1]) is None:
        return drafter  # it takes no `k`
    if name_or_path == "auto":
        drafter = spare(drafter, target, option.longest, batch=batch)
    return adapt(drafter, target, option.longest, batch=batch)


def drafter_name(name: str | os.PathLike[str], model: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    """Returns the full name of a drafter.

    Args:
      name: "auto" becomes the drafter in the model's manifest, without a head that this installation lacks (with a
        warning); "eagle" becomes the model's drafter of that name; other names are returned unchanged.
      model: name of a model in the zoo, or the path of its file.

    Raises:
      TypeError: if `name` is not a name.
      ValueError: if `name` is empty.
    """
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"a drafter's name_or_path must be a string or a path, got {type(name).__name__}")
    if not os.fspath(name):
        raise ValueError(
            "a drafter's name, or its part after '+', is empty; pass 'ngram', 'ngram+eagle' or 'none', say"
        )
    if not isinstance(name, str):
        return name
    model = None if model is None else zoo.name_of(model)
    if name == "auto":
        entry = None if model is None else zoo.find(model)
        if entry is None or entry.drafter is None:
            return AUTO
        return _present(entry.drafter, entry)
    if (tree := split_tree(name)) is not None:
        return f"{tree[0]}:{drafter_name(tree[1], model)}"
    first, plus, other = name.partition("+")
    if plus and not Path(name).exists():
        return f"{first}+{drafter_name(other, model)}"
    own = f"{model}/{name}"
    return own if zoo.is_drafter(own) else name


def short_name(name: str, model: str) -> str:
    """Returns the name of a drafter as commands take and print it: not "auto", and "eagle" for the model's own."""
    if (hybrid := split_hybrid(found := str(drafter_name(name, model)))) is not None:
        return f"{hybrid[0]}+{short_name(hybrid[1], model)}"
    if (tree := split_tree(found)) is not None:
        return f"{tree[0]}:{short_name(tree[1], model)}"
    return found if Path(found).exists() else found.removeprefix(f"{zoo.name_of(model)}/")


def _present(name: str, entry: zoo.ZooEntry) -> str | os.PathLike[str]:
    """Returns the full name of a manifest's drafter; only its lookup part if its head is missing."""
    first, plus, other = name.partition("+")
    missing = other or first
    if missing not in entry.missing_drafters:
        return drafter_name(name, entry.name)
    alone = first if plus else AUTO
    warnings.warn(
        f"drafting by {alone} alone: the head {entry.name}/{missing} is not in this installation, as wheels contain "
        f"only the default model's head. To use it, clone jaxspec's repository and pass '{alone}+PATH' with the path "
        f"of models/{entry.name}/{missing}",
        stacklevel=3,
    )
    return alone


def has_weights(name: str | os.PathLike[str]) -> bool:
    """Returns whether the named drafter has its own weights, to which `dtype` and `mesh` apply."""
    if (hybrid := split_hybrid(name)) is not None:
        return has_weights(hybrid[1])
    return not isinstance(name, str) or name.partition(":")[0] not in (NONE, *DRAFTERS)


def split_hybrid(name: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Splits "ngram+eagle" into the names of a lookup drafter and another one; `None` for other names."""
    lookup, plus, other = os.fspath(name).partition("+")
    return (lookup, other) if plus and lookup in DRAFTERS and issubclass(DRAFTERS[lookup].kind, LookupDrafter) else None


def split_tree(name: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Splits "ddtree:dflash" into the names of a tree's construction and of a head; `None` for other names."""
    construction, colon, head = os.fspath(name).partition(":")
    return (construction, head) if colon and construction in CONSTRUCTIONS else None


@dataclasses.dataclass(frozen=True)
class _Loader:
    """Loads drafters for one target; the attributes are arguments of `load_drafter`."""

    target: Model
    target_name: str | None
    draft_vocabulary: DraftVocabulary | None
    tokenizer: Tokenizer | None
    dtype: DTypeLike | None
    mesh: Mesh | None
    rules: Rules | None

    def load(self, name: str | os.PathLike[str], k: int | DraftLength | None, num_drafts: int) -> Drafter:
        """Loads the drafter with a full name; `k=None` is its default."""
        tree = split_tree(name)
        own = not has_weights(name) or tree is not None or kind_in(name, HEADS) is not None
        if self.draft_vocabulary is not None and own:
            raise ValueError(f"draft_vocabulary applies only to draft models, got {name}; leave it out")
        if name == NONE:
            check_single(num_drafts)
            if k:
                raise ValueError(f"k is {k}, but there is nothing to draft with; pass a drafter, or leave k out")
            return NoDrafter()
        if isinstance(name, str) and (known := DRAFTERS.get(name.partition(":")[0])) is not None:
            check_single(num_drafts)
            return known.make(name, self.target, k)
        if tree is not None:
            check_single(num_drafts)
            return self._tree(*tree, k)
        if (hybrid := split_hybrid(name)) is not None:
            if num_drafts != 1:
                raise ValueError(f"{name} takes one draft a round, got num_drafts={num_drafts}; leave it out")
            lookup, other = hybrid
            model = self.load(drafter_name(other, self.target_name), k, 1)
            if k == 0:
                return NoDrafter()
            copies = DRAFTERS[lookup].make(lookup, self.target, model.max_drafts)
            return HybridDrafter(cast(LookupDrafter, copies), model)
        if kind_in(name, HEADS) is not None:
            network = load_head(name, cast(LanguageModel, self.target), **self._placed)  # refuses others
        else:
            try:
                network = load(name, **self._placed, weights=weights_like(self.target))
            except zoo.UnknownNameError:
                known = ("auto", NONE, *DRAFTERS)
                raise ValueError(zoo.unknown_drafter(os.fspath(name), known, model=self.target_name)) from None
        network = native_like(self.target, kernels_like(self.target, network))
        if self.draft_vocabulary is not None:
            network = trim(network, self.draft_vocabulary)
        return _of_network(network, k, num_drafts, self.target, self.tokenizer)

    @property
    def _placed(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "mesh": self.mesh, "rules": self.rules}

    def _tree(self, construction: str, name: str, k: int | DraftLength | None) -> Drafter:
        """Loads a head, and makes the drafter of a tree of `k` nodes."""
        if isinstance(k, DraftLength):
            raise TypeError(f"the k of a tree is its number of nodes, got {type(k).__name__}; pass k=32, say")
        head = native_like(self.target, load_head(name, cast(LanguageModel, self.target), **self._placed))
        if not isinstance(head, dflash.DFlashHead):
            raise ValueError(
                f"{construction} makes trees of heads that draft a block in one pass, got {type(head).__name__}; pass "
                "a folder of a DFlash head"
            )
        return dflash.DFlashTreeDrafter.named(CONSTRUCTIONS[construction], head, self.target, k)

"""Maps names to drafters and verifiers: those shipped with a model, folders of heads and models, those without weights.

Each table has one row a thing: a new drafter, head or verifier is one file and one row here.
"""

import dataclasses
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.load import load, parse_dtype
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.contrib import exit_head
from jaxspec.contrib.sparse_cache import SparseCacheDrafter
from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.adapt import LengthOption, adapt, check_one_draft, check_single, spare
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.cross_vocabulary import CrossVocabularyDrafter
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.drafters.lookup import LookupDrafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.drafters.ngram import NGramDrafter
from jaxspec.drafters.resized import for_target
from jaxspec.drafters.suffix import SuffixDrafter
from jaxspec.drafters.token_map import TokenMap
from jaxspec.drafters.trimmed import DraftVocabulary, trim
from jaxspec.heads import dflash, eagle, medusa, tandem
from jaxspec.heads.base import HeadKind
from jaxspec.heads.files import kind_in, read_head
from jaxspec.nn.chosen_kernels import kernels_like
from jaxspec.nn.convert import native_like, weights_like
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network
from jaxspec.sharding.rules import Rules
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.traversal import TraversalVerifier
from jaxspec.verifiers.tree import TreeVerifier

# Drafters that need no weights of their own; each states its name.
DRAFTERS: Mapping[str, type[Drafter]] = MappingProxyType(
    {kind.name: kind for kind in (NGramDrafter, SuffixDrafter, EarlyExitDrafter, SparseCacheDrafter)}
)
# Kinds of trained heads, in the order in which a folder is tried.
HEADS: tuple[HeadKind, ...] = (tandem.KIND, exit_head.KIND, dflash.KIND, eagle.KIND, medusa.KIND, eagle.MTP)
VERIFIERS: Mapping[str, type[Verifier]] = MappingProxyType(
    {
        "token": TokenVerifier,
        "block": BlockVerifier,
        "coupled": CoupledVerifier,
        "multi-draft": MultiDraftVerifier,
        "traversal": TraversalVerifier,
        "tree": TreeVerifier,
    }
)


def load_head(
    name_or_path: str | os.PathLike[str],
    target: LanguageModel,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
) -> Network:
    """Loads a head over a target's hidden states, to draft from.

    Args:
      name_or_path: one of, tried in this order,
        * a model of the zoo and one of its drafters: "smollm2-135m-instruct/eagle";
        * a local folder with `config.json` and safetensors: EAGLE-1, EAGLE-3, DFlash, DSpark, Medusa, tandem
          decoders and early exits; or a checkpoint with a multi-token prediction module in DeepSeek-V3's layout;
        * a repository on the model hub, `organization/name`.
      target: the model that it was trained for; it lends what the folder has not, and says by which kernels.
      dtype: of weights and activations; `None` is the target's.
      mesh: splits the head over devices; `None` is as `target` lies, replicated on each of its devices.
      rules: how; `None` is by the mesh axes `data`, `model` and `draft`.

    Returns:
      An `EagleHead`, `DFlashHead`, `MedusaHead`, `TandemHead` or `EarlyExitHead`.

    Raises:
      TypeError: `target` is no `LanguageModel`.
      ValueError: the folder is of no known kind, damaged, or for another target.
      FileNotFoundError: the path does not exist, or the drafter is not in this installation.
      OSError: a download failed.

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
    """Makes a drafter of one chain from a model or a head.

    Args:
      draft: a `Model`, or what `jaxspec.load_head` returns.
      k: drafted tokens a round, a `DraftLength`, or a word as of `load_drafter`; `None` is the default of the drafter.
      num_drafts: how many chains of a draft model compete in each round.
      target: the model to draft for; "adaptive" needs it. A draft model of another tokenizer drafts the tokens that
        both have; `None` takes it to have the target's.
      tokenizer: the target's; `None` is the one it brings.
      batch: how many rows "adaptive" counts on.

    Raises:
      TypeError: it is neither.
      ValueError: `k` or `num_drafts` does not fit.
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
    """Makes the drafter of a model or a head; `k=None` is its default."""
    options: dict[str, Any] = {} if k is None else {"k": k}
    for kind in HEADS:
        if isinstance(draft, kind.head):
            check_single(num_drafts)
            return kind.drafter(draft, **options)
    if isinstance(draft, type) or not isinstance(draft, Model):
        got = f"the class {draft.__name__} itself" if isinstance(draft, type) else type(draft).__name__
        raise TypeError(
            f"draft must be a drafter, a model, a head or the name of one, got {got}; jaxspec.load, "
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


def load_drafter(
    name_or_path: str | os.PathLike[str],
    target: Model,
    *,
    target_name: str | None = None,
    k: int | DraftLength | str | None = None,
    num_drafts: int = 1,
    draft_vocabulary: DraftVocabulary | None = None,
    tokenizer: Tokenizer | None = None,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    batch: int = 1,
) -> Drafter:
    """Loads a drafter by its name, ready for `jaxspec.generate`.

    Args:
      name_or_path: "none", or a name of `DRAFTERS`, such as "ngram" or "early-exit:5" (five of the target's layers);
        "auto", what the target's manifest names, else "ngram" (the lookup half of a hybrid where the other would save
        little in a batch of so many rows); a drafter that ships with the target, such as "eagle" or
        "smollm2-135m-instruct/eagle"; or a head or a draft model as for `jaxspec.load_head` and `jaxspec.load`. A draft
        model of another tokenizer drafts the tokens that both have (`CrossVocabularyDrafter`). "ngram+eagle" copies
        where that promises more (`HybridDrafter`).
      target: the model to draft for. Beside one of `native_kernels` a float32 head or draft model is one too, of
        bfloat16 weights; caches have the target's kernels (`load(kernels=)`).
      target_name: what it was loaded by, for the names of its own drafters.
      k: drafted tokens a round, a `DraftLength`, or a word: "adaptive", as many as pay and at most 8 (`Adaptive`),
        "adaptive:16" at most as many; "fixed", the number of the drafter. `None` is "adaptive", and "fixed" where
        drafts compete or the drafter takes no `k`.
      num_drafts: how many chains of a draft model compete in each round.
      draft_vocabulary: the tokens that a draft model may say, or how many of the lowest, as of `TrimmedModel.of`.
      tokenizer: the target's; `None` is the one it brings.
      dtype: of weights and activations, for drafters that have weights of their own; `None` is what `load` chooses.
      mesh: splits models and heads over devices.
      rules: how.
      batch: how many rows the costs of "adaptive" are for. With fewer it drafts less than would pay, with more it may
        draft more.

    Raises:
      TypeError, ValueError: for arguments that do not fit each other.
      OSError: it cannot be read or downloaded.

    Example:
      >>> drafter = jaxspec.load_drafter("ngram", target)
      >>> type(drafter).__name__, drafter.lengths
      ('NGramDrafter', (0, 2, 4, 8))
    """
    validate.counts("load_drafter", batch=batch)
    name = zoo.draft_name(name_or_path, target_name)
    option = LengthOption.parse("adaptive" if k is None and num_drafts == 1 and name != NoDrafter.name else k)
    placed = {key: value for key, value in (("dtype", dtype), ("mesh", mesh), ("rules", rules)) if value is not None}
    if placed and name_or_path != "auto" and not has_weights(name):
        asked = ", ".join(f"{key}={value!r}" for key, value in placed.items())
        raise ValueError(f"{name} has no weights of its own, got {asked}; leave {' and '.join(placed)} out")
    dtype = None if dtype is None else parse_dtype(dtype)
    loader = _Loader(target, target_name, draft_vocabulary, tokenizer, dtype, mesh, rules)
    if not option.adaptive:
        return loader.load(name, option.k, num_drafts)
    if name == NoDrafter.name:
        raise ValueError(f"k is {k!r}, but there is nothing to draft with; pass a draft, or leave k out")
    check_one_draft(k, num_drafts)
    drafter = loader.load(name, None, 1)
    if k is None and drafter.model_part.draft_length is None:
        return drafter  # one that takes no `k`
    if name_or_path == "auto":
        drafter = spare(drafter, target, option.longest, batch=batch)
    return adapt(drafter, target, option.longest, batch=batch)


def has_weights(name: str | os.PathLike[str]) -> bool:
    """Returns whether a drafter of that name has weights of its own, which `dtype` and `mesh` are about."""
    if (hybrid := split_hybrid(name)) is not None:
        return has_weights(hybrid[1])
    return not isinstance(name, str) or name.partition(":")[0] not in (NoDrafter.name, *DRAFTERS)


def split_hybrid(name: str | os.PathLike[str]) -> tuple[type[LookupDrafter], str] | None:
    """Splits "ngram+eagle" into the drafter that copies and the name of the other; `None` for other names."""
    lookup, plus, other = os.fspath(name).partition("+")
    kind = DRAFTERS.get(lookup)
    return (kind, other) if plus and kind is not None and issubclass(kind, LookupDrafter) else None


@dataclasses.dataclass(frozen=True)
class _Loader:
    """Loads drafters for one target; attributes as the arguments of `load_drafter`."""

    target: Model
    target_name: str | None
    draft_vocabulary: DraftVocabulary | None
    tokenizer: Tokenizer | None
    dtype: DTypeLike | None
    mesh: Mesh | None
    rules: Rules | None

    def load(self, name: str | os.PathLike[str], k: int | DraftLength | None, num_drafts: int) -> Drafter:
        """Loads the drafter of a name in full; `k=None` is its default."""
        if self.draft_vocabulary is not None and (not has_weights(name) or kind_in(name, HEADS) is not None):
            raise ValueError(f"draft_vocabulary is about draft models, and {name} is another drafter; leave it out")
        if name == NoDrafter.name:
            check_single(num_drafts)
            if k:
                raise ValueError(f"k is {k}, but there is nothing to draft with; pass a draft, or leave k out")
            return NoDrafter()
        word, colon, argument = os.fspath(name).partition(":")
        if word in DRAFTERS and isinstance(name, str):
            check_single(num_drafts)
            return DRAFTERS[word].by_name(self.target, argument if colon else None, k)
        if (hybrid := split_hybrid(name)) is not None:
            if num_drafts != 1:
                raise ValueError(f"{name} takes one draft a round, got num_drafts={num_drafts}; leave it out")
            lookup, other = hybrid
            model = self.load(zoo.draft_name(other, self.target_name), k, 1)
            if k == 0:
                return NoDrafter()
            return HybridDrafter(lookup.by_name(self.target, k=model.max_drafts), model)
        placed = {"dtype": self.dtype, "mesh": self.mesh, "rules": self.rules}
        if kind_in(name, HEADS) is not None:
            network = load_head(name, cast(LanguageModel, self.target), **placed)  # which refuses others
        else:
            try:
                network = load(name, **placed, weights=weights_like(self.target))
            except zoo.UnknownNameError:
                known = ("auto", NoDrafter.name, *DRAFTERS)
                raise ValueError(zoo.unknown_drafter(os.fspath(name), known, model=self.target_name)) from None
        network = native_like(self.target, kernels_like(self.target, network))
        if self.draft_vocabulary is not None:
            network = trim(network, self.draft_vocabulary)
        return _of_network(network, k, num_drafts, self.target, self.tokenizer)

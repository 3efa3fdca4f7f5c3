"""Collects the drafters, one file each; those with trained weights are in `jaxspec.heads`."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.drafters.adjustable import AdjustableDrafter as AdjustableDrafter
    from jaxspec.drafters.base import Drafter as Drafter
    from jaxspec.drafters.base import NoDrafter as NoDrafter
    from jaxspec.drafters.children import MostLikely as MostLikely
    from jaxspec.drafters.children import WithoutReplacement as WithoutReplacement
    from jaxspec.drafters.children import WithReplacement as WithReplacement
    from jaxspec.drafters.cross_vocabulary import CrossVocabularyDrafter as CrossVocabularyDrafter
    from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter as DynamicTreeDrafter
    from jaxspec.drafters.early_exit import EarlyExitDrafter as EarlyExitDrafter
    from jaxspec.drafters.hybrid import HybridDrafter as HybridDrafter
    from jaxspec.drafters.lookup import Guess as Guess
    from jaxspec.drafters.lookup import LookupDrafter as LookupDrafter
    from jaxspec.drafters.model import ModelDrafter as ModelDrafter
    from jaxspec.drafters.ngram import NGramDrafter as NGramDrafter
    from jaxspec.drafters.resized import ResizedModel as ResizedModel
    from jaxspec.drafters.suffix import SuffixDrafter as SuffixDrafter
    from jaxspec.drafters.suffix import TextStore as TextStore
    from jaxspec.drafters.token_map import TokenMap as TokenMap
    from jaxspec.drafters.tree import TreeDrafter as TreeDrafter
    from jaxspec.drafters.trimmed import TrimmedModel as TrimmedModel

__getattr__, __dir__ = lazy(
    __name__,
    {
        "adjustable": ("AdjustableDrafter",),
        "base": ("Drafter", "NoDrafter"),
        "ngram": ("NGramDrafter",),
        "suffix": ("SuffixDrafter", "TextStore"),
        "model": ("ModelDrafter",),
        "resized": ("ResizedModel",),
        "tree": ("TreeDrafter",),
        "trimmed": ("TrimmedModel",),
        "children": ("MostLikely", "WithReplacement", "WithoutReplacement"),
        "dynamic_tree": ("DynamicTreeDrafter",),
        "hybrid": ("HybridDrafter",),
        "cross_vocabulary": ("CrossVocabularyDrafter",),
        "token_map": ("TokenMap",),
        "early_exit": ("EarlyExitDrafter",),
        "lookup": ("Guess", "LookupDrafter"),
    },
)

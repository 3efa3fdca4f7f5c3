"""Collects the drafters, one file each; those with trained weights are in `jaxspec.heads`."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.drafters.base import (
        AdjustableDrafter as AdjustableDrafter,
        Drafter as Drafter,
        DrafterInfo as DrafterInfo,
        NoDrafter as NoDrafter,
    )
    from jaxspec.drafters.children import (
        MostLikely as MostLikely,
        TopAndSampled as TopAndSampled,
        WithoutReplacement as WithoutReplacement,
        WithReplacement as WithReplacement,
    )
    from jaxspec.drafters.cross_vocabulary import CrossVocabularyDrafter as CrossVocabularyDrafter
    from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter as DynamicTreeDrafter
    from jaxspec.drafters.early_exit import EarlyExitDrafter as EarlyExitDrafter
    from jaxspec.drafters.hybrid import HybridDrafter as HybridDrafter
    from jaxspec.drafters.lookup import Guess as Guess, LookupDrafter as LookupDrafter
    from jaxspec.drafters.model import ModelDrafter as ModelDrafter
    from jaxspec.drafters.ngram import NGramDrafter as NGramDrafter
    from jaxspec.drafters.resized import ResizedModel as ResizedModel
    from jaxspec.drafters.suffix import SuffixDrafter as SuffixDrafter, TextStore as TextStore
    from jaxspec.drafters.token_map import TokenMap as TokenMap
    from jaxspec.drafters.tree import TreeDrafter as TreeDrafter
    from jaxspec.drafters.trimmed import TrimmedModel as TrimmedModel

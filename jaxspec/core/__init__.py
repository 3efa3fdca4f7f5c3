"""Defines the protocols and pytrees of the loop, on which authors of models and drafters build.

Imports no Flax, no drafter and no verifier. The names that most programs need are in `jaxspec` too.
"""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.core.layout import Layout as Layout, Unsharded as Unsharded
    from jaxspec.core.leading import count_leading as count_leading, first_true as first_true, take_row as take_row
    from jaxspec.core.model import (
        Cache as Cache,
        Entries as Entries,
        Model as Model,
        ModelOutput as ModelOutput,
        ModelTraits as ModelTraits,
        ResumableModel as ResumableModel,
        WrappedModel as WrappedModel,
    )
    from jaxspec.core.prefill import Prefilled as Prefilled
    from jaxspec.core.processing import Processor as Processor, Prompt as Prompt
    from jaxspec.core.pytree import register_dataclass as register_dataclass
    from jaxspec.core.random import (
        PositionNoise as PositionNoise,
        Rng as Rng,
        RoundKeys as RoundKeys,
        row_keys as row_keys,
    )
    from jaxspec.core.results import (
        Generation as Generation,
        Report as Report,
        Reported as Reported,
        Scores as Scores,
        Status as Status,
        StopReason as StopReason,
    )
    from jaxspec.core.rows import RowAxes as RowAxes, row_axes as row_axes
    from jaxspec.core.sampling import (
        Greedy as Greedy,
        Policy as Policy,
        Sampling as Sampling,
        one_hot_log as one_hot_log,
    )
    from jaxspec.core.state import (
        Context as Context,
        GenerationState as GenerationState,
        Proposal as Proposal,
        RoundInfo as RoundInfo,
        Verdict as Verdict,
    )
    from jaxspec.core.stats import Stats as Stats
    from jaxspec.core.tree import Tree as Tree, best_tree as best_tree
    from jaxspec.io.files import FileFormatError as FileFormatError

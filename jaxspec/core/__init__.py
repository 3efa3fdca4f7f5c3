"""Defines the protocols and pytrees of the loop: all that authors of models and drafters build on.

Knows no Flax, no drafter and no verifier. Names that most programs use stand in `jaxspec` too.
"""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.core.files import FileFormatError as FileFormatError
    from jaxspec.core.generation import Generation as Generation
    from jaxspec.core.layout import Layout as Layout
    from jaxspec.core.layout import Unsharded as Unsharded
    from jaxspec.core.layout import placement_of as placement_of
    from jaxspec.core.model import Cache as Cache
    from jaxspec.core.model import Entries as Entries
    from jaxspec.core.model import Model as Model
    from jaxspec.core.model import ModelOutput as ModelOutput
    from jaxspec.core.model import ResumableModel as ResumableModel
    from jaxspec.core.prefill import Prefilled as Prefilled
    from jaxspec.core.processing import Processor as Processor
    from jaxspec.core.processing import Prompt as Prompt
    from jaxspec.core.pytree import register_dataclass as register_dataclass
    from jaxspec.core.random import PositionNoise as PositionNoise
    from jaxspec.core.random import Rng as Rng
    from jaxspec.core.random import RoundKeys as RoundKeys
    from jaxspec.core.random import row_keys as row_keys
    from jaxspec.core.report import Report as Report
    from jaxspec.core.report import Reported as Reported
    from jaxspec.core.rows import count_leading as count_leading
    from jaxspec.core.rows import first_true as first_true
    from jaxspec.core.rows import take_row as take_row
    from jaxspec.core.sampling import Greedy as Greedy
    from jaxspec.core.sampling import Policy as Policy
    from jaxspec.core.sampling import Sampling as Sampling
    from jaxspec.core.sampling import one_hot_log as one_hot_log
    from jaxspec.core.scores import Scores as Scores
    from jaxspec.core.state import Context as Context
    from jaxspec.core.state import GenerationState as GenerationState
    from jaxspec.core.state import Proposal as Proposal
    from jaxspec.core.state import RoundInfo as RoundInfo
    from jaxspec.core.state import Verdict as Verdict
    from jaxspec.core.stats import Stats as Stats
    from jaxspec.core.status import Status as Status
    from jaxspec.core.status import StopReason as StopReason
    from jaxspec.core.tree import Tree as Tree
    from jaxspec.core.tree import best_tree as best_tree

__getattr__, __dir__ = lazy(
    __name__,
    {
        "files": ("FileFormatError",),
        "generation": ("Generation",),
        "layout": ("Layout", "Unsharded", "placement_of"),
        "model": ("Cache", "Entries", "Model", "ModelOutput", "ResumableModel"),
        "pytree": ("register_dataclass",),
        "random": ("PositionNoise", "Rng", "RoundKeys", "row_keys"),
        "report": ("Report", "Reported"),
        "rows": ("count_leading", "first_true", "take_row"),
        "sampling": ("Greedy", "Policy", "Sampling", "one_hot_log"),
        "scores": ("Scores",),
        "state": ("Context", "GenerationState", "Proposal", "RoundInfo", "Verdict"),
        "stats": ("Stats",),
        "status": ("Status", "StopReason"),
        "tree": ("Tree", "best_tree"),
        "prefill": ("Prefilled",),
        "processing": ("Processor", "Prompt"),
    },
)

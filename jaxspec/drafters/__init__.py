"""One file a drafter; `base` says what one is."""

from jaxspec.drafters.base import Drafter as Drafter
from jaxspec.drafters.base import NoDrafter as NoDrafter
from jaxspec.drafters.block import BlockDrafter as BlockDrafter
from jaxspec.drafters.cascade import CascadeDrafter as CascadeDrafter
from jaxspec.drafters.children import MostLikely as MostLikely
from jaxspec.drafters.children import WithoutReplacement as WithoutReplacement
from jaxspec.drafters.children import WithReplacement as WithReplacement
from jaxspec.drafters.compose import Compose as Compose
from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter as DynamicTreeDrafter
from jaxspec.drafters.eagle import EagleDrafter as EagleDrafter
from jaxspec.drafters.early_exit import EarlyExitDrafter as EarlyExitDrafter
from jaxspec.drafters.intersection import IntersectionDrafter as IntersectionDrafter
from jaxspec.drafters.medusa import MedusaDrafter as MedusaDrafter
from jaxspec.drafters.model import ModelDrafter as ModelDrafter
from jaxspec.drafters.ngram import NGramDrafter as NGramDrafter
from jaxspec.drafters.parallel import ParallelDrafter as ParallelDrafter
from jaxspec.drafters.skipping import SkippingDrafter as SkippingDrafter
from jaxspec.drafters.sparse_cache import SparseCacheDrafter as SparseCacheDrafter
from jaxspec.drafters.suffix import SuffixDrafter as SuffixDrafter
from jaxspec.drafters.tandem import TandemDrafter as TandemDrafter
from jaxspec.drafters.text_store import TextStore as TextStore
from jaxspec.drafters.token_map import TokenMap as TokenMap
from jaxspec.drafters.tree import TreeDrafter as TreeDrafter
from jaxspec.drafters.union import UnionDrafter as UnionDrafter

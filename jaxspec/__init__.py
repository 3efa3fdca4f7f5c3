"""jaxspec: speculative decoding for JAX, exact and inside your own `jit`."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec import contrib as contrib
    from jaxspec import draft_length as draft_length
    from jaxspec import drafters as drafters
    from jaxspec import heads as heads
    from jaxspec import sharding as sharding
    from jaxspec import training as training
    from jaxspec import verifiers as verifiers
    from jaxspec.checkpoints.load import load as load
    from jaxspec.checkpoints.orbax import save as save
    from jaxspec.checkpoints.tokenizer import Tokenizer as Tokenizer
    from jaxspec.checkpoints.zoo import list_models as list_models
    from jaxspec.contrib.cascade import CascadeDrafter as CascadeDrafter
    from jaxspec.contrib.lantern import Neighbourhood as Neighbourhood
    from jaxspec.contrib.parallel.drafter import ParallelDrafter as ParallelDrafter
    from jaxspec.contrib.sparse_cache import SparseCacheDrafter as SparseCacheDrafter
    from jaxspec.contrib.string_match import StringMatch as StringMatch
    from jaxspec.contrib.union import UnionDrafter as UnionDrafter
    from jaxspec.core.model import Model as Model
    from jaxspec.core.model import ModelOutput as ModelOutput
    from jaxspec.core.pytree import register_dataclass as register_dataclass
    from jaxspec.core.sampling import Greedy as Greedy
    from jaxspec.core.sampling import Policy as Policy
    from jaxspec.core.sampling import Sampling as Sampling
    from jaxspec.core.state import Generation as Generation
    from jaxspec.core.state import GenerationState as GenerationState
    from jaxspec.core.state import Proposal as Proposal
    from jaxspec.core.state import RoundInfo as RoundInfo
    from jaxspec.core.state import Verdict as Verdict
    from jaxspec.core.status import Status as Status
    from jaxspec.core.status import StopReason as StopReason
    from jaxspec.core.tree import Tree as Tree
    from jaxspec.decoding.generate import generate as generate
    from jaxspec.decoding.steps import finish as finish
    from jaxspec.decoding.steps import init as init
    from jaxspec.decoding.steps import jit_step as jit_step
    from jaxspec.decoding.steps import step as step
    from jaxspec.decoding.steps import stream as stream
    from jaxspec.draft_length.adaptive import Adaptive as Adaptive
    from jaxspec.draft_length.base import DraftLength as DraftLength
    from jaxspec.draft_length.base import Fixed as Fixed
    from jaxspec.draft_length.early_stop import ConfidenceStop as ConfidenceStop
    from jaxspec.draft_length.early_stop import CumulativeConfidence as CumulativeConfidence
    from jaxspec.draft_length.early_stop import EntropyStop as EntropyStop
    from jaxspec.drafters.base import Drafter as Drafter
    from jaxspec.drafters.base import NoDrafter as NoDrafter
    from jaxspec.drafters.children import MostLikely as MostLikely
    from jaxspec.drafters.children import WithoutReplacement as WithoutReplacement
    from jaxspec.drafters.children import WithReplacement as WithReplacement
    from jaxspec.drafters.cross_vocabulary import CrossVocabularyDrafter as CrossVocabularyDrafter
    from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter as DynamicTreeDrafter
    from jaxspec.drafters.early_exit import EarlyExitDrafter as EarlyExitDrafter
    from jaxspec.drafters.hybrid import HybridDrafter as HybridDrafter
    from jaxspec.drafters.model import ModelDrafter as ModelDrafter
    from jaxspec.drafters.ngram import NGramDrafter as NGramDrafter
    from jaxspec.drafters.suffix import SuffixDrafter as SuffixDrafter
    from jaxspec.drafters.suffix import TextStore as TextStore
    from jaxspec.drafters.token_map import TokenMap as TokenMap
    from jaxspec.drafters.tree import TreeDrafter as TreeDrafter
    from jaxspec.heads.dflash.drafter import DFlashDrafter as DFlashDrafter
    from jaxspec.heads.eagle.drafter import EagleDrafter as EagleDrafter
    from jaxspec.heads.medusa.drafter import MedusaDrafter as MedusaDrafter
    from jaxspec.heads.tandem.drafter import TandemDrafter as TandemDrafter
    from jaxspec.named import load_drafter as load_drafter
    from jaxspec.named import load_head as load_head
    from jaxspec.nn.adapters import from_function as from_function
    from jaxspec.nn.adapters import from_nnx as from_nnx
    from jaxspec.nn.convert import native_kernels as native_kernels
    from jaxspec.nn.convert import quantize_cache as quantize_cache
    from jaxspec.nn.convert import quantize_weights as quantize_weights
    from jaxspec.nn.language_model import LanguageModel as LanguageModel
    from jaxspec.sharding.params import shard as shard
    from jaxspec.text.decoder import SpeculativeDecoder as SpeculativeDecoder
    from jaxspec.text.request import TextOptions as TextOptions
    from jaxspec.text.result import TextResult as TextResult
    from jaxspec.text.stream import TextStream as TextStream
    from jaxspec.verifiers.base import Verifier as Verifier
    from jaxspec.verifiers.block import BlockVerifier as BlockVerifier
    from jaxspec.verifiers.coupled import CoupledVerifier as CoupledVerifier
    from jaxspec.verifiers.k_seq import KSequence as KSequence
    from jaxspec.verifiers.lenience import Lenience as Lenience
    from jaxspec.verifiers.multi_draft import MultiDraftVerifier as MultiDraftVerifier
    from jaxspec.verifiers.multi_draft import RecursiveRejection as RecursiveRejection
    from jaxspec.verifiers.rejection import TokenVerifier as TokenVerifier
    from jaxspec.verifiers.relaxed import RelaxedVerifier as RelaxedVerifier
    from jaxspec.verifiers.traversal import TraversalVerifier as TraversalVerifier
    from jaxspec.verifiers.tree import TreeVerifier as TreeVerifier
    from jaxspec.verifiers.typical import Typical as Typical

__getattr__, __dir__ = lazy(
    __name__,
    {
        "": ("contrib", "draft_length", "drafters", "heads", "sharding", "training", "verifiers"),
        "core.model": ("Model", "ModelOutput"),
        "core.pytree": ("register_dataclass",),
        "core.sampling": ("Greedy", "Policy", "Sampling"),
        "core.state": ("Generation", "GenerationState", "Proposal", "RoundInfo", "Verdict"),
        "core.status": ("Status", "StopReason"),
        "core.tree": ("Tree",),
        "nn.language_model": ("LanguageModel",),
        "nn.adapters": ("from_function", "from_nnx"),
        "nn.convert": ("native_kernels", "quantize_cache", "quantize_weights"),
        "checkpoints.load": ("load",),
        "checkpoints.orbax": ("save",),
        "checkpoints.zoo": ("list_models",),
        "checkpoints.tokenizer": ("Tokenizer",),
        "sharding.params": ("shard",),
        "draft_length.base": ("Fixed", "DraftLength"),
        "draft_length.adaptive": ("Adaptive",),
        "draft_length.early_stop": ("ConfidenceStop", "CumulativeConfidence", "EntropyStop"),
        "verifiers.base": ("Verifier",),
        "verifiers.block": ("BlockVerifier",),
        "verifiers.coupled": ("CoupledVerifier",),
        "verifiers.k_seq": ("KSequence",),
        "verifiers.lenience": ("Lenience",),
        "verifiers.multi_draft": ("MultiDraftVerifier", "RecursiveRejection"),
        "verifiers.relaxed": ("RelaxedVerifier",),
        "verifiers.rejection": ("TokenVerifier",),
        "verifiers.traversal": ("TraversalVerifier",),
        "verifiers.tree": ("TreeVerifier",),
        "verifiers.typical": ("Typical",),
        "drafters.base": ("Drafter", "NoDrafter"),
        "drafters.ngram": ("NGramDrafter",),
        "drafters.suffix": ("SuffixDrafter", "TextStore"),
        "drafters.model": ("ModelDrafter",),
        "drafters.tree": ("TreeDrafter",),
        "drafters.children": ("MostLikely", "WithReplacement", "WithoutReplacement"),
        "drafters.dynamic_tree": ("DynamicTreeDrafter",),
        "drafters.hybrid": ("HybridDrafter",),
        "drafters.cross_vocabulary": ("CrossVocabularyDrafter",),
        "drafters.token_map": ("TokenMap",),
        "drafters.early_exit": ("EarlyExitDrafter",),
        "heads.dflash.drafter": ("DFlashDrafter",),
        "heads.eagle.drafter": ("EagleDrafter",),
        "heads.medusa.drafter": ("MedusaDrafter",),
        "heads.tandem.drafter": ("TandemDrafter",),
        "contrib.cascade": ("CascadeDrafter",),
        "contrib.lantern": ("Neighbourhood",),
        "contrib.parallel.drafter": ("ParallelDrafter",),
        "contrib.sparse_cache": ("SparseCacheDrafter",),
        "contrib.string_match": ("StringMatch",),
        "contrib.union": ("UnionDrafter",),
        "decoding.generate": ("generate",),
        "decoding.steps": ("finish", "init", "jit_step", "step", "stream"),
        "named": ("load_drafter", "load_head"),
        "text.decoder": ("SpeculativeDecoder",),
        "text.request": ("TextOptions",),
        "text.result": ("TextResult",),
        "text.stream": ("TextStream",),
    },
)

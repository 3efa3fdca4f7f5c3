"""Decodes language models speculatively in JAX, losslessly and inside your own `jit`.

The names here are those of most programs. Other strategies, and what one of your own is made of, stand in the
namespaces `drafters`, `verifiers`, `processors`, `grammar`, `draft_length`, `heads`, `contrib`, `training`,
`checkpoints`, `sharding`, `families`, `foreign`, `nn`, `ops` and `core`.
"""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec import checkpoints as checkpoints
    from jaxspec import contrib as contrib
    from jaxspec import core as core
    from jaxspec import draft_length as draft_length
    from jaxspec import drafters as drafters
    from jaxspec import families as families
    from jaxspec import foreign as foreign
    from jaxspec import grammar as grammar
    from jaxspec import heads as heads
    from jaxspec import nn as nn
    from jaxspec import ops as ops
    from jaxspec import processors as processors
    from jaxspec import sharding as sharding
    from jaxspec import training as training
    from jaxspec import verifiers as verifiers
    from jaxspec._version import __version__ as __version__
    from jaxspec.checkpoints.load import load as load
    from jaxspec.checkpoints.orbax import save as save
    from jaxspec.checkpoints.tokenizer import Tokenizer as Tokenizer
    from jaxspec.checkpoints.zoo import list_models as list_models
    from jaxspec.core.generation import Generation as Generation
    from jaxspec.core.model import Model as Model
    from jaxspec.core.sampling import Greedy as Greedy
    from jaxspec.core.sampling import Policy as Policy
    from jaxspec.core.sampling import Sampling as Sampling
    from jaxspec.core.status import StopReason as StopReason
    from jaxspec.core.tree import Tree as Tree
    from jaxspec.decoding.generate import generate as generate
    from jaxspec.decoding.score import score as score
    from jaxspec.decoding.steps import finish as finish
    from jaxspec.decoding.steps import init as init
    from jaxspec.decoding.steps import jit_step as jit_step
    from jaxspec.decoding.steps import step as step
    from jaxspec.decoding.steps import stream as stream
    from jaxspec.draft_length.adaptive import Adaptive as Adaptive
    from jaxspec.drafters.base import Drafter as Drafter
    from jaxspec.drafters.cross_vocabulary import CrossVocabularyDrafter as CrossVocabularyDrafter
    from jaxspec.drafters.early_exit import EarlyExitDrafter as EarlyExitDrafter
    from jaxspec.drafters.hybrid import HybridDrafter as HybridDrafter
    from jaxspec.drafters.model import ModelDrafter as ModelDrafter
    from jaxspec.drafters.ngram import NGramDrafter as NGramDrafter
    from jaxspec.drafters.suffix import SuffixDrafter as SuffixDrafter
    from jaxspec.drafters.tree import TreeDrafter as TreeDrafter
    from jaxspec.foreign.adoption import adopt as adopt
    from jaxspec.foreign.model import from_cached as from_cached
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
    from jaxspec.verifiers.base import Verifier as Verifier
    from jaxspec.verifiers.block import BlockVerifier as BlockVerifier
    from jaxspec.verifiers.coupled import CoupledVerifier as CoupledVerifier
    from jaxspec.verifiers.rejection import TokenVerifier as TokenVerifier
    from jaxspec.verifiers.tree import TreeVerifier as TreeVerifier

__getattr__, __dir__ = lazy(
    __name__,
    {
        "": (
            "checkpoints",
            "contrib",
            "core",
            "draft_length",
            "drafters",
            "families",
            "foreign",
            "grammar",
            "heads",
            "nn",
            "ops",
            "processors",
            "sharding",
            "training",
            "verifiers",
        ),
        "_version": ("__version__",),
        "core.model": ("Model",),
        "core.sampling": ("Greedy", "Policy", "Sampling"),
        "core.generation": ("Generation",),
        "core.status": ("StopReason",),
        "core.tree": ("Tree",),
        "nn.language_model": ("LanguageModel",),
        "nn.adapters": ("from_function", "from_nnx"),
        "nn.convert": ("native_kernels", "quantize_cache", "quantize_weights"),
        "checkpoints.load": ("load",),
        "foreign.adoption": ("adopt",),
        "foreign.model": ("from_cached",),
        "checkpoints.orbax": ("save",),
        "checkpoints.zoo": ("list_models",),
        "checkpoints.tokenizer": ("Tokenizer",),
        "sharding.params": ("shard",),
        "draft_length.adaptive": ("Adaptive",),
        "verifiers.base": ("Verifier",),
        "verifiers.block": ("BlockVerifier",),
        "verifiers.coupled": ("CoupledVerifier",),
        "verifiers.rejection": ("TokenVerifier",),
        "verifiers.tree": ("TreeVerifier",),
        "drafters.base": ("Drafter",),
        "drafters.ngram": ("NGramDrafter",),
        "drafters.suffix": ("SuffixDrafter",),
        "drafters.model": ("ModelDrafter",),
        "drafters.tree": ("TreeDrafter",),
        "drafters.hybrid": ("HybridDrafter",),
        "drafters.cross_vocabulary": ("CrossVocabularyDrafter",),
        "drafters.early_exit": ("EarlyExitDrafter",),
        "heads.dflash.drafter": ("DFlashDrafter",),
        "heads.eagle.drafter": ("EagleDrafter",),
        "heads.medusa.drafter": ("MedusaDrafter",),
        "heads.tandem.drafter": ("TandemDrafter",),
        "decoding.generate": ("generate",),
        "decoding.score": ("score",),
        "decoding.steps": ("finish", "init", "jit_step", "step", "stream"),
        "named": ("load_drafter", "load_head"),
        "text.decoder": ("SpeculativeDecoder",),
        "text.request": ("TextOptions",),
        "text.result": ("TextResult",),
    },
)

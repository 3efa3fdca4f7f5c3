"""Decodes language models speculatively in JAX, losslessly and inside your own `jit`.

This namespace has the names that most programs need. Other strategies, and the parts of custom ones, are in the
namespaces `drafters`, `verifiers`, `processors`, `grammar`, `draft_length`, `heads`, `contrib`, `training`,
`checkpoints`, `sharding`, `families`, `foreign`, `serving`, `rl`, `bench`, `testing`, `nn`, `ops` and `core`.
"""

import importlib.metadata as _metadata
import logging as _logging

from etils import epy as _epy

# The distribution `jaxspec`, for astronomy, has a package of this name: each overwrites files of the other.
if any(_metadata.distributions(name="jaxspec")):
    raise ImportError(
        "two packages called jaxspec are installed in one environment: jaxspec-decode, which is imported here, and "
        "jaxspec, for X-ray spectra; run `pip uninstall jaxspec jaxspec-decode`, then install the one that you want"
    )

# Messages are for programs that ask for them; the command line does.
_logging.getLogger(__name__).addHandler(_logging.NullHandler())

with _epy.lazy_api_imports(globals()):
    from jaxspec import (
        bench as bench,
        checkpoints as checkpoints,
        contrib as contrib,
        core as core,
        draft_length as draft_length,
        drafters as drafters,
        families as families,
        foreign as foreign,
        grammar as grammar,
        heads as heads,
        nn as nn,
        ops as ops,
        processors as processors,
        rl as rl,
        serving as serving,
        sharding as sharding,
        testing as testing,
        training as training,
        verifiers as verifiers,
    )
    from jaxspec._version import __version__ as __version__
    from jaxspec.checkpoints.load import load as load
    from jaxspec.checkpoints.orbax import save as save
    from jaxspec.checkpoints.tokenizer import Tokenizer as Tokenizer
    from jaxspec.checkpoints.zoo import list_models as list_models
    from jaxspec.core.model import Model as Model
    from jaxspec.core.results import Generation as Generation, StopReason as StopReason
    from jaxspec.core.sampling import Greedy as Greedy, Policy as Policy, Sampling as Sampling
    from jaxspec.core.tree import Tree as Tree
    from jaxspec.decoding.generate import (
        finish as finish,
        generate as generate,
        init as init,
        jit_step as jit_step,
        step as step,
    )
    from jaxspec.decoding.program_cache import use_program_cache as use_program_cache
    from jaxspec.decoding.rounds import stream as stream
    from jaxspec.decoding.score import score as score
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
    from jaxspec.heads.dflash.head import DFlashDrafter as DFlashDrafter
    from jaxspec.heads.eagle.head import EagleDrafter as EagleDrafter
    from jaxspec.heads.medusa.head import MedusaDrafter as MedusaDrafter
    from jaxspec.nn.adapters import from_function as from_function, from_nnx as from_nnx
    from jaxspec.nn.convert import (
        native_kernels as native_kernels,
        quantize_cache as quantize_cache,
        quantize_weights as quantize_weights,
    )
    from jaxspec.nn.language_model import LanguageModel as LanguageModel
    from jaxspec.serving.completion import complete as complete
    from jaxspec.serving.engine import Engine as Engine
    from jaxspec.sharding.params import shard as shard
    from jaxspec.text.decoder import SpeculativeDecoder as SpeculativeDecoder
    from jaxspec.text.names import load_drafter as load_drafter, load_head as load_head
    from jaxspec.text.request import TextOptions as TextOptions
    from jaxspec.text.result import TextResult as TextResult
    from jaxspec.verifiers.base import Verifier as Verifier
    from jaxspec.verifiers.block import BlockVerifier as BlockVerifier
    from jaxspec.verifiers.coupled import CoupledVerifier as CoupledVerifier
    from jaxspec.verifiers.rejection import TokenVerifier as TokenVerifier
    from jaxspec.verifiers.tree import TreeVerifier as TreeVerifier


_lazy = globals()["__getattr__"]


def _lookup(name: str) -> object:
    """Returns a public name, or says in which namespace it is."""
    try:
        return _lazy(name)
    except AttributeError as error:
        if error.name != name or name.startswith("_"):
            raise
        from jaxspec.io.public_names import places_of

        hint = f"; it is {' or '.join(places)}" if (places := places_of(name)) else ""
        raise AttributeError(f"{error}{hint}", name=name, obj=error.obj) from None


# By item: were it defined by name, type checkers would take every attribute for one that exists.
globals()["__getattr__"] = _lookup

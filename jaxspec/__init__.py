"""jaxspec: speculative decoding for JAX, exact and inside your own `jit`."""

from jaxspec.adapters import from_function as from_function
from jaxspec.adapters import from_nnx as from_nnx
from jaxspec.drafters import Drafter as Drafter
from jaxspec.drafters import ModelDrafter as ModelDrafter
from jaxspec.drafters import NGramDrafter as NGramDrafter
from jaxspec.generate import finish as finish
from jaxspec.generate import generate as generate
from jaxspec.generate import init as init
from jaxspec.generate import jit_step as jit_step
from jaxspec.generate import step as step
from jaxspec.generate import stream as stream
from jaxspec.model import LanguageModel as LanguageModel
from jaxspec.model import Model as Model
from jaxspec.sampling import Greedy as Greedy
from jaxspec.sampling import Sampling as Sampling
from jaxspec.state import Generation as Generation
from jaxspec.state import GenerationState as GenerationState
from jaxspec.state import RoundInfo as RoundInfo
from jaxspec.state import Status as Status
from jaxspec.state import StopReason as StopReason
from jaxspec.verifiers import CoupledVerifier as CoupledVerifier
from jaxspec.verifiers import TokenVerifier as TokenVerifier
from jaxspec.verifiers import Verifier as Verifier

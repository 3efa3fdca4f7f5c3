"""One file a drafter; `base` says what one is."""

from jaxspec.drafters.base import Drafter as Drafter
from jaxspec.drafters.base import NoDrafter as NoDrafter
from jaxspec.drafters.model import ModelDrafter as ModelDrafter
from jaxspec.drafters.ngram import NGramDrafter as NGramDrafter

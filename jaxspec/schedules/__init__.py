"""How many tokens are drafted a round. One file a schedule; `base` says what one is."""

from jaxspec.schedules.adaptive import Adaptive as Adaptive
from jaxspec.schedules.base import Fixed as Fixed
from jaxspec.schedules.base import Schedule as Schedule
from jaxspec.schedules.confidence import ConfidenceStop as ConfidenceStop
from jaxspec.schedules.cumulative import CumulativeConfidence as CumulativeConfidence
from jaxspec.schedules.entropy import EntropyStop as EntropyStop

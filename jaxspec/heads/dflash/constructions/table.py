"""Lists the constructions of a block's tree by name."""

from collections.abc import Mapping
from types import MappingProxyType

from jaxspec.heads.dflash.constructions.base import Construction
from jaxspec.heads.dflash.constructions.beam import Beam
from jaxspec.heads.dflash.constructions.best_paths import BestPaths
from jaxspec.heads.dflash.constructions.by_cost import BestPathsByCost
from jaxspec.heads.dflash.constructions.families import Families
from jaxspec.heads.dflash.constructions.gap_families import GapFamilies

CONSTRUCTIONS: Mapping[str, type[Construction]] = MappingProxyType(
    {
        "ddtree": BestPaths,
        "caddtree": BestPathsByCost,
        "jetspec": Families,
        "jetspec-gap": GapFamilies,
        "beam": Beam,
    }
)

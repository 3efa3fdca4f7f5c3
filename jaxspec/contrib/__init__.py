"""Collects drafters and verifiers that work and are proven, but are not recommended by default."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.contrib import exit_head as exit_head
    from jaxspec.contrib.cascade import CascadeDrafter as CascadeDrafter
    from jaxspec.contrib.exit_head.head import EarlyExitHead as EarlyExitHead
    from jaxspec.contrib.lantern import Neighborhood as Neighborhood
    from jaxspec.contrib.lantern import nearest_neighbors as nearest_neighbors
    from jaxspec.contrib.parallel.drafter import ParallelDrafter as ParallelDrafter
    from jaxspec.contrib.sparse_cache import SparseCacheDrafter as SparseCacheDrafter
    from jaxspec.contrib.string_match import StringMatch as StringMatch
    from jaxspec.contrib.union import UnionDrafter as UnionDrafter

__getattr__, __dir__ = lazy(
    __name__,
    {
        "cascade": ("CascadeDrafter",),
        "union": ("UnionDrafter",),
        "parallel.drafter": ("ParallelDrafter",),
        "sparse_cache": ("SparseCacheDrafter",),
        "string_match": ("StringMatch",),
        "lantern": ("Neighborhood", "nearest_neighbors"),
        "exit_head.head": ("EarlyExitHead",),
        "": ("exit_head",),
    },
)

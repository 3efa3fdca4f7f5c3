"""Collects drafters and verifiers that work and are proven, but are not recommended by default."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.contrib import exit_head as exit_head, tandem as tandem
    from jaxspec.contrib.cascade import CascadeDrafter as CascadeDrafter
    from jaxspec.contrib.exit_head.head import EarlyExitHead as EarlyExitHead
    from jaxspec.contrib.lantern import Neighborhood as Neighborhood, nearest_neighbors as nearest_neighbors
    from jaxspec.contrib.parallel import ParallelDrafter as ParallelDrafter
    from jaxspec.contrib.sparse_cache import SparseCacheDrafter as SparseCacheDrafter
    from jaxspec.contrib.string_match import StringMatch as StringMatch
    from jaxspec.contrib.tandem.head import TandemDrafter as TandemDrafter, TandemHead as TandemHead
    from jaxspec.contrib.union import UnionDrafter as UnionDrafter

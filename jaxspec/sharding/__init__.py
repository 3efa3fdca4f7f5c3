"""Shards models over devices: logical axes, the rules that map them to a mesh, and `shard`."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.sharding.multihost import join as join
    from jaxspec.sharding.params import (
        check_devices as check_devices,
        parameter_axes as parameter_axes,
        parameter_shardings as parameter_shardings,
        placed as placed,
        shard as shard,
        shard_models as shard_models,
    )
    from jaxspec.sharding.placement import Placement as Placement, put as put, to_host as to_host
    from jaxspec.sharding.rules import (
        DATA_AND_TENSOR as DATA_AND_TENSOR,
        DRAFTS_BESIDE as DRAFTS_BESIDE,
        EXPERT_PARALLEL as EXPERT_PARALLEL,
        FULLY_SHARDED as FULLY_SHARDED,
        REPLICATED as REPLICATED,
        TENSOR_PARALLEL as TENSOR_PARALLEL,
        Rules as Rules,
        default_rules as default_rules,
    )

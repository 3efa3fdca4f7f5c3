"""Splits models over many devices: logical axes, the rules that map them to a mesh, and `shard`."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.sharding.multihost import join as join
    from jaxspec.sharding.params import check_devices as check_devices
    from jaxspec.sharding.params import parameter_axes as parameter_axes
    from jaxspec.sharding.params import parameter_shardings as parameter_shardings
    from jaxspec.sharding.params import placed as placed
    from jaxspec.sharding.params import shard as shard
    from jaxspec.sharding.params import shard_models as shard_models
    from jaxspec.sharding.placement import Placement as Placement
    from jaxspec.sharding.placement import put as put
    from jaxspec.sharding.placement import to_host as to_host
    from jaxspec.sharding.rules import DATA_AND_TENSOR as DATA_AND_TENSOR
    from jaxspec.sharding.rules import DRAFTS_BESIDE as DRAFTS_BESIDE
    from jaxspec.sharding.rules import FULLY_SHARDED as FULLY_SHARDED
    from jaxspec.sharding.rules import REPLICATED as REPLICATED
    from jaxspec.sharding.rules import TENSOR_PARALLEL as TENSOR_PARALLEL
    from jaxspec.sharding.rules import Rules as Rules
    from jaxspec.sharding.rules import default_rules as default_rules

__getattr__, __dir__ = lazy(
    __name__,
    {
        "multihost": ("join",),
        "params": (
            "check_devices",
            "parameter_axes",
            "parameter_shardings",
            "placed",
            "shard",
            "shard_models",
        ),
        "placement": ("Placement", "put", "to_host"),
        "rules": (
            "DATA_AND_TENSOR",
            "DRAFTS_BESIDE",
            "FULLY_SHARDED",
            "REPLICATED",
            "TENSOR_PARALLEL",
            "Rules",
            "default_rules",
        ),
    },
)

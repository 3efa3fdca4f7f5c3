"""Describes GPUs to their compiler, which comes with `jax[cuda]` and needs none of them."""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Mapping
from types import MappingProxyType

from jax.experimental import topologies

from jaxspec.bench.compiled.chips import Chip

_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
# Keeps the plugin from asking for a driver.
_ENVIRONMENT = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
_DEVICE = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {shared} shared_memory_per_block_optin: {optional}
  core_count: {cores} fpus_per_core: {units} clock_rate_ghz: {clock}
  memory_bandwidth: {bandwidth} l2_cache_size: {cache} device_memory_size: {memory}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability {{ major: {major} }}
  driver_version: "12.8.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
"""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Gives the sizes of a GPU that its compiler asks for.

    Attributes:
      name: the `device_kind`.
      major: of its compute capability, whose minor number is 0.
      cores: streaming multiprocessors.
      units: float32 units of each.
      clock: gigahertz.
      memory: bytes of main memory.
      bandwidth: bytes of it that can be read in a second.
      cache: bytes of its L2 cache.
      shared: bytes of shared memory of a core.
      optional: those that a block may have.
    """

    name: str
    major: int
    cores: int
    units: int
    clock: float
    memory: int
    bandwidth: int
    cache: int
    shared: int
    optional: int


# NVIDIA's data sheets; memory and shared memory are as drivers report them.
GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "h100": Gpu("NVIDIA H100 80GB HBM3", 9, 132, 128, 1.98, 84942979072, 3352320000000, 52428800, 233472, 232448),
        "a100": Gpu("NVIDIA A100-SXM4-80GB", 8, 108, 64, 1.41, 85100068864, 2039040000000, 41943040, 167936, 166912),
    }
)
_TOPOLOGY = re.compile(rf"({'|'.join(GPUS)}):(\d+)")


def is_gpu(topology: str) -> bool:
    """Returns whether a topology is of GPUs: `h100:4`."""
    return topology.partition(":")[0] in GPUS


def devices(topology: str) -> tuple[list, Chip]:
    """Returns the devices of a topology such as `h100:4`, and the sizes of each.

    Raises:
      ValueError: there is no such topology.
      ImportError: the compiler is not installed.
    """
    if not any(importlib.util.find_spec(name) for name in _PLUGINS):
        raise ImportError("the GPU compiler is not installed; `pip install 'jax[cuda]'` brings it")
    if (match := _TOPOLOGY.fullmatch(topology)) is None or int(match[2]) < 1:
        raise ValueError(f"topology must be a GPU and how many there are, such as h100:4, got {topology!r}")
    gpu, count = GPUS[match[1]], int(match[2])
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    described = topologies.get_topology_desc(
        platform="cuda", topology_name="", target_config=_DEVICE.format(**vars(gpu)), topology=f"1x1x{count}"
    )
    return list(described.devices), Chip(gpu.memory, gpu.bandwidth, gpu.clock * 1e9)

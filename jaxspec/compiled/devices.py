"""Describes absent devices to their compilers, which come with `jax[tpu]` and `jax[cuda]`."""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh


@dataclasses.dataclass(frozen=True)
class Chip:
    """Holds the sizes of a TPU chip or a GPU, or of one device of a chip with several.

    Attributes:
      memory: bytes of main memory.
      bandwidth: bytes of main memory read per second.
      clock: cycles per second.
      flops: multiplications and additions of bfloat16 products per second.
    """

    memory: int
    bandwidth: float
    clock: float
    flops: float = math.inf

    def part(self, count: int) -> Self:
        """Returns one of the `count` devices of a chip."""
        own = {"memory": self.memory // count, "bandwidth": self.bandwidth / count, "flops": self.flops / count}
        return dataclasses.replace(self, **own)


# TPUs by `device_kind`, from Cloud TPU's documentation.
CHIPS = {
    "TPU v4": Chip(32 * 2**30, 1.228e12, 1.05e9, 275e12),
    "TPU v5 lite": Chip(16 * 2**30, 0.819e12, 1.5e9, 197e12),
    "TPU v5": Chip(95 * 2**30, 2.765e12, 1.75e9, 459e12),
    "TPU v6 lite": Chip(32 * 2**30, 1.64e12, 1.75e9, 918e12),
    "TPU7x": Chip(192 * 2**30, 7.38e12, 1.9e9, 2307e12),
}
# Keeps the compiler from querying a machine that is not a TPU.
_TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_TPU_TOPOLOGY = re.compile(r"\w+:\d+(x\d+)+")


def tpus(topology: str) -> tuple[list, Chip]:
    """Returns the devices of a topology such as `v5e:2x2`, and the sizes of one.

    Raises:
      ValueError: if there is no such topology.
      ImportError: if the compiler is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError("the TPU compiler is not installed; run `pip install 'jax[tpu]'`")
    for name, value in _TPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not _TPU_TOPOLOGY.fullmatch(topology):
        raise ValueError(f"topology must be a generation and its extent, such as v5e:2x2, got {topology!r}")
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology, **_options(topology))
        devices = described.devices
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise ValueError(f"the TPU compiler does not know the topology {topology!r}: {error}") from error
    kind = devices[0].device_kind
    if kind not in CHIPS:
        raise ValueError(f"{topology} has devices of kind {kind!r}, of which only {', '.join(CHIPS)} are known")
    chips = math.prod(int(size) for size in re.findall(r"\d+", topology.split(":")[1]))
    return devices, CHIPS[kind].part(len(devices) // chips)


def _options(topology: str) -> dict[str, str]:
    """Returns the options that make one device of both cores of a v4, as JAX does on real ones."""
    return {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}


_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
# Keeps the plugin from requiring a driver.
_GPU_ENVIRONMENT = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
_GPU = """
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
    """Holds the sizes of a GPU that its compiler needs.

    Attributes:
      name: `device_kind` of the GPU.
      major: major number of its compute capability; the minor number is 0.
      cores: number of streaming multiprocessors.
      units: number of float32 units per core.
      clock: clock rate in gigahertz.
      memory: bytes of main memory.
      bandwidth: bytes of main memory read per second.
      cache: bytes of L2 cache.
      shared: bytes of shared memory per core.
      optional: bytes of shared memory that a block may request.
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


# From NVIDIA's data sheets; memory and shared memory as reported by drivers.
GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "h100": Gpu("NVIDIA H100 80GB HBM3", 9, 132, 128, 1.98, 84942979072, 3352320000000, 52428800, 233472, 232448),
        "a100": Gpu("NVIDIA A100-SXM4-80GB", 8, 108, 64, 1.41, 85100068864, 2039040000000, 41943040, 167936, 166912),
    }
)
_GPU_TOPOLOGY = re.compile(rf"({'|'.join(GPUS)}):(\d+)")


def is_gpu(topology: str) -> bool:
    """Returns whether a topology consists of GPUs, such as `h100:4`."""
    return topology.partition(":")[0] in GPUS


def gpus(topology: str) -> tuple[list, Chip]:
    """Returns the devices of a topology such as `h100:4`, and the sizes of one.

    Raises:
      ValueError: if there is no such topology.
      ImportError: if the compiler is not installed.
    """
    if not any(importlib.util.find_spec(name) for name in _PLUGINS):
        raise ImportError("the GPU compiler is not installed; run `pip install 'jax[cuda]'`")
    if (match := _GPU_TOPOLOGY.fullmatch(topology)) is None or int(match[2]) < 1:
        raise ValueError(f"topology must be a GPU and a number of them, such as h100:4, got {topology!r}")
    gpu, count = GPUS[match[1]], int(match[2])
    for name, value in _GPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    described = topologies.get_topology_desc(
        platform="cuda", topology_name="", target_config=_GPU.format(**vars(gpu)), topology=f"1x1x{count}"
    )
    return list(described.devices), Chip(gpu.memory, gpu.bandwidth, gpu.clock * 1e9)


def mesh_of(devices: list) -> Mesh:
    """Returns a mesh with one axis per prime factor of the number of devices, so that any divisor can split arrays."""
    sizes, rest = [], len(devices)
    for factor in range(2, rest + 1):
        while rest % factor == 0:
            sizes.append(factor)
            rest //= factor
    return Mesh(np.array(devices).reshape(sizes), tuple(f"model_{index}" for index in range(len(sizes))))

"""Compiles the real `generate` for TPUs and GPUs that need not be here.

Their compilers come with `jax[tpu]` and `jax[cuda]` and run on any machine: they are given shapes and the
description of a topology, and return the program that the devices would run.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxspec
from jaxspec.bench.compiled import cache_kernels, gpus, machine_code
from jaxspec.bench.compiled.chips import CHIPS, Chip
from jaxspec.bench.compiled.heads import HEAD_DRAFTS, OF_LARGE, head_drafter, parse
from jaxspec.bench.compiled.placed import HEAD_WEIGHTS, WEIGHTS, placed
from jaxspec.checkpoints.params import abstract_model
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.families.shapes import shape
from jaxspec.named import DRAFTERS
from jaxspec.nn.cache import BLOCK
from jaxspec.nn.language_model import LanguageModel

_TOPOLOGY = re.compile(r"\w+:\d+(x\d+)+")
_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The compiler's error where a program does not fit: all that it needs, or already its temporaries.
_OUT_OF_MEMORY = re.compile(r"(?:Used |temporaries \()([\d.]+)([BKMGT])(?: of|\) exceeds)")
# Parameters of a target from which on a block's drafter is worth its own.
_LARGE = 4e9
# Callers that an operation remembers. With int8 weights and EAGLE a compilation takes a minute up to 20 of them, and
# hours with the 50 of a command.
_FRAMES = 10
# Keeps the compiler from asking a machine that is no TPU about itself.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


# Drafted tokens a round, where nothing is said.
_DRAFTS = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """Names a program to compile, and the devices it is for.

    Attributes:
      model: the target, a name of `SHAPES` or a `config.json`.
      draft: the same, a drafter without weights, a head by its sizes (`jaxspec.bench.compiled.heads`), or `none` for
        plain decoding.
      topology: as the TPU compiler names it, such as `v5e:2x2`.
      k: drafted tokens a round.
      batch: rows.
      context: slots of the cache a row, all of them live.
      devices: how many of the topology's devices; `None` is all.
      weights: of target and draft, a name in `WEIGHTS`.
      rows: fills the target's passes up to so many tokens (`jaxspec.nn.bit_exact`); `None` does not.
      top_k: keeps so many tokens, a traced value; `None` keeps all and costs nothing.
      top_p: keeps so much of the mass, a traced value; `None` keeps all and costs nothing.
      kernels: of attention and of the write into caches: `xla`, `pallas`, or `auto`, what `jaxspec.load` chooses there.
      draft_devices: over how many of the devices a draft model's weights are split; `None` is all. The rest hold the
        same.
    """

    model: str
    draft: str = "none"
    topology: str = "v5e:2x2"
    k: int = _DRAFTS
    batch: int = 1
    context: int = 2048
    devices: int | None = None
    weights: str = "bfloat16"
    rows: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    kernels: str = "auto"
    draft_devices: int | None = None

    def __post_init__(self):
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {self.weights!r}")
        if self.kernels not in cache_kernels.NAMES:
            raise ValueError(f"kernels must be one of {', '.join(cache_kernels.NAMES)}, got {self.kernels!r}")
        # Half of the context is the prompt, and what is written besides the drafts at least nothing.
        context = max(BLOCK, 2 * (self.k + 1))
        least = {"k": 0 if self.draft == NoDrafter.name else 1, "batch": 1, "context": context}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}; None keeps all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}; None keeps all tokens")
        no_model = parse(self.draft) is not None or self.draft.partition(":")[0] in (NoDrafter.name, *DRAFTERS)
        if self.draft_devices is not None and no_model:
            raise ValueError(
                f"draft_devices is about draft models, got the draft {self.draft!r}; pass a model, or leave it out"
            )


def default_draft(model: str) -> str:
    """Returns what drafts for a model where nothing is said: a block in one pass from 4B on, below that copies.

    Raises:
      ValueError: there is no such model.

    Example:
      >>> from jaxspec.bench.ahead_of_time import default_draft
      >>> default_draft("qwen3-4b"), default_draft("llama-3.2-1b")
      ('dflash', 'ngram')
    """
    parameters = sum(x.size for x in jax.tree.leaves(abstract_model(shape(model), jnp.bfloat16).params))
    return OF_LARGE if parameters >= _LARGE else next(iter(DRAFTERS))


def default_k(draft: str) -> int:
    """Returns how many tokens a round drafts where nothing is said: all of a block or of heads, else 4."""
    if draft == NoDrafter.name:
        return 0
    found = parse(draft)
    return _DRAFTS if found is None else found[0].drafts(found[1])


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Holds a program for one device of a topology.

    Attributes:
      text: its HLO; empty if it does not fit.
      memory: bytes of main memory that it needs.
      chip: the device.
      devices: how many run it together.
      target: its shapes.
      drafter: those of what drafts, if anything does.
      code: its machine code, if the compiler wrote it.
    """

    text: str
    memory: int
    chip: Chip
    devices: int
    target: LanguageModel
    drafter: Drafter | None
    code: machine_code.Written = machine_code.NOTHING


def compile_case(case: Case) -> Compiled:
    """Compiles `generate` for a case.

    Raises:
      ValueError: there is no such topology or model, or it has fewer devices than asked for.
      ImportError: the compiler is not installed.
    """
    platform, describe = ("cuda", gpus.devices) if gpus.is_gpu(case.topology) else ("tpu", _tpus)
    found, chip = describe(case.topology)
    devices = found[: case.devices]
    if case.devices is not None and not 1 <= case.devices <= len(found):
        raise ValueError(f"devices must be 1 to the {len(found)} of {case.topology}, got {case.devices}")
    mesh = _mesh(devices)
    target = placed(case.model, mesh, case.weights)
    drafter = _drafter(case, target, mesh)
    target, drafter = cache_kernels.choose(target, drafter, case.kernels, devices[0].device_kind)
    replicate = NamedSharding(mesh, PartitionSpec())
    like = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=replicate)  # noqa: E731
    k = 0 if drafter is None else drafter.max_drafts

    def generate(target, drafter, prompt, key, sampling):
        return jaxspec.generate(
            target,
            drafter,
            prompt,
            key=key,
            sampling=sampling,
            max_new_tokens=case.context // 2 - k - 1,
            capacity=case.context - k - 1,
            bit_exact=case.rows is not None,
            rows=case.rows,
        )

    prompt = like((case.batch, case.context // 2), jnp.int32)
    given = {"temperature": (1.0, jnp.float32), "top_k": (case.top_k, jnp.int32), "top_p": (case.top_p, jnp.float32)}
    sampled: dict[str, Any] = {name: like((), kind) for name, (value, kind) in given.items() if value is not None}
    sampling = jaxspec.Sampling(**sampled)
    arguments = (target, drafter, prompt, like((), jax.random.key(0).dtype), sampling)
    with _few_frames():
        lowered = jax.jit(generate).trace(*arguments).lower(lowering_platforms=(platform,))
    machine_code.collect()  # what else was compiled is none of this
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if (used := _OUT_OF_MEMORY.search(str(error))) is None:
            raise
        return Compiled("", int(float(used[1]) * _UNITS[used[2]]), chip, len(devices), target, drafter)
    parts = ("argument", "output", "temp", "generated_code")
    sizes: Any = program.memory_analysis()
    memory = sum(getattr(sizes, f"{part}_size_in_bytes") for part in parts) - sizes.alias_size_in_bytes
    code = machine_code.collect()
    return Compiled(program.as_text() or "", memory, chip, len(devices), target, drafter, code)


@contextlib.contextmanager
def _few_frames() -> Iterator[None]:
    """Has operations remember their innermost callers alone: the TPU compiler took hours over those of a deep stack."""
    before: int = getattr(jax.config, "jax_traceback_in_locations_limit")  # noqa: B009 (its stub lacks it)
    jax.config.update("jax_traceback_in_locations_limit", _FRAMES)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def _tpus(topology: str) -> tuple[list, Chip]:
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError("the TPU compiler is not installed; `pip install 'jax[tpu]'` brings it")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    machine_code.ask_for_it()
    if not _TOPOLOGY.fullmatch(topology):
        raise ValueError(f"topology must be a generation and its extent, such as v5e:2x2, got {topology!r}")
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology, **_options(topology))
        devices = described.devices
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise ValueError(f"{topology!r} is no topology that the TPU compiler knows: {error}") from error
    kind = devices[0].device_kind
    if kind not in CHIPS:
        raise ValueError(f"{topology} has devices of kind {kind!r}, of which only {', '.join(CHIPS)} are known")
    chips = math.prod(int(size) for size in re.findall(r"\d+", topology.split(":")[1]))
    return devices, CHIPS[kind].part(len(devices) // chips)


def _options(topology: str) -> dict[str, str]:
    """Returns what makes devices of chips as JAX does on them: both cores of a v4 are one."""
    return {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}


def _mesh(devices: list) -> Mesh:
    """Returns a mesh with an axis for each prime factor of their number, so that any part can split an array."""
    sizes, rest = [], len(devices)
    for factor in range(2, rest + 1):
        while rest % factor == 0:
            sizes.append(factor)
            rest //= factor
    return Mesh(np.array(devices).reshape(sizes), tuple(f"model_{index}" for index in range(len(sizes))))


def _drafter(case: Case, target: LanguageModel, mesh: Mesh) -> Drafter | None:
    if case.draft == NoDrafter.name:
        return None
    word, colon, argument = case.draft.partition(":")
    if word in DRAFTERS:
        return DRAFTERS[word].by_name(target, argument if colon else None, case.k)
    if word in HEAD_DRAFTS:
        plain = abstract_model(target.module.config, jnp.bfloat16)
        return head_drafter(case.draft, target, plain, case.k, HEAD_WEIGHTS[case.weights])
    return ModelDrafter(placed(case.draft, mesh, case.weights, case.draft_devices), k=case.k)

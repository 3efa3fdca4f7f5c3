"""Compiles the real `generate`, or a server's step, for TPUs and GPUs, which need not be present.

Their compilers come with `jax[tpu]` and `jax[cuda]` and run on any machine: they take shapes and the
description of a topology, and return the program that the devices would run.
"""

import contextlib
import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxspec
from jaxspec.checkpoints.params import abstract_model
from jaxspec.compiled import devices, serving_step
from jaxspec.compiled.devices import Chip
from jaxspec.compiled.heads import HEAD_DRAFTERS, OF_LARGE, head_drafter, parse
from jaxspec.core import validate
from jaxspec.core.model import CacheKernels
from jaxspec.decoding.room import bucket
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.families.table import shape
from jaxspec.nn.cache import BLOCK
from jaxspec.nn.chosen_kernels import kernels_for, kernels_like, with_kernels
from jaxspec.nn.convert import pack_weights, quantize_weights
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network
from jaxspec.ops.formats import FORMATS
from jaxspec.sharding.params import shard
from jaxspec.sharding.rules import Rules, pieces
from jaxspec.text.names import AUTO, DRAFTERS, NONE

_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The compiler's error for a program that does not fit: names its total memory, or that of its temporaries.
_OUT_OF_MEMORY = re.compile(r"(?:Used |temporaries \()([\d.]+)([BKMGT])(?: of|\) exceeds)")
# Parameters of a target above which a block drafter is worth its parameters.
_LARGE = 4e9
# Callers recorded per operation. With int8 weights and EAGLE a compilation takes a minute with up to 20 of them, and
# hours with the 50 of a command.
_FRAMES = 10


_GROUP = 128
# By name, for commands.
WEIGHTS: Mapping[str, Callable[[LanguageModel], LanguageModel]] = MappingProxyType(
    {
        "bfloat16": lambda model: model,
        "int8": quantize_weights,
        "int4": functools.partial(quantize_weights, bits=4, group=_GROUP),
    }
)
# Packs a head's weights, by name.
_GROUPED: Any = FORMATS["grouped"]
HEAD_WEIGHTS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "bfloat16": lambda head: head,
        "int8": lambda head: pack_weights(head, FORMATS["int8"].pack),
        "int4": lambda head: pack_weights(head, functools.partial(_GROUPED.pack, dtype=jnp.int4, group=_GROUP)),
    }
)
_Tree = TypeVar("_Tree")
# For commands; the first is the choice of `jaxspec.load`.
KERNELS = ("auto", *get_args(CacheKernels))
# Default number of drafted tokens per round.
_DRAFTS = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """Describes a program to compile, and the devices that it is for.

    Attributes:
      model: target: a name in `SHAPES` or a `config.json`.
      drafter: draft model (also a name or a `config.json`), a drafter without weights, a head by its sizes
        (`jaxspec.compiled.heads`), or `none` for plain decoding.
      topology: name of the topology for the compiler, such as `v5e:2x2`.
      k: number of drafted tokens per round.
      batch: number of rows.
      context: number of cache slots per row, all of them live.
      devices: number of devices to use; `None` uses all of the topology.
      weights: weights of target and draft, a name in `WEIGHTS`.
      pass_tokens: number of tokens to pad the target's passes to (`jaxspec.nn.bit_exact`); `None` does not pad.
      top_k: number of tokens to keep, a traced value; `None` keeps all and costs nothing.
      top_p: probability to keep, a traced value; `None` keeps all and costs nothing.
      kernels: kernels of attention and of cache writes: `xla`, `pallas`, or `auto` for the choice of `jaxspec.load`.
      draft_devices: number of devices that a draft model's weights are split over; `None` is all. The others hold
        copies.
      slots: number of a server's slots, all with a live row: compiles `jaxspec.serving.advance` as `jaxspec.Engine`
        calls it. `None` compiles `jaxspec.generate` for `batch` rows.
    """

    model: str
    drafter: str = "none"
    topology: str = "v5e:2x2"
    k: int = _DRAFTS
    batch: int = 1
    context: int = 2048
    devices: int | None = None
    weights: str = "bfloat16"
    pass_tokens: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    kernels: str = "auto"
    draft_devices: int | None = None
    slots: int | None = None

    def __post_init__(self):
        validate.one_of("weights", self.weights, WEIGHTS)
        validate.one_of("kernels", self.kernels, KERNELS)
        # Half of the context is the prompt; the other half must hold a round's drafts and one more token.
        context = max(BLOCK, 2 * (self.k + 1))
        least = {"k": 0 if self.drafter == NONE else 1, "batch": 1, "context": context}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}; leave it out to keep all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}; leave it out to keep all tokens")
        if self.slots is not None:
            self._check_slots(self.slots)
        no_model = parse(self.drafter) is not None or self.drafter.partition(":")[0] in (NONE, *DRAFTERS)
        if self.draft_devices is not None and no_model:
            raise ValueError(
                f"draft_devices applies to draft models, got the drafter {self.drafter!r}; pass a model or leave it out"
            )

    def _check_slots(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        if self.batch != 1:
            raise ValueError(f"slots are the rows of a server, got batch={self.batch} too; pass one of the two")
        if self.pass_tokens is not None:
            raise ValueError(f"pass_tokens applies to generate, got {self.pass_tokens} with slots; leave out one")
        if self.context != bucket(self.context):
            raise ValueError(
                f"the context of slots is a capacity, rounded up to 1024, 1536, 2048, 3072, ..., got {self.context}; "
                f"pass {bucket(self.context)}"
            )

    @property
    def rows(self) -> int:
        """Number of rows of a round."""
        return self.batch if self.slots is None else self.slots


def default_drafter(model: str) -> str:
    """Returns the default drafter for a model: DFlash blocks from 4B parameters on, n-grams below.

    Raises:
      ValueError: if there is no such model.

    Example:
      >>> from jaxspec.compiled.ahead_of_time import default_drafter
      >>> default_drafter("qwen3-4b"), default_drafter("llama-3.2-1b")
      ('dflash', 'ngram')
    """
    parameters = sum(x.size for x in jax.tree.leaves(abstract_model(shape(model), jnp.bfloat16).params))
    return OF_LARGE if parameters >= _LARGE else AUTO


def default_k(drafter: str) -> int:
    """Returns the default number of drafted tokens per round: all of a block or of heads, else 4."""
    if drafter == NONE:
        return 0
    found = parse(drafter)
    return _DRAFTS if found is None else found[0].drafts(found[1])


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Holds a compiled program for one device of a topology.

    Attributes:
      text: HLO of the program; empty if it does not fit.
      memory: bytes of main memory that it needs.
      chip: sizes of the device.
      devices: number of devices that run it together.
      target: shapes of the target.
      drafter: shapes of the drafter; `None` for plain decoding.
    """

    text: str
    memory: int
    chip: Chip
    devices: int
    target: LanguageModel
    drafter: Drafter | None


def compile_case(case: Case) -> Compiled:
    """Compiles `generate`, or a server's step, for a case.

    Raises:
      ValueError: if there is no such topology or model, or the topology has fewer devices than requested.
      ImportError: if the compiler is not installed.
    """
    platform, describe = ("cuda", devices.gpus) if devices.is_gpu(case.topology) else ("tpu", devices.tpus)
    found, chip = describe(case.topology)
    chosen = found[: case.devices]
    if case.devices is not None and not 1 <= case.devices <= len(found):
        raise ValueError(f"devices must be 1 to the {len(found)} of {case.topology}, got {case.devices}")
    mesh = devices.mesh_of(chosen)
    target = placed(case.model, mesh, case.weights)
    drafter = _drafter(case, target, mesh)
    target, drafter = with_cache_kernels(target, drafter, case.kernels, chosen[0].device_kind)
    function, arguments, donated = _call(case, target, drafter, mesh)
    with _few_frames():
        lowered = jax.jit(function, donate_argnums=donated).trace(*arguments).lower(lowering_platforms=(platform,))
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if (used := _OUT_OF_MEMORY.search(str(error))) is None:
            raise
        return Compiled("", int(float(used[1]) * _UNITS[used[2]]), chip, len(chosen), target, drafter)
    parts = ("argument", "output", "temp", "generated_code")
    sizes: Any = program.memory_analysis()
    memory = sum(getattr(sizes, f"{part}_size_in_bytes") for part in parts) - sizes.alias_size_in_bytes
    return Compiled(program.as_text() or "", memory, chip, len(chosen), target, drafter)


def _call(
    case: Case, target: LanguageModel, drafter: Drafter | None, mesh: Mesh
) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]:
    """Returns the function of a case, the shapes of its arguments, and which of these it may overwrite."""
    replicate = NamedSharding(mesh, PartitionSpec())
    like = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=replicate)  # noqa: E731
    given = {"temperature": (1.0, jnp.float32), "top_k": (case.top_k, jnp.int32), "top_p": (case.top_p, jnp.float32)}
    sampled: dict[str, Any] = {name: like((), kind) for name, (value, kind) in given.items() if value is not None}
    sampling = jaxspec.Sampling(**sampled)
    if case.slots is not None:
        held = serving_step.arguments_of(target, drafter, sampling, rows=case.slots, capacity=case.context)
        return serving_step.step, held, serving_step.DONATED
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
            bit_exact=case.pass_tokens is not None,
            pass_tokens=case.pass_tokens,
        )

    prompt = like((case.batch, case.context // 2), jnp.int32)
    return generate, (target, drafter, prompt, like((), jax.random.key(0).dtype), sampling), ()


@contextlib.contextmanager
def _few_frames() -> Iterator[None]:
    """Records only the innermost callers of operations: the TPU compiler took hours over those of a deep stack."""
    before: int = getattr(jax.config, "jax_traceback_in_locations_limit")  # noqa: B009 (its stub lacks it)
    jax.config.update("jax_traceback_in_locations_limit", _FRAMES)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def _drafter(case: Case, target: LanguageModel, mesh: Mesh) -> Drafter | None:
    if case.drafter == NONE:
        return None
    word = case.drafter.partition(":")[0]
    if word in DRAFTERS:
        return DRAFTERS[word].make(case.drafter, target, case.k)
    if word in HEAD_DRAFTERS:
        plain = abstract_model(target.module.config, jnp.bfloat16)
        return head_drafter(case.drafter, target, plain, case.k, HEAD_WEIGHTS[case.weights])
    return ModelDrafter(placed(case.drafter, mesh, case.weights, case.draft_devices), k=case.k)


def placed(name: str, mesh: Mesh, weights: str, devices: int | None = None) -> LanguageModel:
    """Returns the shapes of a model split over `devices` devices; the others hold copies."""
    config = shape(name)
    model = jax.eval_shape(WEIGHTS[weights], abstract_model(config, jnp.bfloat16))
    axes = _last_axes(mesh, devices or mesh.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays that are not split are visible in the bytes
        return shard(model, mesh, Rules.tensor_parallel(config, mesh, axes))


def _last_axes(mesh: Mesh, devices: int) -> tuple[str, ...]:
    """Returns the trailing axes of a mesh whose sizes multiply to `devices`."""
    sizes = {
        pieces(mesh, mesh.axis_names[start:]): mesh.axis_names[start:] for start in range(len(mesh.axis_names) + 1)
    }
    if devices not in sizes:
        raise ValueError(f"draft_devices must be one of {', '.join(map(str, sorted(sizes)))}, got {devices}")
    return sizes[devices]


def with_cache_kernels(target: LanguageModel, drafter: _Tree, name: str, kind: str) -> tuple[LanguageModel, _Tree]:
    """Sets the kernels of the caches of a target and its drafter.

    Args:
      target: model whose caches get the kernels.
      drafter: pytree that may contain models, whose caches get them too.
      name: one of `KERNELS`.
      kind: `device_kind` of the devices.
    """
    own = kernels_for(kind, target.module.config.head_dim)
    target = with_kernels(target, own if name == "auto" else cast(CacheKernels, name))
    is_model = lambda node: isinstance(node, Network)  # noqa: E731
    like = lambda node: kernels_like(target, node) if is_model(node) else node  # noqa: E731
    return target, jax.tree.map(like, drafter, is_leaf=is_model)

"""From the arguments a person passes to the arrays and static sizes the loop runs on."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Int, Key

from jaxspec.core import validate
from jaxspec.core.model import Model, Unsharded, placement_of
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import row_keys
from jaxspec.core.sampling import Policy, Sampling
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.sharding.params import check_devices, shard_models
from jaxspec.sharding.placement import Placement
from jaxspec.sharding.rules import DRAFTS_BESIDE
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.tree import TreeVerifier

_SMALLEST_BUCKET = 16


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked of each row. Every leaf has the batch as its first axis.

    A policy other than `Sampling` may have leaves of any shape; it travels with the players.
    """

    prompt: Int[Array, "b t"]
    prompt_length: Int[Array, "b"]
    max_new_tokens: Int[Array, "b"]
    stop_tokens: Int[Array, "b n_stop"]
    keys: Key[Array, "b"]
    sampling: Policy | None

    def split_policy(self) -> tuple[Self, Policy | None]:
        """What has one value a row, and the policy where that is not known of it: only of `Sampling` it is."""
        if isinstance(self.sampling, Sampling):
            return self, None
        return dataclasses.replace(self, sampling=None), self.sampling


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A checked request.

    Attributes:
      target: as passed, on the mesh if there is one.
      drafter: the same, or `NoDrafter`.
      verifier: as passed, or the default.
      request: the arrays.
      max_new: how many new tokens a row of the buffers holds (a bucket).
      width: how many of them the caller asked to get back.
      placement: how rows are split over devices, and what gives results back whole.
    """

    target: Model
    drafter: Drafter
    verifier: Verifier
    request: Request
    max_new: int
    width: int
    placement: Any


def prepare(
    target: Model,
    drafter: Drafter | None,
    prompt: Any,
    *,
    prompt_length: Any,
    key: Any,
    sampling: Policy,
    verifier: Verifier | None,
    max_new_tokens: Any,
    stop_tokens: Any,
    capacity: int | None,
    lossy: bool,
    mesh: Mesh | None,
) -> Prepared:
    """Checks everything and pads shapes to buckets, so that nearby requests share a program.

    Raises:
      TypeError, ValueError: for whatever does not fit; the text says what to pass instead.
    """
    drafter = NoDrafter() if drafter is None else drafter
    check_kinds(target, drafter, verifier, sampling)
    verifier = default_verifier(drafter) if verifier is None else verifier
    verifier.check(drafter)
    if isinstance(prompt, list | tuple):
        prompt = _as_array(prompt)
    validate.prompt(prompt, prompt_length, target.vocab_size)
    batch, width = prompt.shape
    validate.sampling(sampling, batch)
    validate.max_new_tokens(max_new_tokens, batch)
    validate.capacity(capacity)
    validate.key_needed(key, sampling)
    validate.lossy_allowed(verifier.lossless, lossy, type(verifier).__name__)
    drafter.check(target)
    max_new, returned = _new_slots(target, drafter, width, prompt_length, max_new_tokens, capacity)
    lengths = jnp.asarray(width if prompt_length is None else prompt_length, jnp.int32)
    # The bucket has room for more than was passed: a traced length beyond that is an error still.
    lengths = jnp.where(lengths <= width, lengths, 0)
    padded = bucket(width)
    request = Request(
        prompt=jnp.pad(validate.to_int32(prompt), ((0, 0), (0, padded - width))),
        prompt_length=jnp.broadcast_to(lengths, (batch,)),
        max_new_tokens=jnp.broadcast_to(validate.to_int32(max_new_tokens), (batch,)),
        stop_tokens=validate.stop_tokens(stop_tokens, batch, target.vocab_size),
        keys=row_keys(jax.random.key(0) if key is None else key, batch),
        sampling=_per_row(sampling, batch),
    )
    if mesh is not None:
        target, drafter = shard_models((target, drafter), mesh)
    check_devices((target, drafter))
    placement = placement_of(target)
    if mesh is not None and isinstance(placement, Unsharded):
        placement = Placement.on(mesh, DRAFTS_BESIDE.within(mesh))
    placement.check_same(
        {
            "target": target,
            "drafter": drafter,
            "verifier and lossy": (verifier, lossy),
            "prompts, lengths, keys, sampling parameters, budgets and stop tokens": (request, max_new, returned),
        }
    )
    rows, shared = request.split_policy()
    rows = placement.rows(rows)
    request = rows if shared is None else dataclasses.replace(rows, sampling=shared)
    return Prepared(target, drafter, verifier, request, max_new, returned, placement)


def bucket(size: int) -> int:
    """The least of 16, 24, 32, 48, 64, 96, ... that is at least `size`."""
    power = _SMALLEST_BUCKET
    while power < size:
        if power + power // 2 >= size:
            return power + power // 2
        power *= 2
    return power


def default_verifier(drafter: Drafter) -> Verifier:
    """The verifier where none is named: the one that accepts most for what it costs.

    Plain decoding draws from the stream that `CoupledVerifier` shares with its drafters, so that
    coupled speculation gives the tokens of plain decoding with the same key.
    """
    if drafter.max_drafts == 0:
        return CoupledVerifier()
    if drafter.tree:
        return TreeVerifier() if drafter.deterministic else MultiDraftVerifier()
    return TokenVerifier() if drafter.deterministic else BlockVerifier()


def check_kinds(target, drafter, verifier, sampling) -> None:
    """Raises `TypeError` unless each player is an instance of what it should be; no verifier is fine."""
    kinds = ((target, Model, "target"), (drafter, Drafter, "drafter"), (verifier, Verifier, "verifier"))
    for value, kind, name in kinds[: 2 if verifier is None else 3]:
        if isinstance(value, type) or not isinstance(value, kind):
            raise TypeError(
                f"{name} must be a jaxspec {kind.__name__}, got {_kind(value)}; "
                "jaxspec.load, jaxspec.NGramDrafter, jaxspec.TokenVerifier and their kin make one"
            )
    if isinstance(sampling, type) or not isinstance(sampling, Policy):
        raise TypeError(f"sampling must be a policy, got {_kind(sampling)}; pass Greedy() or Sampling(temperature=...)")


def _kind(value: Any) -> str:
    return f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__


def _as_array(rows: Any) -> np.ndarray:
    try:
        return np.asarray(rows)
    except ValueError as error:
        raise ValueError(
            "prompt must be a rectangle, got rows of different lengths; pad them on the right and pass prompt_length"
        ) from error


def _new_slots(target, drafter, width, prompt_length, max_new_tokens, capacity) -> tuple[int, int]:
    """New-token slots of the buffers, and how many of them are returned."""
    contexts = {"target": target.context_length, "draft": drafter.context_length}
    if not validate.is_concrete(max_new_tokens):
        if capacity is None:
            raise ValueError(
                "max_new_tokens is traced, so the shape of the result is open; pass capacity=, "
                "the prompt's width plus the most new tokens there can be"
            )
        if capacity < width:
            raise ValueError(f"capacity must be at least the prompt's width {width}, got {capacity}")
        validate.fits(capacity, None, **contexts)
        return capacity - width, capacity - width
    most = int(np.max(np.asarray(max_new_tokens)))
    lengths = width if prompt_length is None or not validate.is_concrete(prompt_length) else np.asarray(prompt_length)
    validate.fits(int(np.max(lengths + np.asarray(max_new_tokens))), capacity, **contexts)
    return (bucket(most) if capacity is None else max(capacity - width, most)), most


def _per_row(policy: Policy, batch: int) -> Policy:
    """Sampling parameters as one value a row, so that a new value or mix is no new program."""
    if not isinstance(policy, Sampling):
        return policy
    dtypes = {"temperature": jnp.float32, "top_k": jnp.int32, "top_p": jnp.float32, "min_p": jnp.float32}
    spread = {
        name: jnp.broadcast_to(jnp.asarray(value, dtype), (batch,))
        for name, dtype in dtypes.items()
        if (value := getattr(policy, name)) is not None
    }
    return dataclasses.replace(policy, **spread)

"""Checks the arguments of `generate`, `init` and `stream`, and turns them into arrays and static sizes for the loop."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Int, Key

from jaxspec.core import check_policy, validate
from jaxspec.core.bit_exact import as_bit_exact
from jaxspec.core.layout import Layout, Unsharded, placement_of
from jaxspec.core.model import Model
from jaxspec.core.processing import Processor, processors_of, with_processors
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import row_keys
from jaxspec.core.report import Report
from jaxspec.core.sampling import Policy, Sampling
from jaxspec.core.values import is_concrete, to_int32
from jaxspec.decoding.drafting import check_drafting
from jaxspec.decoding.room import PerRow, bucket, make_room
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.draft_model import check_takes_trees
from jaxspec.sharding.params import check_devices, shard_models
from jaxspec.sharding.placement import Placement
from jaxspec.sharding.rules import DRAFTS_BESIDE
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.multi_draft import Rule
from jaxspec.verifiers.relaxed import RelaxedRule

# What a caller may pass, traced or not.
TokenIds: TypeAlias = Array | np.ndarray | Sequence[Sequence[int]]
StopTokens: TypeAlias = Array | np.ndarray | Sequence[int] | Sequence[Array | int] | Sequence[Sequence[int]]

# What to pass instead of something else.
_ADVICE = {
    Model: "what jaxspec.load, jaxspec.from_function or jaxspec.from_nnx returns",
    Drafter: "what jaxspec.load_drafter returns for a name, a drafter such as jaxspec.NGramDrafter(), or None",
    Verifier: "an instance such as jaxspec.BlockVerifier(), or None for the drafter's default",
}
# What the parts of a row are called where processes disagree.
_ASKED = "prompts, lengths, keys, sampling parameters, budgets and stop tokens"


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Holds the arguments that differ by row. Every leaf has the batch as its first axis, so a mapped one can be rows.

    Attributes:
      prompt: token ids, padded on the right to a bucket.
      prompt_length: the number of them that count.
      max_new_tokens: the budget.
      stop_tokens: ids that end a row; -1 pads.
      keys: threefry keys.
      sampling: a policy whose parameters are one value a row; `None` if `Arguments.policy` is given.
      processors: those of the policy whose arrays are one value a row; `None` in the place of others.
      max_drafts: the most drafts; `None` is the drafter's own limit.
      prediction: what the answer is expected to be; -1 pads.
    """

    prompt: Int[Array, "b t"]
    prompt_length: Int[Array, "b"]
    max_new_tokens: Int[Array, "b"]
    stop_tokens: Int[Array, "b n_stop"]
    keys: Key[Array, "b"]
    sampling: Sampling | None
    processors: tuple[Processor | None, ...]
    max_drafts: Int[Array, "b"] | None
    prediction: Int[Array, "b p"] | None


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Holds the checked arguments of one call, from `generate`, `init` or `stream` to the loop.

    Attributes:
      target: as passed, on the mesh if there is one.
      drafter: the same, or `NoDrafter`.
      verifier: as passed, or the default.
      policy: a policy other than `Sampling`, whose leaves may have any shape; else `None`.
      processors: those of the policy whose arrays all rows share; `None` in the place of others.
      rows: the arrays that differ by row, `Sampling` among them.
      report: what is returned beside the tokens.
      answers: how many each prompt gets.
      max_new: the new tokens that a row of the buffers holds (a bucket).
      placement: the layout of rows on devices, and of results.
    """

    target: Model
    drafter: Drafter
    verifier: Verifier
    policy: Policy | None
    processors: tuple[Processor | None, ...]
    rows: Rows
    report: Report = dataclasses.field(default=Report(), metadata={"static": True})
    answers: int = dataclasses.field(default=1, metadata={"static": True})
    max_new: int = dataclasses.field(metadata={"static": True})
    placement: Layout = dataclasses.field(metadata={"static": True})

    @property
    def sampling(self) -> Policy:
        """The sampling policy, of whichever of the two places has it."""
        sampling = self.rows.sampling if self.policy is None else self.policy
        assert sampling is not None
        pairs = zip(self.processors, self.rows.processors, strict=True)
        return with_processors(sampling, tuple(own if shared is None else shared for shared, own in pairs))

    @classmethod
    def check(
        cls,
        target: Model,
        drafter: Drafter | None,
        prompt: TokenIds,
        *,
        prompt_length: PerRow | None,
        key: Array | None,
        sampling: Policy,
        verifier: Verifier | None = None,
        max_new_tokens: PerRow | None,
        stop_tokens: StopTokens,
        capacity: int | None = None,
        lossy: bool = False,
        mesh: Mesh | None = None,
        bit_exact: bool = False,
        rows: int | None = None,
        report: Report = Report(),  # noqa: B008 (frozen and stateless)
        n: int = 1,
        max_drafts: PerRow | None = None,
        prediction: TokenIds | Sequence[int] | None = None,
    ) -> tuple[Self, int]:
        """Checks everything and pads shapes to buckets, so that nearby calls share a program.

        Returns:
          The arguments; and the slots of a result, the largest budget, or all where that is traced. It is no field of
          the arguments, where each budget would be a program of its own.

        Raises:
          TypeError, ValueError: for whatever does not fit; the text says what to pass instead.
        """
        drafter = NoDrafter() if drafter is None else drafter
        check_kinds(target, drafter, verifier, sampling)
        verifier = _verifier(verifier, drafter, lossy)
        target = as_bit_exact(target, bit_exact, rows, nodes=drafter.lengths[-1])
        ids = as_array(prompt)
        validate.prompt(ids, prompt_length, target.vocab_size)
        batch = ids.shape[0]
        check_policy.policy(sampling, batch, target.vocab_size)
        validate.max_new_tokens(max_new_tokens, batch)
        capacity = validate.capacity(capacity)
        check_policy.key_needed(key, sampling)
        _check_drafter(drafter, target)
        validate.counts("generate", n=n)
        shape = (batch * n, ids.shape[1])
        max_new_tokens, max_new = make_room(target, drafter, shape, prompt_length, max_new_tokens, capacity)
        stops = validate.stop_tokens(stop_tokens, batch, target.vocab_size)
        drafting = check_drafting(max_drafts, prediction, drafter, batch, target.vocab_size)
        by_row = _rows(ids, prompt_length, max_new_tokens, stops, key, sampling, drafting)
        target, drafter, placement = _on_mesh(target, drafter, mesh)
        policy = None if by_row.sampling else with_processors(sampling, ())
        shared = tuple(None if one.by_row else one for one in processors_of(sampling))
        width = int(np.max(np.asarray(max_new_tokens))) if is_concrete(max_new_tokens) else max_new
        said = {"target": target, "drafter": drafter, "verifier and lossy": (verifier, lossy)}
        placement.check_same(said | {_ASKED: ((by_row, policy, shared), max_new, n)})
        check_report(report, target.vocab_size)
        given = {"policy": policy, "processors": shared, "rows": placement.rows(by_row), "max_new": max_new}
        given |= {"report": report, "answers": n}
        return cls(target=target, drafter=drafter, verifier=verifier, placement=placement, **given), width


def _verifier(verifier: Verifier | None, drafter: Drafter, lossy: bool) -> Verifier:
    """Returns the verifier, or the drafter's default; it must be one for such drafts."""
    verifier = drafter.default_verifier if verifier is None else verifier
    verifier.check(drafter)
    validate.lossy_allowed(verifier.lossless, lossy, type(verifier).__name__)
    return verifier


def _check_drafter(drafter: Drafter, target: Model) -> None:
    drafter.check(target)
    if drafter.tree:
        check_takes_trees(type(drafter).__name__, target)


def _rows(
    ids: Any,
    prompt_length: PerRow | None,
    max_new_tokens: PerRow,
    stops: Any,
    key: Array | None,
    sampling: Policy,
    drafting: tuple[Int[Array, "b"] | None, Int[Array, "b p"] | None],
) -> Rows:
    """Makes the arrays of each row, the prompt padded to its bucket, from arguments that were checked."""
    batch, width = ids.shape
    return Rows(
        prompt=jnp.pad(to_int32(ids), ((0, 0), (0, bucket(width) - width))),
        prompt_length=_lengths(prompt_length, batch, width),
        max_new_tokens=jnp.broadcast_to(to_int32(max_new_tokens), (batch,)),
        stop_tokens=stops,
        keys=row_keys(jax.random.key(0) if key is None else key, batch),
        sampling=one_a_row(with_processors(sampling, ()), batch) if isinstance(sampling, Sampling) else None,
        processors=tuple(one.spread(batch) if one.by_row else None for one in processors_of(sampling)),
        max_drafts=drafting[0],
        prediction=drafting[1],
    )


def _on_mesh(target: Model, drafter: Drafter, mesh: Mesh | None) -> tuple[Model, Drafter, Layout]:
    """Returns both models, placed on the mesh if there is one, and the placement of the call's rows."""
    if mesh is not None:
        target, drafter = shard_models((target, drafter), mesh)
    check_devices((target, drafter))
    placement = placement_of(target)
    if mesh is not None and isinstance(placement, Unsharded):
        placement = Placement.on(mesh, DRAFTS_BESIDE.within(mesh))
    return target, drafter, placement


def check_report(report: object, vocab_size: int) -> None:
    """Raises `TypeError` or `ValueError` unless it is a `Report` that there are so many tokens for."""
    if not isinstance(report, Report):
        raise TypeError(f"report must be a jaxspec.core.Report, got {_kind(report)}; pass Report(alternatives=5), say")
    report.check(vocab_size)


def check_kinds(target: object, drafter: object, verifier: object, sampling: object) -> None:
    """Raises `TypeError` unless each argument is an instance of its kind; a verifier may be `None`."""
    kinds = ((target, Model, "target"), (drafter, Drafter, "drafter"), (verifier, Verifier, "verifier"))
    for value, kind, name in kinds[: 2 if verifier is None else 3]:
        if isinstance(value, type) or not isinstance(value, kind):
            advice = _of_rule(value) if name == "verifier" else None
            advice = advice or _ADVICE[kind]
            raise TypeError(f"{name} must be a jaxspec {kind.__name__}, got {_kind(value)}; pass {advice}")
    if isinstance(sampling, type) or not isinstance(sampling, Policy):
        raise TypeError(f"sampling must be a policy, got {_kind(sampling)}; pass Greedy() or Sampling(temperature=...)")


def check_target(target: object, sampling: object) -> None:
    """Raises `TypeError` unless these are a model and a policy."""
    check_kinds(target, NoDrafter(), None, sampling)


def _of_rule(value: object) -> str | None:
    """Returns the verifier that takes a rule; `None` if the value is none."""
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    if isinstance(value, Rule) or (isinstance(value, type) and issubclass(value, Rule)):
        return f"MultiDraftVerifier({name}())"
    if isinstance(value, RelaxedRule) or (isinstance(value, type) and issubclass(value, RelaxedRule)):
        return f"RelaxedVerifier({name}(...)) and lossy=True"
    return None


def _kind(value: Any) -> str:
    return f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__


def as_array(prompt: Any, names: tuple[str, str] = ("prompt", "prompt_length")) -> Any:
    """Makes an array of nested lists; returns anything else as it is, for `validate.prompt` to judge."""
    if not isinstance(prompt, list | tuple):
        return prompt
    try:
        return np.asarray(prompt)
    except ValueError as error:
        raise ValueError(
            f"{names[0]} must be a rectangle, got rows of different lengths; pad them on the right and pass {names[1]}"
        ) from error


def _lengths(prompt_length: PerRow | None, batch: int, width: int) -> Int[Array, "b"]:
    """Returns each row's prompt length; 0, which is an error, where a traced one exceeds the width that was passed."""
    lengths = to_int32(width if prompt_length is None else prompt_length)
    # The bucket has room for more than was passed: beyond it a length is an error still.
    return jnp.broadcast_to(jnp.where(lengths <= width, lengths, 0), (batch,))


def policy_by_row(policy: Policy, batch: int) -> Policy:
    """Spreads the values of a policy and of its processors to one a row, of those that may differ by row."""
    processors = tuple(one.spread(batch) if one.by_row else one for one in processors_of(policy))
    spread = one_a_row(policy, batch) if isinstance(policy, Sampling) else policy
    return with_processors(spread, processors)


def one_a_row(policy: Sampling, batch: int) -> Sampling:
    """Spreads sampling parameters to one value a row, so that a new value or mix is no new program."""
    as_float = lambda value: jnp.asarray(value, jnp.float32)  # noqa: E731
    spread = {
        name: jnp.broadcast_to((to_int32 if name == "top_k" else as_float)(value), (batch,))
        for name in ("temperature", "top_k", "top_p", "min_p")
        if (value := getattr(policy, name)) is not None
    }
    return dataclasses.replace(policy, **spread)

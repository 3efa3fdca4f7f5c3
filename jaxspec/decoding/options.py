"""Defines the options of a call, checks them, and converts them to arrays and static sizes for the loop.

A new option needs a field and its keyword below, and a check in `Arguments.check`. It also needs a line in the
signature and in the docstring of `generate`, the one place that describes options. `init`, `stream` and, for
`SharedOptions`, the text interface pass it on.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Required, Self, TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Int, Key

from jaxspec.core import check_policy, validate
from jaxspec.core.bit_exact import as_bit_exact
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.model import Model, kind_given
from jaxspec.core.processing import Processor, processors_of, with_processors
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import row_keys
from jaxspec.core.results import Report
from jaxspec.core.sampling import Greedy, Policy, Sampling
from jaxspec.core.validate import is_concrete, to_int32
from jaxspec.decoding import hints
from jaxspec.decoding.room import PerRow, Room, bucket, make_room
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.draft_model import check_takes_trees
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.drafters.lookup import LookupDrafter
from jaxspec.sharding.params import check_devices, shard_models
from jaxspec.sharding.placement import Placement
from jaxspec.sharding.rules import DRAFTS_BESIDE
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.multi_draft import Rule
from jaxspec.verifiers.relaxed import RelaxedRule
from jaxspec.verifiers.table import default_verifier

# Types that a caller may pass, traced or not.
TokenIds: TypeAlias = Array | np.ndarray | Sequence[Sequence[int]]
StopTokens: TypeAlias = Array | np.ndarray | Sequence[int] | Sequence[Array | int] | Sequence[Sequence[int]]

# The advice of error messages, by expected type.
_ADVICE = {
    Model: "pass a model from jaxspec.load, jaxspec.from_function or jaxspec.from_nnx",
    Drafter: "pass a drafter such as jaxspec.NGramDrafter(), or one from jaxspec.load_drafter, or None",
    Verifier: "pass an instance such as jaxspec.BlockVerifier(), or None for the drafter's default",
}
# The name of the rows' arguments in errors about processes that disagree.
_ASKED = "prompts, lengths, keys, sampling parameters, budgets and stop tokens"
# How many of the prompt's last tokens to prepend to a prediction, so that the first drafts are found after them.
PROMPT_END = 8
# Marks an option that is static in the loop: another value compiles another program.
_STATIC = {"static": True}


class SharedKeywords(TypedDict, total=False):
    """Lists the names and types of `SharedOptions`, for signatures that take them by keyword."""

    capacity: int | None
    max_drafts: PerRow | None


class _PromptKeywords(SharedKeywords, total=False):
    """Lists the keyword arguments of `init` but the budget."""

    prompt_length: PerRow | None
    key: Array | None
    sampling: Policy
    stop_tokens: StopTokens | None
    report: Report
    answers: int
    prediction: TokenIds | Sequence[int] | None


class RowKeywords(_PromptKeywords, total=False):
    """Lists the keyword arguments of rows in slots: those of `init`."""

    max_new_tokens: PerRow | None


class InitKeywords(_PromptKeywords, total=False):
    """Lists the keyword arguments of `init`: those of `Options` that do not concern rounds."""

    max_new_tokens: Required[PerRow | None]


class Keywords(InitKeywords, total=False):
    """Lists the names and types of `Options`, for signatures that take them by keyword."""

    verifier: Verifier | None
    lossy: bool
    mesh: Mesh | None
    bit_exact: bool
    pass_tokens: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Holds the options shared by calls with token ids and calls with text; `jaxspec.generate` describes them."""

    # Advice for keywords of other libraries.
    HINTS = hints.TOKENS

    capacity: int | None = None
    max_drafts: PerRow | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], names: Collection[str] = ()) -> Self:
        """Creates the options from keyword arguments.

        Args:
          given: the arguments.
          names: the allowed names; `()` allows all fields.

        Raises:
          TypeError: an option is unknown or missing.
        """
        names = names or [field.name for field in dataclasses.fields(cls)]
        hints.refuse_unknown(given, names, cls.HINTS)
        for field in dataclasses.fields(cls):
            if field.default is dataclasses.MISSING and field.name not in given:
                raise TypeError(f"missing keyword argument '{field.name}'")
        return cls(**given)

    def shared(self) -> dict[str, Any]:
        """Returns the options shared by calls with token ids and calls with text, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(SharedOptions)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SharedOptions):
    """Holds the unchecked options of one call; `jaxspec.generate` describes them."""

    prompt_length: PerRow | None = None
    key: Array | None = None
    sampling: Policy = Greedy()  # noqa: RUF009 (frozen and stateless)
    verifier: Verifier | None = None
    max_new_tokens: PerRow | None
    stop_tokens: StopTokens | None = None
    lossy: bool = False
    mesh: Mesh | None = None
    bit_exact: bool = False
    pass_tokens: int | None = None
    report: Report = dataclasses.field(default=Report(), metadata=_STATIC)
    answers: int = dataclasses.field(default=1, metadata=_STATIC)
    prediction: TokenIds | Sequence[int] | None = None

    def static(self) -> Self:
        """Returns the options that are static in the loop, without the others."""
        static = [field.name for field in dataclasses.fields(self) if field.metadata == _STATIC]
        return type(self)(max_new_tokens=None, **{name: getattr(self, name) for name in static})


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Holds the arguments that differ by row. Every leaf has the batch as its first axis, so mapped axes can be folded.

    Attributes:
      prompt: token ids, padded on the right to a bucket.
      prompt_length: the number of tokens without padding.
      max_new_tokens: the budget.
      stop_tokens: ids that end a row, padded with -1.
      keys: threefry keys.
      sampling: a policy with one value of each parameter for each row; `None` if `Arguments.policy` is set.
      processors: the policy's processors with one value for each row; `None` for those in `Arguments.processors`.
      max_drafts: the largest number of drafts; `None` means the drafter's own limit.
      prediction: the expected answer, padded with -1.
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

    @classmethod
    def of(cls, ids: Any, budgets: PerRow, drafter: Drafter, target: Model, options: Options) -> Self:
        """Creates the arrays of all rows, with prompts padded to a bucket; prompts and budgets are already checked."""
        (batch, width), sampling = ids.shape, options.sampling
        return cls(
            prompt=jnp.pad(to_int32(ids), ((0, 0), (0, bucket(width) - width))),
            prompt_length=_lengths(options.prompt_length, batch, width),
            max_new_tokens=jnp.broadcast_to(to_int32(budgets), (batch,)),
            stop_tokens=stop_tokens_of(options.stop_tokens, batch, target.vocab_size, target.traits.tokenizer),
            keys=row_keys(jax.random.key(0) if options.key is None else options.key, batch),
            sampling=with_processors(sampling, ()).spread(batch) if isinstance(sampling, Sampling) else None,
            processors=tuple(one.spread(batch) if one.by_row else None for one in processors_of(sampling)),
            max_drafts=_max_drafts(options.max_drafts, drafter, batch),
            prediction=_prediction(options.prediction, drafter, batch, target),
        )


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Holds the checked arguments of one call, from `generate`, `init` or `stream` to the loop.

    Attributes:
      target: the model, on the mesh if there is one.
      drafter: the drafter, on the mesh if there is one; `NoDrafter` instead of `None`.
      verifier: the verifier, or the default.
      policy: a policy other than `Sampling`, whose leaves may have any shape; else `None`.
      processors: the policy's processors with arrays shared by all rows; `None` for those in `Rows.processors`.
      rows: the arrays that differ by row, including a `Sampling`.
      options: the options that are static in the loop.
      room: the sizes of the buffers.
      placement: the layout of rows and of results on devices.
    """

    target: Model
    drafter: Drafter
    verifier: Verifier
    policy: Policy | None
    processors: tuple[Processor | None, ...]
    rows: Rows
    options: Options = dataclasses.field(metadata=_STATIC)
    room: Room = dataclasses.field(metadata=_STATIC)
    placement: Layout = dataclasses.field(metadata=_STATIC)

    @property
    def sampling(self) -> Policy:
        """The sampling policy, reassembled from shared and per-row parts."""
        sampling = self.rows.sampling if self.policy is None else self.policy
        assert sampling is not None
        pairs = zip(self.processors, self.rows.processors, strict=True)
        return with_processors(sampling, tuple(own if shared is None else shared for shared, own in pairs))

    @classmethod
    def check(cls, target: Model, drafter: Drafter | None, prompt: TokenIds, options: Options) -> tuple[Self, int]:
        """Checks everything and pads shapes to buckets, so that similar calls share a compiled program.

        Returns:
          The arguments, and the width of a result: the largest budget, or all slots if that is traced. The width is not
          a field of the arguments, where each budget would compile another program.

        Raises:
          TypeError, ValueError: an argument is invalid; the message says what to pass instead.
        """
        drafter = NoDrafter() if drafter is None else drafter
        sampling = options.sampling
        check_kinds(target, drafter, options.verifier, sampling)
        verifier = verifier_for(options.verifier, drafter, options.lossy)
        target = as_bit_exact(target, options.bit_exact, options.pass_tokens, nodes=drafter.lengths[-1])
        ids = as_array(prompt)
        validate.prompt(ids, options.prompt_length, target.vocab_size)
        batch = ids.shape[0]
        check_policy.policy(sampling, batch, target.vocab_size)
        validate.max_new_tokens(options.max_new_tokens, batch)
        capacity = validate.capacity(options.capacity)
        check_policy.key_needed(options.key, sampling)
        drafter.check(target)
        if drafter.tree:
            check_takes_trees(type(drafter).__name__, target)
        validate.counts("generate", answers=options.answers)
        shape, lengths = (batch * options.answers, ids.shape[1]), options.prompt_length
        budgets, room = make_room(target, drafter, shape, lengths, options.max_new_tokens, capacity)
        by_row = Rows.of(ids, budgets, drafter, target, options)
        if options.mesh is not None:
            target, drafter = shard_models((target, drafter), options.mesh)
        check_devices((target, drafter))
        placement = target.traits.placement
        if options.mesh is not None and isinstance(placement, Unsharded):
            placement = Placement.on(options.mesh, DRAFTS_BESIDE.within(options.mesh))
        policy = None if by_row.sampling else with_processors(sampling, ())
        shared = tuple(None if one.by_row else one for one in processors_of(sampling))
        width = int(np.max(np.asarray(budgets))) if is_concrete(budgets) else room.new
        said = {"target": target, "drafter": drafter, "verifier and lossy": (verifier, options.lossy)}
        placement.check_same(said | {_ASKED: ((by_row, policy, shared), dataclasses.astuple(room), options.answers)})
        check_report(options.report, target.vocab_size, sampling)
        arguments = cls(
            target=target,
            drafter=drafter,
            verifier=verifier,
            policy=policy,
            processors=shared,
            rows=placement.rows(by_row),
            options=options.static(),
            room=room,
            placement=placement,
        )
        return arguments, width


def verifier_for(verifier: Verifier | None, drafter: Drafter, lossy: bool) -> Verifier:
    """Returns the verifier, or the drafter's default; raises if it does not fit the drafter's proposals."""
    verifier = default_verifier(drafter) if verifier is None else verifier
    verifier.check(drafter)
    validate.lossy_allowed(verifier.lossless, lossy, type(verifier).__name__)
    return verifier


def stop_tokens_of(given: StopTokens | None, batch: int, vocab_size: int, tokenizer: Any) -> Int[Array, "b n"]:
    """Returns stop tokens as `[b, n]`: those given, or for `None` the end tokens of the tokenizer, if there is one."""
    if given is None:
        ends = () if tokenizer is None else tokenizer.eos_token_ids
        given = tuple(token for token in ends if token < vocab_size)  # a token beyond the vocabulary is never drawn
    return validate.stop_tokens(given, batch, vocab_size)


def check_report(report: object, vocab_size: int, sampling: Policy) -> None:
    """Raises `TypeError` or `ValueError` unless `report` is a `Report` that fits the vocabulary and the policy."""
    if not isinstance(report, Report):
        raise TypeError(
            f"report must be a jaxspec.core.Report, got {kind_given(report)}; pass Report(alternatives=5), for example"
        )
    report.check(vocab_size)
    if report.kept_mass and not isinstance(sampling, Greedy | Sampling):
        raise TypeError(
            f"kept_mass needs the temperature of the policy, and {type(sampling).__name__} need not have one; pass "
            "Sampling(...) or Greedy(), or Report(kept_mass=False)"
        )


def check_kinds(target: object, drafter: object, verifier: object, sampling: object) -> None:
    """Raises `TypeError` unless each argument has its type; the verifier may be `None`."""
    kinds = ((target, Model, "target"), (drafter, Drafter, "drafter"), (verifier, Verifier, "verifier"))
    for value, kind, name in kinds[: 2 if verifier is None else 3]:
        if isinstance(value, type) or not isinstance(value, kind):
            advice = _of_rule(value) if name == "verifier" else None
            advice = advice or _ADVICE[kind]
            raise TypeError(f"{name} must be a jaxspec {kind.__name__}, got {kind_given(value)}; {advice}")
    if isinstance(sampling, type) or not isinstance(sampling, Policy):
        raise TypeError(
            f"sampling must be a policy, got {kind_given(sampling)}; pass Greedy() or Sampling(temperature=...)"
        )


def check_target(target: object, sampling: object) -> None:
    """Raises `TypeError` unless the arguments are a model and a policy."""
    check_kinds(target, NoDrafter(), None, sampling)


def _of_rule(value: object) -> str | None:
    """Returns the advice for a rule passed as a verifier; `None` for other values."""
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    if isinstance(value, Rule) or (isinstance(value, type) and issubclass(value, Rule)):
        return f"pass MultiDraftVerifier({name}())"
    if isinstance(value, RelaxedRule) or (isinstance(value, type) and issubclass(value, RelaxedRule)):
        return f"pass RelaxedVerifier({name}(...)) and lossy=True"
    return None


def as_array(prompt: Any, names: tuple[str, str] = ("prompt", "prompt_length")) -> Any:
    """Converts nested lists to an array; returns anything else unchanged, for `validate.prompt` to check."""
    validate.unmasked(names[0], prompt)
    if not isinstance(prompt, list | tuple):
        return prompt
    try:
        return np.asarray(prompt)
    except ValueError as error:
        raise ValueError(
            f"{names[0]} must be a rectangle, got rows of different lengths; pad them on the right and pass {names[1]}"
        ) from error


def _lengths(prompt_length: PerRow | None, batch: int, width: int) -> Int[Array, "b"]:
    """Returns each row's prompt length; 0, which is an error, if a traced one exceeds the width of the prompt."""
    lengths = to_int32(width if prompt_length is None else prompt_length)
    # The bucket is wider than the prompt, but lengths beyond the prompt are still errors.
    return jnp.broadcast_to(jnp.where(lengths <= width, lengths, 0), (batch,))


def _max_drafts(value: Any, drafter: Drafter, batch: int) -> Int[Array, "b"] | None:
    if value is None:
        return None
    _needs_drafter("max_drafts", drafter)
    shape, dtype = validate.shape_and_dtype("max_drafts", value)
    if shape not in ((), (batch,)):
        raise ValueError(f"max_drafts must be one integer or one per row, got shape {shape} for {batch} rows")
    if not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"max_drafts must be an integer of at least 0, got dtype {dtype}; None means no limit")
    if is_concrete(value) and np.min(value) < 0:
        raise ValueError(f"max_drafts must be at least 0, got {np.asarray(value).tolist()}; 0 means plain decoding")
    return jnp.broadcast_to(to_int32(value), (batch,))


def _prediction(value: Any, drafter: Drafter, batch: int, target: Model) -> Int[Array, "b p"] | None:
    if value is None:
        return None
    _needs_drafter("prediction", drafter)
    if not isinstance(drafter, LookupDrafter | HybridDrafter):
        name = type(drafter).__name__
        raise ValueError(
            f"prediction needs a drafter that copies, and {name} does not; pass NGramDrafter() or SuffixDrafter(), "
            f"also as the first of a HybridDrafter, or leave prediction out"
        )
    shape, dtype = validate.shape_and_dtype("prediction", value)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != batch):
        raise ValueError(f"prediction must be [p] or [batch, p], got shape {shape} for {batch} rows")
    array = np.asarray(value) if is_concrete(value) else jnp.asarray(value)
    if array.size and not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"prediction must be token ids, got dtype {dtype}; SpeculativeDecoder takes text")
    if is_concrete(value) and array.size and (array.min() < -1 or array.max() >= target.vocab_size):
        said = f"[0, {target.vocab_size}), or -1 for padding"
        raise ValueError(f"prediction must be in {said}, got {array.tolist()!r:.80}")
    width, context = shape[-1], target.context_length
    if context is not None and is_concrete(value) and (longest := _longest_part(array)) > context:
        raise ValueError(
            f"prediction must be at most as long as the target's context, {context} tokens, got {longest}; pass the "
            "part that the answer may have"
        )
    wide = jnp.broadcast_to(to_int32(array.reshape(-1, width) if width else np.zeros((1, 0), np.int32)), (batch, width))
    return jnp.pad(wide, ((0, 0), (0, bucket(width) - width)), constant_values=-1)


def _longest_part(ids: Array | np.ndarray) -> int:
    """Returns the largest number of tokens of a row without -1 between them."""
    inside = np.pad(np.atleast_2d(np.asarray(ids)) >= 0, ((0, 0), (1, 1))).astype(np.int8)
    begins, ends = (np.nonzero(np.diff(inside, axis=1) == edge)[1] for edge in (1, -1))
    return int(np.max(ends - begins, initial=0))


def after_the_prompt(
    prediction: Int[Array, "b p"] | None, prompt: Int[Array, "b t"], length: Int[Array, "b"]
) -> Int[Array, "b p2"] | None:
    """Returns predictions for `Context.predicted`: each preceded by the end of its prompt, and followed by -1."""
    if prediction is None:
        return None
    at = length[:, None] - PROMPT_END + jnp.arange(PROMPT_END, dtype=jnp.int32)[None]
    end = jnp.where(at >= 0, jnp.take_along_axis(prompt, jnp.maximum(at, 0), axis=1), -1)
    return jnp.pad(jnp.concatenate([end, prediction], axis=1), ((0, 0), (0, 1)), constant_values=-1)


def _needs_drafter(name: str, drafter: Drafter) -> None:
    if isinstance(drafter, NoDrafter):
        raise ValueError(f"{name} concerns drafts, but there is no drafter; pass one, or leave {name} out")

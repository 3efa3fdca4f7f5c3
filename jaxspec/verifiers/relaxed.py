"""Verifies with relaxed, lossy rules, and measures their deviation from the target's distribution."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import count_leading, take_row
from jaxspec.core.parts import at_tokens
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.core.validate import LARGEST, is_concrete, shown
from jaxspec.verifiers.base import DraftKind, Verifier
from jaxspec.verifiers.rejection import log_residual
from jaxspec.verifiers.tree_walk import DraftTree

_Class = TypeVar("_Class", bound=type)


def register_unchecked(cls: _Class) -> _Class:
    """Registers a dataclass as a pytree that JAX rebuilds without calling the constructor.

    A constructor that checks values would reject the axes, shapes and booleans that JAX transformations substitute for
    the leaves.
    """
    names = [field.name for field in dataclasses.fields(cls)]

    def unflatten(_, leaves):
        rebuilt = object.__new__(cls)
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(rebuilt, name, leaf)
        return rebuilt

    jax.tree_util.register_pytree_node(cls, lambda x: ([getattr(x, name) for name in names], None), unflatten)
    return cls


def check_number(owner: str, name: str, value: Any, expected: str, in_range: Callable[[float], bool]) -> None:
    """Checks that `value` is a real scalar for which `in_range` holds; the range of a traced value is not checked.

    Raises:
      TypeError: if it is not a real scalar.
      ValueError: if it is out of range.
    """
    number = isinstance(value, int | float | np.generic | np.ndarray | jax.Array) and not isinstance(value, bool)
    kinds = jnp.integer, jnp.floating
    is_real = number and any(jnp.issubdtype(getattr(value, "dtype", jnp.floating), kind) for kind in kinds)
    if not is_real or np.shape(value) != ():
        raise TypeError(f"{owner} needs one number as {name}, got {shown(value)}; pass one {expected}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{owner} needs {name} {expected}, got {shown(value)}")
    if is_concrete(value) and not in_range(float(value)):
        raise ValueError(f"{owner} needs {name} {expected}, got {float(value)}")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Choice:
    """Holds the path down a tree that a relaxed rule accepts.

    Attributes:
      accepted: the number of nodes on the path.
      path: these nodes, in order; entries past `accepted` are arbitrary.
      row: the row of the target's distributions after the path.
      deviation: the total variation at each node of the path; 0 past `accepted`.
    """

    accepted: Int[Array, "b"]
    path: Int[Array, "b depth"]
    row: Int[Array, "b"]
    deviation: Float[Array, "b depth"]


@dataclasses.dataclass(frozen=True)
class RelaxedRule(abc.ABC):
    """Defines a lossy acceptance rule, as pure arithmetic on log-probabilities.

    Attributes:
      trees: whether it applies to proposals that branch.

    Example:
        >>> rule, half = jaxspec.verifiers.Lenience(0.5), jnp.log(jnp.full((1, 1, 2), 0.5))
        >>> rule.log_acceptance(half, jnp.zeros((1, 1), jnp.int32)).tolist()  # an accepted log-probability of 0
        [[0.0]]
    """

    trees: ClassVar[bool] = False

    @abc.abstractmethod
    def log_accepted(self, target: Float[Array, "b n v"], draft: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        """Computes the log-probability that each token is drafted and then accepted: at most `draft`.

        The acceptance probability is `accepted / draft`, so this defines a rule completely. NaN where `draft` is NaN;
        such a draft is rejected.
        """

    @abc.abstractmethod
    def log_acceptance(self, target: Float[Array, "b n v"], tokens: Int[Array, "b n"]) -> Float[Array, "b n"]:
        """Computes the log-probability of accepting deterministic drafts, given the target's distributions there."""

    @abc.abstractmethod
    def log_rest(self, target: Float[Array, "b v"], token: Int[Array, "b"]) -> Float[Array, "b v"]:
        """Computes the log-probabilities, up to a constant, of the token replacing a rejected deterministic draft."""

    def choose(self, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Choice:
        """Chooses the path of a tree to accept.

        Raises:
          ValueError: if the rule applies to chains only.
        """
        raise ValueError(_no_trees(self, "a proposal that branches"))


@register_unchecked
@dataclasses.dataclass(frozen=True)
class RelaxedVerifier(Verifier):
    """Accepts drafts that exact verification would reject. Lossy: needs `lossy=True`.

    A draft `x` sampled from `draft` is accepted with a probability that the rule defines. The first rejected draft is
    replaced by a token sampled from the normalized `max(target - accepted, 0)`, where `accepted(x)` is the probability
    that `x` is drafted and accepted; no other replacement deviates less. (For deterministic drafts the rule defines the
    replacement, and no rule deviates more.) If all drafts are accepted, a bonus token is sampled from the target.

    The deviation is measured on the device at every decided position, including those of rejected drafts. It is the
    total variation between the target's distribution and the distribution that is actually emitted there. For sampled
    drafts, integrated over the draft, it is

        deviation = sum over v of max(accepted(v) - target(v), 0)

    and for a deterministic draft `x`, `max(acceptance - target(x), 0)`. In a tree an accepted token counts as
    `1 - target(x)`, conditional on the drafted tree; for sampled trees this is on average no less than the deviation
    integrated over the drafts. A bonus token deviates by 0. `Verdict.deviation` holds the deviations of a round's
    positions, and `Generation.measured_total_variation` is the mean over new tokens. The expected sum over a text
    bounds the total variation of the whole text's distribution. Measuring costs a pass over `[b, k, v]` for sampled
    drafts and almost nothing for deterministic ones.

    With a greedy policy, only the target's argmax is known and drafts must equal it: nothing is relaxed, and the
    measured deviation is 0. This also holds for rows of `Sampling` at temperature 0.

    Attributes:
      rule: `Lenience(...)`, `StaticEnsemble(...)`, `Cactus(...)`, `Typical(...)` or `Neighborhood(...)`.

    Raises:
      TypeError: if `rule` is not a rule.

    Example:
        >>> verifier = jaxspec.verifiers.RelaxedVerifier(jaxspec.verifiers.Typical())
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, lossy=True, max_new_tokens=8)
        >>> jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=2), prompt, **options).lossless
        False
    """

    rule: RelaxedRule

    lossless: ClassVar[bool] = False
    trees: ClassVar[bool] = True

    def __post_init__(self):
        if not isinstance(self.rule, RelaxedRule):
            raise TypeError(
                f"RelaxedVerifier needs a rule, got {shown(self.rule)}; pass a RelaxedRule, such as Lenience(factor)"
            )

    def check(self, drafter: DraftKind) -> None:
        if drafter.tree and not self.rule.trees:
            raise ValueError(_no_trees(self.rule, f"{type(drafter).__name__}, which drafts a tree or several chains"))

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        if proposal.parents is not None:
            choice = self.rule.choose(DraftTree.of(proposal), target_log_probs)
            token = rng.next_token(take_row(target_log_probs, choice.row))
            return Verdict(choice.accepted, token, choice.path, choice.deviation)
        log_uniforms = jnp.log(rng.uniforms(proposal.tokens.shape[1]))
        chain = relaxed_chain(self.rule, proposal, target_log_probs)
        # Strict: a uniform is never 0, so a token with acceptance probability 0 is never accepted.
        accepted = count_leading(proposal.valid & (log_uniforms < chain.log_acceptance))
        token = rng.next_token(next_log_probs(self.rule, proposal, target_log_probs, accepted))
        deviation = jnp.where(decided(proposal, accepted), chain.deviation, 0.0)
        return Verdict(accepted, token, deviation=deviation)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RelaxedChain:
    """Holds a rule's results for each draft of a chain, given that those before it were accepted.

    Attributes:
      log_acceptance: the log-probability that the draft is accepted.
      deviation: the total variation between the target's distribution and the one emitted at the draft's position.
    """

    log_acceptance: Float[Array, "b n"]
    deviation: Float[Array, "b n"]


def relaxed_chain(
    rule: RelaxedRule, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]
) -> RelaxedChain:
    """Computes the acceptance and deviation of each draft under the rule; see `RelaxedVerifier`."""
    target = target_log_probs[:, :-1]
    if proposal.log_probs is None:
        log_acceptance = rule.log_acceptance(target, proposal.tokens)
        excess = jnp.exp(log_acceptance) - jnp.exp(at_tokens(target, proposal.tokens))
        return RelaxedChain(log_acceptance, jnp.maximum(excess, 0.0))
    accepted = rule.log_accepted(target, proposal.log_probs)
    log_acceptance = at_tokens(accepted, proposal.tokens) - at_tokens(proposal.log_probs, proposal.tokens)
    excess = jnp.where(accepted > target, jnp.exp(accepted) - jnp.exp(target), 0.0)
    return RelaxedChain(log_acceptance, jnp.sum(excess, axis=-1))


def next_log_probs(
    rule: RelaxedRule, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], accepted: Int[Array, "b"]
) -> Float[Array, "b v"]:
    """Computes the log-probabilities, up to a constant, of the token that follows `accepted` drafts of a chain.

    They are the target's where every submitted draft was accepted, or where the residual is empty.
    """
    target = take_row(target_log_probs, accepted)
    n = proposal.tokens.shape[1]
    if n == 0:
        return target
    rejected_at = jnp.minimum(accepted, n - 1)
    if proposal.log_probs is None:
        rest = rule.log_rest(target, take_row(proposal.tokens, rejected_at))
    else:
        draft = take_row(proposal.log_probs, rejected_at)
        rest = log_residual(target, rule.log_accepted(target[:, None], draft[:, None])[:, 0])
    submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)
    rejected = (accepted < submitted) & (jnp.max(rest, axis=-1) > -jnp.inf)
    return jnp.where(rejected[:, None], rest, target)


def decided(proposal: Proposal, accepted: Int[Array, "b"]) -> Bool[Array, "b n"]:
    """Returns the mask of submitted drafts of a chain that were tested: the accepted ones and the rejected one."""
    positions = jnp.arange(proposal.tokens.shape[1], dtype=jnp.int32)[None]
    return proposal.valid & (positions <= accepted[:, None])


def without(log_probs: Float[Array, "b v"], tokens: Int[Array, "b c"]) -> Float[Array, "b v"]:
    """Removes some tokens from each row's distribution; tokens out of range are ignored."""
    rows = jnp.arange(log_probs.shape[0], dtype=jnp.int32)[:, None]
    return log_probs.at[rows, tokens].set(-jnp.inf, mode="drop")


def _no_trees(rule: RelaxedRule, got: str) -> str:
    return (
        f"{type(rule).__name__} relaxes the verification of one chain of drafts, got {got}; "
        "pass RelaxedVerifier(Typical()), which takes trees, or a drafter of chains"
    )


@register_unchecked
@dataclasses.dataclass(frozen=True)
class Lenience(RelaxedRule):
    """Accepts draft `x` with probability `min(1, target(x) / (factor * draft(x)))`.

    A deterministic draft is accepted with probability `min(1, target(x) / factor)`. A rejected draft is replaced by a
    token sampled from `max(target - draft, 0)`, as in exact verification. No token is emitted with more than
    `1 / factor` times the target's probability, so a position deviates by at most `1 - factor`.

    Attributes:
      factor: a scalar in (0, 1], may be traced; 1 is `TokenVerifier`'s rule, bit for bit.

    Raises:
      TypeError: if `factor` is not a real scalar.
      ValueError: if it is out of range.

    Example:
        >>> verifier = jaxspec.verifiers.RelaxedVerifier(jaxspec.verifiers.Lenience(0.7))
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, lossy=True, max_new_tokens=8)
        >>> generation = jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=2), prompt, **options)
        >>> 0 <= generation.measured_total_variation <= 1 - 0.7
        True

    References:
      Leviathan et al. (2022), arXiv:2211.17192, appendix A.5.
      DistillSpec: Zhou et al. (2023), arXiv:2310.08461, with other lenience functions.
    """

    factor: Float[Array, ""] | float

    def __post_init__(self):
        expected = "in (0, 1]; 1 is exact, smaller accepts more"
        check_number("Lenience", "factor", self.factor, expected, lambda x: 0 < x <= 1)

    def log_accepted(self, target: Float[Array, "b n v"], draft: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        return jnp.minimum(draft, self._raised(target))

    def log_acceptance(self, target: Float[Array, "b n v"], tokens: Int[Array, "b n"]) -> Float[Array, "b n"]:
        return jnp.minimum(self._raised(at_tokens(target, tokens)), 0.0)

    def log_rest(self, target: Float[Array, "b v"], token: Int[Array, "b"]) -> Float[Array, "b v"]:
        return without(target, token[:, None])

    def _raised(self, log_probs: Float[Array, "*b"]) -> Float[Array, "*b"]:
        return log_probs - jnp.log(jnp.asarray(self.factor, log_probs.dtype))

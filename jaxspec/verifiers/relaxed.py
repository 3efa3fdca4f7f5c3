"""Accepts more than the target's distribution allows, and measures by how much: lossy verification."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.argmax import argmax
from jaxspec.core.parts import at_tokens
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.rows import count_leading, take_row
from jaxspec.core.state import Proposal, Verdict
from jaxspec.core.values import is_concrete
from jaxspec.verifiers.base import DraftKind, Verifier
from jaxspec.verifiers.rejection import log_residual
from jaxspec.verifiers.tree_walk import DraftTree

_Class = TypeVar("_Class", bound=type)


def register_unchecked(cls: _Class) -> _Class:
    """Registers a dataclass as a pytree that JAX rebuilds without calling the constructor.

    A constructor that checks values would refuse the axes, shapes and booleans that
    transformations map the leaves to.
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
    """Checks that `value` is one real number for which `in_range` holds; a traced one may be any.

    Raises:
      TypeError: if it is not one real number.
      ValueError: if it is out of range.
    """
    number = isinstance(value, int | float | np.generic | np.ndarray | jax.Array) and not isinstance(value, bool)
    if not number or jnp.shape(value) != () or jnp.result_type(value).kind not in "fiu":
        raise TypeError(f"{owner} needs one number as {name}, got {value!r}; pass one {expected}")
    if is_concrete(value) and not in_range(float(value)):
        raise ValueError(f"{owner} needs {name} {expected}, got {float(value)}")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Choice:
    """Holds a path down a tree, as a relaxed rule accepts it.

    Attributes:
      accepted: the number of its nodes.
      path: its nodes, in order; beyond `accepted` anything.
      row: the row of the target's distributions after it.
      deviation: the total variation at each of its nodes; 0 beyond `accepted`.
    """

    accepted: Int[Array, "b"]
    path: Int[Array, "b depth"]
    row: Int[Array, "b"]
    deviation: Float[Array, "b depth"]


@dataclasses.dataclass(frozen=True)
class RelaxedRule(abc.ABC):
    """Accepts more than the target's distribution allows. Pure arithmetic on log-probabilities.

    Attributes:
      trees: whether it chooses in proposals that branch.

    Example:
        >>> rule, half = jaxspec.verifiers.Lenience(0.5), jnp.log(jnp.full((1, 1, 2), 0.5))
        >>> rule.log_acceptance(half, jnp.zeros((1, 1), jnp.int32)).tolist()  # an accepted log-probability of 0
        [[0.0]]
    """

    trees: ClassVar[bool] = False

    @abc.abstractmethod
    def log_accepted(self, target: Float[Array, "b n v"], draft: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        """Computes the log-probability that each token is drafted and then accepted: at most `draft`.

        Every rule of acceptance is `accepted / draft`, so this says all of it. NaN where `draft` is: such a draft is
        rejected.
        """

    @abc.abstractmethod
    def log_acceptance(self, target: Float[Array, "b n v"], tokens: Int[Array, "b n"]) -> Float[Array, "b n"]:
        """Computes the log-probability that deterministic drafts are accepted, given the distributions before them."""

    @abc.abstractmethod
    def log_rest(self, target: Float[Array, "b v"], token: Int[Array, "b"]) -> Float[Array, "b v"]:
        """Computes the log-probabilities, up to a constant, of the token in place of a rejected deterministic draft."""

    def choose(self, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Choice:
        """Chooses the path of a tree that is accepted.

        Raises:
          ValueError: if the rule is one for chains.
        """
        raise ValueError(_no_trees(self, "a proposal that branches"))


@register_unchecked
@dataclasses.dataclass(frozen=True)
class RelaxedVerifier(Verifier):
    """Accepts drafts that exact verification would reject. Lossy: needs `lossy=True`.

    A draft `x` drawn from `draft` is accepted with a probability that the rule sets. In place of
    the first one rejected comes a token of `max(target - accepted, 0)`, normalized, where
    `accepted(x)` is the probability that `x` is drafted and accepted: no other choice deviates less.
    (For deterministic drafts the rule chooses, and none deviates more.) After full acceptance a bonus
    token follows the target's distribution.

    The deviation is measured on the device at every position that was decided, those of rejected
    drafts included: the total variation between the target's distribution and the one that the rule
    really emits there. For drawn drafts, their own draw integrated over, it is

        deviation = sum over v of max(accepted(v) - target(v), 0)

    and for deterministic drafts `max(acceptance - target(x), 0)` with the one draft `x`. In a tree an
    accepted token counts `1 - target(x)`, given the tree as it was drafted; for drawn trees that is on
    average no less than with their draw integrated over. A bonus token deviates by 0.
    `Verdict.deviation` has the positions of a round, and `Generation.measured_total_variation()`
    is the mean over new tokens. The expected sum over a text bounds the total variation of the
    whole text's distribution. It costs a pass over `[b, k, v]` for drawn drafts and next to nothing
    for deterministic ones.

    With a greedy policy, only the target's argmax is known and drafts must equal
    it: nothing is relaxed, and the measure is 0. Rows at temperature 0 of `Sampling` come out
    the same.

    Attributes:
      rule: `Lenience(...)`, `Typical(...)` or `Neighborhood(...)`.

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
                f"RelaxedVerifier needs a rule, got {self.rule!r}; pass a RelaxedRule, such as Lenience(factor)"
            )

    def check(self, drafter: DraftKind) -> None:
        if drafter.tree and not self.rule.trees:
            raise ValueError(_no_trees(self.rule, f"{type(drafter).__name__}, which drafts a tree or several chains"))

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        if proposal.parents is not None:
            choice = self.rule.choose(DraftTree.of(proposal), target_log_probs)
            token = _draw(rng, take_row(target_log_probs, choice.row))
            return Verdict(choice.accepted, token, choice.path, choice.deviation)
        log_uniforms = jnp.log(rng.uniforms(proposal.tokens.shape[1]))
        chain = relaxed_chain(self.rule, proposal, target_log_probs)
        # Strict: a uniform is never 0, so a token that is accepted with probability 0 never is.
        accepted = count_leading(proposal.valid & (log_uniforms < chain.log_acceptance))
        token = _draw(rng, next_log_probs(self.rule, proposal, target_log_probs, accepted))
        deviation = jnp.where(decided(proposal, accepted), chain.deviation, 0.0)
        return Verdict(accepted, token, deviation=deviation)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RelaxedChain:
    """Computes a rule's acceptance of each draft of a chain, given that those before it were accepted.

    Attributes:
      log_acceptance: the log-probability that the draft is accepted.
      deviation: the total variation between the distribution emitted at its place and the target's.
    """

    log_acceptance: Float[Array, "b n"]
    deviation: Float[Array, "b n"]


def relaxed_chain(
    rule: RelaxedRule, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]
) -> RelaxedChain:
    """Computes the rule's acceptance of each draft and its deviation there; see `RelaxedVerifier`."""
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

    The target's distribution where every submitted draft was accepted, and where nothing of it is left.
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
    """Returns the submitted drafts of a chain that were tested: those accepted and the one rejected."""
    positions = jnp.arange(proposal.tokens.shape[1], dtype=jnp.int32)[None]
    return proposal.valid & (positions <= accepted[:, None])


def without(log_probs: Float[Array, "b v"], tokens: Int[Array, "b c"]) -> Float[Array, "b v"]:
    """Removes some tokens of each row from its distribution; a token out of range is none."""
    rows = jnp.arange(log_probs.shape[0], dtype=jnp.int32)[:, None]
    return log_probs.at[rows, tokens].set(-jnp.inf, mode="drop")


def _draw(rng: RoundKeys, log_probs: Float[Array, "b v"]) -> Int[Array, "b"]:
    return argmax(log_probs + rng.next_noise(log_probs.shape[-1]))


def _no_trees(rule: RelaxedRule, got: str) -> str:
    return (
        f"{type(rule).__name__} relaxes the verification of one chain of drafts, got {got}; "
        "pass RelaxedVerifier(Typical()), which takes trees, or a drafter of chains"
    )

"""Defines the base class of verifiers: the rules that decide which drafts are accepted."""

import abc
import dataclasses
from typing import Any, ClassVar, Protocol, runtime_checkable

from jax import Array
from jaxtyping import Float, Int, Key

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng, RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.tree_walk import match_path


@runtime_checkable
class DraftKind(Protocol):
    """Describes the properties of a `jaxspec.Drafter` that a verifier checks."""

    @property
    def max_drafts(self) -> int:
        """The maximum number of drafts per round along one path."""
        ...

    @property
    def tree(self) -> bool:
        """Whether proposals branch."""
        ...

    @property
    def deterministic(self) -> bool:
        """Whether drafts are a function of the text."""
        ...

    @property
    def info(self) -> Any:
        """Has `identically_distributed`: whether it draws several chains, independently and from one distribution."""
        ...


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Verifier(abc.ABC):
    """Decides how many drafts to accept and which token follows them. A frozen pytree; sees neither model nor cache.

    A custom verifier overrides `verify`. Write it in two parts, so that it can be proven correct. Pure functions,
    without randomness, map log-probabilities to acceptance thresholds and to the next token's log-probabilities; tests
    enumerate them exactly. `verify` only draws from them. `TokenVerifier` is the shortest complete example.
    Helpers in `jaxspec.verifiers` and `jaxspec.core`:

    * `rng.uniforms(n)`, `[b, n]`: one uniform per draft. Accept with a strict inequality,
      `log u < log target - log draft`, so that a token of target probability 0 is never accepted.
    * `rng.next_noise(v)`, `[b, v]`: Gumbel noise for the next token, `argmax(log_probs + noise)`. It comes from a
      separate stream, independent of drafts and uniforms.
    * `log_acceptance(proposal, target)`: the log-probability of accepting each draft.
    * `log_residual(target, draft)`: `log max(target - draft, 0)`, computed from logs; `next_log_probs`: the target's
      distribution, or the residual at the rejected draft.
    * `count_leading` counts the drafts accepted before the first rejected one; `take_row` selects each row's
      distribution after them.
    * `DraftTree`, `TreeWalk` and `draw_verdict`, for proposals that branch.

    Rows never depend on each other. `jaxspec/testing/contracts/verifier.py` tests what every verifier must satisfy.

    Attributes:
      lossless: whether emitted tokens follow the target's distribution exactly. A lossy verifier
        runs only if the caller passes `lossy=True`.
      trees: whether it accepts proposals that branch.
      same_tokens: whether it emits the tokens of plain decoding with the same key, at any temperature.

    Example:
        >>> import dataclasses
        >>> @jaxspec.core.register_dataclass
        ... @dataclasses.dataclass(frozen=True)
        ... class SampleAndMatch(jaxspec.Verifier):
        ...     '''Draws the target's own token at each position, and accepts drafts that equal it.'''
        ...     def verify(self, rng, proposal, target_log_probs):
        ...         below = jnp.cumsum(jnp.exp(target_log_probs), axis=-1)  # [b, n + 1, v]
        ...         uniforms = rng.uniforms(below.shape[1])[..., None]
        ...         tokens = jnp.argmax(below >= uniforms * below[..., -1:], axis=-1)
        ...         return self.verify_greedy(rng, proposal, tokens.astype(jnp.int32))
        >>> policy, drafter = jaxspec.Sampling(), jaxspec.ModelDrafter(draft, k=2)
        >>> options = dict(key=key, sampling=policy, verifier=SampleAndMatch(), max_new_tokens=4)
        >>> jaxspec.generate(target, drafter, prompt, **options).length.tolist()
        [4, 4]
    """

    lossless: ClassVar[bool] = True
    trees: ClassVar[bool] = False
    same_tokens: ClassVar[bool] = False

    def check(self, drafter: DraftKind) -> None:
        """Raises `ValueError` if this verifier cannot verify what `drafter` proposes."""
        if drafter.tree and not self.trees:
            raise ValueError(
                f"{type(self).__name__} verifies one chain of drafts, got {type(drafter).__name__}, which drafts a "
                "tree or several chains; pass one of trees, such as TreeVerifier()"
            )

    def rng(self, keys: Key[Array, "b"], length: Int[Array, "b"]) -> Rng:
        """Returns one round's source of randomness, for the drafter and for `verify`.

        Args:
          keys: `[b]` keys, one per row, the same in every round.
          length: `[b]` the number of committed tokens when the round starts, which differs from round to round.

        Returns:
          `RoundKeys`, whose draws no other round repeats. Override this method where draft and target share their
          noise, as `CoupledVerifier` does with `PositionNoise`.
        """
        return RoundKeys(keys, length)

    # `Any`: a verifier takes the type that its own `rng` returns.
    @abc.abstractmethod
    def verify(self, rng: Any, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        """Draws the verdict, for a policy with randomness.

        Args:
          rng: the value that the method `rng` returned for this round.
          proposal: `n` drafts per row; `n` may be 0. `log_probs` is `None` for deterministic drafts. Drafts that are
            not `valid` must not be accepted, and a row may have no valid drafts.
          target_log_probs: `[b, n + 1, v]` float32 log-probabilities of the target under the policy: row 0 after the
            committed text, row `i + 1` after draft `i`.

        Returns:
          The number of accepted drafts and the token after them, int32 `[b]` each; for a tree also the accepted path.
        """

    def verify_greedy(self, rng: Any, proposal: Proposal, target_tokens: Int[Array, "b n_plus_1"]) -> Verdict:
        """Accepts the longest path of drafts that match the target's tokens: the verdict for a greedy policy.

        Args:
          rng: the value that the method `rng` returned for this round; unused.
          proposal: `n` drafts per row, a chain or a tree.
          target_tokens: `[b, n + 1]` the target's argmax after the committed text, then after each draft.
        """
        del rng
        return match_path(proposal, target_tokens)

"""A smaller language model as drafter."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec import checks
from jaxspec.drafters.base import Drafter
from jaxspec.model import Model
from jaxspec.prefill import prefill
from jaxspec.sampling import Policy
from jaxspec.state import Context, Proposal
from jaxspec.verifiers.base import Draws, pick


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelDrafter(Drafter):
    """Draws `k` tokens one after the other from a draft model with the target's vocabulary.

    Leviathan et al. 2211.17192; Chen et al. 2302.01318. Its cache lags the text by at most two
    tokens, so each round begins with a window of two, and full acceptance is no special case:

        text        ... c  d  e        e is committed and unfed
        cache       ... c              whatever was accepted, it holds all but the last two
        window            [d  e]       the second row of logits is the law of draft 0

    Attributes:
      model: any `Model`.
      k: drafted tokens a round.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's
        own, row by row, which is accepted most.
    """

    model: Model
    k: int = dataclasses.field(default=4, metadata={"static": True})
    sampling: Policy | None = None

    def __post_init__(self):
        checks.draft_length(self.k)

    @property
    def context_length(self) -> int | None:
        return self.model.context_length

    def check(self, target: Model) -> None:
        if isinstance(self.model, type) or not isinstance(self.model, Model):
            raise TypeError(f"ModelDrafter needs a Model, got {type(self.model).__name__}; jaxspec.load makes one")
        if self.sampling is not None:
            checks.draft_policy(self.sampling)
        checks.same_vocabulary(draft=self.model.vocab_size, target=target.vocab_size)

    def init(self, context, prefilled, slots):
        cache = self.model.init_cache(context.tokens.shape[0], slots)
        return prefill(self.model, context.tokens, context.length, cache).cache

    def propose(self, draws: Draws, state, context: Context):
        policy = context.sampling if self.sampling is None else self.sampling
        if self.k == 0:
            batch = context.tokens.shape[0]
            return Proposal(jnp.zeros((batch, 0), jnp.int32), jnp.zeros((batch, 0), jnp.bool_)), state
        logits, cache = self._feed_window(state, context)
        first, law = _draw(policy, logits, draws, jnp.int32(0))

        def draft_one(carry, offset):
            token, cache = carry
            output = self.model(token[:, None], cache)
            token, law = _draw(policy, output.logits[:, 0], draws, offset)
            return (token, cache.append(output.entries)), (token, law)

        offsets = jnp.arange(1, self.k, dtype=jnp.int32)
        (_, cache), (tokens, laws) = jax.lax.scan(draft_one, (first, cache), offsets)
        tokens = jnp.concatenate([first[None], tokens]).swapaxes(0, 1)
        if law is not None:
            law = jnp.concatenate([law[None], laws]).swapaxes(0, 1)
        return Proposal(tokens, jnp.ones(tokens.shape, jnp.bool_), law), cache

    def _feed_window(self, cache, context: Context):
        # A one-token text has no token before the last: the window then starts at the last,
        # what follows it is not text, and truncation forgets it.
        start = jnp.maximum(context.length - 2, 0)
        window = start[:, None] + jnp.arange(2, dtype=jnp.int32)[None]
        cache = cache.truncate(start)
        output = self.model(jnp.take_along_axis(context.tokens, window, axis=1), cache)
        logits = pick(output.logits, context.length - 1 - start)
        return logits, cache.append(output.entries).truncate(context.length)


def _draw(
    policy: Policy, logits: Float[Array, "b v"], draws: Draws, offset: Int[Array, ""]
) -> tuple[Int[Array, "b"], Float[Array, "b v"] | None]:
    """A token a row, and the law it was drawn from (`None`: the most likely one, for certain)."""
    if policy.greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32), None
    law = policy.log_probs(logits[:, None])[:, 0]
    noise = draws.draft_noise(offset, law.shape[-1])
    return jnp.argmax(law + noise, axis=-1).astype(jnp.int32), law

"""Corrects logits by a Markov head over all of the target's tokens (DSpark): vanilla, gated or recurrent.

For the embedding `e` of the token before a draft and the state `h` of the draft's place:

    vanilla   bias = W2 e
    gated     bias = W2 (sigmoid(gate [h; e]) * e)
    rnn       g, c, o = joint [s; e; h]; s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c); bias = W2 tanh(o)

The state `s` is 0 before a block's first place. The network has the vanilla kind over the draft vocabulary itself.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.families.common import map_tensor
from jaxspec.families.settings import COUNT, TEXT, Setting, SettingError
from jaxspec.heads.dflash.correction import Correction
from jaxspec.nn.layers import Dense
from jaxspec.ops.matmul import project

_init = nn.initializers.normal(0.02)
Kind = Literal["vanilla", "gated", "rnn"]


@dataclasses.dataclass(frozen=True)
class Markov(Correction):
    """Specifies a Markov head.

    Attributes:
      kind: how it uses the state of a draft's place.
      rank: the size of its embeddings.
      tokens: the number of tokens with an embedding.
    """

    SETTINGS: ClassVar[Mapping[str, Setting]] = {"markov_rank": COUNT.or_null(), "markov_head_type": TEXT.or_null()}

    kind: Kind
    rank: int
    tokens: int

    @classmethod
    def of(cls, config, target_tokens, draft_tokens):
        rank, kind = config.get("markov_rank") or 0, config.get("markov_head_type") or "vanilla"
        if kind not in get_args(Kind):
            problem = f"unsupported kind {kind!r}; supported: {', '.join(get_args(Kind))}"
            raise SettingError("markov_head_type", problem)
        if not rank or (kind == "vanilla" and target_tokens == draft_tokens):
            return None
        return cls(kind, rank, target_tokens)

    @property
    def token_rank(self):
        return self.rank

    @property
    def reads_anchor(self):
        return self.kind == "rnn"  # its state passes the first place too

    def settings(self):
        if self.kind == "vanilla":  # jaxspec's layout has the network's own, over the draft vocabulary
            return super().settings()
        return {"markov_rank": self.rank, "markov_head_type": self.kind}

    def begun(self, params, rows):
        return params | {"markov_before": rows(self.rank), "markov_after": jnp.zeros_like(params["markov_after"])}

    def build(self, config, dtype):
        return MarkovHead(self, config.vocab_size, dtype)

    def mappings(self, config):
        path, rank, known = "correction", self.rank, config.width + self.rank
        yield map_tensor((path, "markov_before"), "markov_head.markov_w1.weight", (self.tokens, rank))
        yield map_tensor((path, "markov_after"), "markov_head.markov_w2.weight", (config.vocab_size, rank))
        for name, rows, columns in {"gated": [("gate", 1, 0)], "rnn": [("joint", 3, 1)]}.get(self.kind, ()):
            theirs, size = f"markov_head.{name}_proj", rows * rank
            yield map_tensor((path, name, "kernel"), f"{theirs}.weight", (size, known + columns * rank))
            yield map_tensor((path, name, "bias"), f"{theirs}.bias", (size,))


class MarkovHead(nn.Module):
    """Applies a Markov head."""

    spec: Markov
    vocab_size: int
    dtype: DTypeLike

    def setup(self):
        spec, rank = self.spec, self.spec.rank
        self.markov_before = self.param("markov_before", _init, (spec.tokens, rank), self.dtype)
        self.markov_after = self.param("markov_after", _init, (self.vocab_size, rank), self.dtype)
        if spec.kind == "gated":
            self.gate = Dense((rank,), True, self.dtype)
        elif spec.kind == "rnn":
            self.joint = Dense((3 * rank,), True, self.dtype)

    def before(self, tokens: Int[Array, "*rows"]) -> Float[Array, "*rows r"]:
        """Embeds the tokens before drafts."""
        return self.markov_before[tokens]

    def start(self, tokens: Int[Array, "b 1"], states: Float[Array, "b 1 d"] | None) -> Float[Array, "b 1 r"]:
        """Returns the state before the first draft."""
        zeros = jnp.zeros((*tokens.shape, self.spec.rank), self.dtype)
        if states is None or self.spec.kind != "rnn":
            return zeros
        return self._recur(zeros, self.before(tokens), states)[0]

    def __call__(self, kept, place, tokens, embedded, states, logits) -> tuple[Float[Array, "b w n"], Any]:
        before = self.before(tokens)
        if self.spec.kind == "gated":
            latent = jax.nn.sigmoid(self.gate(jnp.concatenate([states, before], axis=-1))) * before
        elif self.spec.kind == "rnn":
            kept, latent = self._recur(kept, before, states)
        else:
            latent = before
        return logits + project(latent, self.markov_after).astype(jnp.float32), kept

    def _recur(
        self, kept: Float[Array, "b w r"], before: Float[Array, "b w r"], states: Float[Array, "b w d"]
    ) -> tuple[Float[Array, "b w r"], Float[Array, "b w r"]]:
        joint = self.joint(jnp.concatenate([kept, before, states], axis=-1))
        gate, candidate, out = jnp.split(joint, 3, axis=-1)
        gate = jax.nn.sigmoid(gate)
        return gate * kept + (1 - gate) * jnp.tanh(candidate), jnp.tanh(out)

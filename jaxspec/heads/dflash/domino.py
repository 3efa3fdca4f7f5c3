"""Corrects logits by a recurrence over the drafts before (Domino, 2605.29707).

A GRU reads the embeddings of the anchor and of the drafts, from a zero state. For its state `s` after the token before
a draft, and the state `h` of the draft's place:

    r, z = sigmoid(W x + U s); n = tanh(W x + r * (U s)); s' = (1 - z) n + z s
    bias = B silu(A [h; s'])

The first `prefix` drafts of a block come from the uncorrected logits.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.families.common import map_tensor
from jaxspec.families.settings import COUNT, FLAG, SIZE, Setting
from jaxspec.heads.dflash.correction import Correction
from jaxspec.heads.settings import need_setting
from jaxspec.ops.matmul import project

_init = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class Domino(Correction):
    """Specifies Domino's correction.

    Attributes:
      rank: the size between the products of its bias.
      state: the size of the GRU's state.
      prefix: the number of drafts that are not corrected.
    """

    SETTINGS: ClassVar[Mapping[str, Setting]] = {
        **dict.fromkeys(("emb_dim", "gru_hidden_dim"), SIZE.or_null()),
        "pure_draft_prefix_len": COUNT.or_null(),
        "shift_label": FLAG.or_null(),
    }
    reads_embeddings = True

    rank: int
    state: int
    prefix: int

    @classmethod
    def of(cls, config, target_tokens, draft_tokens):
        if config.get("projector_type") != "domino":
            return None
        rank, state = (need_setting(config, name, "Domino head") for name in ("emb_dim", "gru_hidden_dim"))
        return cls(rank, state, config.get("pure_draft_prefix_len") or 0)

    def build(self, config, dtype):
        return DominoHead(self, config.width, config.vocab_size, dtype)

    def mappings(self, config):
        width, state = config.width, self.state
        tensors = {
            "read": ("prefix_gru.weight_ih_l0", (3 * state, width)),
            "recur": ("prefix_gru.weight_hh_l0", (3 * state, state)),
            "reduce": ("embed_proj.0.weight", (self.rank, width + state)),
            "markov_after": ("embed_proj.2.weight", (config.vocab_size, self.rank)),
        }
        for own, (theirs, shape) in tensors.items():
            yield map_tensor(("correction", own), theirs, shape)


class DominoHead(nn.Module):
    """Applies Domino's correction."""

    spec: Domino
    width: int
    vocab_size: int
    dtype: DTypeLike

    def setup(self):
        spec = self.spec
        self.read = self.param("read", _init, (3 * spec.state, self.width), self.dtype)
        self.recur = self.param("recur", _init, (3 * spec.state, spec.state), self.dtype)
        self.reduce = self.param("reduce", _init, (spec.rank, self.width + spec.state), self.dtype)
        self.markov_after = self.param("markov_after", _init, (self.vocab_size, spec.rank), self.dtype)

    def start(self, tokens: Int[Array, "b 1"], states: Float[Array, "b 1 d"] | None) -> Float[Array, "b 1 s"]:
        """Returns the state before the anchor."""
        return jnp.zeros((*tokens.shape, self.spec.state), self.dtype)

    def __call__(self, kept, place, tokens, embedded, states, logits) -> tuple[Float[Array, "b w n"], Any]:
        read = jnp.split(project(embedded.astype(self.dtype), self.read), 3, axis=-1)
        own = jnp.split(project(kept, self.recur), 3, axis=-1)
        reset, update = (jax.nn.sigmoid(a + b) for a, b in zip(read[:2], own[:2], strict=True))
        kept = (1 - update) * jnp.tanh(read[2] + reset * own[2]) + update * kept
        latent = jax.nn.silu(project(jnp.concatenate([states, kept], axis=-1), self.reduce))
        bias = project(latent, self.markov_after).astype(jnp.float32)
        return jnp.where(place >= self.spec.prefix, logits + bias, logits), kept

"""Refines all drafts of a block together, in a few passes (XPress).

A pass guesses every place given the guesses of the pass before for the token before it, `prev`. For the states `h` of a
block's places, of which it reads the first one too, and their mean `g`:

    x_k = I [H h_k; G g; E(prev_k)]
    x_k += sum over j <= k of L[:, k, j] * x_j
    x_k += D (silu(A x_k) * (B x_k))
    bias_k = R x_k

Before the first pass, guesses are those of the uncorrected logits. As later guesses depend on no drawn token, drafts
are certain.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.families.common import map_tensor
from jaxspec.families.settings import SIZE, Setting, integer
from jaxspec.heads.dflash.correction import Correction
from jaxspec.heads.settings import need_setting
from jaxspec.ops.matmul import project

_init = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class XPress(Correction):
    """Specifies XPress's refiner.

    Attributes:
      rank: the width of its states.
      inner: the inner width of its feed-forward block.
      passes: the number of passes.
      tokens: the number of tokens with an embedding.
    """

    SETTINGS: ClassVar[Mapping[str, Setting]] = {
        "xpress_rank": SIZE.or_null(),
        **dict.fromkeys(("xpress_mlp_ratio", "num_jacobi_passes"), integer(1, 64).or_null()),
    }
    parallel = True

    rank: int
    inner: int
    passes: int
    tokens: int

    @classmethod
    def of(cls, config, target_tokens, draft_tokens):
        if (rank := config.get("xpress_rank")) is None:
            return None
        ratio, passes = (
            need_setting(config, name, "XPress head") for name in ("xpress_mlp_ratio", "num_jacobi_passes")
        )
        return cls(rank, rank * ratio, passes, target_tokens)

    @property
    def reads_anchor(self):
        return True

    def build(self, config, dtype):
        return XPressHead(self, self.shapes(config.width, config.block_size, config.vocab_size), dtype)

    def shapes(self, width: int, block: int, vocab_size: int) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each parameter, by its name in checkpoints."""
        rank, inner = self.rank, self.inner
        return {
            "token_embed": (self.tokens, rank),
            **dict.fromkeys(("down_h", "down_g"), (rank, width)),
            "in_proj": (rank, 3 * rank),
            "mix_l": (rank, block, block),
            **dict.fromkeys(("mlp_gate", "mlp_up"), (inner, rank)),
            "mlp_down": (rank, inner),
            "readout": (vocab_size, rank),
        }

    def mappings(self, config):
        for name, shape in self.shapes(config.width, config.block_size, config.vocab_size).items():
            theirs = f"refiner_head.{name}" + ("" if name == "mix_l" else ".weight")
            yield map_tensor(("correction", name), theirs, shape)


class XPressHead(nn.Module):
    """Applies XPress's refiner."""

    spec: XPress
    shapes: dict[str, tuple[int, ...]]
    dtype: DTypeLike

    def setup(self):
        self.weights = {name: self.param(name, _init, shape, self.dtype) for name, shape in self.shapes.items()}

    def refine(
        self,
        tokens: Int[Array, "b 2"],
        states: Float[Array, "b m d"],
        logits: Float[Array, "b k n"],
        ids: Int[Array, "n"],
    ) -> Float[Array, "b k n"]:
        """Returns the drafts' logits after the last pass.

        Args:
          tokens: the token before the anchor, and the anchor.
          states: the states of all places of the block.
          logits: the uncorrected logits of the places that predict.
          ids: the draft vocabulary.
        """
        weights, places = self.weights, states.shape[1]
        mean = jnp.broadcast_to(jnp.mean(states, axis=1, keepdims=True), states.shape)
        known = [project(states, weights["down_h"]), project(mean, weights["down_g"])]
        lower = jnp.tril(jnp.ones((places, places), self.dtype))[None]
        # In place, the first place guesses the anchor, so that its `prev` is the token before.
        given = tokens if logits.shape[1] < places else tokens[:, 1:]
        uncorrected = logits
        for _ in range(self.spec.passes):
            guesses = ids[jnp.argmax(logits, axis=-1)]
            before = jnp.concatenate([given, guesses], axis=1)[:, :places]
            x = project(jnp.concatenate([*known, weights["token_embed"][before]], axis=-1), weights["in_proj"])
            x = x + jnp.einsum("ckj,bjc->bkc", weights["mix_l"] * lower, x)
            inner = jax.nn.silu(project(x, weights["mlp_gate"])) * project(x, weights["mlp_up"])
            x = x + project(inner, weights["mlp_down"])
            bias = project(x, weights["readout"]).astype(jnp.float32)
            logits = uncorrected + bias[:, places - logits.shape[1] :]
        return logits

"""Defines the network of an early exit, from the state between two layers to what an output head reads.

state after layer E-1 -> block -> ... -> norm -> rows of the target's output head
"""

import dataclasses
from typing import Literal

import flax.linen as nn
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxspec.nn.norm import Norm
from jaxspec.nn.transformer import MLP


@dataclasses.dataclass(frozen=True)
class ExitConfig:
    """Sets the sizes of an early exit.

    Attributes:
      width: of the state.
      mlp_width: inner width of every block.
      num_blocks: blocks before the norm; each is a norm and a gated MLP, added to the state.
      norm: the kind of norm, the target's.
      norm_eps: its own.
    """

    width: int
    mlp_width: int
    num_blocks: int = 1
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5

    # What the blocks have in common with a Llama's: without annotations these are no fields.
    activation = "silu"
    gated_mlp = True
    mlp_bias = False


class ExitNetwork(nn.Module):
    """Applies the blocks and the norm of an early exit."""

    config: ExitConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Returns what the output head is given."""
        config = self.config
        for i in range(config.num_blocks):
            x = x + MLP(config, self.dtype, name=f"block_{i}")(Norm(config, name=f"block_{i}_norm")(x))
        return Norm(config, name="final_norm")(x)

"""Defines Medusa's heads, which predict several tokens from one hidden state (Cai et al. 2401.10774, section 2.1).

    text         a  b  c  d  e        e is committed and unfed: the newest state is that of d
    state                 d
    target                d -> e      the prediction of the target's output head from that state
    head 0                d -> .      the token after e
    head 1                d -> . .    the token after that

Heads do not see each other's guesses. There are two kinds. `MedusaHeads` are the paper's: each head has residual blocks
and an output matrix. `ConditionedHeads` are jaxspec's, for little data and small files. They also read the embedding of
`e`, which is known when drafting. They use the target's output matrix, frozen, and no others. Their first blocks are
shared, so that each answer token trains them once for every head.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxspec.core.parts import unsharded
from jaxspec.nn.layers import Dense, FeedForward, FeedForwardSpec, weight
from jaxspec.nn.norm import Norm, NormSpec
from jaxspec.ops.matmul import project

States = Float[Array, "b t width"]


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
    """Sets the sizes of the paper's heads.

    Attributes:
      width: the size of the hidden state.
      vocab_size: the number of tokens that a head can guess.
      num_heads: the number of tokens to guess.
      num_blocks: the number of residual blocks of each head.
      shared_output: whether all heads share one output matrix.
    """

    width: int
    vocab_size: int
    num_heads: int
    num_blocks: int = 1
    shared_output: bool = False


class MedusaHeads(nn.Module):
    """Applies the paper's heads: each repeats `x + silu(W x + b)`, followed by an output matrix."""

    config: MedusaConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: States, embedding: States) -> Float[Array, "b t k n"]:
        """Returns the logits of each head, float32.

        Args:
          hidden: the target's last states, after its final norm.
          embedding: the embedding of the token after each; ignored.
        """
        del embedding
        config = self.config
        states = [self._head(number, hidden) for number in range(config.num_heads)]
        if config.shared_output:
            return _side_by_side(states, Output(config.vocab_size, self.dtype, name="output"))
        outputs = [Output(config.vocab_size, self.dtype, name=f"output_{i}") for i in range(config.num_heads)]
        return jnp.stack([output(state) for output, state in zip(outputs, states, strict=True)], axis=2)

    def _head(self, number: int, x: States) -> States:
        for i in range(self.config.num_blocks):
            x = x + jax.nn.silu(Dense((self.config.width,), True, self.dtype, name=f"head_{number}_{i}")(unsharded(x)))
        return x


@dataclasses.dataclass(frozen=True)
class ConditionedConfig:
    """Sets the sizes of heads that also read the last committed token.

    Attributes:
      width: the size of the hidden state and of the embedding.
      vocab_size: the number of tokens that a head can guess.
      num_heads: the number of tokens to guess.
      mlp_width: the inner width of every block.
      shared_blocks: the number of blocks that all heads share; the first one reads the token.
      num_blocks: the number of blocks of each head.
      norm_eps: the epsilon of the blocks' norms.
    """

    width: int
    vocab_size: int
    num_heads: int
    mlp_width: int
    shared_blocks: int = 2
    num_blocks: int = 1
    norm_eps: float = 1e-5

    @property
    def norm(self) -> NormSpec:
        """The norm of each block."""
        return NormSpec(norm_eps=self.norm_eps)

    @property
    def block(self) -> FeedForwardSpec:
        """The feed-forward layer of each block."""
        return FeedForwardSpec(self.width, self.mlp_width)


class ConditionedHeads(nn.Module):
    """Applies heads that read the hidden state and the token after it, and share the target's output matrix."""

    config: ConditionedConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: States, embedding: States) -> Float[Array, "b t k n"]:
        """Returns the logits of each head, float32.

        Args:
          hidden: the target's last states, after its final norm.
          embedding: the embedding of the token after each.
        """
        config, x = self.config, hidden
        token = Norm(config.norm, name="embedding_norm")(embedding)
        for i in range(config.shared_blocks):
            x = self._block(f"shared_{i}", x, *((token,) if i == 0 else ()))
        states = [self._head(number, x) for number in range(config.num_heads)]
        return _side_by_side(states, Output(config.vocab_size, self.dtype, name="output"))

    def _head(self, number: int, x: States) -> States:
        for i in range(self.config.num_blocks):
            x = self._block(f"head_{number}_{i}", x)
        return x

    def _block(self, name: str, x: States, *extra: States) -> States:
        inputs = jnp.concatenate([Norm(self.config.norm, name=f"{name}_norm")(x), *extra], axis=-1)
        return x + FeedForward(self.config.block, self.dtype, name=name)(inputs)


class Output(nn.Module):
    """Holds an output matrix, `[n, width]`."""

    vocab_size: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: States) -> Float[Array, "b t n"]:
        head = weight(self, "head", (self.vocab_size, x.shape[-1]), self.dtype)
        return project(x, head).astype(jnp.float32)


def _side_by_side(states: list[States], output: Output) -> Float[Array, "b t k n"]:
    """Multiplies all states by one matrix, which is read only once."""
    batch, time, width = states[0].shape
    logits = output(jnp.stack(states, axis=2).reshape(batch, -1, width))
    return logits.reshape(batch, time, len(states), -1)

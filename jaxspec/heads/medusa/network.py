"""Defines Medusa's heads, which predict several tokens from one hidden state (Cai et al. 2401.10774, section 2.1).

    text         a  b  c  d  e        e is committed and unfed: the newest state is that of d
    state                 d
    target                d -> e      what the target's own output head said of that state
    head 0                d -> .      the token after e
    head 1                d -> . .    the one after that

Heads do not see each other's guesses. There are two kinds. `MedusaHeads` are the paper's: residual blocks and an
output matrix, a head each. `ConditionedHeads` are jaxspec's, for little data and small files: they also read the
embedding of `e`, which is known when the draft is made; they have the target's output matrix, frozen, in place of their
own; and their first blocks are shared, so that each answer token teaches them as often as there are heads.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxspec.core.parts import whole
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.norm import Norm
from jaxspec.nn.transformer import MLP, Dense
from jaxspec.nn.weight import weight
from jaxspec.ops.matmul import project

States = Float[Array, "b t width"]


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
    """Sets the sizes of the paper's heads.

    Attributes:
      width: of the hidden state.
      vocab_size: how many tokens a head may guess.
      num_heads: how many tokens are guessed.
      num_blocks: residual blocks of each head.
      shared_output: whether there is one output matrix for all heads.
    """

    width: int
    vocab_size: int
    num_heads: int
    num_blocks: int = 1
    shared_output: bool = False


class MedusaHeads(nn.Module):
    """Applies the paper's heads: each is `x + silu(W x + b)`, some times over, and then an output matrix."""

    config: MedusaConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: States, embedding: States) -> Float[Array, "b t k n"]:
        """Returns the logits of each head, float32.

        Args:
          hidden: the target's last states, normalized as its own output head takes them.
          embedding: of the token after each; not looked at.
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
            x = x + jax.nn.silu(Dense((self.config.width,), True, self.dtype, name=f"head_{number}_{i}")(whole(x)))
        return x


@dataclasses.dataclass(frozen=True)
class ConditionedConfig:
    """Sets the sizes of heads that read the last committed token too.

    Attributes:
      width: of the hidden state and the embedding.
      vocab_size: how many tokens a head may guess.
      num_heads: how many tokens are guessed.
      mlp_width: inner width of every block.
      shared_blocks: blocks before the heads part; the first reads the token.
      num_blocks: blocks of each head.
      norm_eps: of the blocks' norms.
    """

    width: int
    vocab_size: int
    num_heads: int
    mlp_width: int
    shared_blocks: int = 2
    num_blocks: int = 1
    norm_eps: float = 1e-5

    @property
    def block(self) -> TransformerConfig:
        """The sizes of one block, a Llama's without attention."""
        return TransformerConfig(
            vocab_size=self.vocab_size,
            num_layers=1,
            width=self.width,
            num_heads=1,
            num_kv_heads=1,
            head_dim=self.width,
            mlp_width=self.mlp_width,
            context_length=0,
            ropes=(None,),
            windows=(None,),
            norm_eps=self.norm_eps,
        )


class ConditionedHeads(nn.Module):
    """Applies heads that read the hidden state and the token after it, and share the target's output matrix."""

    config: ConditionedConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: States, embedding: States) -> Float[Array, "b t k n"]:
        """Returns the logits of each head, float32.

        Args:
          hidden: the target's last states, normalized as its own output head takes them.
          embedding: of the token after each.
        """
        config, x = self.config, hidden
        token = Norm(config.block, name="embedding_norm")(embedding)
        for i in range(config.shared_blocks):
            x = self._block(f"shared_{i}", x, *((token,) if i == 0 else ()))
        states = [self._head(number, x) for number in range(config.num_heads)]
        return _side_by_side(states, Output(config.vocab_size, self.dtype, name="output"))

    def _head(self, number: int, x: States) -> States:
        for i in range(self.config.num_blocks):
            x = self._block(f"head_{number}_{i}", x)
        return x

    def _block(self, name: str, x: States, *beside: States) -> States:
        inputs = jnp.concatenate([Norm(self.config.block, name=f"{name}_norm")(x), *beside], axis=-1)
        return x + MLP(self.config.block, self.dtype, name=name)(inputs)


class Output(nn.Module):
    """Holds an output matrix, `[n, width]`."""

    vocab_size: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: States) -> Float[Array, "b t n"]:
        head = weight(self, "head", (self.vocab_size, x.shape[-1]), self.dtype)
        return project(x, head).astype(jnp.float32)


def _side_by_side(states: list[States], output: Output) -> Float[Array, "b t k n"]:
    """Multiplies all states by one matrix, which is read once."""
    batch, time, width = states[0].shape
    logits = output(jnp.stack(states, axis=2).reshape(batch, -1, width))
    return logits.reshape(batch, time, len(states), -1)

"""A multi-token prediction module: a whole decoder layer over a token and the state before it (DeepSeek-V3).

DeepSeek-V3 (2412.19437, section 2.2), for the state `h` of a token and the embedding `e` of the token after it:

    x         mix [norm(e), norm(h)]        the embedding first, whatever the paper's formula says
    made      layer(x)                      a usual decoder layer with keys and values of its own
    logits    head(norm(made))              of the token after the next; embedding and head are the target's

`h` is the target's last state as its own head takes it, after the final norm; to draft on, the module reads what it
made itself, before its norm, as in vLLM. There it also gets no embedding at a text's first place, and so it does here.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.transformer import Block, Dense, Norm, entries_of, of_chain
from jaxspec.ops.matmul import project

_init = nn.initializers.normal(0.02)


class MtpLayer(nn.Module):
    """The module, for `jaxspec.heads.eagle.head.EagleHead`; `features` is the width of the target's last state.

    Attributes:
      config: of one decoder layer.
      features: the target's width.
    """

    config: TransformerConfig
    features: int
    dtype: Any = jnp.float32

    def setup(self):
        config = self.config
        self.token_norm, self.state_norm = Norm(config), Norm(config)
        self.mix = Dense((config.width,), False, self.dtype)
        self.block = Block(config, 0, self.dtype)
        self.final_norm = Norm(config)
        self.head = self.param("head", _init, (config.vocab_size, config.width), self.dtype)

    def fuse(self, features: Float[Array, "b t f"]) -> Float[Array, "b t d"]:
        """The target's states as the layer takes them: as they are."""
        return features

    def __call__(self, embedded, states, cache, *, mask=None, positions=None, pending=None):
        mask, positions = of_chain(mask, positions, cache, embedded.shape[:2])
        at = positions[:, -embedded.shape[1] :, None]
        embedded = jnp.where(at == 0, jnp.zeros((), embedded.dtype), embedded)
        x = self.mix(jnp.concatenate([self.token_norm(embedded), self.state_norm(states)], axis=-1))
        states, entry = self.block(x, cache, pending, positions, mask)
        return states, entries_of([entry], states)

    def logits(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Of the token after the next, float32."""
        return project(self.final_norm(states), self.head).astype(jnp.float32)

    def everything(self, embedded, features, cache):
        """One pass through all parameters: `init` learns their shapes from it."""
        states, _ = self(embedded, features, cache)
        return self.logits(states)

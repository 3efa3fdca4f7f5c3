"""Selects drafts among the best candidates of each place, and convolves within a block (DFlash2).

The candidates of a place are the `K` tokens with the largest logits. After the token `x`, the score of candidate `c` is
`logits[c] + <A[x] * (H h), B[c]>`, for the state `h` of the place; other tokens are never drafted.

Each sublayer `f` of a block becomes `conv_1(f(conv_0(a)))` of its normalized input `a`, for causal convolutions of few
taps. Their kernels are `base + D(a)`, where a group of channels shares a change `D`; before a block there are zeros:

    conv_s(y)[t] = sum over taps j of (base[s, j] + D_t[s, j, group]) * y[t - j]
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.families.base import ParamMapping
from jaxspec.families.common import map_tensor
from jaxspec.families.settings import SIZE, Setting, SettingError, integer
from jaxspec.heads.dflash.correction import Correction
from jaxspec.heads.settings import need_setting
from jaxspec.nn.layers import Dense
from jaxspec.ops.matmul import project

_init = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class Selector(Correction):
    """Specifies DFlash2's selector.

    Attributes:
      rank: the size of its codes of tokens.
      top_k: the number of candidates of a place.
      tokens: the number of tokens with a code as predecessors; 0 means as many as can be drafted.
    """

    SETTINGS: ClassVar[Mapping[str, Setting]] = {
        "selector_rank": SIZE.or_null(),
        "selector_top_k": integer(1, 4096).or_null(),
    }
    rank: int
    top_k: int
    tokens: int = 0

    @classmethod
    def of(cls, config, target_tokens, draft_tokens):
        if config.get("selector_rank") is None:
            return None
        if draft_tokens != target_tokens:
            raise SettingError("draft_vocab_size", f"a selector needs the {target_tokens} tokens of the target")
        top_k = need_setting(config, "selector_top_k", "DFlash2 head")
        if top_k > target_tokens:
            raise SettingError("selector_top_k", f"expected at most the target's {target_tokens} tokens, got {top_k}")
        return cls(config["selector_rank"], top_k, target_tokens)

    @property
    def candidates(self):
        return self.top_k

    def settings(self):
        return {"selector_rank": self.rank, "selector_top_k": self.top_k}

    def begun(self, params, rows):
        return params | {"predecessors": rows(self.rank), "successors": jnp.zeros_like(params["successors"])}

    def build(self, config, dtype):
        return SelectorHead(self, config.width, config.vocab_size, dtype)

    def mappings(self, config):
        name, before, after = "candidate_selector", self.tokens or config.vocab_size, config.vocab_size
        yield map_tensor(("correction", "predecessors"), f"{name}.predecessor_codebook", (before, self.rank))
        yield map_tensor(("correction", "successors"), f"{name}.successor_codebook", (after, self.rank))
        yield map_tensor(("correction", "reduce"), f"{name}.hidden_projection.weight", (self.rank, config.width))


class SelectorHead(nn.Module):
    """Applies DFlash2's selector."""

    spec: Selector
    width: int
    vocab_size: int
    dtype: DTypeLike

    def setup(self):
        before, rank = self.spec.tokens or self.vocab_size, self.spec.rank
        self.predecessors = self.param("predecessors", _init, (before, rank), self.dtype)
        self.successors = self.param("successors", _init, (self.vocab_size, rank), self.dtype)
        self.reduce = self.param("reduce", _init, (self.spec.rank, self.width), self.dtype)

    def start(self, tokens: Int[Array, "b 1"], states: Float[Array, "b 1 d"] | None) -> tuple[()]:
        """Returns nothing: the token before a draft is all that it depends on."""
        return ()

    def __call__(self, kept, place, tokens, embedded, states, logits) -> tuple[Float[Array, "b w n"], Any]:
        candidates, scores = self.candidates(tokens, states, logits)
        blank = jnp.full(logits.shape, -jnp.inf, logits.dtype)
        return jnp.put_along_axis(blank, candidates, scores, axis=-1, inplace=False), kept

    def candidates(
        self, tokens: Int[Array, "b w"], states: Float[Array, "b 1 d"], logits: Float[Array, "b w_or_1 n"]
    ) -> tuple[Int[Array, "b w_or_1 c"], Float[Array, "b w c"]]:
        """Returns the candidates of a place, and their scores after each token."""
        best, candidates = jax.lax.top_k(logits, self.spec.top_k)
        code = self.predecessors[tokens] * project(states, self.reduce)
        edges = jnp.sum(code[..., None, :] * self.successors[candidates], axis=-1).astype(jnp.float32)
        return candidates, best + edges


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Specifies the convolutions of a block.

    Attributes:
      taps: the number of places that one reads.
      group: the number of channels that share a change of the kernel.
    """

    SETTINGS: ClassVar[Mapping[str, Setting]] = dict.fromkeys(
        ("conv_kernel_size", "conv_group_size"), integer(1, 4096).or_null()
    )

    taps: int
    group: int

    @classmethod
    def of(cls, config: Mapping[str, Any], width: int) -> "Convolution | None":
        """Returns the convolutions that a configuration describes; `None` if it has none.

        Raises:
          SettingError: the groups do not divide the width, or a setting is missing.
        """
        if config.get("conv_kernel_size") is None:
            return None
        group = need_setting(config, "conv_group_size", "DFlash2 head")
        if width % group:
            raise SettingError("conv_group_size", f"expected a divisor of the width {width}, got {group}")
        return cls(config["conv_kernel_size"], group)

    def settings(self) -> dict[str, Any]:
        """Returns the settings that describe it."""
        return {"conv_kernel_size": self.taps, "conv_group_size": self.group}

    def begun(self, params: Any) -> Any:
        """Returns new parameters with which it changes nothing yet."""
        base = jnp.zeros_like(params["base"]).at[:, 0].set(1)
        return params | {"base": base, "change": jax.tree.map(jnp.zeros_like, params["change"])}

    def mappings(self, width: int, path: tuple[str, ...], name: str) -> Iterator[ParamMapping]:
        """Yields the parameters of one sublayer's convolutions; `name` is the prefix of its tensors' names."""
        yield map_tensor((*path, "base"), f"{name}.base_kernel", (2, self.taps, width))
        shape = (2, self.taps, width // self.group, width)
        source = (f"{name}.kernel_projection.weight", (2 * self.taps * width // self.group, width))
        yield ParamMapping((*path, "change", "kernel"), (source,), lambda x: x.reshape(shape))


class BlockConvolution(nn.Module):
    """Convolves the input and the output of a sublayer within each block of `size` tokens."""

    spec: Convolution
    width: int
    size: int
    dtype: DTypeLike

    def setup(self):
        spec = self.spec
        self.base = self.param("base", _init, (2, spec.taps, self.width), self.dtype)
        self.change = Dense((2, spec.taps, self.width // spec.group), False, self.dtype)

    def __call__(self, x: Float[Array, "b t d"]) -> tuple[Float[Array, "b t d"], Float[Array, "b t j d"]]:
        """Returns the convolved input, and the kernel of the output."""
        changes = jnp.repeat(self.change(x), self.spec.group, axis=-1)
        before, after = (self.base[i][None, None] + changes[:, :, i] for i in range(2))
        return self.convolve(x, before), after

    def convolve(self, x: Float[Array, "b t d"], kernel: Float[Array, "b t j d"]) -> Float[Array, "b t d"]:
        """Returns the convolution of `x` with the kernel of each place."""
        blocks = x.reshape(x.shape[0], -1, self.size, x.shape[-1])
        taps = min(self.spec.taps, self.size)
        shifted = [jnp.pad(blocks, ((0, 0), (0, 0), (tap, 0), (0, 0)))[:, :, : self.size] for tap in range(taps)]
        products = [kernel[:, :, tap] * y.reshape(x.shape) for tap, y in enumerate(shifted)]
        return functools.reduce(jnp.add, products)

"""Defines a feed-forward layer of experts: a router chooses a few for each token, and their outputs are mixed.

    chances     softmax of the router's outputs over all experts
    chosen      the `per_token` experts with the highest chances
    output      sum over the chosen of  chance * expert(x)

No token is dropped: an expert takes all that choose it. The chosen experts, the order of the sum and, on a CPU, each
product depend on the token alone, so that its output does not depend on the tokens fed with it.

    router              [count, width]                      with a bias [count] in some families
    experts_gate_up     [count, 2, inner_width, width]      [count, 2, inner_width]
    experts_down        [count, width, inner_width]         [count, width]
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core import validate
from jaxspec.core.parts import on_one_device, summed_on_each
from jaxspec.core.sums import rounded, row_sum
from jaxspec.nn.layers import ACTIVATIONS, Dense, weight
from jaxspec.ops.experts import project_by_expert
from jaxspec.ops.layer_rows import LayerRows
from jaxspec.ops.packed import Axes, PackedWeight

_Kernel = Float[Array, "e *out in"] | PackedWeight
_Bias = Float[Array, "e *out"] | LayerRows | None
# Takes gate and up, and returns the input of the down product.
Gate = Callable[[Float[Array, "n inner"], Float[Array, "n inner"]], Float[Array, "n inner"]]

# The name of the router among the modules of a layer. Rounding it would change which experts are chosen.
ROUTER = "router"
# The names of the products of all experts. Their biases are large, and only rows of them are read.
OF_EXPERTS = _GATE_UP, _DOWN = "experts_gate_up", "experts_down"


@dataclasses.dataclass(frozen=True)
class ClampedGate:
    """Gates like gpt-oss: clamps gate and up, and adds one to up.

    Attributes:
      limit: the largest gate, and the largest magnitude of up.
      alpha: the factor inside the sigmoid.

    Raises:
      TypeError, ValueError: a field has the wrong type or is out of range.

    Example:
        >>> gate = jaxspec.nn.experts.ClampedGate(limit=7.0, alpha=1.702)
        >>> gate(jnp.array([0.0, 9.0]), jnp.array([1.0, -9.0])).round(3).tolist()
        [0.0, -42.0]
    """

    limit: float
    alpha: float

    def __post_init__(self):
        validate.in_range("ClampedGate", limit=(self.limit, 0, math.inf), alpha=(self.alpha, 0, math.inf))

    def __call__(self, gate: Float[Array, "n inner"], up: Float[Array, "n inner"]) -> Float[Array, "n inner"]:
        gate = jnp.minimum(gate, self.limit)
        up = jnp.clip(up, -self.limit, self.limit)
        return rounded((up + 1) * (gate * jax.nn.sigmoid(rounded(self.alpha * gate))))


@dataclasses.dataclass(frozen=True)
class ExpertsSpec:
    """Specifies a layer's feed-forward block of gated experts.

    Attributes:
      width: the width of its input and output.
      inner_width: the width between the products of an expert.
      count: the number of experts.
      per_token: the number that is chosen for a token.
      normalized: whether the chances of the chosen are divided by their sum. The softmax over the chosen alone is the
        same.
      activation: the activation of the gate.
      clamped: how gate and up are clamped and combined instead, or `None`.
      bias: whether router and experts have biases.
    """

    width: int
    inner_width: int
    count: int
    per_token: int
    normalized: bool
    activation: Literal["silu", "gelu_tanh"] = "silu"
    clamped: ClampedGate | None = None
    bias: bool = False

    @property
    def gate(self) -> Gate:
        """The function of gate and up."""
        return self.clamped or functools.partial(_gated, ACTIVATIONS[self.activation])

    def build(self, dtype: DTypeLike) -> "Experts":
        return Experts(self, dtype, name="mlp")


class Experts(nn.Module):
    """Applies the experts that the router chooses for each token, and mixes their outputs."""

    spec: ExpertsSpec
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        spec = self.spec
        logits = Dense((spec.count,), spec.bias, self.dtype, name=ROUTER)(x)
        chances, chosen = choose(logits, spec.per_token, normalized=spec.normalized)
        inner, outer = (spec.count, 2, spec.inner_width, spec.width), (spec.count, spec.width, spec.inner_width)
        gate_up, bias = _Stack(inner, spec.bias, self.dtype, name=_GATE_UP)()
        down, bias_of_down = _Stack(outer, spec.bias, self.dtype, name=_DOWN)()
        mixed = _mix_on_devices(x, chances, chosen, gate_up, down, bias, gate=spec.gate)
        return mixed if bias_of_down is None else mixed + _mix_biases(chances, chosen, bias_of_down).astype(x.dtype)


def _gated(activate: Callable[[Array], Array], gate: Array, up: Array) -> Array:
    return activate(gate) * up


class _Stack(nn.Module):
    """Holds the weights of all experts, `[count, *out, in]`, and their biases, `[count, *out]`."""

    shape: tuple[int, ...]
    bias: bool
    dtype: DTypeLike

    @nn.compact
    def __call__(self) -> tuple[_Kernel, _Bias]:
        kernel = weight(self, "kernel", self.shape, self.dtype)
        if not self.bias:
            return kernel, None
        stored = self.get_variable("params", "bias")
        if isinstance(stored, LayerRows):  # Flax would take it for an array
            return kernel, stored
        return kernel, self.param("bias", nn.initializers.zeros, self.shape[:-1], self.dtype)


def choose(
    logits: Float[Array, "*rows e"], per_token: int, *, normalized: bool
) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """Chooses the experts of each token; returns their chances, float32, and their numbers, by falling chance.

    Args:
      logits: the router's outputs.
      per_token: the number of experts of a token.
      normalized: whether the chances of the chosen add up to 1, or those of all.

    Example:
      >>> chances, chosen = jaxspec.nn.experts.choose(jnp.log(jnp.array([[1.0, 5.0, 2.0]])), 2, normalized=False)
      >>> chances.round(3).tolist(), chosen.tolist()
      ([[0.625, 0.25]], [[1, 2]])
    """
    wide = logits.astype(jnp.float32)
    shares = jnp.exp(wide - jnp.max(wide, axis=-1, keepdims=True))
    chances, chosen = jax.lax.top_k(shares / row_sum(shares)[..., None], per_token)
    if normalized:
        chances = chances / row_sum(chances)[..., None]
    return chances, chosen


# The logical axes of the experts' weights (`jaxspec.sharding.Rules`).
_AXES = ("experts", None, "mlp", None), ("experts", None, "mlp")
_BIAS_AXES = ("experts", None, "mlp")


def _mix_on_devices(
    x: Float[Array, "b t d"],
    chances: Float[Array, "b t k"],
    chosen: Int[Array, "b t k"],
    gate_up: Float[Array, "e 2 inner d"] | PackedWeight,
    down: Float[Array, "e d inner"] | PackedWeight,
    bias: Float[Array, "e 2 inner"] | LayerRows | None,
    *,
    gate: Gate,
) -> Float[Array, "b t d"]:
    """Mixes on each device the outputs of the experts, or parts of them, that it holds; adds up all devices'."""
    flat = lambda one: one.reshape(-1, one.shape[-1])  # noqa: E731
    if on_one_device():
        return mix(flat(x), flat(chances), flat(chosen), gate_up, down, bias, gate=gate).reshape(x.shape)
    count, kernels = gate_up.shape[0], tuple(zip((gate_up, down), _AXES, strict=True))
    arrays = [each for kernel, axes in kernels for each in _arrays(kernel, axes)]
    if bias is not None:
        arrays.append((bias[jnp.arange(count)] if isinstance(bias, LayerRows) else bias, _BIAS_AXES))
    rows = ("batch", None, None)

    def own(x: Array, chances: Array, chosen: Array, numbers: Int[Array, "e"], *parts: Array) -> Array:
        each = iter(parts)
        held, held_down = (_with_arrays(kernel, axes, each) for kernel, axes in kernels)
        options = {"gate": gate, "first": None if len(numbers) == count else numbers[0]}
        found = mix(flat(x), flat(chances), flat(chosen), held, held_down, next(each, None), **options)
        return found.reshape(x.shape)

    return summed_on_each(
        own,
        (x, chances, chosen, jnp.arange(count, dtype=jnp.int32), *(part for part, _ in arrays)),
        (rows, rows, rows, ("experts",), *(axes for _, axes in arrays)),
    )


def _arrays(kernel: _Kernel, axes: Axes) -> list[tuple[Array, Axes]]:
    """Returns the arrays of a weight, each with its logical axes."""
    if not isinstance(kernel, PackedWeight):
        return [(kernel, axes)]
    found: list[tuple[Array, Axes]] = []
    kernel.map_axes(lambda part, own: found.append((part, own)), axes)
    return found


def _with_arrays(kernel: _Kernel, axes: Axes, parts: Iterator[Array]) -> Float[Array, "*part"] | PackedWeight:
    """Returns the weight with other arrays, in the order of `_arrays`."""
    return kernel.map_axes(lambda *_: next(parts), axes) if isinstance(kernel, PackedWeight) else next(parts)


def mix(
    x: Float[Array, "n d"],
    chances: Float[Array, "n k"],
    chosen: Int[Array, "n k"],
    gate_up: Float[Array, "e 2 inner d"] | PackedWeight,
    down: Float[Array, "e d inner"] | PackedWeight,
    bias: Float[Array, "e 2 inner"] | LayerRows | None = None,
    *,
    gate: Gate,
    first: Int[Array, ""] | None = None,
) -> Float[Array, "n d"]:
    """Applies the chosen experts to each token, and adds up their outputs times their chances.

    Args:
      x: the tokens' states.
      chances: the chosen experts' chances.
      chosen: their numbers.
      gate_up: `[e, 2, inner, d]`.
      down: `[e, d, inner]`.
      bias: the biases of the first product.
      gate: the function of both halves of the first product.
      first: the number of the first expert of the weights; others add nothing. `None`: the weights are those of all.
    """
    held = None
    if first is not None:
        held = (chosen >= first) & (chosen < first + gate_up.shape[0])
        chosen = jnp.where(held, chosen - first, gate_up.shape[0])
    per_token, flat = chosen.shape[1], chosen.reshape(-1)
    order = jnp.argsort(flat)
    experts = flat[order]
    both = project_by_expert(x[order // per_token], gate_up, experts)
    if bias is not None:
        both = both + bias[jnp.minimum(experts, bias.shape[0] - 1)].astype(both.dtype)
    outputs = project_by_expert(gate(both[:, 0], both[:, 1]), down, experts)
    outputs = outputs[jnp.argsort(order)].reshape(*chosen.shape, -1).astype(jnp.float32)
    if held is not None:
        outputs = jnp.where(held[..., None], outputs, 0)
    return _sum_of_shares(chances, outputs).astype(x.dtype)


def _mix_biases(
    chances: Float[Array, "b t k"], chosen: Int[Array, "b t k"], bias: Float[Array, "e d"] | LayerRows
) -> Float[Array, "b t d"]:
    """Adds up the biases of the chosen experts' outputs times their chances, once for all devices that share them."""
    return _sum_of_shares(chances, bias[chosen].astype(jnp.float32))


def _sum_of_shares(chances: Float[Array, "*rows k"], outputs: Float[Array, "*rows k d"]) -> Float[Array, "*rows d"]:
    # In the order of the chances, each product rounded: the sum of a row depends on nothing else.
    terms = (rounded(chances[..., place, None] * outputs[..., place, :]) for place in range(chances.shape[-1]))
    return functools.reduce(jnp.add, terms)

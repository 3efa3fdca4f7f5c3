"""Models with a recurrence: an exponential average of the text, alone and among layers of attention.

    average after x_0 ... x_i  =  keep * average before + (1 - keep) * input of x_i

The cache keeps one average a row, and the inputs of the tokens that were appended last. `truncate` folds those that are
kept into it; the average of fewer tokens than it holds is not a number.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.core.compiler import after
from jaxspec.core.model import ModelOutput, ModelTraits
from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.layers import Dense, LayerSpec
from jaxspec.ops.rope import Rope
from jaxspec.testing.random_models import random_model
from tests._fixtures import tiny

KEEP = 0.6


def _step(average, x):
    return KEEP * average + (1 - KEEP) * x


def fold(average, inputs, count):
    """The average `[..., b, d]` after each row's first `count` inputs `[..., b, t, d]`."""

    def step(average, at):
        x, number = at
        return jnp.where((number < count)[:, None], _step(average, x), average), None

    numbers = jnp.arange(inputs.shape[-2], dtype=jnp.int32)
    folded, _ = jax.lax.scan(step, average, (jnp.moveaxis(inputs, -2, 0), numbers))
    return jnp.where((count < 0)[:, None], jnp.nan, folded)


def averages(average, inputs):
    """The averages `[b, t, d]` after each of the inputs."""
    step = lambda average, x: (_step(average, x),) * 2
    return jnp.moveaxis(jax.lax.scan(step, average, jnp.moveaxis(inputs, 1, 0))[1], 0, 1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RecurrentEntries:
    """The inputs of fed tokens, `[l, b, t, d]`."""

    inputs: jax.Array

    def pad(self, count: int):
        widths = ((0, 0), (0, 0), (0, count - self.inputs.shape[2]), (0, 0))
        return RecurrentEntries(jnp.pad(self.inputs, widths))

    def keep_path(self, nodes):
        raise ValueError("a recurrence has no trees")

    put = keep_path


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RecurrentCache:
    """Averages `[l, b, d]` of the first `held` tokens, and the inputs of those after them up to `length`."""

    averages: jax.Array
    inputs: jax.Array
    held: jax.Array
    length: jax.Array
    capacity: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def empty(cls, layers: int, batch: int, capacity: int, width: int):
        none = jnp.zeros(batch, jnp.int32)
        averages = jnp.zeros((layers, batch, width))
        return cls(averages, averages[:, :, None][:, :, :0], none, none, capacity)

    def folded(self):
        return fold(self.averages, self.inputs, self.length - self.held)

    def append(self, entries: RecurrentEntries):
        length = self.length + entries.inputs.shape[2]
        return RecurrentCache(self.folded(), entries.inputs, self.length, length, self.capacity)

    def truncate(self, length):
        folded = fold(self.averages, self.inputs, length - self.held)
        return RecurrentCache(folded, self.inputs[:, :, :0], length, length, self.capacity)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RecurrentModel:
    """Scores what follows by the average of the text's embeddings alone. A pass of a prompt takes three tokens."""

    embedding: jax.Array
    head: jax.Array

    context_length: ClassVar[None] = None
    traits: ClassVar[ModelTraits] = ModelTraits(takes_trees=False, rewinds=False, prompt_chunk=3)

    @property
    def vocab_size(self) -> int:
        return self.head.shape[1]

    def init_cache(self, batch, capacity):
        return RecurrentCache.empty(1, batch, capacity, self.embedding.shape[1])

    def __call__(self, tokens, cache, *, mask=None, positions=None, capture=(), pending=None):
        if mask is not None or positions is not None or pending is not None or capture:
            raise ValueError("a recurrence scores chains alone, got a tree mask or captured states")
        inputs = self.embedding[tokens]
        logits = averages(cache.folded()[0], inputs) @ self.head
        return ModelOutput(logits, RecurrentEntries(after(inputs[None], logits, axis=1)))


def recurrent_model(seed=0, *, vocab=tiny.VOCAB, width=6) -> RecurrentModel:
    rng = np.random.default_rng(seed)
    embedding, head = rng.normal(size=(vocab, width)), 3 * rng.normal(size=(width, vocab))
    return RecurrentModel(jnp.asarray(embedding, jnp.float32), jnp.asarray(head, jnp.float32))


def next_logits(model: RecurrentModel, text) -> np.ndarray:
    """The logits of the token after `text`, recomputed in float64 from the formula."""
    average = np.zeros(model.embedding.shape[1])
    for token in text:
        average = _step(average, np.asarray(model.embedding, np.float64)[token])
    return average @ np.asarray(model.head, np.float64)


class Average(nn.Module):
    """Averages products of the residual stream."""

    width: int
    layer: int
    dtype: Any

    @nn.compact
    def __call__(self, x, cache: RecurrentCache, pending, positions, mask, table):
        inputs = Dense((self.width,), False, self.dtype, name="input")(x)
        found = averages(cache.folded()[self.layer], inputs)
        return Dense((self.width,), False, self.dtype, name="output")(found), inputs


@dataclasses.dataclass(frozen=True)
class AverageKind:
    """What layers of averages keep."""

    width: int

    def empty(self, cache_type, layout, *, layers, batch, capacity, dtype):
        return RecurrentCache.empty(layers, batch, capacity, self.width)

    def stack(self, entries, x):
        return RecurrentEntries(after(jnp.stack(entries), x, axis=1))


@dataclasses.dataclass(frozen=True)
class AverageSpec:
    """A layer that averages."""

    width: int
    rotary: ClassVar[None] = None
    takes_trees: ClassVar[bool] = False
    rewinds: ClassVar[bool] = False

    @property
    def cache(self) -> AverageKind:
        return AverageKind(self.width)

    def build(self, layer, dtype) -> Average:
        return Average(self.width, layer, dtype, name="average")


@dataclasses.dataclass(frozen=True)
class HybridConfig(TransformerConfig):
    """A decoder that averages in some layers and attends in the others."""

    averaging: tuple[bool, ...] = dataclasses.field(kw_only=True)

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        mixers = {True: {"mixer": AverageSpec(self.width)}, False: {}}
        pairs = zip(super().layers, self.averaging, strict=True)
        return tuple(dataclasses.replace(spec, **mixers[averages]) for spec, averages in pairs)


@dataclasses.dataclass(frozen=True)
class TwoSizesConfig(TransformerConfig):
    """A decoder whose every second layer has half the heads, twice as wide."""

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        return tuple(_with_wide_heads(spec) if number % 2 else spec for number, spec in enumerate(super().layers))


def _with_wide_heads(spec: LayerSpec) -> LayerSpec:
    mixer: Any = spec.mixer
    sizes = {"num_kv_heads": mixer.num_kv_heads // 2, "head_dim": 2 * mixer.head_dim}
    return dataclasses.replace(spec, mixer=dataclasses.replace(mixer, **sizes))


_SIZES: dict[str, Any] = {"vocab_size": tiny.VOCAB, "width": 16, "head_dim": 8, "mlp_width": 24, "context_length": 512}


def hybrid_model(seed=0, averaging=(True, False, True)) -> jaxspec.LanguageModel:
    """Layers that average, and one that attends."""
    layers, heads = len(averaging), {"num_heads": 2, "num_kv_heads": 1}
    each = {"num_layers": layers, "ropes": (Rope(1e4),) * layers, "windows": (None,) * layers}
    return random_model(HybridConfig(**_SIZES, **heads, **each, averaging=averaging, tied_head=True), seed, 0.2)


def two_sizes_model(seed=0, layers=3) -> jaxspec.LanguageModel:
    heads = {"num_heads": 4, "num_kv_heads": 2}
    each = {"num_layers": layers, "ropes": (Rope(1e4),) * layers, "windows": (None, 4, None)[:layers]}
    return random_model(TwoSizesConfig(**_SIZES, **heads, **each, tied_head=True), seed, 0.2)

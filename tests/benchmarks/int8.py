"""Measures int8 weights and caches, and int4 weights: bytes, quality and time."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.bench.questions import read_questions
from jaxspec.bench.timing import interleave
from jaxspec.checkpoints.load import load
from jaxspec.core.memory import size_of
from jaxspec.nn.convert import quantize_cache, quantize_weights
from jaxspec.nn.language_model import LanguageModel
from tests.benchmarks.workload import filled_cache, show, show_machine, show_ratio

_WIDTH = 256
_CAPACITY, _USED = 512, 300


@dataclasses.dataclass(frozen=True)
class Quality:
    """The quality of a model on some texts.

    Attributes:
      perplexity: of the tokens after the first.
      same: the share of places where its top-1 token is the float model's.
      overlap: the mean of `sum(min(probs, float probs))`: how often a token drawn from one would be accepted by the
        other.
    """

    perplexity: float
    same: float
    overlap: float


def run(model_name: str, repeats: int) -> None:
    """Prints each variant's bytes, quality on our prompts, and times of passes over one and five tokens."""
    show_machine()
    model = load(model_name, weights="dequantized")
    variants = variants_of(model)
    texts, there = _texts(model)
    show("tokens of our prompts", str(int(there.sum())))
    for name, variant in variants.items():
        size = size_of(variant.params)
        slots = size_of(variant.init_cache(1, _CAPACITY)) / _CAPACITY
        show(f"{name}: weights, MB; cache, kB a token", f"{size / 1e6:.0f}; {slots / 1e3:.1f}")
        found = quality(variant, model, texts, there)
        show(
            f"{name}: perplexity; top-1 token the same; overlap",
            f"{found.perplexity:.3f}; {found.same:.3f}; {found.overlap:.3f}",
        )
    for count in (1, 5):
        cases = {name: _pass_over(variant, count) for name, variant in variants.items()}
        samples = interleave(cases, repeats=5 * repeats, warm_up=2)
        for name in variants:
            show(f"{name}: a pass over {count}, ms", f"{samples.median(name) * 1e3:.1f}")
            show_ratio("  over float", samples.ratio(name, "float"))


def variants_of(model: LanguageModel, group: int = 64) -> dict[str, LanguageModel]:
    """Returns the model itself, with int8 weights, with an int8 cache, with both, and with int4 weights in groups."""
    weights = quantize_weights(model)
    return {
        "float": model,
        "int8 weights": weights,
        "int8 cache": quantize_cache(model),
        "int8 weights and cache": quantize_cache(weights),
        f"int4 weights, groups of {group}": quantize_weights(model, bits=4, group=group),
    }


def quality(
    variant: LanguageModel, model: LanguageModel, texts: Int[Array, "n t"], there: Bool[Array, "n t"]
) -> Quality:
    """Compares two models over all texts; `there` says which of their tokens are no padding."""
    sums = np.zeros(4)
    for text, real in zip(texts, there, strict=True):
        sums += np.asarray(_compare(variant, model, text[None], real[None]))
    loss, same, overlap, count = sums
    return Quality(math.exp(loss / count), same / count, overlap / count)


@jax.jit
def _compare(variant, model, text, there) -> Float[Array, "4"]:
    log_probs, float_log_probs = (
        jax.nn.log_softmax(one(text, one.init_cache(1, 0)).logits[:, :-1].astype(jnp.float32))
        for one in (variant, model)
    )
    loss = -jnp.take_along_axis(log_probs, text[:, 1:, None], axis=-1)[..., 0]
    same = (jnp.argmax(log_probs, axis=-1) == jnp.argmax(float_log_probs, axis=-1)).astype(jnp.float32)
    overlap = jnp.sum(jnp.exp(jnp.minimum(log_probs, float_log_probs)), axis=-1)
    found = jnp.stack([loss, same, overlap, jnp.ones_like(loss)])
    return jnp.sum(jnp.where(there[None, :, 1:], found, 0.0), axis=(1, 2))


def _texts(model: LanguageModel) -> tuple[Array, Array]:
    texts = [model.tokenizer.encode("\n".join(prompt.turns))[:_WIDTH] for prompt in read_questions("built-in")]
    tokens = np.zeros((len(texts), _WIDTH), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    lengths = np.asarray([len(text) for text in texts])
    return jnp.asarray(tokens), jnp.asarray(np.arange(_WIDTH)[None] < lengths[:, None])


def _pass_over(model: LanguageModel, count: int):
    cache, tokens = filled_cache(model, _CAPACITY, _USED), jnp.ones((1, count), jnp.int32)
    run = jax.jit(lambda model, tokens, cache: model(tokens, cache).logits)
    return functools.partial(run, model, tokens, cache)

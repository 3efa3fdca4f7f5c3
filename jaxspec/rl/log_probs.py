"""Names the conventions of log-probabilities that samplers and trainers use, and computes each.

With logits z, the same after processors u, temperature T, and the set K that top-k, top-p and min-p keep, a token y has

    raw           z_y - log sum over all of exp z                    OpenAI, SkyRL tx; the default of vLLM
    temperature   u_y / T - log sum over all of exp(u / T)           the trainers of tunix, TRL and verl
    processed     u_y / T - log sum over K of exp(u / T)             what tokens are drawn from

`temperature` minus `processed` is `log S`, the log of the mass of K: 0 without truncation. Trainers do not divide by a
temperature of 0.
"""

from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import validate
from jaxspec.core.results import Generation
from jaxspec.core.sampling import Sampling

Convention: TypeAlias = Literal["raw", "temperature", "processed"]


def check_convention(name: str, value: object) -> None:
    """Raises `ValueError` unless a value names a convention."""
    validate.one_of(name, value, get_args(Convention), "raw is at temperature 1, processed is after truncation")


def needs_kept_mass(sampling: Sampling, vocab_size: int) -> bool:
    """Returns whether `temperature` differs from `processed` for some row."""
    return truncates(sampling, vocab_size) or not np.all(np.asarray(sampling.temperature) > 0)


def truncates(sampling: Sampling, vocab_size: int) -> bool:
    """Returns whether the policy may exclude tokens of a row that is sampled."""
    sampled = np.asarray(sampling.temperature) > 0
    top_k = np.asarray(0 if sampling.top_k is None else sampling.top_k)
    top_p = np.asarray(1.0 if sampling.top_p is None else sampling.top_p)
    min_p = np.asarray(0.0 if sampling.min_p is None else sampling.min_p)
    return bool(np.any(sampled & (((top_k > 0) & (top_k < vocab_size)) | (top_p < 1) | (min_p > 0))))


def without_truncation(sampling: Sampling) -> Sampling:
    """Returns the policy of the convention `temperature`: it keeps all tokens, and a temperature of 0 counts as 1."""
    temperature = jnp.asarray(sampling.temperature, jnp.float32)
    return Sampling(jnp.where(temperature > 0, temperature, 1.0), processors=sampling.processors)


def of_generation(generation: Generation, convention: Convention) -> np.ndarray:
    """Returns the log-probabilities of new tokens by a convention.

    Args:
      generation: the result, with the kept mass if `needs_kept_mass`.
      convention: the name.

    Returns:
      `float32[b, n]`, on the host.
    """
    if convention == "processed":
        return np.asarray(generation.warped_log_probs)
    if convention == "raw":
        return np.asarray(generation.log_probs)
    found = np.asarray(generation.warped_log_probs)
    return found if generation.reported is None else found + np.asarray(generation.reported.log_kept_mass)


@jax.jit
def left_aligned(
    prompts: Int[Array, "b p"], answers: Int[Array, "b c"], padding: Int[Array, "b"]
) -> tuple[Int[Array, "b t"], Int[Array, "b"]]:
    """Returns texts without the padding before their prompts, and the number of prompt tokens of each.

    Args:
      prompts: the prompts, padded on the left.
      answers: the answers, padded on the right.
      padding: the number of tokens before each prompt.
    """
    text = jnp.concatenate([prompts, answers], axis=1)
    places = jnp.arange(text.shape[1], dtype=jnp.int32)[None] + padding[:, None]
    moved = jnp.take_along_axis(text, jnp.minimum(places, text.shape[1] - 1), axis=1)
    return moved, prompts.shape[1] - padding


@jax.jit
def of_answers(
    scores: Float[Array, "b t"], prompt_length: Int[Array, "b"], answers: Int[Array, "b c"]
) -> Float[Array, "b c"]:
    """Returns the part of the scores of whole texts that belongs to the answers."""
    places = prompt_length[:, None] + jnp.arange(answers.shape[1], dtype=jnp.int32)[None]
    return jnp.take_along_axis(scores, places, axis=1)

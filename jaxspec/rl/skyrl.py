"""Generates for SkyRL tx: `generate` of its models, with drafts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxspec.core.sampling import Sampling
from jaxspec.core.validate import takes
from jaxspec.decoding.score import score
from jaxspec.drafters.base import Drafter
from jaxspec.rl.history import History
from jaxspec.rl.rollouts import Rollouts
from jaxspec.rl.weights import ToModel
from jaxspec.verifiers.base import Verifier


@dataclasses.dataclass
class GenerateOutput:
    """Holds what SkyRL tx reads from a call, by the same names.

    Attributes:
      generated_ids: the new tokens of each row, including a stop token.
      stop_reasons: "stop" or "length" for each row.
      logprobs: the log-probability of each new token at temperature 1.
      prompt_logprobs: that of each token of the prompt but the first; `None` if not requested.

    Example:
        >>> jaxspec.rl.GenerateOutput([[5, 3]], ["length"], [[-0.5, -1.5]]).stop_reasons
        ['length']
    """

    generated_ids: list[list[int]]
    stop_reasons: list[str]
    logprobs: list[list[float]]
    prompt_logprobs: list[list[float]] | None = None


def generator(
    to_model: ToModel,
    *,
    drafter: Drafter | str | None = "auto",
    verifier: Verifier | None = None,
    history: History | None = None,
) -> Callable[..., GenerateOutput]:
    """Makes a method `generate` for a class of SkyRL tx's models: `Model.generate = jaxspec.rl.generator(to_model)`.

    Each row has its own temperature, top-k, top-p, seed, stop tokens and length, all traced: other values compile
    nothing. Rows of equal seeds and prompts have equal tokens in all calls.

    Args:
      to_model: makes a jaxspec model of such a model, in each call.
      drafter: drafts tokens, as in `Rollouts`.
      verifier: decides which drafts are accepted, as in `Rollouts`. With a history, one that rejects refuses to use
        a seed again for a prompt.
      history: keeps answers to draft from; `None` keeps none.

    Raises:
      TypeError, ValueError: as in `Rollouts`.

    Example:
        >>> generate = jaxspec.rl.generator(lambda model: model, drafter=None)
        >>> generate.__name__
        'generate'
    """
    takes("to_model", to_model, "a module")
    rollouts = Rollouts(drafter, verifier=verifier, history=history, log_probs="raw")

    def generate(
        self: Any,
        input_ids: Array,
        attention_mask: Array,
        *,
        sampling_params: Sequence[Any],
        adapter_indices: Array | None = None,
        prompt_logprobs: bool = False,
        tokenizer: Any = None,
    ) -> GenerateOutput:
        if adapter_indices is not None and np.any(adapter_indices):
            raise ValueError(
                "rows decode with one set of weights, got adapter_indices other than 0; merge the adapter into the "
                "model that to_model returns, and pass adapter_indices=None"
            )
        if any(one.stop_strings for one in sampling_params) and tokenizer is None:
            raise ValueError("stop_strings are found in the text; pass tokenizer=...")
        target, tokens = to_model(self), np.asarray(input_ids)
        lengths = np.asarray(attention_mask).sum(axis=1)
        prompts = [row[:count].tolist() for row, count in zip(tokens, lengths, strict=True)]
        answers = rollouts.sample(
            target,
            prompts,
            key=jax.vmap(jax.random.key)(np.array([one.seed for one in sampling_params])),
            sampling=_sampling(sampling_params),
            max_new_tokens=[one.max_tokens for one in sampling_params],
            stop_tokens=_padded([list(one.stop_tokens or ()) for one in sampling_params]),
        )
        assert answers.log_probs is not None
        new = [row.tolist() for row in answers.tokens]
        ends = [_end(row, one.stop_strings, tokenizer) for row, one in zip(new, sampling_params, strict=True)]
        stopped = [token or text for token, (_, text) in zip(answers.stopped, ends, strict=True)]
        scored = None
        if prompt_logprobs:
            scores = np.asarray(score(target, tokens, length=lengths).log_probs)
            scored = [row[1:count].tolist() for row, count in zip(scores, lengths, strict=True)]
        return GenerateOutput(
            [row[:end] for row, (end, _) in zip(new, ends, strict=True)],
            ["stop" if one else "length" for one in stopped],
            [row[:end].tolist() for row, (end, _) in zip(answers.log_probs, ends, strict=True)],
            scored,
        )

    return generate


def _sampling(params: Sequence[Any]) -> Sampling:
    """Returns one policy with the values of each row; parameters that no row uses are left out."""
    temperature = np.array([one.temperature for one in params], np.float32)
    top_p = np.array([one.top_p for one in params], np.float32)
    top_k = np.array([max(one.top_k, 0) for one in params], np.int32)
    array = jax.numpy.asarray
    return Sampling(
        array(temperature),
        top_k=array(top_k) if top_k.any() else None,
        top_p=array(top_p) if (top_p < 1).any() else None,
    )


def _padded(rows: list[list[int]]) -> np.ndarray:
    """Returns lists of ids as one array, padded with -1."""
    width = max(map(len, rows))
    return np.array([row + [-1] * (width - len(row)) for row in rows], np.int32).reshape(len(rows), width)


def _end(tokens: list[int], strings: Sequence[str] | None, tokenizer: Any) -> tuple[int, bool]:
    """Returns the number of tokens up to the first that completes a stop string, and whether there is one."""
    if not strings:
        return len(tokens), False
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count])
        if any(string in text for string in strings):
            return count, True
    return len(tokens), False

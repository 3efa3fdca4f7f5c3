"""Generates for SkyRL tx: `generate` of its models, with drafts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxspec.core.sampling import Sampling
from jaxspec.core.validate import takes
from jaxspec.decoding.room import bucket
from jaxspec.decoding.score import score
from jaxspec.drafters.base import Drafter
from jaxspec.rl.history import History
from jaxspec.rl.rollouts import Rollouts
from jaxspec.rl.weights import ToModel
from jaxspec.verifiers.base import Verifier

_LONGEST_CHARACTER = 4  # in bytes, and so in tokens


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
    nothing within the same buckets of lengths, of prompts, answers and lists of stop tokens. Rows of equal seeds and
    prompts have equal tokens in all calls. Rows whose mask is all zeros, which fill a batch up, have no tokens and end
    by "length".

    All rows decode with the weights that `to_model` returns: only the base model, adapter 0, can be sampled.

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
        if not lengths.any():
            ids, scores, before = ([[] for _ in lengths] for _ in range(3))  # not one list: callers may append
            return GenerateOutput(ids, ["length"] * len(lengths), scores, before if prompt_logprobs else None)
        # A row without tokens decodes one token of the first that has some: another number of rows would compile.
        fills, first = lengths == 0, int(np.argmax(lengths > 0))
        sources = [first if fill else row for row, fill in enumerate(fills)]
        params = [sampling_params[row] for row in sources]
        answers = rollouts.sample(
            target,
            [tokens[row, : lengths[row]].tolist() for row in sources],
            key=jax.vmap(jax.random.key)(np.array([one.seed for one in params])),
            sampling=_sampling(params),
            max_new_tokens=[1 if fill else one.max_tokens for one, fill in zip(params, fills, strict=True)],
            stop_tokens=_padded([list(one.stop_tokens or ()) for one in params]),
            fills=fills.tolist(),
        )
        assert answers.log_probs is not None
        new = [[] if fill else row.tolist() for row, fill in zip(answers.tokens, fills, strict=True)]
        ends = [_end(row, one.stop_strings, tokenizer) for row, one in zip(new, params, strict=True)]
        stopped = [
            not fill and (token or text) for token, (_, text), fill in zip(answers.stopped, ends, fills, strict=True)
        ]
        scored = None
        if prompt_logprobs:
            scores = np.asarray(score(target, tokens, length=np.maximum(lengths, 1)).log_probs)
            scored = [row[1:count].tolist() for row, count in zip(scores, lengths, strict=True)]
        return GenerateOutput(
            [row[:end] for row, (end, _) in zip(new, ends, strict=True)],
            ["stop" if one else "length" for one in stopped],
            [row[:end].tolist() for row, (end, _) in zip(answers.log_probs, ends, strict=True)],
            scored,
        )

    return generate


def _sampling(params: Sequence[Any]) -> Sampling:
    """Returns one policy with the values of each row, all arrays: values that exclude nothing share its program."""
    temperature = np.array([one.temperature for one in params], np.float32)
    top_p = np.array([one.top_p for one in params], np.float32)
    top_k = np.array([max(one.top_k, 0) for one in params], np.int32)
    array = jax.numpy.asarray
    return Sampling(array(temperature), top_k=array(top_k), top_p=array(top_p))


def _padded(rows: list[list[int]]) -> np.ndarray:
    """Returns lists of ids as one array, padded with -1 to a bucket."""
    width = bucket(max(map(len, rows)))
    return np.array([row + [-1] * (width - len(row)) for row in rows], np.int32)


def _end(tokens: list[int], strings: Sequence[str] | None, tokenizer: Any) -> tuple[int, bool]:
    """Returns the number of tokens up to the first that completes a stop string, and whether there is one."""
    if not tokens or not strings:
        return len(tokens), False

    def holds(count: int) -> bool:
        text = tokenizer.decode(tokens[:count])
        return any(string in text for string in strings)

    if not holds(len(tokens)):
        return len(tokens), False
    absent, held = 0, len(tokens)
    while absent + 1 < held:
        middle = (absent + held) // 2
        absent, held = (absent, middle) if holds(middle) else (middle, held)
    # A prefix that ends within a character may hide a string that a shorter one has.
    return next(count for count in range(max(held - _LONGEST_CHARACTER, 1), held + 1) if holds(count)), True

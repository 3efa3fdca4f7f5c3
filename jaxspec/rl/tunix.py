"""Generates rollouts for tunix: its contract, argument by argument, over `Rollouts`.

    ClusterConfig(rollout_engine=functools.partial(jaxspec.rl.TunixRollout, history=jaxspec.rl.History()), ...)

What differs from tunix's vanilla rollout:

    keys       by call and row, instead of one for the whole batch; without a seed, calls do not repeat their noise
    room       of each row; prompts are not padded
    top_p      None is refused, which vanilla takes for greedy; a token that ties with the last one kept is kept too
    log-probs  by name; `get_per_token_logps` follows the same name and the temperature
"""

import dataclasses
import os
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from jaxspec.core import validate
from jaxspec.core.sampling import Sampling
from jaxspec.drafters.base import Drafter
from jaxspec.rl.contract import base_classes
from jaxspec.rl.history import History
from jaxspec.rl.log_probs import Convention
from jaxspec.rl.rollouts import Answers, Rollouts
from jaxspec.rl.weights import ToModel, Weights
from jaxspec.verifiers.base import Verifier

_BaseRollout, _BaseOutput = base_classes()


@dataclasses.dataclass
class RolloutOutput(_BaseOutput):
    """Adds what tunix's result has no place for.

    Attributes:
      log_kept_mass: the log of the mass that truncation keeps at each token; `None` if not requested.
      answers: the answers as token ids, with end tokens, and counts of rounds and drafts.

    Example:
        >>> list(jaxspec.rl.RolloutOutput.__dataclass_fields__)[-2:]
        ['log_kept_mass', 'answers']
    """

    log_kept_mass: list[np.ndarray] | None = None
    answers: Answers | None = None


class TunixRollout(_BaseRollout):
    """Speculates in tunix's rollouts; tokens are those of plain decoding with the same keys.

    Pass it as `rollout_engine` of tunix's `ClusterConfig`, with options by `functools.partial`.

    Attributes:
      rollouts: decodes, counts the calls, and holds the history.
      mesh: the devices of the rollout, as tunix passed them.

    Example:
        >>> import functools
        >>> engine = functools.partial(jaxspec.rl.TunixRollout, drafter=jaxspec.NGramDrafter(k=4))
        >>> engine.func.__name__
        'TunixRollout'
    """

    def __init__(
        self,
        *,
        rollout_actor: Any,
        tokenizer: Any,
        mesh: Mesh | None,
        rollout_config: Any,
        drafter: Drafter | str | None = "auto",
        verifier: Verifier | None = None,
        history: History | None = None,
        logprobs: Convention = "temperature",
        kept_mass: bool = False,
        include_end: bool = False,
        to_model: ToModel | None = None,
        bit_exact: bool = False,
        pass_tokens: int | None = None,
    ) -> None:
        """Copies the policy's weights.

        Args:
          rollout_actor: the policy, an `nnx.Module`, by tunix.
          tokenizer: tunix's adapter of a tokenizer, by tunix.
          mesh: the devices to decode on, by tunix.
          rollout_config: the configuration of training, by tunix. `get_per_token_logps` follows it.
          drafter: drafts tokens, as in `Rollouts`.
          verifier: decides which drafts are accepted, as in `Rollouts`.
          history: keeps answers to draft from in later epochs; `None` keeps none.
          logprobs: the convention of log-probabilities; "temperature" is that of tunix's trainer.
          kept_mass: whether to return the log of the mass that truncation keeps, as in `Rollouts`.
          include_end: whether `tokens` end with the end token. Vanilla cuts it off: then the policy gets no gradient
            on ending.
          to_model: makes a jaxspec model of an NNX module, on the device alone; `None` is `jaxspec.adopt`, or
            `jaxspec.foreign.from_tunix` for what that cannot express.
          bit_exact: makes passes agree to the bit, as in `jaxspec.generate`.
          pass_tokens: the number of tokens that passes are padded to, as in `jaxspec.generate`.

        Raises:
          TypeError, ValueError: as in `Rollouts`, or the model cannot be used.
        """
        validate.flag("include_end", include_end)
        self.rollouts = Rollouts(
            drafter,
            verifier=verifier,
            history=history,
            log_probs=logprobs,
            kept_mass=kept_mass,
            bit_exact=bit_exact,
            pass_tokens=pass_tokens,
        )
        self.mesh, self._tokenizer, self._config = mesh, tokenizer, rollout_config
        self._include_end = include_end
        if include_end and self.pad_id() in self._ends(rollout_config):
            warnings.warn(
                f"the token {self.pad_id()} both pads and ends answers: tunix masks all tokens equal to the padding, "
                "so that include_end=True has no effect on the loss; pass a tokenizer with another pad token",
                stacklevel=2,
            )
        dtype = rollout_config.data_type
        self._weights = Weights(rollout_actor, mesh=mesh, dtype=dtype, to_model=to_model)

    def generate(self, prompts: Sequence[str], rollout_config: Any, **kwargs: Any) -> Any:
        """Answers each prompt.

        Args:
          prompts: the texts of the prompts.
          rollout_config: tunix's configuration of this call. Fields for other engines are not read.
          **kwargs: for other engines, not read.

        Returns:
          A `RolloutOutput`, which is tunix's.

        Raises:
          ValueError: a row has no room, or an option cannot be followed.
          RuntimeError: the weights are in the host's memory.
        """
        del kwargs
        target = self._weights.target
        if target is None:
            raise RuntimeError(
                "the rollout's weights are in the host's memory; call update_params with them on devices"
            )
        config, ids = rollout_config, [self._encode(prompt) for prompt in prompts]
        longest = max(map(len, ids), default=0)
        if longest + config.max_tokens_to_generate > config.kv_cache_size:
            raise ValueError(
                f"a prompt of {longest} tokens and max_tokens_to_generate={config.max_tokens_to_generate} need "
                f"{longest + config.max_tokens_to_generate} tokens, got kv_cache_size={config.kv_cache_size}; raise it"
            )
        ends = self._ends(config)
        answers = self.rollouts.sample(
            target,
            ids,
            key=_key(config.seed),
            sampling=_sampling(config),
            max_new_tokens=config.max_tokens_to_generate,
            stop_tokens=ends,
            with_log_probs=config.return_logprobs,
        )
        before = [len(tokens) - stopped for tokens, stopped in zip(answers.tokens, answers.stopped, strict=True)]
        counts = [len(tokens) for tokens in answers.tokens] if self._include_end else before
        cut = lambda rows: [row[:count] for row, count in zip(rows, counts, strict=True)]  # noqa: E731
        return RolloutOutput(
            text=[
                self._tokenizer.decode(row[:count].tolist()) for row, count in zip(answers.tokens, before, strict=True)
            ],
            logits=[],
            tokens=cut(answers.tokens),
            left_padded_prompt_tokens=self._left_padded(ids, config.max_prompt_length),
            logprobs=None if answers.log_probs is None else cut(answers.log_probs),
            log_kept_mass=None if answers.log_kept_mass is None else cut(answers.log_kept_mass),
            answers=answers,
        )

    def get_per_token_logps(self, prompt_tokens: Array, completion_tokens: Array) -> Array:
        """Returns the log-probability of each token of given answers, by the convention and the training temperature.

        Args:
          prompt_tokens: the prompts, `int32[b, p]`, padded on the left.
          completion_tokens: the answers, `int32[b, c]`, padded on the right.

        Returns:
          `float32[b, c]`; of padding too, which tunix masks.
        """
        target = self._weights.target
        if target is None:
            raise RuntimeError(
                "the rollout's weights are in the host's memory; call update_params with them on devices"
            )
        before = np.cumprod(np.asarray(prompt_tokens) == self.pad_id(), axis=1).sum(axis=1)
        # If the beginning of a prompt is the padding token too, the last one of these is the prompt's.
        if self._tokenizer.bos_id() == self.pad_id():
            before = np.maximum(before - 1, 0)
        before = np.minimum(before, prompt_tokens.shape[1] - 1)
        return self.rollouts.score(
            target, prompt_tokens, completion_tokens, padding=before, sampling=_sampling(self._config)
        )

    def update_params(self, params: Any, filter_types: tuple[Any, ...] | None = None) -> None:
        """Copies new weights on the device: nothing is compiled or transferred, and the trainer may donate its own.

        Args:
          params: an `nnx.State` of some or all parameters.
          filter_types: the kinds of parameters in it, not read: their paths say it.

        Raises:
          ValueError: a parameter is unknown, or has another shape.
        """
        del filter_types
        self._weights.update(params)

    def pad_id(self) -> int:
        """Returns the id of padding."""
        return self._tokenizer.pad_id()

    def eos_id(self) -> int:
        """Returns the id of the end token."""
        return self._tokenizer.eos_id()

    def model(self) -> Any:
        """Returns an `nnx.Module` with the rollout's own copy of the weights."""
        return self._weights.module()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the number of calls and the history to a file; weights are in the trainer's checkpoint."""
        self.rollouts.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Reads a file that `save` wrote: the next call draws what it would have drawn."""
        self.rollouts.restore(path)

    def _ends(self, config: Any) -> list[int]:
        return [int(token) for token in config.eos_tokens or [self.eos_id()]]

    def _encode(self, prompt: str) -> list[int]:
        """Returns a prompt's tokens, with one token of a beginning if the tokenizer has any, as vanilla does."""
        begin = self._tokenizer.bos_id()
        ids = [begin] if begin else []
        return [int(token) for token in self._tokenizer.dedup_bos_ids([*ids, *self._tokenizer.encode(prompt)])]

    def _left_padded(self, ids: list[list[int]], width: int) -> np.ndarray:
        """Pads prompts as vanilla does: to `width`, or to a power of two if one is longer."""
        longest = max(map(len, ids))
        width = width if longest <= width else 1 << (longest - 1).bit_length()
        padded = np.full((len(ids), width), self.pad_id(), np.int32)
        for row, prompt in zip(padded, ids, strict=True):
            row[width - len(prompt) :] = prompt
        return padded


def _key(seed: Any) -> Array:
    if seed is None or isinstance(seed, int | np.integer):
        return jax.random.key(0 if seed is None else int(seed))
    return seed


def _sampling(config: Any) -> Sampling:
    """Returns the policy of a configuration; options that exclude nothing are left out, and cost nothing."""
    if config.top_p is None:
        raise ValueError(
            "got top_p=None, which tunix's vanilla rollout takes for greedy and others for no truncation; pass "
            "top_p=1.0, or temperature=0.0 for greedy rollouts"
        )
    top_k = config.top_k if config.top_k is not None and config.top_k > 0 else None
    return Sampling(config.temperature, top_k=top_k, top_p=config.top_p if config.top_p < 1 else None)

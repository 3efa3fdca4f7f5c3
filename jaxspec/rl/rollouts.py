"""Decodes batches of prompts for a trainer: keys by call, history, log-probabilities by name, and refusals.

Keys       row r of call n        fold(fold(key, n), r): no two calls share their draws, and a run resumes exactly
Refusals   a lossy verifier; truncation with the trainer's log-probabilities, unless the kept mass comes with them;
           under rejection, keys that a row's history was drawn with
"""

import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.core.random import as_threefry, row_keys
from jaxspec.core.results import Generation, Report, StopReason
from jaxspec.core.sampling import Sampling
from jaxspec.core.stats import Stats
from jaxspec.decoding.generate import generate
from jaxspec.decoding.options import check_kinds, verifier_for
from jaxspec.decoding.score import score
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.drafters.lookup import LookupDrafter
from jaxspec.io.files import as_path, write_bytes
from jaxspec.rl.history import History
from jaxspec.rl.log_probs import (
    Convention,
    check_convention,
    left_aligned,
    needs_kept_mass,
    of_answers,
    of_generation,
    truncates,
    without_truncation,
)
from jaxspec.text.names import copying_drafter
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.table import seeded_verifier

_HISTORY = "history_"


@dataclasses.dataclass(frozen=True)
class Answers:
    """Holds the answers of one call, on the host; lists have one entry for each prompt.

    Attributes:
      tokens: the new tokens of each row, including a stop token, `int32[n]`.
      log_probs: the log-probability of each by the convention of the `Rollouts`, `float32[n]`; `None` if not requested.
      log_kept_mass: the log of the mass that truncation keeps at each, `float32[n]`; `None` if not requested.
      stopped: whether each row ended with a stop token, instead of at its limit.
      stats: counts of rounds, drafted and accepted tokens.

    Example:
        >>> rollouts = jaxspec.rl.Rollouts(jaxspec.NGramDrafter(k=2), history=jaxspec.rl.History(answers=1))
        >>> answers = rollouts.sample(target, [[5, 3], [7]], key=key, max_new_tokens=4, stop_tokens=())
        >>> [len(tokens) for tokens in answers.tokens], answers.stopped
        ([4, 4], [False, False])
    """

    tokens: list[np.ndarray]
    log_probs: list[np.ndarray] | None
    log_kept_mass: list[np.ndarray] | None
    stopped: list[bool]
    stats: Stats


class Rollouts:
    """Samples answers for reinforcement learning; no draft changes their distribution or their log-probabilities.

    With the default verifier, tokens are those of plain decoding with the same key, for any drafter and history.

    Attributes:
      drafter: drafts tokens; `None` means plain decoding.
      verifier: decides which drafts are accepted.
      history: the answers of earlier calls, which are drafted from; `None` keeps none.
      log_probs: the convention of log-probabilities.
      calls: the number of calls so far, which is folded into keys.

    Example:
        >>> rollouts = jaxspec.rl.Rollouts(jaxspec.NGramDrafter(k=2), history=jaxspec.rl.History(answers=1))
        >>> for epoch in range(2):
        ...     answers = rollouts.sample(target, [[5, 3], [7]], key=key, max_new_tokens=4, stop_tokens=())
        >>> rollouts.calls, len(rollouts.history)
        (2, 2)
    """

    def __init__(
        self,
        drafter: Drafter | str | None = "auto",
        *,
        verifier: Verifier | None = None,
        history: History | None = None,
        log_probs: Convention = "temperature",
        kept_mass: bool = False,
        bit_exact: bool = False,
        pass_tokens: int | None = None,
    ) -> None:
        """Checks that tokens will follow the target's distribution.

        Args:
          drafter: drafts tokens; "auto" copies from the text, and from the history if there is one. `None` means plain
            decoding.
          verifier: decides which drafts are accepted; `None` is `CoupledVerifier()`, whose tokens are those of plain
            decoding.
          history: keeps answers, to draft from when their prompts come again; `None` keeps none.
          log_probs: "raw", "temperature" or "processed".
          kept_mass: whether to return the log of the mass that truncation keeps. Without it, "temperature" refuses
            policies that truncate: its log-probabilities would not be those that tokens are drawn from.
          bit_exact: makes passes agree to the bit, as in `jaxspec.generate`.
          pass_tokens: the number of tokens that passes are padded to, as in `jaxspec.generate`.

        Raises:
          TypeError: an argument has another type.
          ValueError: the verifier is lossy or does not fit the drafter, or the drafter cannot copy from a history.
        """
        if isinstance(drafter, str):
            validate.one_of("drafter", drafter, ("auto",), "pass a jaxspec.Drafter, or None")
            drafter = copying_drafter(several=history is not None)
        verifier = seeded_verifier() if verifier is None else verifier
        own = NoDrafter() if drafter is None else drafter
        validate.instance("drafter", own, Drafter, "pass jaxspec.NGramDrafter(), say, or None")
        validate.instance("verifier", verifier, Verifier, "pass jaxspec.CoupledVerifier(), or None")
        if not verifier.lossless:
            raise ValueError(
                f"a rollout's tokens must follow the policy that is trained, and {type(verifier).__name__} does not "
                "keep its distribution; pass a lossless verifier, or None"
            )
        verifier_for(verifier, own, lossy=False)
        if history is not None:
            validate.instance("history", history, History, "pass jaxspec.rl.History(), or None")
            if not isinstance(drafter, LookupDrafter | HybridDrafter):
                raise ValueError(
                    f"a history needs a drafter that copies, got {type(own).__name__}; pass SuffixDrafter(), a "
                    "HybridDrafter, or history=None"
                )
        check_convention("log_probs", log_probs)
        validate.flag("kept_mass", kept_mass)
        self.drafter, self.verifier, self.history = drafter, verifier, history
        self.log_probs: Convention = log_probs
        self.calls = 0
        self._kept_mass = kept_mass
        self._passes: dict[str, Any] = {"bit_exact": bit_exact, "pass_tokens": pass_tokens}

    def sample(
        self,
        target: Model,
        prompts: Sequence[Sequence[int]],
        *,
        key: Array,
        sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
        max_new_tokens: int | Sequence[int],
        stop_tokens: Any = None,
        with_log_probs: bool = True,
    ) -> Answers:
        """Answers each prompt, and adds the answers to the history.

        Args:
          target: the policy.
          prompts: the tokens of each prompt, at least one.
          key: one key, which the number of the call and of the row are folded into; or one for each row, as it is.
          sampling: the sampling policy.
          max_new_tokens: the largest number of new tokens, one integer or one for each row.
          stop_tokens: ids that end a row, as in `jaxspec.generate`.
          with_log_probs: whether to return log-probabilities.

        Raises:
          TypeError, ValueError: an argument is invalid; the log-probabilities that were asked for are not those of a
            policy that truncates; or a key was used for an answer in the row's history, and the verifier rejects.
          RuntimeError: a round was lossy.
        """
        tokens, length = _rectangle(prompts)
        check_kinds(target, NoDrafter(), None, sampling)
        validate.instance("sampling", sampling, Sampling, "pass jaxspec.Sampling(temperature=0.0) for greedy rows")
        keys = self._keys(key, len(prompts))
        report, limits = self._report(sampling, target.vocab_size, with_log_probs), np.asarray(max_new_tokens)
        words = np.asarray(jax.random.key_data(keys)).tolist()
        prediction = None
        if self.history is not None:
            self._check_fresh(prompts, words)
            prediction = self.history.pack(prompts, max_new_tokens=int(np.max(limits)))
        generation = generate(
            target,
            self.drafter,
            tokens,
            prompt_length=length,
            key=keys,
            sampling=sampling,
            verifier=self.verifier,
            max_new_tokens=limits,
            stop_tokens=stop_tokens,
            report=report,
            prediction=prediction,
            **self._passes,
        )
        generation.raise_for_status()
        answers = self._answers(jax.device_get(generation), with_log_probs)
        self.calls += 1
        if self.history is not None:
            for prompt, answer, word in zip(prompts, answers.tokens, words, strict=True):
                self.history.add(prompt, answer, word)
        return answers

    def score(
        self,
        target: Model,
        prompts: Int[Array, "b p"] | np.ndarray,
        answers: Int[Array, "b c"] | np.ndarray,
        *,
        padding: Int[Array, "b"] | np.ndarray,
        sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    ) -> Float[Array, "b c"]:
        """Returns the log-probability of each token of given answers, by this object's convention.

        Tokens of the padding after an answer have one too, as if they were part of it.

        Args:
          target: the policy.
          prompts: the prompts, padded on the left.
          answers: the answers, padded on the right.
          padding: the number of tokens before each prompt.
          sampling: the sampling policy; "raw" does not depend on it.
        """
        prompts, answers, padding = (jax.numpy.asarray(x, jax.numpy.int32) for x in (prompts, answers, padding))
        text, prompt_length = left_aligned(prompts, answers, padding)
        policy = without_truncation(sampling) if self.log_probs == "temperature" else sampling
        ends = prompt_length + answers.shape[1]
        scores = score(
            target, text, length=ends, prompt_length=prompt_length, sampling=policy, stop_tokens=(), **self._passes
        )
        chosen = scores.log_probs if self.log_probs == "raw" else scores.warped_log_probs
        return of_answers(chosen, prompt_length, answers)

    def state(self) -> dict[str, np.ndarray]:
        """Returns all that changes, as arrays: the number of calls, and the history."""
        own = {"calls": np.array(self.calls, np.int64)}
        if self.history is not None:
            own |= {_HISTORY + name: x for name, x in self.history.state().items()}
        return own

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`: the next call draws what it would have drawn.

        Raises:
          ValueError: it is not the result of `state`, or has a history and this object has none, or the reverse.
        """
        if "calls" not in state:
            raise ValueError("the state of Rollouts has no calls; pass the result of Rollouts.state()")
        held = {name.removeprefix(_HISTORY): x for name, x in state.items() if name.startswith(_HISTORY)}
        if bool(held) != (self.history is not None):
            has = "a" if held else "no"
            raise ValueError(f"the state has {has} history, unlike this object; pass history= as when it was saved")
        if self.history is not None:
            self.history.load_state(held)
        self.calls = int(np.asarray(state["calls"]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the `state` to a file, which is complete or absent whenever the process dies."""
        data = io.BytesIO()
        np.savez(data, **self.state())  # pyright: ignore[reportArgumentType] (names are no options of it)
        write_bytes(as_path("path", path), data.getvalue())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Reads a file that `save` wrote; raises as `load_state` does."""
        with np.load(as_path("path", path), allow_pickle=False) as state:
            self.load_state(state)

    def _keys(self, key: Array, rows: int) -> Array:
        keys = as_threefry(key)
        return row_keys(jax.random.fold_in(keys, self.calls) if keys.shape == () else keys, rows)

    def _report(self, sampling: Sampling, vocab_size: int, with_log_probs: bool) -> Report:
        follows = with_log_probs and self.log_probs == "temperature"
        if follows and not self._kept_mass and truncates(sampling, vocab_size):
            raise ValueError(
                "top-k, top-p and min-p exclude tokens, so that log_probs='temperature' are not those that tokens are "
                f"drawn from, got {_shown(sampling)}; pass kept_mass=True and weigh by it, log_probs='processed', or a "
                "policy that keeps all tokens"
            )
        return Report(kept_mass=self._kept_mass or (follows and needs_kept_mass(sampling, vocab_size)))

    def _check_fresh(self, prompts: Sequence[Sequence[int]], words: list[list[int]]) -> None:
        """Refuses a history that was made of this call's own draws, which then would not be fresh for it."""
        if self.verifier.same_tokens:
            return
        assert self.history is not None
        for row, (prompt, own) in enumerate(zip(prompts, words, strict=True)):
            if tuple(own) in self.history.keys(prompt):
                raise ValueError(
                    f"the key of row {row} was used before, for an answer to the same prompt that is now drafted from, "
                    f"and {type(self.verifier).__name__} needs fresh draws; pass another key, or "
                    "verifier=CoupledVerifier()"
                )

    def _answers(self, generation: Generation, with_log_probs: bool) -> Answers:
        if not generation.lossless or np.any(generation.stats.lossy_rounds):
            raise RuntimeError(
                f"{int(np.sum(generation.stats.lossy_rounds))} rounds of a lossless verifier were lossy: its verdicts "
                "measure a deviation; return none, or declare lossless = False"
            )
        cut = lambda x: [row[:count] for row, count in zip(x, generation.length.tolist(), strict=True)]  # noqa: E731
        kept = None if generation.reported is None else generation.reported.log_kept_mass
        return Answers(
            tokens=cut(np.asarray(generation.tokens)),
            log_probs=cut(of_generation(generation, self.log_probs)) if with_log_probs else None,
            log_kept_mass=cut(np.asarray(kept)) if self._kept_mass else None,
            stopped=(np.asarray(generation.stop_reason) == StopReason.STOP_TOKEN).tolist(),
            stats=generation.stats,
        )


def _rectangle(prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns prompts padded on the right, and their lengths."""
    if not len(prompts):
        raise ValueError("expected at least one prompt, got none")
    length = np.array([len(prompt) for prompt in prompts], np.int32)
    if not length.all():
        raise ValueError(
            f"prompt {int(np.argmin(length))} has no token; pass at least one, such as that of a beginning"
        )
    tokens = np.zeros((len(prompts), int(length.max())), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens, length


def _shown(sampling: Sampling) -> str:
    names = ("top_k", "top_p", "min_p")
    return ", ".join(f"{name}={value}" for name in names if (value := getattr(sampling, name)) is not None)

"""Measures how often drafts are accepted, without an engine: as an expectation, not a count.

text       a b c d e f g        sampled from the target at temperature 1, or given
round           d̂ ê f̂           a round begins at each position: drafts after `a b c`, sampled from the drafter
expected        ▁ ▁ ▁           the sum of min(target, draft) at each, times the probability that a round gets there

The text continues with its own tokens, regardless of the drafts, so that a round can begin at each of its positions. Or
real rounds of a verifier continue it: then rounds begin where an engine's rounds begin.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.bench.acceptance_report import Acceptance, MeasuredRounds
from jaxspec.core import validate
from jaxspec.core.compiler import traced_for
from jaxspec.core.leading import take_row
from jaxspec.core.model import Model
from jaxspec.core.parts import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys, as_threefry, check_one_key
from jaxspec.core.results import Status
from jaxspec.core.sampling import Sampling
from jaxspec.core.state import GenerationState, Proposal, Verdict
from jaxspec.decoding.generate import init
from jaxspec.decoding.round import Distributions, Round
from jaxspec.decoding.rounds import jit_of
from jaxspec.drafters.base import Drafter
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.block import log_prefix_ratio
from jaxspec.verifiers.rejection import log_acceptance
from jaxspec.verifiers.table import VERIFIERS, default_verifier

# Where rounds begin: at every position of the text, or where a verifier's rounds begin.
STARTS = ("all", "token", "block")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ChainExpectation:
    """Holds the expected acceptance of each draft of a chain, given the drafts before it.

    Attributes:
      reach: the probability that the token rule tests this draft: it was submitted, and those before it were accepted.
      accept: the probability that it is then accepted, over all tokens that it could be: the sum of min(target, draft).
      agree: whether target and drafter have the same most likely token there.
      block: the probability that block verification accepts a draft here and all before it: the sum of
        min(ratio * target, draft), where `ratio` is the probability of accepting those before it.
    """

    reach: Float[Array, "b k"]
    accept: Float[Array, "b k"]
    agree: Bool[Array, "b k"]
    block: Float[Array, "b k"]

    @classmethod
    def of(cls, proposal: Proposal, target_log_probs: Float[Array, "b k_plus_1 v"]) -> "ChainExpectation":
        """Computes the expectation for a chain of drafts sampled from `proposal.log_probs`.

        Args:
          proposal: the drafts; without `log_probs` they are deterministic.
          target_log_probs: `[b, k + 1, v]` log-probabilities of the target: row 0 after the committed text, row `i + 1`
            after draft `i`.
        """
        target, log_probs = target_log_probs[:, :-1], proposal.log_probs
        passed = jnp.exp(log_acceptance(proposal, target_log_probs))
        before = jnp.cumprod(jnp.pad(passed[:, :-1], ((0, 0), (1, 0)), constant_values=1.0), axis=1)
        reach = jnp.where(proposal.valid, before, 0.0)
        if log_probs is None:
            return cls(reach, passed, argmax(target) == proposal.tokens, reach * passed)
        accept = jnp.sum(jnp.exp(jnp.minimum(target, log_probs)), axis=-1)
        # Like `accept`, over all tokens that this draft could be: never below the acceptance of the token rule.
        before = log_prefix_ratio(proposal, target_log_probs)[:, :-1, None]
        block = jnp.sum(jnp.exp(jnp.minimum(before + target, log_probs)), axis=-1)
        return cls(reach, accept, argmax(target) == argmax(log_probs), jnp.where(proposal.valid, block, 0.0))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnText(Verifier):
    """Accepts no draft, so that a round begins at every position; the next token is the target's or that of a text.

    Attributes:
      given: `[b, s]` tokens of the texts, by absolute position; `None` samples from the target.
    """

    given: Int[Array, "b s"] | None = None
    trees = True

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n v"]) -> Verdict:
        if self.given is None:
            token = rng.next_token(target_log_probs[:, 0])
        else:
            token = take_row(self.given, jnp.minimum(rng.length, self.given.shape[1] - 1))
        none = jnp.zeros_like(token)
        path = None if proposal.parents is None else jnp.zeros((none.shape[0], proposal.depth), jnp.int32)
        return Verdict(none, token, path)


@dataclasses.dataclass(frozen=True)
class Text:
    """Holds the token ids of a prompt, and of its answer if given.

    Example:
      >>> jaxspec.bench.Text(prompt=(5, 2), answer=(7,)).answer
      (7,)
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class AcceptanceOptions:
    """Defines how acceptance is measured.

    Attributes:
      max_new_tokens: the number of tokens to sample after each prompt, or the most tokens to read of a given answer.
      starts: where rounds begin: "all" at every position; "token" and "block" where rounds of these verifiers begin, as
        in an engine. For a tree, both use its default verifier.
      every: the distance between measured positions; 1 measures all.
      batch: the number of texts to measure together.

    Raises:
      ValueError: if a number is below 1, or `starts` is not one of these.

    Example:
      >>> jaxspec.bench.AcceptanceOptions(max_new_tokens=32, every=4).starts
      'all'
    """

    max_new_tokens: int = 64
    starts: str = "all"
    every: int = 1
    batch: int = 16

    def __post_init__(self):
        validate.counts("acceptance", max_new_tokens=self.max_new_tokens, every=self.every, batch=self.batch)
        validate.one_of("starts", self.starts, STARTS)
        if self.starts != "all" and self.every > 1:
            raise ValueError(
                f"every={self.every} skips positions of a text, but starts={self.starts!r} sets where rounds begin; "
                "pass starts='all', or leave every out"
            )


def expected_acceptance(
    target: Model,
    drafter: Drafter,
    texts: Sequence[Text | Sequence[int]],
    *,
    key: Array | None = None,
    options: AcceptanceOptions | None = None,
) -> Acceptance:
    """Measures the quality of a drafter: the expected acceptance of each of its drafts, at temperature 1.

    Answers are sampled from the target, or given: for all texts or none. With given answers, only the first draft of a
    round is measured, as the target would seldom have written the text that follows.

    Args:
      target: the model to draft for.
      drafter: drafts a chain or a tree; a tree's acceptance is counted in simulated rounds.
      texts: the token ids of each prompt, or a `Text` with its answer.
      key: a JAX key; text `i` of `n` uses `jax.random.split(key, n)[i]`. `None` means `jax.random.key(0)`.
      options: how to measure; `None` means the defaults.

    Raises:
      TypeError, ValueError: if arguments are inconsistent, or a text does not fit the target's context.
      FloatingPointError: if the target's logits are not finite.

    Example:
      >>> from jaxspec.bench import AcceptanceOptions, expected_acceptance
      >>> drafter = jaxspec.ModelDrafter(draft, k=2)
      >>> found = expected_acceptance(target, drafter, [[5, 6, 7], [9, 8]], options=AcceptanceOptions(max_new_tokens=4))
      >>> len(found.positions), found.rounds, 1 <= found.tokens["token"].value <= 3
      (2, 8, True)
    """
    options = AcceptanceOptions() if options is None else options
    validate.instance("target", target, Model, "jaxspec.load makes one")
    validate.instance("drafter", drafter, Drafter)
    validate.instance("options", options, AcceptanceOptions)
    validate.instance("texts", texts, Sequence, "pass [[5, 6, 7], [9, 8]], say")
    read = [
        Text(_ids(one.prompt, "the prompt of a text"), _ids(one.answer, "the answer of a text"))
        if isinstance(one, Text)
        else Text(_ids(one, "texts"))
        for one in texts
    ]
    given = _check(target, drafter, read, options)
    key = jax.random.key(0) if key is None else key
    check_one_key("key", key)
    keys = jax.random.split(as_threefry(key), len(read))
    lengths = [len(one.prompt) for one in read]
    # Batches rows of similar width: each batch is padded to its widest row.
    order = sorted(range(len(read)), key=lambda index: lengths[index])
    parts = []
    for start in range(0, len(order), options.batch):
        rows = order[start : start + options.batch]
        parts.append(_measure_batch(target, drafter, [read[row] for row in rows], rows, keys, given, options))
    return Acceptance.of(MeasuredRounds.joined(parts), texts=len(read), given=given, rule=_rule_name(drafter))


def _ids(value: Any, name: str) -> tuple[int, ...]:
    """Checks the token ids of one text, and returns them."""
    if (found := validate.numbers(name, value, "lists of token ids", whole=True)).ndim != 1:
        raise TypeError(
            f"{name} must be lists of token ids, got {validate.shown(value)} in them; pass [[5, 6, 7]], say"
        )
    return tuple(np.asarray(found).tolist())


def _check(target: Model, drafter: Drafter, texts: Sequence[Text], options: AcceptanceOptions) -> bool:
    """Checks that the texts fit the target and each other, and returns whether answers are given."""
    if drafter.max_drafts == 0:
        raise ValueError("the drafter proposes nothing; pass one with k=1 or more")
    if not texts or not all(one.prompt for one in texts):
        raise ValueError("there must be at least one text, and each prompt must have at least one token")
    given = [bool(one.answer) for one in texts]
    if any(given) and not all(given):
        raise ValueError(
            f"{sum(given)} of {len(given)} texts have answers; give all of them, or none to have them sampled"
        )
    if given[0] and options.starts != "all":
        raise ValueError(
            f"rounds with starts={options.starts!r} write their own text, but answers are given; leave one of them out"
        )
    context = target.context_length
    for place, one in enumerate(texts):
        total = len(one.prompt) + (
            min(len(one.answer), options.max_new_tokens) if one.answer else options.max_new_tokens
        )
        if context is not None and total > context:
            raise ValueError(
                f"texts[{place}] has {total} tokens, prompt and answer, but the target's context is {context}; shorten "
                "it, or lower max_new_tokens"
            )
    return given[0]


def _rule_name(drafter: Drafter) -> str | None:
    """Returns the name of the rule that simulated rounds use; `None` for a chain, whose expectations are exact."""
    if not drafter.tree:
        return None
    kind = type(default_verifier(drafter))
    return next(name for name, verifier in VERIFIERS.items() if verifier is kind)


def _measure_batch(
    target: Model,
    drafter: Drafter,
    texts: Sequence[Text],
    indices: Sequence[int],
    keys: Array,
    given: bool,
    options: AcceptanceOptions,
) -> MeasuredRounds:
    # Rows that only fill the batch, to avoid compiling another program, have no budget.
    rows = [*texts, *[texts[-1]] * (len(keys) > options.batch) * (options.batch - len(texts))]
    filled = [*indices, *[indices[-1]] * (len(rows) - len(texts))]
    answers = [one.answer[: options.max_new_tokens] for one in rows]
    budgets = np.array([len(one) if given else options.max_new_tokens for one in answers], np.int32)
    budgets[len(texts) :] = 0
    prompts = np.zeros((len(rows), max(len(one.prompt) for one in rows)), np.int32)
    for row, one in enumerate(rows):
        prompts[row, : len(one.prompt)] = one.prompt
    state = init(
        target,
        drafter,
        prompts,
        prompt_length=np.array([len(one.prompt) for one in rows], np.int32),
        key=keys[np.array(filled)],
        sampling=Sampling(),
        max_new_tokens=budgets,
        stop_tokens=() if given else None,
        max_drafts=None if options.every == 1 else drafter.max_drafts,
    )
    full_texts = np.zeros(state.tokens.shape, np.int32) if given else None
    for row, (one, answer) in enumerate(zip(rows, answers, strict=True)):
        if full_texts is not None:
            full_texts[row, : len(one.prompt) + len(answer)] = one.prompt + answer
    one = Round(target, drafter, _advances(drafter, None if full_texts is None else jnp.asarray(full_texts), options))
    measure = jit_of(_measured_round, (one,), donate=("state",))
    skip = jit_of(_without_drafts, (one,), donate=("state",))
    found, place = [], 0
    while not np.all(state.done):
        if place % options.every:
            state = skip(state=state)
        else:
            state, measured = measure(state=state)
            found.append(jax.device_get(measured))
        place += 1
    if np.any(np.asarray(state.status) == Status.NOT_FINITE_LOGITS):
        raise FloatingPointError(Status.NOT_FINITE_LOGITS.meaning)
    return MeasuredRounds.of(found, np.array(filled), drafter.max_drafts)


def _advances(drafter: Drafter, given: Array | None, options: AcceptanceOptions) -> Verifier:
    """Returns the verifier that advances the texts."""
    if options.starts == "all":
        return OwnText(given)
    return default_verifier(drafter) if drafter.tree else VERIFIERS[options.starts]()


def _measured_round(one: Round, state: GenerationState) -> tuple[GenerationState, dict[str, Any]]:
    """Runs a round, and returns the state after it and the expectations of its drafts."""
    drafter, target = one.drafter, one.target
    with traced_for(target):
        active, length = state.context.active, state.length
        rng, proposal, state = one.propose(state)
        proposal = proposal.dense()
        context = state.context.of(target)
        output = one.feed(proposal, context)
        log_probs = Distributions.of(context, output.logits, proposal).next_log_probs
        assert log_probs is not None, "the policy samples"
        verified = one.judge(rng, proposal, output, context, drafter.max_drafts)
        found: dict[str, Any] = {"live": active, "context": length}
        if not drafter.tree:
            found["chain"] = ChainExpectation.of(proposal, log_probs)
        if not isinstance(one.verifier, OwnText):
            found["accepted"] = verified.verdict.accepted
        elif drafter.tree:
            found["accepted"] = default_verifier(drafter).verify(rng, proposal, log_probs).accepted
        state, _ = one.commit(proposal, verified, state)
        return state, found


def _without_drafts(one: Round, state: GenerationState) -> GenerationState:
    """Runs a round in which no row drafts."""
    max_drafts = state.context.max_drafts
    assert max_drafts is not None, "positions are skipped by limiting drafts"
    paused = dataclasses.replace(state.context, max_drafts=jnp.zeros_like(max_drafts))
    state, _ = one.run(dataclasses.replace(state, context=paused))
    return dataclasses.replace(state, context=dataclasses.replace(state.context, max_drafts=max_drafts))

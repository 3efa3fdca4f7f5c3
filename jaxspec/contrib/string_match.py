"""Drafts from a model with any tokenizer, by way of strings: a loop on the host.

The draft model's output is decoded, encoded again with the target's tokenizer, and accepted as far as the target agrees
(string-level exact match, SLEM):

    the target's text      The  Ġunbeliev  able          is "The unbelievable"
    the draft reads        The  Ġun  believ  able        and writes  Ġsto  ry  .      which is " story."
    the target verifies    Ġstory  .

For vocabularies that share too little for `jaxspec.CrossVocabularyDrafter`, which stays on the device and is faster.
Drafts are the draft model's top-1 tokens, so they are a function of the text, and the target's distribution is
preserved regardless of how well text survives the two tokenizers.
"""

import codecs
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.checkpoints.spelling import Speller
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng, RoundKeys
from jaxspec.core.results import Generation
from jaxspec.core.sampling import Greedy
from jaxspec.core.state import Context, GenerationState, Proposal
from jaxspec.core.typed import typed
from jaxspec.decoding.generate import finish
from jaxspec.decoding.options import Arguments, InitKeywords, Options
from jaxspec.decoding.room import bucket
from jaxspec.decoding.rounds import Host, Rounds
from jaxspec.draft_length.base import Fixed
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.chain import Chain, ChainState
from jaxspec.drafters.draft_model import DraftState, ModelDraft, check_is_model, check_rewinds
from jaxspec.verifiers.base import Verifier

# The number of the draft's tokens to reserve for each of the target's, on average over a text.
_ROOM = 3


class StringMatch:
    """Decodes with a target and a draft model that share nothing but text.

    References:
      String-level exact match (SLEM): Timor et al. (2025), arXiv:2502.05202, algorithm 2.

    Example:
      >>> matched = jaxspec.contrib.StringMatch(target, draft, k=3, draft_tokenizer=target.tokenizer)
      >>> matched.generate(prompt, max_new_tokens=6).tokens.shape
      (2, 6)
    """

    @typed("tokenizer", "draft_tokenizer")
    def __init__(
        self,
        target: Model,
        draft: Model,
        *,
        k: int = 4,
        tokenizer: Tokenizer | None = None,
        draft_tokenizer: Tokenizer | None = None,
    ):
        """Combines a target and a draft model.

        Args:
          target: the model whose distribution is preserved.
          draft: the model that drafts.
          k: the number of tokens that it drafts a round, and the largest number of the target's tokens to verify.
          tokenizer: the target's; `None` uses the one of its traits.
          draft_tokenizer: the draft's; `None` uses the one of its traits.

        Raises:
          TypeError: `target` or `draft` is not a model.
          ValueError: a tokenizer is missing, or neither byte-level nor SentencePiece; or `k` is not at least 1.
        """
        for model in (target, draft):
            check_is_model(type(self).__name__, model)
        check_rewinds(type(self).__name__, draft)
        validate.draft_length(k)
        if k == 0:
            raise ValueError("k is 0, so nothing would be drafted; pass k=4, or use jaxspec.generate")
        self.target, self.draft, self.k = target, draft, int(k)
        self._tokenizer = _needed("tokenizer", tokenizer, target)
        self._draft_tokenizer = _needed("draft_tokenizer", draft_tokenizer, draft)
        self._speller = Speller(self._tokenizer, target.vocab_size)

    def generate(
        self, prompt: Array, *, verifier: Verifier | None = None, **options: Unpack[InitKeywords]
    ) -> Generation:
        """Continues each prompt as `jaxspec.generate` does, from the same distribution.

        Args:
          prompt: `[b, t]` token ids of the target; shorter rows are padded on the right.
          verifier: decides which drafts are accepted; `None` uses `TokenVerifier()`. With `CoupledVerifier()` the
            tokens are those of plain decoding with the same key.
          **options: the options of `jaxspec.init`.

        Returns:
          A `Generation`.

        Raises:
          TypeError, ValueError: as in `jaxspec.generate`.
        """
        given = Options.of({**options, "verifier": verifier})
        arguments, _ = Arguments.check(self.target, GivenDrafter(self.k), prompt, given)
        rounds = Rounds(arguments, _Writer(self))
        for _ in rounds:
            pass
        return finish(rounds.state)

    def in_draft_tokens(self, text: Sequence[int]) -> tuple[list[int], bytes]:
        """Returns a text in the draft's tokens, and the bytes of an incomplete last character, which these lack."""
        text = list(text[1:]) if text and text[0] == self._tokenizer.bos_token_id else list(text)
        parts = [self._tokenizer.token_bytes(index, skip_special_tokens=False) for index in text]
        # SentencePiece prepends a space, which is not part of the text.
        if parts and parts[0].startswith(b" ") and self._tokenizer.decode(text[:1]).encode() == parts[0][1:]:
            parts[0] = parts[0][1:]
        whole = codecs.getincrementaldecoder("utf-8")("replace")
        ids = self._draft_tokenizer.encode(whole.decode(b"".join(parts)))
        return ids, whole.getstate()[0]

    def in_target_tokens(self, drafts: Sequence[int], missing: bytes) -> list[int]:
        """Converts drafts, up to the first special token, to the target's tokens.

        Args:
          drafts: token ids of the draft.
          missing: the bytes of an incomplete character, which the drafts must begin with.
        """
        special = (place for place, index in enumerate(drafts) if self._draft_tokenizer.is_special(index))
        kept = drafts[: next(special, len(drafts))]
        data = b"".join(self._draft_tokenizer.token_bytes(index) for index in kept)
        return self._speller.spell(data.removeprefix(missing)) if data.startswith(missing) else []


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GivenDrafter(Drafter):
    """Proposes tokens that the host has put into its state, which must be a function of the committed text."""

    k: int = dataclasses.field(metadata={"static": True})

    @property
    def max_drafts(self) -> int:
        return self.k

    @property
    def deterministic(self) -> bool:
        return True

    @property
    def lengths(self) -> tuple[int, ...]:
        return (0, self.k)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> Proposal:
        tokens = jnp.zeros((context.tokens.shape[0], self.k), jnp.int32)
        return Proposal(tokens, tokens.astype(jnp.bool_))

    def propose(self, rng: Rng, state: Proposal, context: Context) -> tuple[Proposal, Proposal]:
        return state, state


class _Writer(Host):
    """Drafts with the draft model, and tracks each row's text and the tokens that the cache holds."""

    def __init__(self, pair: StringMatch):
        self._pair = pair
        self._chain = Chain(ModelDraft(pair.draft), Fixed(pair.k), Greedy())
        self._texts: list[list[int]] = []
        self._state: ChainState | None = None

    def before(self, state: GenerationState) -> GenerationState:
        if not self._texts:
            tokens, lengths, limits = jax.device_get((state.tokens, state.length, state.limit))
            self._texts = [ids[:length].tolist() for ids, length in zip(tokens, lengths, strict=True)]
            self._make_room(self._texts, int(np.max(limits)))
        drafted, k = self._draft(self._texts, np.asarray(state.done)), self._pair.k
        tokens = np.zeros((len(drafted), k), np.int32)
        for row, ids in enumerate(drafted):
            tokens[row, : len(ids)] = ids[:k]
        count = np.array([len(ids) for ids in drafted])
        given = Proposal(jnp.asarray(tokens), jnp.asarray(np.arange(k)[None] < count[:, None]))
        return dataclasses.replace(state, drafter_state=given)

    def after(self, tokens: np.ndarray, count: np.ndarray) -> None:
        for text, new, own in zip(self._texts, tokens, count, strict=True):
            text += new[:own].tolist()

    def _make_room(self, texts: list[list[int]], most: int) -> None:
        """Makes room for texts that begin with `texts`, and grow to at most `most` of the target's tokens."""
        longest = max(len(self._pair.in_draft_tokens(text)[0]) for text in texts)
        slots, context = bucket(max(_ROOM * most, longest) + self._pair.k + 2), self._pair.draft.context_length
        self._slots = slots if context is None else min(slots, context)
        self._known: list[list[int]] = [[] for _ in texts]

    def _draft(self, texts: list[list[int]], done: np.ndarray) -> list[list[int]]:
        """Drafts the target's next tokens for each row; none for rows that are done or do not fit."""
        read = [self._pair.in_draft_tokens(text) for text in texts]
        tokens, lengths = np.zeros((len(texts), self._slots), np.int32), np.ones(len(texts), np.int32)
        silent = done.copy()
        for row, (ids, _) in enumerate(read):
            silent[row] |= not 0 < len(ids) <= self._slots - self._pair.k - 1
            if not silent[row]:
                tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        held = [_common(known, ids) for known, (ids, _) in zip(self._known, read, strict=True)]
        arguments = (jnp.asarray(tokens), jnp.asarray(lengths), jnp.asarray(silent))
        if self._state is None:
            self._state = _begin(self._chain, *arguments, slots=self._slots)
        else:
            self._state = _roll_back(self._state, jnp.asarray(np.array(held, np.int32)))
        proposal, self._state = _write(self._chain, self._state, *arguments)
        drafted = np.asarray(proposal.tokens).tolist()
        found = []
        for row, (ids, missing) in enumerate(read):
            # The last draft is not in the cache, and for a silent row the cache is arbitrary.
            self._known[row] = [] if silent[row] else ids + drafted[row][:-1]
            found.append([] if silent[row] else self._pair.in_target_tokens(drafted[row], missing))
        return found


def _context(tokens: Int[Array, "b s"], length: Int[Array, "b"], silent: Bool[Array, "b"]) -> Context:
    """Returns a context with text only, as the draft model reads nothing of the target."""
    return Context(None, cast(Any, None), tokens, length, silent, Greedy())


@functools.partial(jax.jit, static_argnames="slots")
def _begin(
    chain: Chain, tokens: Int[Array, "b s"], length: Int[Array, "b"], silent: Bool[Array, "b"], *, slots: int
) -> ChainState:
    return chain.init(_context(tokens, length, silent), None, slots)


@functools.partial(jax.jit, donate_argnames="state")
def _roll_back(state: ChainState, held: Int[Array, "b"]) -> ChainState:
    cache = state.draft_state.cache
    return dataclasses.replace(state, draft_state=DraftState(cache.truncate(jnp.minimum(cache.length, held))))


@functools.partial(jax.jit, donate_argnames="state")
def _write(
    chain: Chain, state: ChainState, tokens: Int[Array, "b s"], length: Int[Array, "b"], silent: Bool[Array, "b"]
) -> tuple[Proposal, ChainState]:
    # Unused by greedy drafts.
    rng = RoundKeys(jax.random.split(jax.random.key(0), length.shape[0]), length)
    return chain.propose(rng, state, _context(tokens, length, silent))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the length of the longest common prefix of two texts."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def _needed(name: str, tokenizer: Tokenizer | None, model: Model) -> Tokenizer:
    tokenizer = model.traits.tokenizer if tokenizer is None else tokenizer
    if tokenizer is None:
        raise ValueError(f"StringMatch compares strings, but a model has no tokenizer; pass {name}=")
    return tokenizer

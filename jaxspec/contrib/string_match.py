"""Drafts from a model with any tokenizer, by way of strings: a loop on the host.

What a draft model writes is decoded, encoded again with the target's tokenizer, and accepted as far as the target says
the same (string-level exact match, SLEM):

    the target's text      The  Ġunbeliev  able          is "The unbelievable"
    the draft reads        The  Ġun  believ  able        and writes  Ġsto  ry  .      which is " story."
    the target verifies    Ġstory  .

For vocabularies that have too little in common for `jaxspec.CrossVocabularyDrafter`, which stays on the device and is
the faster one. Drafts are the draft model's top-1 tokens, so they follow from the text alone, and the target's
distribution is kept however badly text comes through the two tokenizers.
"""

import codecs
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.checkpoints.spelling import Speller
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.core.generation import Generation
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng, RoundKeys
from jaxspec.core.sampling import Greedy
from jaxspec.core.state import Context, Proposal
from jaxspec.decoding.room import bucket
from jaxspec.decoding.steps import finish, init, jit_step
from jaxspec.draft_length.base import Fixed
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.chain import Chain, ChainState
from jaxspec.drafters.draft_model import ModelDraft, check_is_model
from jaxspec.verifiers.base import Verifier

# Tokens of the draft's for one of the target's, at most, on the average of a text.
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

    def __init__(
        self,
        target: Model,
        draft: Model,
        *,
        k: int = 4,
        tokenizer: Tokenizer | None = None,
        draft_tokenizer: Tokenizer | None = None,
    ):
        """Puts the two together.

        Args:
          target: the model whose distribution is kept.
          draft: the model that writes on.
          k: how many tokens it writes a round, and the most of the target's that are verified.
          tokenizer: the target's; `None` is the one it brings.
          draft_tokenizer: the draft's.

        Raises:
          TypeError: one of them is no model.
          ValueError: a tokenizer is missing, or neither byte-level nor SentencePiece; or `k` is not at least 1.
        """
        for model in (target, draft):
            check_is_model(type(self).__name__, model)
        validate.draft_length(k)
        if k == 0:
            raise ValueError("k is 0, so nothing would be drafted; pass k=4, or use jaxspec.generate")
        self.target, self.draft, self.k = target, draft, int(k)
        self._tokenizer = _needed("tokenizer", tokenizer, target)
        self._draft_tokenizer = _needed("draft_tokenizer", draft_tokenizer, draft)
        self._speller = Speller(self._tokenizer, target.vocab_size)

    def generate(self, prompt: Array, *, verifier: Verifier | None = None, **options: Any) -> Generation:
        """Continues each prompt, as `jaxspec.generate` does, and with the same distribution.

        Args:
          prompt: `[b, t]` token ids of the target, shorter rows padded on the right.
          verifier: which drafts are accepted; `None` is `TokenVerifier()`. With `CoupledVerifier()` the tokens are
            those of plain decoding with the same key.
          **options: those of `jaxspec.init`: `max_new_tokens`, `prompt_length`, `key`, `sampling`, `stop_tokens`.

        Raises:
          TypeError, ValueError: as `jaxspec.generate` does.
        """
        drafter = GivenDrafter(self.k)
        verifier = drafter.default_verifier if verifier is None else verifier
        state = init(self.target, drafter, prompt, **options)
        tokens, lengths, limits = jax.device_get((state.tokens, state.length, state.limit))
        texts = [ids[:length].tolist() for ids, length in zip(tokens, lengths, strict=True)]
        writer = _Writer(self, texts, int(np.max(limits)))
        advance, done = jit_step(donate=True), np.asarray(state.done)
        while not done.all():
            drafted = writer.draft(texts, done)
            state = dataclasses.replace(state, drafter_state=self._given(drafted))
            state, info = advance(self.target, drafter, verifier, state)
            tokens, counts, done = jax.device_get((info.tokens, info.count, state.done))
            for text, new, count in zip(texts, tokens, counts, strict=True):
                text += new[:count].tolist()
        return finish(state)

    def in_draft_tokens(self, text: Sequence[int]) -> tuple[list[int], bytes]:
        """Returns a text in the draft's tokens, and what these lack: the beginning of its last character, if cut."""
        text = list(text[1:]) if text and text[0] == self._tokenizer.bos_token_id else list(text)
        parts = [self._tokenizer.token_bytes(index, skip_special_tokens=False) for index in text]
        # SentencePiece writes a space in front of a text, which is none of the text.
        if parts and parts[0].startswith(b" ") and self._tokenizer.decode(text[:1]).encode() == parts[0][1:]:
            parts[0] = parts[0][1:]
        whole = codecs.getincrementaldecoder("utf-8")("replace")
        ids = self._draft_tokenizer.encode(whole.decode(b"".join(parts)))
        return ids, whole.getstate()[0]

    def in_target_tokens(self, drafts: Sequence[int], missing: bytes) -> list[int]:
        """Returns what the draft wrote up to its first special token, in the target's.

        Args:
          drafts: tokens of the draft's.
          missing: the bytes that it had to write again.
        """
        special = (place for place, index in enumerate(drafts) if self._draft_tokenizer.is_special(index))
        kept = drafts[: next(special, len(drafts))]
        data = b"".join(self._draft_tokenizer.token_bytes(index) for index in kept)
        return self._speller.spell(data.removeprefix(missing)) if data.startswith(missing) else []

    def _given(self, drafted: list[list[int]]) -> Proposal:
        tokens = np.zeros((len(drafted), self.k), np.int32)
        for row, ids in enumerate(drafted):
            tokens[row, : len(ids)] = ids[: self.k]
        count = np.array([len(ids) for ids in drafted])
        return Proposal(jnp.asarray(tokens), jnp.asarray(np.arange(self.k)[None] < count[:, None]))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GivenDrafter(Drafter):
    """Proposes what the host has put into its state, which must follow from the committed text."""

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


class _Writer:
    """Drafts with the draft model: its cache, and each row's text as the cache holds it."""

    def __init__(self, pair: StringMatch, texts: list[list[int]], most: int):
        self._pair = pair
        self._chain = Chain(ModelDraft(pair.draft), Fixed(pair.k), Greedy())
        ids = [pair.in_draft_tokens(text)[0] for text in texts]
        slots = bucket(max(_ROOM * most, *map(len, ids)) + pair.k + 2)
        if pair.draft.context_length is not None:
            slots = min(slots, pair.draft.context_length)
        self._slots = slots
        self._known: list[list[int]] = [[] for _ in texts]
        self._state: ChainState | None = None

    def draft(self, texts: list[list[int]], done: np.ndarray) -> list[list[int]]:
        """Drafts the target's tokens that each row's text may go on with; none for rows that are done or do not fit."""
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
            # The last draft is not in the cache, and a silent row's may hold anything.
            self._known[row] = [] if silent[row] else ids + drafted[row][:-1]
            found.append([] if silent[row] else self._pair.in_target_tokens(drafted[row], missing))
        return found


def _context(tokens: Int[Array, "b s"], length: Int[Array, "b"], silent: Bool[Array, "b"]) -> Context:
    """Returns a context of text alone: a draft model reads nothing of the target."""
    return Context(cast(Any, None), cast(Any, None), tokens, length, silent, Greedy())


@functools.partial(jax.jit, static_argnames="slots")
def _begin(
    chain: Chain, tokens: Int[Array, "b s"], length: Int[Array, "b"], silent: Bool[Array, "b"], *, slots: int
) -> ChainState:
    return chain.init(_context(tokens, length, silent), None, slots)


@functools.partial(jax.jit, donate_argnames="state")
def _roll_back(state: ChainState, held: Int[Array, "b"]) -> ChainState:
    cache = state.draft_state.truncate(jnp.minimum(state.draft_state.length, held))
    return dataclasses.replace(state, draft_state=cache)


@functools.partial(jax.jit, donate_argnames="state")
def _write(
    chain: Chain, state: ChainState, tokens: Int[Array, "b s"], length: Int[Array, "b"], silent: Bool[Array, "b"]
) -> tuple[Proposal, ChainState]:
    # Greedy drafts make no use of them.
    rng = RoundKeys(jax.random.split(jax.random.key(0), length.shape[0]), length)
    return chain.propose(rng, state, _context(tokens, length, silent))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Counts the tokens that two texts begin with alike."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def _needed(name: str, tokenizer: Tokenizer | None, model: Model) -> Tokenizer:
    """Returns the tokenizer, or that of its model."""
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    if tokenizer is None:
        raise ValueError(f"a model has no tokenizer, and strings are what is compared; pass {name}=")
    return tokenizer

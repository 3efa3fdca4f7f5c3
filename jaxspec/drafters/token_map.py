"""Maps one vocabulary to another: which tokens they share, and how to spell the target's tokens in the draft's.

Tokens are compared by the bytes that they stand for, regardless of how a vocabulary spells them:

    bytes       byte-level BPE    SentencePiece
    " the"      Ġthe              ▁the
    newline     Ċ                 <0x0A>, or a separate token
    "ü"         Ã¼                ü
    C3          Ã                 <0xC3>

Special tokens stand for no bytes, and are compared by spelling, only with each other. Beginning-of-text tokens match
regardless of spelling, and so do end-of-text tokens. If several tokens have the same bytes (`A` and `<0x41>`), only the
one that the tokenizer uses for text is shared.
"""

import dataclasses
from typing import Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec.checkpoints.spelling import Speller, ids_of, key_of
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import typed
from jaxspec.drafters.resized import have_same_tokens

# The draft model reads only the last pieces of a longer token, which say most about the next token.
MOST_PIECES = 8
# The largest vocabulary.
_MOST = 2**31 - 1


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenMap:
    """Maps the target's tokens to those of a draft model: how it reads each, and which it can guess.

    Holds the intersection of two vocabularies, for token-level intersection. Every token of the target maps to at least
    one of the draft's, so the draft's text is never empty or shorter than the target's:

        target    The  Ġunbeliev  able  .       vocabulary of the draft: The Ġun believ able .
        columns     7         -1    19  3
        pieces      7   [41, 56]    19  3

    Attributes:
      columns: the draft's token id for each of the target's tokens (injective); -1 if it is not shared.
      pieces: the draft's tokens that spell each token, padded with 0; only the last ones of a very long token.
      count: the number of pieces. 1 for a shared token, whose piece is its entry in `columns`.
      start: the draft's tokens that begin each text, if the target's vocabulary has no such token.
      draft_vocab_size: the size of the draft's vocabulary, static.

    References:
      Token-level intersection (TLI): Timor et al. (2025), arXiv:2502.05202, algorithm 4.

    Example:
      >>> token_map = jaxspec.drafters.TokenMap.between(target.tokenizer, draft.tokenizer,
      ...     target_size=target.vocab_size, draft_size=draft.vocab_size)
      >>> token_map.columns.shape, token_map.draft_vocab_size
      ((310,), 310)
    """

    columns: Int[Array, "v"]
    pieces: Int[Array, "v e"]
    count: Int[Array, "v"]
    start: Int[Array, "n"]
    draft_vocab_size: int = dataclasses.field(metadata={"static": True})

    @classmethod
    @typed()
    def of_models(cls, draft: Model, target: Model | None, tokenizer: Tokenizer | None = None) -> "TokenMap | None":
        """Maps the target's vocabulary to a draft model's, if their tokenizers show that they differ.

        Args:
          draft: the draft model.
          target: the target; `None` is assumed to have the draft's vocabulary.
          tokenizer: the target's; `None` uses the one of its traits.

        Returns:
          The map; `None` if the models have the same tokens, or a tokenizer is missing.

        Raises:
          TypeError, ValueError: as `between` does.
        """
        if target is None:
            return None
        own, other = tokenizer or target.traits.tokenizer, draft.traits.tokenizer
        if own is None or other is None:
            return None
        if have_same_tokens(draft, target, own, other):
            return None
        found = cls.between(own, other, target_size=target.vocab_size, draft_size=draft.vocab_size)
        return None if found.keeps_ids() else found

    @classmethod
    @typed("target", "draft", target_size=(1, _MOST), draft_size=(1, _MOST))
    def between(
        cls, target: Tokenizer, draft: Tokenizer, *, target_size: int | None = None, draft_size: int | None = None
    ) -> Self:
        """Compares two vocabularies on the host.

        Args:
          target: the target's tokenizer.
          draft: the draft's tokenizer.
          target_size: the target model's `vocab_size`, which may be padded; `None` uses its tokenizer's.
          draft_size: the draft model's `vocab_size`; `None` uses its tokenizer's.

        Returns:
          The map from the target's vocabulary to the draft's.

        Raises:
          TypeError: an argument is not of its type.
          ValueError: no text token is shared, a size is out of range, or a tokenizer is neither byte-level nor
            SentencePiece.
        """
        target_size = target.vocab_size if target_size is None else target_size
        draft_size = draft.vocab_size if draft_size is None else draft_size
        speller = Speller(draft, draft_size)
        own, others = ids_of(target, target_size), speller.ids
        if not any(key in others for key in own if not key.special):
            raise ValueError(
                f"the vocabularies of target and draft ({target_size} and {draft_size} tokens) share no text token, so "
                "there is nothing to draft; pass a draft model with a similar tokenizer, or another drafter"
            )
        columns = np.full(target_size, -1, np.int32)
        for key, index in own.items():
            columns[index] = others.get(key, -1)
        _pair_by_role(columns, target, draft)
        # Replaces text that cannot be spelled at all.
        blank = next((index for index in draft.eos_token_ids if index < draft_size), 0)
        spelled = [
            [int(column)] if column >= 0 else (speller.spell(key_of(target, index).data) or [blank])[-MOST_PIECES:]
            for index, column in enumerate(columns)
        ]
        pieces = np.zeros((target_size, max(map(len, spelled))), np.int32)
        for index, ids in enumerate(spelled):
            pieces[index, : len(ids)] = ids
        count = np.array([len(ids) for ids in spelled], np.int32)
        start = np.array(() if _start_token(target) else _start_token(draft), np.int32)
        return cls(jnp.asarray(columns), jnp.asarray(pieces), jnp.asarray(count), jnp.asarray(start), draft_size)

    @property
    def target_vocab_size(self) -> int:
        """The size of the target's vocabulary."""
        return self.columns.shape[0]

    def shared(self) -> int:
        """Counts the shared tokens; not for traced arrays."""
        return int(np.sum(np.asarray(self.columns) >= 0))

    def keeps_ids(self) -> bool:
        """Returns whether both are one vocabulary with a few respelled tokens; not for traced arrays."""
        columns = np.asarray(self.columns)
        ids = np.flatnonzero(columns >= 0)
        most = len(ids) >= 0.9 * len(columns)
        return most and self.draft_vocab_size == len(columns) and bool(np.all(columns[ids] == ids))

    def guessed(self, tokens: Int[Array, "b t"]) -> Int[Array, "b t"]:
        """Converts shared tokens to the draft's ids; the result for other tokens is arbitrary."""
        return jnp.maximum(self.columns[tokens], 0)

    def restrict(self, logits: Float[Array, "b t u"]) -> Float[Array, "b t v"]:
        """Gathers the draft's logits into the target's vocabulary, with -inf for tokens that are not shared."""
        shared = jnp.take(logits, jnp.maximum(self.columns, 0), axis=-1)
        return jnp.where((self.columns >= 0)[None, None], shared, -jnp.inf)


def _pair_by_role(columns: np.ndarray, target: Tokenizer, draft: Tokenizer) -> None:
    """Pairs tokens that begin or end a text and have no match by spelling; updates `columns` in place."""
    for own, others in ((_start_token(target), _start_token(draft)), (target.eos_token_ids, draft.eos_token_ids)):
        lonely = [index for index in own if index < len(columns) and columns[index] < 0]
        free = [index for index in others if index not in columns]
        for index, other in zip(lonely, free, strict=False):
            columns[index] = other


def _start_token(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the token that `encode` prepends to each text, if any."""
    return tuple(index for index in tokenizer.encode("") if index == tokenizer.bos_token_id)

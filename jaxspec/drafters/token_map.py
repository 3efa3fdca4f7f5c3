"""Maps one vocabulary to another: which tokens they share, and how to spell the target's tokens in the draft's.

Tokens are compared by the bytes that they put into a text, however their vocabulary spells them:

    bytes       byte-level BPE    SentencePiece
    " the"      Ġthe              ▁the
    newline     Ċ                 <0x0A>, or a token of its own
    "ü"         Ã¼                ü
    C3          Ã                 <0xC3>

A special token puts nothing into a text, and is compared with special tokens alone, by its spelling; two that begin a
text are the same, and two that end one, however spelled. Of several tokens with the same bytes (`A` and `<0x41>`) only
the one that text is made of is shared.
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
from jaxspec.drafters.resized import have_same_tokens

# Of a longer token the draft model reads the last pieces, which say most about what follows.
MOST_PIECES = 8


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenMap:
    """Maps the target's tokens to those of a draft model: how it reads each, and which of them it can guess.

    Holds the intersection of two vocabularies, as token-level intersection needs it. Every token of the target stands
    for at least one of the draft's, so no text of the target is empty or shorter for the draft:

        target    The  Ġunbeliev  able  .       vocabulary of the draft: The Ġun believ able .
        columns     7         -1    19  3
        pieces      7   [41, 56]    19  3

    Attributes:
      columns: the draft's token that each token of the target is, no two the same; -1 outside of the intersection.
      pieces: the draft's tokens for the text of each, of a very long one for its end; zeros follow them.
      count: how many they are. One in the intersection, which is that of `columns`.
      start: the draft's tokens that begin each text, where the target's vocabulary has no such token.
      draft_vocab_size: how many tokens the draft has, static.

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
    def of_models(cls, draft: Model, target: Model | None, tokenizer: Tokenizer | None = None) -> "TokenMap | None":
        """Maps the target's vocabulary to a draft model's, if its tokens are others, as far as their tokenizers tell.

        Args:
          draft: the draft model.
          target: the target; `None` is taken to have the draft's vocabulary.
          tokenizer: the target's; `None` is the one it brings.

        Raises:
          ValueError: as `between` does.
        """
        own, other = tokenizer or getattr(target, "tokenizer", None), getattr(draft, "tokenizer", None)
        if target is None or own is None or other is None:
            return None
        if have_same_tokens(draft, target, own, other):
            return None
        found = cls.between(own, other, target_size=target.vocab_size, draft_size=draft.vocab_size)
        return None if found.keeps_ids() else found

    @classmethod
    def between(
        cls, target: Tokenizer, draft: Tokenizer, *, target_size: int | None = None, draft_size: int | None = None
    ) -> Self:
        """Compares two vocabularies, on the host.

        Args:
          target: the target's tokenizer.
          draft: the draft's.
          target_size: the target model's `vocab_size`, which may be padded; `None` is its tokenizer's.
          draft_size: the draft model's.

        Raises:
          ValueError: no token of text is in both, or a tokenizer is neither byte-level nor SentencePiece.
        """
        target_size = target.vocab_size if target_size is None else target_size
        draft_size = draft.vocab_size if draft_size is None else draft_size
        speller = Speller(draft, draft_size)
        own, others = ids_of(target, target_size), speller.ids
        if not any(key in others for key in own if not key.special):
            raise ValueError(
                f"the vocabularies of target and draft ({target_size} and {draft_size} tokens) have no token of text "
                "in common, so there is nothing to draft; pass a draft model of a like tokenizer, or another drafter"
            )
        columns = np.full(target_size, -1, np.int32)
        for key, index in own.items():
            columns[index] = others.get(key, -1)
        _pair_by_role(columns, target, draft)
        # Stands for text that cannot be spelled at all.
        blank = next((index for index in draft.eos_token_ids if index < draft_size), 0)
        spelled = [
            [int(column)] if column >= 0 else (speller.spell(key_of(target, index).data) or [blank])[-MOST_PIECES:]
            for index, column in enumerate(columns)
        ]
        pieces = np.zeros((target_size, max(map(len, spelled))), np.int32)
        for index, ids in enumerate(spelled):
            pieces[index, : len(ids)] = ids
        count = np.array([len(ids) for ids in spelled], np.int32)
        start = np.array(() if _begins(target) else _begins(draft), np.int32)
        return cls(jnp.asarray(columns), jnp.asarray(pieces), jnp.asarray(count), jnp.asarray(start), draft_size)

    @property
    def target_vocab_size(self) -> int:
        """The number of tokens that the target has."""
        return self.columns.shape[0]

    def shared(self) -> int:
        """Counts the tokens that are in both vocabularies; not for traced arrays."""
        return int(np.sum(np.asarray(self.columns) >= 0))

    def keeps_ids(self) -> bool:
        """Tells whether both are one vocabulary except for how a few tokens are spelled; not for traced arrays."""
        columns = np.asarray(self.columns)
        ids = np.flatnonzero(columns >= 0)
        most = len(ids) >= 0.9 * len(columns)
        return most and self.draft_vocab_size == len(columns) and bool(np.all(columns[ids] == ids))

    def guessed(self, tokens: Int[Array, "b t"]) -> Int[Array, "b t"]:
        """Returns the draft's tokens for tokens of the intersection; any others become some token."""
        return jnp.maximum(self.columns[tokens], 0)

    def restrict(self, logits: Float[Array, "b t u"]) -> Float[Array, "b t v"]:
        """Returns the draft's logits over the target's tokens: -inf outside of the intersection."""
        shared = jnp.take(logits, jnp.maximum(self.columns, 0), axis=-1)
        return jnp.where((self.columns >= 0)[None, None], shared, -jnp.inf)


def _pair_by_role(columns: np.ndarray, target: Tokenizer, draft: Tokenizer) -> None:
    """Gives tokens that begin or end a text those of the draft that do, if their spelling has found none."""
    for own, others in ((_begins(target), _begins(draft)), (target.eos_token_ids, draft.eos_token_ids)):
        lonely = [index for index in own if index < len(columns) and columns[index] < 0]
        free = [index for index in others if index not in columns]
        for index, other in zip(lonely, free, strict=False):
            columns[index] = other


def _begins(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the token that `encode` writes in front of each text, if it does."""
    return tuple(index for index in tokenizer.encode("") if index == tokenizer.bos_token_id)

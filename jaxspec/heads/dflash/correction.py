"""Defines `Correction`, the part of a DFlash head that makes the drafts of a block fit each other.

The pass over a block gives logits for each of its places. A correction changes them given the drafts before, one place
after the other, so that the corrected logits are those of a true chain:

    logits     u1   u2   u3        of the places of a block
    drafts     x1   x2   x3        x1 from c(u1; anchor), x2 from c(u2; anchor, x1), ...

One that is `parallel` guesses all drafts at once instead, and its drafts are certain.
"""

import abc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import flax.linen as nn
from jax import Array
from jax.typing import DTypeLike

from jaxspec.families.base import ParamMapping
from jaxspec.families.settings import Setting


@runtime_checkable
class BlockShape(Protocol):
    """Specifies the sizes of a head that a correction's parameters depend on; a `DFlashConfig` has them.

    Attributes:
      vocab_size: the size of the draft vocabulary.
      width: the width of a place's state.
      block_size: the number of places of a block.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def block_size(self) -> int: ...


class Correction(abc.ABC):
    """Specifies a correction: a static part of a `DFlashConfig`, that is a frozen dataclass.

    Its module has `start(tokens, states)`, which returns what it keeps between places: `tokens [b, 1]` are the anchors,
    and `states [b, 1, d]` those of their places, if it `reads_anchor`. The module is called with this, the number of a
    draft, the tokens `[b, 1]` before it, their embeddings `[b, 1, d]` if it `reads_embeddings`, and the states
    `[b, 1, d]` and logits `[b, 1, n]` of the draft's place. It returns the corrected logits, and what it keeps. In a
    tree, it is called with `w` nodes instead of one. The module of one that `selects` also has
    `candidates(tokens, states, logits)`. The module of one that is `parallel` has `refine` instead.

    Attributes:
      SETTINGS: the settings of a head's configuration that it reads.
      parallel: whether it guesses all drafts at once.
      reads_embeddings: whether it reads the embeddings of tokens.
    """

    SETTINGS: ClassVar[Mapping[str, Setting]] = {}
    parallel: ClassVar[bool] = False
    reads_embeddings: ClassVar[bool] = False

    @classmethod
    @abc.abstractmethod
    def of(cls, config: Mapping[str, Any], target_tokens: int, draft_tokens: int) -> "Correction | None":
        """Returns the correction that a head's configuration describes; `None` if it has no such one.

        Args:
          config: the configuration.
          target_tokens: the size of the target's vocabulary.
          draft_tokens: the size of the draft vocabulary.

        Raises:
          SettingError: a setting is missing or not supported.
        """

    @property
    def token_rank(self) -> int:
        """The size of its embedding of a token, for a confidence head; 0 means that it has no such embedding."""
        return 0

    @property
    def candidates(self) -> int | None:
        """The number of tokens that can be drafted at a place; `None` means all of them."""
        return None

    @property
    def selects(self) -> bool:
        """Whether it gives most tokens no probability, so that logits are processed before it."""
        return self.candidates is not None

    @property
    def reads_anchor(self) -> bool:
        """Whether it reads the state of a block's first place even if that place predicts nothing."""
        return False

    @abc.abstractmethod
    def build(self, config: BlockShape, dtype: DTypeLike) -> nn.Module:
        """Returns its module, as a submodule of the caller."""

    def settings(self) -> dict[str, Any]:
        """Returns the settings that describe it in jaxspec's layout, if it is trained here.

        Raises:
          ValueError: it is not.
        """
        raise ValueError(f"heads with {type(self).__name__} are not written; keep the folder that the head came from")

    def begun(self, params: Any, rows: Callable[[int], Array]) -> Any:
        """Returns new parameters with which it does not change logits yet, as a start of training.

        Args:
          params: random ones.
          rows: `rows(rank)` returns similar rows for similar tokens of the target, `[v, rank]`.

        Raises:
          ValueError: it is not trained here.
        """
        del params, rows
        raise ValueError(f"heads with {type(self).__name__} are not trained here; load one")

    @abc.abstractmethod
    def mappings(self, config: BlockShape) -> Iterator[ParamMapping]:
        """Yields its parameters with their tensors; their paths begin with "correction"."""

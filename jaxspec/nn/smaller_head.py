"""Cuts a model's output head to some of its tokens, once: a pass then reads and multiplies that many rows."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.packed import PackedWeight


@dataclasses.dataclass(frozen=True)
class SmallerHeadConfig(TransformerConfig):
    """Sets the hyperparameters of a decoder whose output head has fewer rows than its embedding.

    Attributes:
      rows: how many.
    """

    rows: int = dataclasses.field(kw_only=True)

    @property
    def head_size(self) -> int:
        return self.rows


def with_head_rows(model: Any, ids: Int32[np.ndarray, "n"]) -> LanguageModel:
    """Returns the model with the rows `ids` of its output head alone: column `i` of its logits is token `ids[i]`.

    Its embedding stays whole, so that it reads every token; `vocab_size` stays the number of those.

    Args:
      model: a `LanguageModel` of a `jaxspec.nn.Transformer`, with weights of any format.
      ids: rising ids of tokens.

    Raises:
      TypeError: the model is of another kind.
      ValueError: its head is cut already.
    """
    if not isinstance(model, LanguageModel) or not isinstance(model.module, Transformer):
        kind = type(getattr(model, "module", model)).__name__
        raise TypeError(
            f"only the output head of a LanguageModel of a jaxspec.nn.Transformer can be cut, got {kind}; leave "
            "draft_vocabulary out"
        )
    config = model.module.config
    if isinstance(config, SmallerHeadConfig):
        raise ValueError(f"the output head is cut to {config.rows} tokens already; pass the model before")
    head = model.head
    rows = head.take(jnp.asarray(ids)) if isinstance(head, PackedWeight) else head[ids]
    names = (field.name for field in dataclasses.fields(TransformerConfig))
    options: dict[str, Any] = {name: getattr(config, name) for name in names} | {"tied_head": False}
    smaller = SmallerHeadConfig(**options, rows=len(ids))
    return dataclasses.replace(model, module=model.module.clone(config=smaller), params={**model.params, "head": rows})

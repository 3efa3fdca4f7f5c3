"""Trains a tandem decoder (Tandem, Aishwarya et al. 2402.08644).

The text is cut into blocks, as if a round had begun at the first token of each; the cuts are random for each row of a
batch. With blocks of three tokens:

    text       a | b  c  d | e  f  g | h          the first block may be shorter
    state           A          A B C D            e, f and g each see the target's states before their block,
    own                        e; e f; e f g      and the decoder's own of their block up to themselves
    learned                    f  g  h            the target's distributions after e, f, g

So training sees what drafting sees, regardless of acceptance: the target's states up to the start of the block. All
blocks of a text run in one pass, and every token contributes to the loss.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.contrib.tandem.checkpoint import write_tandem
from jaxspec.contrib.tandem.head import TandemDrafter, TandemHead, default_capture, init, network_for
from jaxspec.core.typed import typed
from jaxspec.drafters import draft_vocabulary as vocabulary
from jaxspec.drafters.base import Drafter
from jaxspec.heads import untrained
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.matmul import project
from jaxspec.training.dataset import Batch
from jaxspec.training.losses import Divergence, ForwardKL, acceptance, masked_mean
from jaxspec.training.recipe import Features, Recipe, check_at_least, check_decay, option


@dataclasses.dataclass(frozen=True)
class TandemRecipe(Recipe):
    """Trains a small decoder whose layers also attend to the target's states up to the last verified block.

    It shares the target's embedding and, over a draft vocabulary, its output head, both frozen, through a projection of
    each. Costs about `6 * (parameters) + 6 * (rows of the head) * (target's width)` flops a token of the text, and the
    target's pass. For SmolLM2-135M and the defaults, it has 3.7 million parameters and costs 36 million flops a token.

    References:
      Tandem: Aishwarya et al. (2024), arXiv:2402.08644.

    Example:
      >>> from jaxspec.contrib.tandem import TandemRecipe
      >>> TandemRecipe.of(target, width=16).capture
      (1, 2, 3)
    """

    capture: tuple[int, ...] = option("The target's states that it reads.")
    draft_vocabulary: int | None = option(
        "How many of the data's most frequent tokens it can guess; None means all tokens.", default=4096
    )
    width: int = option("The size of its residual stream.", default=256)
    layers: int = option("The number of layers.", default=3)
    heads: int = option("The number of attention heads, each with its own keys and values.", default=4)
    mlp_width: int = option("The inner width of its feed-forward blocks.", default=768)
    block_size: int = option("Tokens of a block, including the committed one; each teaches as many drafts.", default=5)
    decay: float = option("Draft i of a block weighs decay ** i.", default=0.9)
    divergence: Divergence = option(
        "The divergence of each draft's distribution from the target's, both over the draft vocabulary.",
        default_factory=ForwardKL,
    )
    k: int = option("Drafts a round in evaluation.", default=4)

    def __post_init__(self):
        check_at_least(self, 1, "width", "layers", "heads", "mlp_width", "block_size", "k", "draft_vocabulary")
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be an even number for each of {self.heads} heads, got {self.width}")
        check_decay(self.decay)

    @classmethod
    @typed("target")
    def of(cls, target: LanguageModel, **options: Any) -> "TandemRecipe":
        """Returns the recipe with a low, the middle and the last state of this target (`default_capture`)."""
        options.setdefault("capture", default_capture(target))
        return cls(**options)

    def init(self, key, target, token_counts):
        options = {"draft_vocabulary": self.draft_vocabulary, "token_counts": token_counts, "dtype": jnp.float32}
        head = init(target, key, capture=self.capture, **self._sizes, **options)
        return {"network": {name: x for name, x in head.params.items() if name != "head"}, "ids": head.ids}

    def loss(self, params, target, batch, features, key):
        head = self.head(params, target)
        rows, width = batch.tokens.shape
        starts = block_starts(rows, width, self.block_size, key)
        draft_log_probs = jax.nn.log_softmax(guesses(head, target, batch.tokens, features, starts)[:, :-1])
        log_probs = project(target.normalize(features.last[:, :-1]), head.params["head"]).astype(jnp.float32)
        target_log_probs = jax.nn.log_softmax(log_probs)
        agreement = acceptance(target_log_probs, draft_log_probs)
        place = jnp.arange(batch.tokens.shape[1] - 1, dtype=jnp.int32)[None] - starts[:, :-1]
        learns = _learns(head, batch, starts)
        weights = jnp.where(learns, self.decay ** place.astype(jnp.float32), 0.0)
        loss = jnp.sum(weights * jnp.where(learns, self.divergence(target_log_probs, draft_log_probs), 0.0))
        loss /= jnp.maximum(jnp.sum(weights), 1e-6)
        means = [masked_mean(agreement, learns & (place == i)) for i in range(self.block_size)]
        reported = {"acceptance": means[0]} | {f"acceptance_{i + 1}": means[i] for i in range(1, self.block_size)}
        return loss, reported | {"count": jnp.sum(weights)}

    def drafter(self, params, target, token_counts) -> Drafter:
        return TandemDrafter(self.head(params, target), k=self.k)

    def save(self, params, target, token_counts, path) -> None:
        write_tandem(self.head(params, target), Path(path), with_head=False)

    def head(self, params: Any, target: LanguageModel) -> TandemHead:
        """Returns the head with these parameters, and with its rows of the target's output head."""
        network, ids = params["network"], params["ids"]
        dtype = network["mix"]["kernel"].dtype
        rows = {"head": target.head[ids].astype(dtype)}
        size = untrained.draft_vocabulary_size(target, self.draft_vocabulary)
        module = network_for(target, self.capture, size, **self._sizes, dtype=dtype)
        return TandemHead(module, network | rows, ids, target.vocab_size, self.capture)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"width": self.width, "layers": self.layers, "heads": self.heads, "mlp_width": self.mlp_width}


def block_starts(rows: int, width: int, size: int, key: Array) -> Int[Array, "b t"]:
    """Draws where each token's block begins: blocks of `size` tokens, with a random offset in each row."""
    place = jnp.arange(width, dtype=jnp.int32)[None]
    first = jax.random.randint(key, (rows, 1), 0, size, jnp.int32)
    return jnp.maximum(place - (place - first) % size, 0)


def guesses(
    head: TandemHead, target: LanguageModel, tokens: Int[Array, "b t"], features: Features, starts: Int[Array, "b t"]
) -> Float[Array, "b t n"]:
    """Returns the decoder's logits after each token of the text, over the draft vocabulary.

    Args:
      head: the decoder.
      target: the target, whose embedding it reads.
      tokens: the text.
      features: the target's pass over it.
      starts: where each token's block begins: it only sees the target's states before that.
    """
    batch, width = tokens.shape
    place = jnp.arange(width, dtype=jnp.int32)
    own = (place[None, None] >= starts[..., None]) & (place[None, None] <= place[None, :, None])
    mask = jnp.concatenate([place[None, None] < starts[..., None], own], axis=-1)
    context = head.context(features.hidden, jnp.zeros(batch, jnp.int32))
    positions = jnp.broadcast_to(jnp.tile(place, 2)[None], (batch, 2 * width))
    cache = head.init_cache(batch, 0)
    states, _ = head(target.embed(tokens), cache, mask=mask, positions=positions, pending=context)
    return head.guesses(states)


def _learns(head: TandemHead, batch: Batch, starts: Int[Array, "b t"]) -> Bool[Array, "b s"]:
    """Returns which tokens but the last precede an answer's token, where all drafts of the block are possible."""
    follows = batch.answer[:, 1:] & (
        jnp.arange(1, batch.tokens.shape[1], dtype=jnp.int32)[None] < batch.length[:, None]
    )
    known = vocabulary.places(head.ids, head.vocab_size) >= 0
    strange = jnp.cumsum(~known[batch.tokens], axis=1, dtype=jnp.int32)
    # A block's first token is committed and may be any token; the guessed one must be draftable too.
    before = jnp.take_along_axis(strange, starts, axis=1)
    return follows & (strange[:, 1:] == before[:, :-1])

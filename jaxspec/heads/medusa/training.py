"""Trains Medusa's heads on a frozen target (Medusa-1, Cai et al. 2401.10774, section 2.2.1).

Guesses that begin at place `a` read the state of the token at `a - 2` and the token at `a - 1`; head `i` guesses the
token at `a + i`. Its label is the target's whole distribution of that token, given the text before it:

    text         ...  .  .  [.  .  .  .]  .       the answer in brackets
    place                    a
    reads            a-2 a-1
    guesses                  a a+1 a+2
    labels from              a-1 a a+1       the target's logits after these, shared by the guesses of several places

The paper's labels are the text's own tokens. In the mean over texts, a head that does not see the tokens in between
learns the same distribution from either, with less noise from these.
"""

import dataclasses
import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.drafters.base import Drafter
from jaxspec.heads import untrained
from jaxspec.heads.medusa.checkpoint import read_medusa, write_medusa
from jaxspec.heads.medusa.head import MedusaDrafter, MedusaHead, init, network_for
from jaxspec.io.files import read_json
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.matmul import project
from jaxspec.training.dataset import Batch, at_places
from jaxspec.training.losses import Divergence, ForwardKL, acceptance, masked_mean
from jaxspec.training.recipe import Recipe, check_at_least, check_decay, option


@dataclasses.dataclass(frozen=True)
class MedusaRecipe(Recipe):
    """Trains heads that read the target's last state and the token after it, over a frozen draft vocabulary.

    Costs about `6 * (parameters of the blocks) + 2 * (1 + 2 * num_heads) * draft_vocabulary * width` flops a chosen
    place, and the target's pass. For SmolLM2-135M and the defaults these are 53 + 85 million, and the target's 220
    million for each token of the text.

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.2.1.

    Example:
      >>> from jaxspec.heads.medusa import MedusaRecipe
      >>> MedusaRecipe.of(target, num_heads=3).num_heads
      3
    """

    num_heads: int = option("The number of tokens to guess.", default=4)
    draft_vocabulary: int | None = option(
        "How many of the data's most frequent tokens they can guess; None means all tokens.", default=8192
    )
    mlp_width: int | None = option(
        "The inner width of each block; by default four thirds of the target's width.", default=None
    )
    shared_blocks: int = option("Blocks that all heads share.", default=2)
    num_blocks: int = option("Blocks of each head.", default=1)
    decay: float = option("Head i weighs decay ** i.", default=0.8)
    places: int = option(
        "The most places to choose in a row of the batch; of more, a random run of consecutive ones.", default=96
    )
    divergence: Divergence = option(
        "The divergence of each head's distribution from the target's, both over the draft vocabulary. The forward "
        "one's gradient is that of the paper's cross-entropy.",
        default_factory=ForwardKL,
    )

    def __post_init__(self):
        check_at_least(self, 1, "num_heads", "draft_vocabulary", "mlp_width", "places")
        check_at_least(self, 0, "shared_blocks", "num_blocks")
        check_decay(self.decay)

    def init(self, key, target, token_counts):
        options = {"draft_vocabulary": self.draft_vocabulary, "token_counts": token_counts, "dtype": jnp.float32}
        head = init(target, key, **self._sizes, **options)
        blocks = {name: x for name, x in head.params.items() if name != "output"}
        return {
            "blocks": blocks,
            "ids": jnp.arange(target.vocab_size, dtype=jnp.int32) if head.ids is None else head.ids,
        }

    def loss(self, params, target, batch, features, key):
        head = self.head(params, target)
        chosen = Chosen.of(batch, self.places, self.num_heads, key)
        logits = chosen.logits(head, target, features.last)
        log_probs = project(target.normalize(at_places(features.last, chosen.places - 1)), target.head[params["ids"]])
        log_probs = jax.nn.log_softmax(log_probs.astype(jnp.float32))
        known = head.places(chosen.tokens, target.vocab_size) >= 0
        total, reported, reach, length = jnp.zeros((), jnp.float32), {}, 1.0, jnp.ones((), jnp.float32)
        for i in range(self.num_heads):
            guesses, known_here = chosen.guesses(i), chosen.of_head(known, i)
            next_log_probs, guess = chosen.of_head(log_probs, i), jax.nn.log_softmax(logits[:, :, i])
            total += self.decay**i * masked_mean(self.divergence(next_log_probs, guess), guesses & known_here)
            # The distributions omit tokens that cannot be guessed; the text has those as often as the target does.
            accepted = jnp.where(known_here, acceptance(next_log_probs, guess), 0.0)
            reported["acceptance" if i == 0 else f"acceptance_{i + 1}"] = masked_mean(accepted, guesses)
            reach *= accepted
            length += masked_mean(reach, guesses)
        weight = sum(self.decay**i for i in range(self.num_heads))
        count = jnp.sum(chosen.guesses(0), dtype=jnp.float32)
        return total / weight, reported | {"length": length, "count": count}

    def drafter(self, params, target, token_counts) -> Drafter:
        return MedusaDrafter(self.head(params, target))

    def save(self, params, target, token_counts, path: str | os.PathLike[str]) -> None:
        blocks = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params["blocks"])
        write_medusa(self.head(params | {"blocks": blocks}, target), path)

    def measured(self, folder, target, batches, path) -> bool:
        """Writes the heads again with their accuracies by rank, for `jaxspec.core.tree.best_tree`."""
        head = read_medusa(Path(folder), read_json(Path(folder, "config.json")), target, target.dtype)
        write_medusa(dataclasses.replace(head, accuracies=measure_accuracies(head, target, batches)), path)
        return True

    def head(self, params: Any, target: LanguageModel) -> MedusaHead:
        """Returns the head with these parameters, and with its rows of the target's output head."""
        dtype = params["blocks"]["embedding_norm"]["scale"].dtype
        size = untrained.draft_vocabulary_size(target, self.draft_vocabulary)
        module = dataclasses.replace(network_for(target, size, **self._sizes), dtype=dtype)
        output = {"head": target.head[params["ids"]].astype(dtype)}
        layers = target.module.config.num_layers
        return MedusaHead(module, params["blocks"] | {"output": output}, (layers,), params["ids"])

    @property
    def _sizes(self) -> dict[str, Any]:
        names = ("num_heads", "mlp_width", "shared_blocks", "num_blocks")
        return {name: getattr(self, name) for name in names}


def measure_accuracies(
    head: MedusaHead, target: LanguageModel, batches: Iterable[Batch], ranks: int = 8
) -> tuple[tuple[float, ...], ...]:
    """Measures how often the token of rank `r` of head `i` is the answer's, `[i][r]`.

    Store the result in `MedusaHead.accuracies`, for `jaxspec.core.tree.best_tree`. Measure on texts that were not
    trained on, and that the target wrote under the policy that the tree is for.

    Args:
      head: the heads.
      target: the model that they draft for.
      batches: batches of such texts.
      ranks: the number of ranks to count.

    Returns:
      The accuracy of each rank of each head, `[num_heads][ranks]`.

    Raises:
      ValueError: no answer in the batches has as many tokens as there are heads.
    """
    hits, count = np.zeros((head.num_heads, ranks)), np.zeros((head.num_heads, 1))
    for batch in batches:
        found = jax.device_get(_rank_counts(head, target, batch, ranks))
        hits, count = hits + found[0], count + found[1][:, None]
    if not np.all(count):
        raise ValueError("no answer in the batches has as many tokens as there are heads; pass others")
    return tuple(tuple(row) for row in (hits / count).tolist())


@functools.partial(jax.jit, static_argnames="ranks")
def _rank_counts(head: MedusaHead, target: LanguageModel, batch: Batch, ranks: int) -> tuple[Array, Array]:
    """Counts how often each head's answer token had each rank, `[k, ranks]`, and how often it existed, `[k]`."""
    empty = target.init_cache(batch.tokens.shape[0], 1)
    (last,) = target(batch.tokens, empty, capture=head.capture).hidden
    chosen = Chosen.of(batch, batch.tokens.shape[1], head.num_heads, jax.random.key(0))
    logits, where = chosen.logits(head, target, last), head.places(chosen.tokens, target.vocab_size)
    hits, counts = [], []
    for i in range(head.num_heads):
        guesses, place = chosen.guesses(i), chosen.of_head(where, i)
        own = jnp.take_along_axis(logits[:, :, i], jnp.maximum(place, 0)[..., None], axis=-1)
        rank = jnp.sum(logits[:, :, i] > own, axis=-1, dtype=jnp.int32)
        rank = jnp.where(guesses & (place >= 0), rank, ranks)
        hits.append(jnp.bincount(rank.reshape(-1), length=ranks + 1)[:ranks])
        counts.append(jnp.sum(guesses, dtype=jnp.int32))
    return jnp.stack(hits), jnp.stack(counts)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Holds the places of a batch where guesses begin, and the next ones, which further heads guess.

    Attributes:
      num_heads: the number of tokens to guess from each place.
      places: places of answer tokens, increasing; guesses begin at all but the last `num_heads - 1`.
      there: which places hold an answer's token; the others are padding.
      tokens: the text's tokens at these places.
      before: the token before each.
    """

    num_heads: int
    places: Int[Array, "b s"]
    there: Bool[Array, "b s"]
    tokens: Int[Array, "b s"]
    before: Int[Array, "b s"]

    @classmethod
    def of(cls, batch: Batch, count: int, num_heads: int, key: Array) -> Self:
        """Chooses a random run of at most `count` consecutive places of each row, or all of them if they fit."""
        rows, width = batch.tokens.shape
        count = min(count + num_heads - 1, width)
        index = jnp.arange(width, dtype=jnp.int32)[None]
        # The first two tokens of a text do not have two tokens before them.
        fits = batch.answer & (index >= 2) & (index < batch.length[:, None])
        found = jnp.sum(fits, axis=1, dtype=jnp.int32)
        start = jax.random.randint(key, (rows,), 0, jnp.maximum(found - count, 0) + 1)
        order = jnp.sort(jnp.where(fits, index, width), axis=1)
        places = at_places(order, start[:, None] + index[:, :count])
        there = places < width
        places = jnp.where(there, places, width - 1)
        return cls(num_heads, places, there, at_places(batch.tokens, places), at_places(batch.tokens, places - 1))

    def logits(self, head: MedusaHead, target: LanguageModel, last: Float[Array, "b t d"]) -> Float[Array, "b a k n"]:
        """Returns each head's logits from each place, given the text's last states."""
        return head(target, at_places(last, self.of_head(self.places, 0) - 2), self.of_head(self.before, 0))

    def of_head(self, x: Array, head: int) -> Array:
        """Selects from `x`, `[b, s, ...]`, the places that this head guesses."""
        return x[:, head : head + x.shape[1] - self.num_heads + 1]

    def guesses(self, head: int) -> Bool[Array, "b a"]:
        """Returns where this head guesses a token of the answer that its first place is in."""
        here = self.of_head(self.places, head) == self.of_head(self.places, 0) + head
        return here & self.of_head(self.there, head)

"""Trains a DFlash head (DFlash, 2602.06036; DSpark, section 3.3).

Some places of each text serve as anchors, as if the text so far had just been committed:

    text       ...  a  b  c  d  e  f          c is an anchor
    context         A  B                      the target's states after a, b and all before
    block                 c  _  _             after the anchor, the block's tokens are masks
    labels                d  e  f             the target's distributions of d, e, f: those after c, d, e
    before                c  d  e             the Markov head reads the text's own tokens

All blocks of a text run in one pass, side by side; each sees the context before its anchor, and itself.

A confidence head is calibrated last, by sequential temperature scaling (DSpark, section 3.2). The product of the first
`i` estimates should equal the rate at which the first `i` drafts are accepted. Each draft's log-odds are divided by a
separate number, fitted one draft after the other with the earlier ones fixed.
"""

import abc
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.typed import typed
from jaxspec.drafters.base import Drafter
from jaxspec.heads import untrained
from jaxspec.heads.dflash.checkpoint import read_dflash, write_dflash
from jaxspec.heads.dflash.head import DFlashDrafter, DFlashHead
from jaxspec.heads.dflash.initial import begun, default_capture, network_for
from jaxspec.heads.dflash.markov import Kind, Markov
from jaxspec.heads.dflash.network import DFlashNetwork
from jaxspec.heads.dflash.selector import Convolution, Selector
from jaxspec.io.files import read_json
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.matmul import project
from jaxspec.training.dataset import Batch, at_places
from jaxspec.training.losses import ForwardKL, acceptance, masked_mean
from jaxspec.training.recipe import Features, Recipe, check_at_least, option


@dataclasses.dataclass(frozen=True)
class BlockRecipe(Recipe):
    """Trains a head that drafts a block in one pass, with DSpark's losses, whose output head is the target's, frozen.

    A block costs about `6 * block_size * (parameters of the layers + rows of the head * width)` flops and its labels
    `2 * block_size * rows * width`. A token of the text costs `6 * (parameters of the mix and of keys and values)`, and
    the target's pass. For SmolLM2-135M and the defaults, these are 520 and 66 million a block, and 11 and 220 a token.

    It differs from DSpark as follows. The cross-entropy is with the target's distribution instead of the text's token,
    which is less noisy. Distributions are compared over a draft vocabulary. The mask is a separate vector. States are
    normalized before they are mixed.

    References:
      DSpark, the paper in the repository deepseek-ai/DeepSpec, section 3.3.
    """

    capture: tuple[int, ...] = option("The target's states that it reads.")
    block_size: int = option("Drafts of a block.", default=7)
    draft_vocabulary: int | None = option(
        "How many of the data's most frequent tokens it can guess; None means all tokens.", default=8192
    )
    num_layers: int = option("The drafter's number of layers.", default=2)
    mlp_width: int = option("The inner width of its feed-forward blocks.", default=1024)
    confidence: bool = option("Whether it has a confidence head.", default=True)
    anchor_every: int = option("The number of tokens of the padded text for each anchor in an answer.", default=8)
    decay: float = option("Draft i weighs exp(-i / decay).", default=4.0)
    cross_entropy: float = option("The weight of the cross-entropy with the target's distribution.", default=0.1)
    total_variation: float = option("The weight of the L1 distance, twice the total variation.", default=0.9)
    trust: float = option("The weight of the confidence head's loss.", default=1.0)
    k: int | None = option("Drafts a round in evaluation; by default the whole block.", default=None)

    def __post_init__(self):
        check_at_least(self, 1, "block_size", "draft_vocabulary", "num_layers", "mlp_width", "anchor_every", "k")
        check_at_least(self, 0, "cross_entropy", "total_variation", "trust")
        if not self.decay > 0:
            raise ValueError(f"decay must be above 0, got {self.decay}")
        # Checked before training instead of at the first evaluation.
        if self.k is not None and self.k > self.block_size:
            raise ValueError(f"k must be at most block_size, {self.block_size}, got {self.k}; pass a larger block_size")

    @classmethod
    @typed("target")
    def of(cls, target: LanguageModel, **options: Any) -> Self:
        """Returns the recipe with DFlash's choice of the target's states: four, evenly spaced."""
        options.setdefault("capture", default_capture(target))
        return cls(**options)

    def init(self, key, target, token_counts):
        ids = jnp.asarray(untrained.draft_vocabulary(target, self.draft_vocabulary, token_counts))
        network = self._network(target, len(ids), jnp.dtype(jnp.float32))
        head = begun(network, target, key, ids, self.capture, jnp.dtype(jnp.float32))
        return {"network": {name: x for name, x in head.params.items() if name != "head"}, "ids": head.ids}

    def loss(self, params, target, batch, features, key):
        head = self.head(params, target)
        anchors, chosen = choose_anchors(batch, max(batch.tokens.shape[1] // self.anchor_every, 1), key)
        blocks = Blocks.of(head, target, batch, features, anchors, chosen)
        counts, agreement = blocks.counts, acceptance(blocks.target_log_probs, blocks.draft_log_probs)
        terms = self.cross_entropy * self.divergence(blocks)
        terms += self.total_variation * 2 * (1 - agreement)
        reported = self._reported(agreement, counts)
        # The first draft's acceptance under the target's whole distribution, not only its part in the draft vocabulary.
        coverage = blocks.log_coverage(head, target, drafts=1)[..., 0]
        first = acceptance(blocks.target_log_probs[..., 0, :] + coverage[..., None], blocks.draft_log_probs[..., 0, :])
        reported["acceptance"] = masked_mean(first, counts[..., 0])
        if blocks.odds is not None:
            label = jax.lax.stop_gradient(agreement)
            terms += self.trust * (jax.nn.softplus(blocks.odds) - label * blocks.odds)
            reported["confidence_error"] = masked_mean(jnp.abs(jax.nn.sigmoid(blocks.odds) - agreement), counts)
        weights = jnp.exp(-jnp.arange(self.block_size, dtype=jnp.float32) / self.decay)[None, None]
        weights = jnp.where(counts, weights, 0.0)
        loss = jnp.sum(jnp.where(counts, weights * terms, 0.0)) / jnp.maximum(jnp.sum(weights), 1.0)
        return loss, reported | {"count": jnp.sum(weights)}

    def drafter(self, params, target, token_counts) -> Drafter:
        return DFlashDrafter(self.head(params, target), k=self.k)

    def save(self, params, target, token_counts, path: str | os.PathLike[str]) -> None:
        write_dflash(self.head(params, target), Path(path), with_head=False)

    def measured(self, folder, target, batches, path) -> bool:
        """Writes the head again with a calibrated confidence head (`jaxspec.heads.dflash.training`)."""
        if self.confidence:
            head = read_dflash(Path(folder), read_json(Path(folder, "config.json")), target, target.dtype)
            write_dflash(calibrate(head, target, batches), path, with_head=False)
        return self.confidence

    def head(self, params: Any, target: LanguageModel) -> DFlashHead:
        """Returns the head with these parameters, and with its rows of the target's output head."""
        network, ids = params["network"], params["ids"]
        dtype = network["mask"].dtype
        rows = {"head": target.head[ids].astype(dtype)}
        size = untrained.draft_vocabulary_size(target, self.draft_vocabulary)
        module = self._network(target, size, dtype)
        return DFlashHead.of(module, network | rows, ids, self.capture, target.vocab_size)

    def divergence(self, blocks: "Blocks") -> Float[Array, "b a k"]:
        """Returns the divergence of each draft's distribution from the target's, weighted by `cross_entropy`."""
        return ForwardKL()(blocks.target_log_probs, blocks.draft_log_probs)

    @abc.abstractmethod
    def parts(self, target: LanguageModel) -> dict[str, Any]:
        """Returns the arguments of `network_for` in which the heads of different recipes differ."""

    def _reported(self, agreement: Float[Array, "b a k"], counts: Bool[Array, "b a k"]) -> dict[str, Float[Array, ""]]:
        """Returns each draft's mean acceptance, and the expected number of tokens that a round emits."""
        places = range(1, self.block_size)
        reported = {f"acceptance_{i + 1}": masked_mean(agreement[..., i], counts[..., i]) for i in places}
        reach = jnp.cumprod(jnp.where(counts, agreement, 0.0), axis=-1)
        return reported | {"length": 1 + masked_mean(jnp.sum(reach, axis=-1), counts[..., 0])}

    def _network(self, target: LanguageModel, vocab_size: int, dtype: Any) -> DFlashNetwork:
        sizes = {"num_layers": self.num_layers, "mlp_width": self.mlp_width, "confidence": self.confidence}
        return network_for(target, self.capture, vocab_size, **sizes, **self.parts(target), dtype=dtype)


@dataclasses.dataclass(frozen=True)
class DFlashRecipe(BlockRecipe):
    """Trains a DFlash head with DSpark's heads and losses, whose output head is the target's, frozen.

    References:
      DFlash (2026), arXiv:2602.06036.
      DSpark, the paper in the repository deepseek-ai/DeepSpec, section 3.3.

    Example:
      >>> from jaxspec.heads.dflash import DFlashRecipe
      >>> DFlashRecipe.of(target, block_size=4).capture
      (2,)
    """

    markov_rank: int = option("The rank of its Markov head; 0 means none.", default=64)

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 0, "markov_rank")

    def parts(self, target):
        return {"block_size": self.block_size, "markov_rank": self.markov_rank}


@dataclasses.dataclass(frozen=True)
class DSparkRecipe(DFlashRecipe):
    """Trains a DSpark head with a vanilla, gated or recurrent Markov head, whose output head is the target's, frozen.

    A vanilla one is that of `DFlashRecipe`. A gated one also uses the state of a draft's place, and a recurrent one all
    drafts before it.

    References:
      DSpark, the paper in the repository deepseek-ai/DeepSpec, sections 3.1 and 3.3.

    Example:
      >>> from jaxspec.heads.dflash import DSparkRecipe
      >>> DSparkRecipe.of(target, markov_head="gated").markov_rank
      64
    """

    markov_head: str = option("The kind of its Markov head: vanilla, gated or rnn.", default="vanilla")

    def __post_init__(self):
        super().__post_init__()
        if self.markov_head not in (kinds := get_args(Kind)):
            raise ValueError(f"markov_head must be one of {', '.join(kinds)}, got {self.markov_head!r}")
        if self.markov_head != "vanilla" and not self.markov_rank:
            raise ValueError(f"a {self.markov_head} Markov head needs a markov_rank above 0, got 0")

    def parts(self, target):
        if self.markov_head == "vanilla":
            return super().parts(target)
        correction = Markov(cast(Kind, self.markov_head), self.markov_rank, target.vocab_size)
        return {"block_size": self.block_size, "markov_rank": 0, "correction": correction}


@dataclasses.dataclass(frozen=True)
class DFlash2Recipe(BlockRecipe):
    """Trains a DFlash2 head: in place, with convolutions, whose drafts are selected among the best candidates.

    The acceptance that it learns is that of the selected drafts. The cross-entropy is that of the candidates' scores
    and of the logits that candidates are chosen by, so that the target's tokens are among them. No draft is accepted
    with more than the target's probability of all candidates.

    References:
      DFlash2 (2026), in the package `dflash`.

    Example:
      >>> from jaxspec.heads.dflash import DFlash2Recipe
      >>> DFlash2Recipe.of(target, block_size=4, conv_group_size=4).selector_top_k
      16
    """

    selector_rank: int = option("The size of the selector's codes of tokens.", default=64)
    selector_top_k: int = option("The number of candidates of a draft.", default=16)
    conv_kernel_size: int = option("The number of places that a convolution reads.", default=2)
    conv_group_size: int = option("The number of channels that share a change of a convolution's kernel.", default=16)

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")

    def divergence(self, blocks):
        return super().divergence(blocks) + ForwardKL()(blocks.target_log_probs, blocks.base_log_probs)

    def parts(self, target):
        width = target.module.config.width
        if width % self.conv_group_size:
            raise ValueError(f"conv_group_size must divide the width {width}, got {self.conv_group_size}")
        size = untrained.draft_vocabulary_size(target, self.draft_vocabulary)
        return {
            # The first place is the last token of the text, and predicts nothing.
            "block_size": self.block_size + 1,
            "first_predicts": False,
            "markov_rank": 0,
            "correction": Selector(self.selector_rank, min(self.selector_top_k, size), target.vocab_size),
            "convolution": Convolution(self.conv_kernel_size, self.conv_group_size),
        }


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Holds the drafts of blocks at `a` anchors of each text, where all tokens before a draft are the text's.

    Attributes:
      draft_log_probs: the draft distribution of each place, over the draft vocabulary.
      base_log_probs: the distribution of the logits without correction.
      target_log_probs: the target's distribution, renormalized over the same tokens.
      odds: the estimated log-odds of acceptance; `None` without a confidence head.
      counts: which drafts are tokens of an answer that follow only tokens that can be drafted.
      states: the target's last states, from which its distributions follow.
    """

    draft_log_probs: Float[Array, "b a k n"]
    base_log_probs: Float[Array, "b a k n"]
    target_log_probs: Float[Array, "b a k n"]
    odds: Float[Array, "b a k"] | None
    counts: Bool[Array, "b a k"]
    states: Float[Array, "b a k d"]

    @classmethod
    def of(
        cls,
        head: DFlashHead,
        target: LanguageModel,
        batch: Batch,
        features: Features,
        anchors: Int[Array, "b a"],
        chosen: Bool[Array, "b a"],
    ) -> Self:
        """Runs one pass over all blocks; those that are not `chosen` do not count.

        Args:
          head: the DFlash head.
          target: the model whose distributions it learns.
          batch: the texts.
          features: the target's pass over them, with the states that `head` captures.
          anchors: the places of the blocks' first tokens.
          chosen: which anchors count.
        """
        drafts = head.config.num_drafts
        places = _places(anchors, drafts + 1)
        inside = places < batch.length[:, None, None]
        places = jnp.minimum(places, batch.tokens.shape[1] - 1)
        rows = jnp.arange(places.shape[0], dtype=jnp.int32)[:, None, None]
        tokens, answer = batch.tokens[rows, places], batch.answer[rows, places] & inside
        could = jnp.pad(head.places[tokens[..., 1:-1]] >= 0, ((0, 0), (0, 0), (1, 0)), constant_values=True)
        counts = jnp.cumprod((answer[..., 1:] & could).astype(jnp.int32), axis=-1).astype(jnp.bool_)
        counts = counts & chosen[..., None]
        context = head.context(features.hidden, jnp.zeros(anchors.shape[:1], jnp.int32))
        states = head.blocks(head.embed(target, tokens[..., 0]), anchors, context)
        split = lambda x: x.reshape(*counts.shape, *x.shape[2:])  # noqa: E731
        known = states[:, :, -drafts:].reshape(states.shape[0], -1, states.shape[-1])
        logits, previous = head.logits(known), tokens[..., :-1].reshape(known.shape[:2])
        anchor = states[:, :, :1].reshape(-1, 1, states.shape[-1]) if head.config.keeps_anchor else None
        by_block = (x.reshape(-1, drafts, *x.shape[2:]) for x in (previous, known, logits))
        corrected = _corrected(head, target, anchor, *by_block).reshape(logits.shape)
        draft_log_probs, base = jax.nn.log_softmax(corrected), jax.nn.log_softmax(logits)
        at = jnp.minimum(_places(anchors, drafts), batch.tokens.shape[1] - 1).reshape(known.shape[:2])
        last = target.normalize(at_places(features.last, at))
        target_log_probs = jax.nn.log_softmax(project(last, head.params["head"]).astype(jnp.float32))
        odds = None if head.config.confidence == "none" else split(head.odds(known, head.before(previous)))
        return cls(split(draft_log_probs), split(base), split(target_log_probs), odds, counts, split(last))

    def log_coverage(self, head: DFlashHead, target: LanguageModel, drafts: int) -> Float[Array, "b a m"]:
        """Returns the log of the target's probability of the draft vocabulary, for each block's first `drafts`."""
        states = self.states[:, :, :drafts]
        if head.ids.shape[0] == target.vocab_size:
            return jnp.zeros(states.shape[:-1], jnp.float32)
        flat = states.reshape(states.shape[0], -1, states.shape[-1])
        total = lambda rows: jax.nn.logsumexp(project(flat, rows).astype(jnp.float32), axis=-1)  # noqa: E731
        return (total(head.params["head"]) - total(target.head)).reshape(states.shape[:-1])


def _corrected(
    head: DFlashHead,
    target: LanguageModel,
    anchor: Float[Array, "r 1 d"] | None,
    tokens: Int[Array, "r k"],
    states: Float[Array, "r k d"],
    logits: Float[Array, "r k n"],
) -> Float[Array, "r k n"]:
    """Returns the corrected logits of `r` blocks' drafts, each after the text's own `tokens`.

    Drafts matter only while those before were accepted, and those are the tokens that the target wrote.
    """
    if head.config.correction is None:
        return logits + head.added(head.before(tokens))

    def draft(kept, place):
        number, *given = place
        corrected, kept = head.corrected(target, kept, number, *given)
        return kept, corrected[:, 0]

    by_place = [jnp.swapaxes(x, 0, 1)[:, :, None] for x in (tokens, states, logits)]
    numbers = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    _, found = jax.lax.scan(draft, head.start(tokens[:, :1], anchor), (numbers, *by_place))
    return jnp.swapaxes(found, 0, 1)


def choose_anchors(batch: Batch, count: int, key: Array) -> tuple[Int[Array, "b a"], Bool[Array, "b a"]]:
    """Chooses `count` random places of each row that precede an answer's token, but never the first place.

    Returns:
      The places, and which of them are valid: a row may have fewer than `count` such places.
    """
    width = batch.tokens.shape[1]
    index = jnp.arange(width, dtype=jnp.int32)[None]
    fits = jnp.pad(batch.answer[:, 1:], ((0, 0), (0, 1))) & (index + 1 < batch.length[:, None]) & (index > 0)
    order = jnp.where(fits, jax.random.uniform(key, fits.shape, jnp.float32), -1.0)
    anchors = jax.lax.top_k(order, min(count, width))[1].astype(jnp.int32)
    return anchors, at_places(fits, anchors)


def _places(anchors: Int[Array, "b a"], count: int) -> Int[Array, "b a n"]:
    """Returns each anchor's place and the next ones, `count` in total."""
    return anchors[..., None] + jnp.arange(count, dtype=jnp.int32)[None, None]


_BINS = 20
_SCALES = np.geomspace(0.2, 5.0, 65)


def calibrate(head: DFlashHead, target: LanguageModel, batches: Iterable[Batch], seed: int = 0) -> DFlashHead:
    """Fits a head's `confidence_scale` to texts that it was not trained on.

    Labels are the acceptance of drafts drawn at temperature 1 after the text's own tokens.

    Args:
      head: a head with a confidence head.
      target: the model that it drafts for.
      batches: batches of texts that the target wrote.
      seed: the seed of the choice of anchors, one in eight tokens.

    Returns:
      The head with the fitted scale.

    Raises:
      ValueError: `head` has no confidence head, or no answer in the batches is as long as a block.
    """
    if head.config.confidence == "none":
        raise ValueError("calibrate needs a head with a confidence head, got one without; train with confidence=True")
    found = [np.zeros((3, 0, head.config.num_drafts))]
    for number, batch in enumerate(batches):
        outcome = _outcomes(head, target, batch, jax.random.fold_in(jax.random.key(seed), number))
        found.append(np.stack([np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in outcome]))
    odds, agreement, counts = np.concatenate(found, axis=1)
    counts = counts.astype(bool)
    if not counts.any(axis=0).all():
        raise ValueError("no answer in the batches is as long as a block; pass others")
    scale = sequential_scales(odds, np.cumprod(agreement, axis=1), counts)
    return dataclasses.replace(head, confidence_scale=jnp.asarray(scale, jnp.float32))


def sequential_scales(
    odds: Float[np.ndarray, "m k"], accepted: Float[np.ndarray, "m k"], counts: Bool[np.ndarray, "m k"]
) -> Float[np.ndarray, "k"]:
    """Fits the divisor of each draft's log-odds, one draft after the other.

    Args:
      odds: estimated log-odds of acceptance, given that the drafts before were accepted.
      accepted: whether all drafts up to this one were accepted, or the probability of it.
      counts: which of these are known.

    Returns:
      One positive number for each draft.
    """
    found, before = [], np.ones(len(odds))
    for i in range(odds.shape[1]):
        chances = [before / (1 + np.exp(-odds[:, i] / scale)) for scale in _SCALES]
        errors = [calibration_error(chance[counts[:, i]], accepted[counts[:, i], i]) for chance in chances]
        best = int(np.argmin(errors))
        found.append(_SCALES[best])
        before = chances[best]
    return np.array(found)


def calibration_error(chance: Float[np.ndarray, "m"], happened: Float[np.ndarray, "m"]) -> float:
    """Returns the expected calibration error: the mean gap between chances and frequencies, over 20 equal bins."""
    bins = np.minimum((chance * _BINS).astype(int), _BINS - 1)
    gap = np.bincount(bins, chance - happened, minlength=_BINS)
    return float(np.abs(gap).sum() / len(chance))


@jax.jit
def _outcomes(
    head: DFlashHead, target: LanguageModel, batch: Batch, key: Array
) -> tuple[Float[Array, "b a k"] | None, Float[Array, "b a k"], Bool[Array, "b a k"]]:
    """Returns estimated log-odds, the true probability of acceptance, and which drafts count."""
    capture = (*head.capture, target.module.config.num_layers)
    *hidden, last = target(batch.tokens, target.init_cache(batch.tokens.shape[0], 1), capture=capture).hidden
    anchors, chosen = choose_anchors(batch, max(batch.tokens.shape[1] // 8, 1), key)
    blocks = Blocks.of(head, target, batch, Features(tuple(hidden), last), anchors, chosen)
    coverage = blocks.log_coverage(head, target, drafts=head.config.num_drafts)
    accepted = acceptance(blocks.target_log_probs + coverage[..., None], blocks.draft_log_probs)
    return blocks.odds, accepted, blocks.counts

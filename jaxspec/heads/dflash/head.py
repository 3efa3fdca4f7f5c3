"""Defines `DFlashHead`: DFlash's network with its parameters and draft vocabulary; `init` makes an untrained one."""

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.draft_vocabulary import expand, places
from jaxspec.heads import untrained
from jaxspec.heads.dflash.network import DFlashConfig, DFlashNetwork
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlashHead(Network):
    """Drafts blocks with a DFlash or DSpark network and its parameters, made for one target.

    Attributes:
      module: the static network.
      params: its `params` collection, the target's rows of the output head among them.
      ids: the draft vocabulary: tokens of the target in rising order.
      places: where each of the target's tokens stands in it; -1 where it does not.
      capture: the target's hidden states that it reads, in this order (`i` enters layer `i`).
      confidence_scale: what the log-odds of each draft's acceptance are divided by (sequential temperature scaling,
        DSpark, section 3.2); `None` is 1.
      placement: how its cache is laid out over a mesh; `jaxspec.shard` sets it.
      cache_type: the class of its cache; `jaxspec.native_kernels` sets it.

    References:
      DFlash (2026), arXiv:2602.06036.
      DSpark, the paper in the repository deepseek-ai/DeepSpec, sections 3.1 and 3.2.

    Example:
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1)
      >>> isinstance(head, jaxspec.heads.DFlashHead), head.config.num_drafts
      (True, 3)
    """

    module: DFlashNetwork = dataclasses.field(metadata={"static": True})
    params: Any
    ids: Int[Array, "n"]
    places: Int[Array, "v"]
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    confidence_scale: Float[Array, "k"] | None = None
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})
    cache_type: type[KVCache] = dataclasses.field(default=KVCache, metadata={"static": True})

    @classmethod
    def of(cls, module: DFlashNetwork, params: Any, ids: Any, capture: tuple[int, ...], vocab_size: int) -> Self:
        """Returns a head for a target with `vocab_size` tokens, of which `ids` (rising, `int[n]`) can be guessed."""
        ids = jnp.asarray(ids, jnp.int32)
        return cls(module, params, ids, places(ids, vocab_size), capture)

    @property
    def config(self) -> DFlashConfig:
        """The network's shape."""
        return self.module.config

    @property
    def vocab_size(self) -> int:
        """The number of tokens that the target has."""
        return self.places.shape[0]

    @property
    def context_length(self) -> int | None:
        """The longest text it can draft for."""
        return self.config.context_length

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """Makes an empty cache of context, with room for at least `capacity` tokens a row."""
        return self.empty_cache(self.config.num_layers, batch, capacity)

    def context(self, hidden: tuple[Float[Array, "b t d"], ...], start: Int[Array, "b"]) -> KVEntries:
        """Returns what the cache stores of the target's states of tokens that stand from `start` on."""
        positions = start[:, None] + jnp.arange(hidden[0].shape[1], dtype=jnp.int32)[None]
        return self._apply("context", hidden, positions)

    def blocks(
        self, anchors: Float[Array, "b a d"], positions: Int[Array, "b a"], seen: KVCache | KVEntries
    ) -> Float[Array, "b a n d"]:
        """Returns the state of each place of each block, from which its token is predicted.

        Args:
          anchors: the embeddings of the tokens that the blocks begin with.
          positions: where those stand.
          seen: a cache of context, all of which each block sees; or the context of a text's first tokens, of which
            each block sees those before it.
        """
        where = {"cache": seen} if isinstance(seen, KVCache) else {"context": seen}
        return self._apply("__call__", anchors, positions, **where)

    def logits(self, known: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns logits over the draft vocabulary without what the token before adds, float32."""
        return self.placement.logits(self._apply("logits", known))

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """Expands logits to the target's vocabulary."""
        return self.placement.logits(expand(logits, self.ids, self.vocab_size))

    def before(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t r"] | None:
        """Embeds the target's tokens that stand before drafts; `None` without a Markov head."""
        return self._apply("before", self.places[tokens]) if self.config.markov_rank else None

    def added(self, before: Float[Array, "b t r"] | None) -> Float[Array, "b t n"] | float:
        """Returns what that adds to the drafts' logits."""
        return 0.0 if before is None else self._apply("added", before)

    def odds(self, known: Float[Array, "b t d"], before: Float[Array, "b t r"] | None) -> Float[Array, "b t"]:
        """Returns the estimated log-odds that a draft is accepted if those before it are, not yet calibrated."""
        return self._apply("trusted", known, before)

    def log_trust(self, odds: Float[Array, "b t"]) -> Float[Array, "b t"]:
        """Returns the log of that probability for each draft of a block from the first on, calibrated."""
        scale = self.confidence_scale
        return jax.nn.log_sigmoid(odds if scale is None else odds / scale[None, : odds.shape[1]])

    def _apply(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self.module.apply({"params": self.params}, *arguments, method=method, **options)


def init(
    target: LanguageModel,
    rng: Array,
    *,
    capture: tuple[int, ...] | None = None,
    draft_vocabulary: int | None = None,
    block_size: int = 7,
    num_layers: int = 2,
    mlp_width: int = 1024,
    markov_rank: int = 64,
    confidence: bool = True,
    token_counts: np.ndarray | None = None,
    dtype: DTypeLike | None = None,
) -> DFlashHead:
    """Makes an untrained DFlash head with DSpark's Markov and confidence heads, from which training begins.

    Its output head and last norm are the target's, the highest captured state enters its context as it is, and the
    Markov head moves no logits yet.

    Args:
      target: the model to draft for.
      rng: a JAX key; random weights are drawn from it.
      capture: the target's hidden states that it reads; `None` is four, evenly spaced.
      draft_vocabulary: how many tokens it may guess, the most frequent; `None` is all of them.
      block_size: drafts of a block.
      num_layers: of the head.
      mlp_width: inner width of its feed-forward blocks.
      markov_rank: of its Markov head; 0 is none.
      confidence: whether it has a confidence head.
      token_counts: `int64[v]`, how often each token stands in texts; `None` takes all as equally frequent.
      dtype: of weights and activations; `None` is the target's. Scales of norms are float32.

    Returns:
      A head as the reader of its folder would return it.

    Raises:
      ValueError: a number is out of range.

    References:
      DFlash (2026), arXiv:2602.06036.
      DSpark, the paper in the repository deepseek-ai/DeepSpec, section 3.1.

    Example:
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> jaxspec.generate(target, jaxspec.DFlashDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    capture = default_capture(target) if capture is None else capture
    ids = jnp.asarray(untrained.draft_vocabulary(target, draft_vocabulary, token_counts))
    module = network_for(
        target,
        capture,
        ids.shape[0],
        block_size=block_size,
        num_layers=num_layers,
        mlp_width=mlp_width,
        markov_rank=markov_rank,
        confidence=confidence,
        dtype=jnp.float32,
    )
    params = jax.jit(functools.partial(module.init, method="every_parameter"))(rng)["params"]
    # The frozen head expects the output of the target's last norm, and the highest state is the most informative.
    params["final_norm"] = {"scale": jnp.asarray(target.params["final_norm"]["scale"], jnp.float32)}
    width = module.config.width
    params["mix"] = {"kernel": params["mix"]["kernel"].at[:, -width:].add(jnp.eye(width))}
    if markov_rank:
        # Tokens that are similar in the target begin with similar rows; at first none of them changes the next logits.
        params["markov_before"] = _principal_components(target, ids, markov_rank)
        params["markov_after"] = jnp.zeros_like(params["markov_after"])
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    params = untrained.in_dtype(params | {"head": target.head[ids]}, dtype)
    return DFlashHead.of(dataclasses.replace(module, dtype=dtype), params, ids, capture, target.vocab_size)


def default_capture(target: LanguageModel) -> tuple[int, ...]:
    """Returns the states that DFlash reads of a target: the outputs of four layers, evenly spaced."""
    layers = target.module.config.num_layers
    spaced = {round(1 + i * max(layers - 4, 0) / 3) + 1 for i in range(4)}
    return tuple(sorted(min(layer, layers) for layer in spaced))


def network_for(
    target: LanguageModel,
    capture: tuple[int, ...],
    vocab_size: int,
    *,
    block_size: int,
    num_layers: int,
    mlp_width: int,
    markov_rank: int,
    confidence: bool,
    dtype: DTypeLike,
) -> DFlashNetwork:
    """Returns the network that fits a target.

    Args:
      target: the model to draft for.
      capture: the target's hidden states that it reads.
      vocab_size: how many tokens it may guess.
      block_size: drafts of a block.
      num_layers: of the head.
      mlp_width: inner width of its feed-forward blocks.
      markov_rank: of its Markov head; 0 is none.
      confidence: whether it has a confidence head.
      dtype: of weights and activations.
    """
    config = target.module.config
    shape = DFlashConfig(
        vocab_size=vocab_size,
        num_layers=num_layers,
        width=config.width,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=mlp_width,
        context_length=config.context_length,
        ropes=(untrained.rope_of(target),) * num_layers,
        windows=(None,) * num_layers,
        norm_eps=config.norm_eps,
        activation=config.activation,
        block_size=block_size,
        num_features=len(capture),
        feature_norms=True,
        markov_rank=markov_rank,
        confidence="none" if not confidence else "place and token" if markov_rank else "place",
    )
    return DFlashNetwork(shape, jnp.dtype(dtype))


def _principal_components(target: LanguageModel, ids: Int[Array, "n"], rank: int) -> Float[Array, "n_plus_1 r"]:
    """Returns the draft vocabulary's embeddings by their first principal components, of variance 1; others are 0."""
    rows = np.asarray(target.embed(ids[None])[0], np.float32)
    rows = rows - rows.mean(axis=0)
    _, directions = np.linalg.eigh(rows.T @ rows)
    found = rows @ directions[:, ::-1][:, :rank]
    found = found / np.maximum(found.std(axis=0), 1e-6)
    found = np.pad(found, ((0, 1), (0, rank - found.shape[1])))
    return jnp.asarray(found, jnp.float32)

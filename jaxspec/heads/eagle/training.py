"""Trains an EAGLE-3 head: training-time test (Li et al. 2503.01840, section 3.2).

Each chosen place of the text drafts a chain, as the head does in decoding: the first draft from the target's true
states, the next ones from the head's own. In step `k` at place `i`, attention reads:

    pairs          0 1 2 ... i      the text's true pairs
    own steps      i+1 ... i+k      this chain's own

Only places before answers are chosen; for the rest of the text, the layer only computes keys and values.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.typed import typed
from jaxspec.drafters import draft_vocabulary as vocabulary
from jaxspec.drafters.base import Drafter
from jaxspec.heads import untrained
from jaxspec.heads.eagle.checkpoint import write_eagle
from jaxspec.heads.eagle.head import EagleDrafter, EagleHead, default_capture, init, layer_for
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.matmul import project
from jaxspec.ops.rope import Rope, apply_rope
from jaxspec.training.dataset import Batch, at_places
from jaxspec.training.losses import Divergence, ForwardKL, acceptance, masked_mean
from jaxspec.training.recipe import Features, Recipe, check_at_least, check_decay, option


@dataclasses.dataclass(frozen=True)
class EagleRecipe(Recipe):
    """Trains an EAGLE-3 head whose output head is the target's, frozen, over a draft vocabulary.

    Costs about `6 * steps * (parameters of the layer) + 4 * steps * (rows of the head)` flops a chosen place, and the
    target's pass.

    References:
      EAGLE-3: Li et al. (2025), arXiv:2503.01840, sections 3.1 and 3.2.

    Example:
      >>> from jaxspec.heads.eagle import EagleRecipe
      >>> EagleRecipe.of(target, steps=3).capture
      (0, 1, 2)
    """

    capture: tuple[int, ...] = option("The target's states that it reads: low, middle and high (section 3.1).")
    draft_vocabulary: int | None = option(
        "How many of the data's most frequent tokens it can guess; None means all tokens.", default=4096
    )
    num_kv_heads: int | None = option("The layer's key-value heads; by default the target's number.", default=None)
    mlp_width: int | None = option("The layer's inner width; by default the target's.", default=None)
    steps: int = option("Drafts to unroll at each place.", default=5)
    decay: float = option("Step k weighs decay ** k.", default=0.8)
    places: int = option("The most places to choose in a row of the batch.", default=224)
    divergence: Divergence = option(
        "The divergence of each step's distribution from the target's, both over the draft vocabulary.",
        default_factory=ForwardKL,
    )
    k: int = option("Drafts a round in evaluation.", default=4)

    def __post_init__(self):
        check_at_least(self, 1, "draft_vocabulary", "num_kv_heads", "mlp_width", "steps", "places", "k")
        check_decay(self.decay)

    @classmethod
    @typed("target")
    def of(cls, target: LanguageModel, **options: Any) -> "EagleRecipe":
        """Returns the recipe with EAGLE-3's choice of the target's states (`default_capture`)."""
        options.setdefault("capture", default_capture(target))
        return cls(**options)

    def init(self, key, target, token_counts):
        sizes = {"num_kv_heads": self.num_kv_heads, "mlp_width": self.mlp_width, "dtype": jnp.float32}
        sizes |= {"capture": self.capture, "draft_vocabulary": self.draft_vocabulary, "token_counts": token_counts}
        head = init(target, key, **sizes)
        layer = {name: x for name, x in head.params.items() if name != "head"}
        ids = jnp.arange(target.vocab_size, dtype=jnp.int32) if head.ids is None else head.ids
        return {"layer": layer, "ids": ids}

    def loss(self, params, target, batch, features, key):
        places, chosen = choose_places(batch, min(self.places, max(5 * batch.tokens.shape[1] // 8, 1)), key)
        head = self.head(params, target)
        steps = _Steps.of(head, target, batch, features, places)
        known = vocabulary.places(params["ids"], target.vocab_size) >= 0
        log_probs = project(target.normalize(features.last), head.params["head"]).astype(jnp.float32)
        log_probs = jax.nn.log_softmax(log_probs)
        total, weight, reported = jnp.zeros((), jnp.float32), 0.0, {}
        for step in range(self.steps):
            steps, logits = steps.draft()
            at = jnp.minimum(places + step + 2, batch.tokens.shape[1] - 1)  # the guessed token's place
            guessed = at_places(batch.tokens, at)
            learns = chosen & (places + step + 2 < batch.length[:, None])
            learns &= at_places(batch.answer, at) & known[guessed]
            target_log_probs = at_places(log_probs, at - 1)
            draft_log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
            total += self.decay**step * masked_mean(self.divergence(target_log_probs, draft_log_probs), learns)
            weight += self.decay**step
            name = "acceptance" if step == 0 else f"acceptance_{step + 1}"
            reported[name] = masked_mean(acceptance(target_log_probs, draft_log_probs), learns)
        return total / weight, reported | {"count": jnp.sum(chosen, dtype=jnp.float32)}

    def drafter(self, params, target, token_counts) -> Drafter:
        return EagleDrafter(self.head(params, target), k=self.k)

    def save(self, params, target, token_counts, path) -> None:
        write_eagle(self.head(params, target), path, with_head=False)

    def head(self, params: Any, target: LanguageModel) -> EagleHead:
        """Returns the head with these parameters, and with its rows of the target's output head."""
        dtype = jnp.result_type(params["layer"]["fuse"]["kernel"])
        layer = params["layer"] | {"head": target.head[params["ids"]].astype(dtype)}
        size = untrained.draft_vocabulary_size(target, self.draft_vocabulary)
        module = layer_for(target, self.capture, size, self.num_kv_heads, self.mlp_width)
        module = dataclasses.replace(module, dtype=dtype)
        return EagleHead(module, layer, params["ids"], None, target.vocab_size, self.capture)


def choose_places(batch: Batch, count: int, key: Array) -> tuple[Int[Array, "b a"], Bool[Array, "b a"]]:
    """Chooses at most `count` places of each row for which the second token after them is in an answer.

    Returns:
      The places, increasing, and which of them are valid; the others are padding.
    """
    width = batch.tokens.shape[1]
    index = jnp.arange(width, dtype=jnp.int32)[None]
    fits = jnp.pad(batch.answer[:, 2:], ((0, 0), (0, 2))) & (index + 2 < batch.length[:, None])
    order = jnp.where(fits, jax.random.uniform(key, fits.shape, jnp.float32), -1.0)
    places = jnp.sort(jax.lax.top_k(order, min(count, width))[1].astype(jnp.int32), axis=1)
    return places, at_places(fits, places)


@dataclasses.dataclass(frozen=True)
class _Steps:
    """Holds the chains of all chosen places after some steps.

    Attributes:
      head: the head.
      embedded: the text's embeddings.
      places: the index of the true pair that each chain starts from.
      fused: the text's true states, fused.
      keys: the keys of the text's true pairs.
      values: the values of the text's true pairs.
      own: the keys and values of each chain's own steps.
      states: the head's output for each chain's last pair; `None` before the first step.
    """

    head: EagleHead
    embedded: Float[Array, "b t d"]
    fused: Float[Array, "b t d"]
    places: Int[Array, "b a"]
    keys: Float[Array, "b t g h"]
    values: Float[Array, "b t g h"]
    own: tuple[tuple[Array, Array], ...] = ()
    states: Float[Array, "b a d"] | None = None

    @classmethod
    def of(
        cls, head: EagleHead, target: LanguageModel, batch: Batch, features: Features, places: Int[Array, "b a"]
    ) -> "_Steps":
        """Returns the chains before the first step."""
        fused = head.fuse(head.features(target, features.hidden))
        # Pair `i` has the embedding of token `i + 1`.
        embedded = jnp.pad(head.embed(target, batch.tokens)[:, 1:], ((0, 0), (0, 1), (0, 0)))
        positions = jnp.broadcast_to(jnp.arange(batch.tokens.shape[1], dtype=jnp.int32)[None], batch.tokens.shape)
        steps = cls(head, embedded, fused, places, fused, fused)
        keys, values = steps._keys_and_values(steps._inputs(embedded, fused), positions)
        return dataclasses.replace(steps, keys=keys, values=values)

    def draft(self) -> tuple["_Steps", Float[Array, "b a n"]]:
        """Advances every chain by one step; returns the chains and the step's logits."""
        step = len(self.own) + (self.states is not None)
        at = jnp.minimum(self.places + step, self.embedded.shape[1] - 1)
        states = at_places(self.fused, self.places) if self.states is None else self.states
        inputs = self._inputs(at_places(self.embedded, at), states)
        positions, own = self.places + step, self.own
        if self.states is not None:
            own = (*own, self._keys_and_values(inputs, positions))
        layer = self.head.params
        queries = project(inputs, layer["attention"]["query"]["kernel"])
        attended = self._attend(apply_rope(queries, positions, self._rope), own)
        states = states + project(attended, layer["attention"]["output"]["kernel"])
        states = self.head.module.apply({"params": layer}, states, method="feed_forward")
        logits = self.head.module.apply({"params": layer}, states, method="logits")
        return dataclasses.replace(self, own=own, states=states), logits

    def _inputs(self, embedded: Float[Array, "b s d"], states: Float[Array, "b s d"]) -> Any:
        return self.head.module.apply({"params": self.head.params}, embedded, states, method="inputs")

    def _keys_and_values(
        self, inputs: Float[Array, "b s w"], positions: Int[Array, "b s"]
    ) -> tuple[Float[Array, "b s g h"], Float[Array, "b s g h"]]:
        both = project(inputs, self.head.params["attention"]["key_value"]["kernel"])
        return apply_rope(both[..., 0, :], positions, self._rope), both[..., 1, :]

    @property
    def _rope(self) -> Rope:
        rope = self.head.module.config.ropes[0]
        assert rope is not None  # `layer_for` sets one
        return rope

    def _attend(
        self, queries: Float[Array, "b a g r h"], own: tuple[tuple[Array, Array], ...]
    ) -> Float[Array, "b a m"]:
        """Attends to the true pairs up to each place, and to the chain's own steps, which have one key each."""
        scale = self.head.module.config.score_scale
        index = jnp.arange(self.keys.shape[1], dtype=jnp.int32)[None, None]
        seen = (index <= self.places[..., None])[:, :, None, None]
        scores = jnp.einsum("bagrh,btgh->bagrt", queries, self.keys).astype(jnp.float32) * scale
        scores = [jnp.where(seen, scores, -jnp.inf)]
        for keys, _ in own:
            scores.append(jnp.einsum("bagrh,bagh->bagr", queries, keys)[..., None].astype(jnp.float32) * scale)
        weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1).astype(queries.dtype)
        width = self.keys.shape[1]
        mixed = jnp.einsum("bagrt,btgh->bagrh", weights[..., :width], self.values)
        for number, (_, values) in enumerate(own):
            mixed += weights[..., width + number, None] * values[..., None, :]
        return mixed.reshape(*mixed.shape[:2], -1)

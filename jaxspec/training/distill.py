"""Distills a small decoder with the target's vocabulary (DistillSpec, Zhou et al. 2310.08461).

A small model with a large vocabulary mostly has to learn its embedding, and little data shows most tokens rarely. So
the embedding is not learned token by token: it is a projection of the target's output head,

    embedding[v, width]  =  length * head[v, target's width] @ projection.T        tied: the output head too

which starts as the principal components of the head, moves all tokens at once, and is multiplied out when the model is
saved. For SmolLM2-135M and the defaults, this trains 83 thousand numbers instead of 7 million.

Distributions over the full vocabulary are most of the cost, so both are taken over candidates. These are the tokens
that are frequent in the answers, and a random sample of the rest for each batch, weighted by its sampling rate. So the
draft learns to give the rest little probability, although most batches do not include most of it.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from jaxspec.checkpoints.huggingface import write_model
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters import draft_vocabulary as vocabulary
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.matmul import project
from jaxspec.ops.rope import Rope
from jaxspec.training.answers import rewritten
from jaxspec.training.dataset import Batch
from jaxspec.training.losses import Divergence, ForwardKL, acceptance
from jaxspec.training.recipe import Recipe, check_at_least, option

_CHUNK = 512
_FRESH = 0.02  # the standard deviation of an untrained embedding


@dataclasses.dataclass(frozen=True)
class DistillRecipe(Recipe):
    """Trains a small Llama on the target's distribution, saved like any model.

    Costs about `6 * (parameters of the layers)` flops a token of the text, and `(8 * width + 4 * target's width) *
    (candidates)` an answer token. For SmolLM2-135M and the defaults these are 9 and 32 million, and the target's 230
    million for each token of the text. The model has 8.6 million parameters, 7.1 of them its embedding.

    References:
      DistillSpec: Zhou et al. (2023), arXiv:2310.08461.
    """

    width: int = option("The size of the residual stream.", default=144)
    layers: int = option("The number of layers.", default=6)
    heads: int = option("The number of attention heads, each with its own keys and values.", default=3)
    mlp_width: int = option("The inner width of the feed-forward blocks.", default=384)
    divergence: Divergence = option(
        "The divergence of the draft's distribution from the target's.", default_factory=ForwardKL
    )
    hard: float = option(
        "The weight in the loss, from 0 to 1, of the cross-entropy with the text's own tokens.", default=0.0
    )
    on_policy: float = option(
        "The share of batches whose answers the draft writes, at temperature 1 (GKD, 2306.13649); the others keep the "
        "answers of the data, whoever wrote them.",
        default=0.0,
    )
    frequent: int | None = option("Candidates that are always used; None means the whole vocabulary.", default=8192)
    drawn: int = option("Candidates to draw from the rest for each batch.", default=1024)
    k: int = option("Drafts a round in evaluation.", default=4)

    def __post_init__(self):
        check_at_least(self, 1, "width", "layers", "heads", "mlp_width", "drawn", "k")
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be an even number for each of {self.heads} heads, got {self.width}")
        for name in ("hard", "on_policy"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")

    def init(self, key, target, token_counts):
        if self.width > target.module.config.width:
            raise ValueError(
                f"width must be at most the target's {target.module.config.width}, as the draft projects the target's "
                f"embedding, got {self.width}"
            )
        module = self._module(target.vocab_size, target, jnp.float32)
        cache = LanguageModel(module, {}).init_cache(1, 1)
        layers = jax.jit(module.init)(key, jnp.zeros((1, 1), jnp.int32), cache)["params"]
        del layers["embedding"]
        frequent = vocabulary.most_frequent(token_counts, min(self.frequent or target.vocab_size, target.vocab_size))
        rest = np.setdiff1d(np.arange(target.vocab_size, dtype=np.int32), frequent)
        head = np.asarray(target.head[jnp.arange(target.vocab_size, dtype=jnp.int32)], np.float32)
        return {"layers": layers, "frequent": frequent, "rest": rest} | _principal(head, token_counts, self.width)

    def prepare(self, params, target, batch, key):
        chance, key = jax.random.split(key)
        if self.on_policy == 0 or jax.random.uniform(chance, dtype=jnp.float32) >= self.on_policy:
            return batch
        ends = () if target.tokenizer is None else target.tokenizer.eos_token_ids
        return rewritten(self.model(params, target), batch, key, ends)

    def loss(self, params, target, batch, features, key):
        candidates = Candidates.draw(params, target, self.drawn, key)
        written = _rows(params, target.head[batch.tokens])
        places = _Places.of(batch, self._states(params, target, batch, written), features.last, written)

        def total(chunk: _Places, rows: Array) -> dict[str, Array]:
            target_log_probs, _ = candidates.log_probs(target.normalize(chunk.target[None])[0], candidates.of_target)
            draft_log_probs, mass = candidates.log_probs(chunk.draft, rows)
            # The text's own token may not be a candidate.
            own = jnp.sum(chunk.draft.astype(jnp.float32) * chunk.written.astype(jnp.float32), axis=-1) - mass
            away = (1 - self.hard) * self.divergence(target_log_probs, draft_log_probs) - self.hard * own
            values = {"loss": away, "acceptance": acceptance(target_log_probs, draft_log_probs)}
            return {name: jnp.sum(jnp.where(chunk.there, x, 0.0)) for name, x in values.items()}

        sums = places.sum_over_chunks(total, candidates.of_draft)
        count = jnp.sum(places.there, dtype=jnp.float32)
        means = {name: x / jnp.maximum(count, 1.0) for name, x in sums.items()}
        return means.pop("loss"), means | {"count": count}

    def drafter(self, params, target, token_counts) -> Drafter:
        return ModelDrafter(self.model(params, target), k=self.k)

    def save(self, params, target, token_counts, path: str | os.PathLike[str]) -> None:
        write_model(self.model(params, target), path)

    def model(self, params: Any, target: LanguageModel) -> LanguageModel:
        """Returns the draft model, with its embedding multiplied out."""
        dtype = params["projection"].dtype
        embedding = _rows(params, target.head.astype(dtype)[None])[0]
        module = self._module(target.vocab_size, target, dtype)
        return LanguageModel(module, params["layers"] | {"embedding": embedding}, target.tokenizer)

    def _states(self, params, target: LanguageModel, batch: Batch, rows: Array) -> Float[Array, "b t width"]:
        """Returns the inputs of the draft's output head; `rows` are the embeddings of the batch's tokens."""
        table = rows.reshape(-1, self.width)
        module = self._module(table.shape[0], target, table.dtype)
        model = LanguageModel(module, params["layers"] | {"embedding": table})
        tokens = jnp.arange(batch.tokens.size, dtype=jnp.int32).reshape(batch.tokens.shape)
        output = model(tokens, model.init_cache(tokens.shape[0], 0), capture=(self.layers,))
        return model.normalize(output.hidden[0])

    def _module(self, vocab_size: int, target: LanguageModel, dtype) -> Transformer:
        config = TransformerConfig(
            vocab_size=vocab_size,
            num_layers=self.layers,
            width=self.width,
            num_heads=self.heads,
            num_kv_heads=self.heads,
            head_dim=self.width // self.heads,
            mlp_width=self.mlp_width,
            context_length=target.module.config.context_length,
            ropes=(Rope(10_000.0),) * self.layers,
            windows=(None,) * self.layers,
            tied_head=True,
        )
        return Transformer(config, jnp.dtype(dtype))


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Holds the tokens that distributions are taken over.

    Attributes:
      weight: the log of the number of tokens that each stands for.
      of_target: their rows of the target's output head.
      of_draft: their rows of the draft's.
    """

    weight: Float[Array, "n"]
    of_target: Float[Array, "n d"]
    of_draft: Float[Array, "n width"]

    @classmethod
    def draw(cls, params: Any, target: LanguageModel, count: int, key: Array) -> "Candidates":
        """Draws `count` candidates from the rest, in addition to the frequent ones."""
        frequent, rest = params["frequent"], params["rest"]
        count = min(count, rest.shape[0])
        ids, weight = frequent, jnp.zeros(frequent.shape, jnp.float32)
        if count:
            # Stratified: one from each of `count` equal parts of the rest.
            share = rest.shape[0] / count
            start = jnp.arange(count, dtype=jnp.float32) + jax.random.uniform(key, (count,), jnp.float32)
            places = jnp.minimum((start * share).astype(jnp.int32), rest.shape[0] - 1)
            ids = jnp.concatenate([frequent, rest[places]])
            weight = jnp.concatenate([weight, jnp.full(count, np.log(share), jnp.float32)])
        rows = target.head[ids]
        return cls(weight, rows, _rows(params, rows[None])[0])

    def log_probs(self, states: Float[Array, "c d"], rows: Float[Array, "n d"]) -> tuple[Array, Array]:
        """Returns log-probabilities `[c, n]`, and the log-sum-exp of the logits `[c]`."""
        logits = project(states[None], rows)[0].astype(jnp.float32) + self.weight[None]
        mass = jax.nn.logsumexp(logits, axis=-1)
        return logits - mass[:, None], mass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Places:
    """Holds the places of the text before answer tokens, in chunks, padded with other places.

    Attributes:
      there: whether the next token is an answer's; false for padding.
      draft: the draft's state at the place.
      target: the target's state at the place.
      written: the row of the draft's embedding for the next token.
    """

    there: Bool[Array, "*n c"]
    draft: Float[Array, "*n c width"]
    target: Float[Array, "*n c d"]
    written: Float[Array, "*n c width"]

    @classmethod
    def of(cls, batch: Batch, draft: Float[Array, "b t width"], target: Array, written: Array) -> "_Places":
        follows = batch.answer[:, 1:].reshape(-1)
        order = jnp.argsort(~follows, stable=True)
        order = jnp.pad(order, (0, -order.size % _CHUNK)).reshape(-1, _CHUNK)
        there = jnp.arange(order.size, dtype=jnp.int32) < jnp.sum(follows, dtype=jnp.int32)
        flat = lambda x: x.reshape(-1, x.shape[-1])[order]  # noqa: E731
        return cls(there.reshape(order.shape), flat(draft[:, :-1]), flat(target[:, :-1]), flat(written[:, 1:]))

    def sum_over_chunks(
        self, function: Callable[["_Places", Array], dict[str, Array]], rows: Float[Array, "n width"]
    ) -> dict[str, Array]:
        """Sums `function(chunk, rows)` over all chunks; chunks of padding cost nothing.

        Gradients are computed chunk by chunk in the same pass, so that memory never holds distributions for all places
        at once, and none is computed twice. They are then attached to the sum of losses by a term whose value is 0.
        """

        def slopes_of(chunk: _Places) -> tuple[dict[str, Array], tuple[Array, ...]]:
            def loss(*moved: Array) -> tuple[Array, dict[str, Array]]:
                sums = function(dataclasses.replace(chunk, draft=moved[0], written=moved[1]), moved[2])
                return sums["loss"], sums

            moved = (chunk.draft, chunk.written, jax.lax.stop_gradient(rows))
            (_, sums), slopes = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*moved)
            return sums, tuple(x.astype(jnp.float32) for x in slopes)

        none = lambda chunk: jax.tree.map(  # noqa: E731
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(slopes_of, chunk)
        )

        def add(carry, chunk):
            sums, (*own, shared) = jax.lax.cond(chunk.there[0], slopes_of, none, chunk)
            return jax.tree.map(jnp.add, carry, (sums, shared)), own

        chunks = jax.lax.stop_gradient(self)
        sums, (*_, shared) = none(jax.tree.map(lambda x: x[0], chunks))
        (sums, shared), own = jax.lax.scan(add, (sums, shared), chunks)
        for x, slope in zip((self.draft, self.written, rows), (*own, shared), strict=True):
            sums["loss"] += jnp.sum((x - jax.lax.stop_gradient(x)).astype(jnp.float32) * slope)
        return sums


def _rows(params: Any, head: Float[Array, "b t d"]) -> Float[Array, "b t width"]:
    """Returns the draft's embeddings for rows of the target's output head."""
    return params["length"] * project(head, params["projection"])


def _principal(rows: np.ndarray, token_counts: np.ndarray, width: int) -> dict[str, Array]:
    """Returns the principal projection of the head's rows, weighted by token frequency, and the embedding's length.

    The projection's rows are unit vectors, about as long as those of a new kernel, so that the optimizer's steps suit
    both.
    """
    weights = np.sqrt(token_counts.astype(np.float32) + 1)[:, None]
    _, vectors = np.linalg.eigh((rows * weights).T @ rows)
    projection = vectors[:, ::-1][:, :width].T
    spread = np.sqrt(np.mean((rows @ projection.T) ** 2))
    return {"projection": jnp.asarray(projection, jnp.float32), "length": jnp.float32(_FRESH / spread)}

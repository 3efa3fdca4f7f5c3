"""Trains an early exit of a frozen target: it reads what the first layers know already.

The exit begins as the one that `EarlyExitDrafter` has without training: the target's final norm, blocks that add
nothing, and the target's output head. It learns the target's distribution of each answer token, from the state that
the first layers leave of the token before.
"""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.contrib.exit_head.checkpoint import write_early_exit
from jaxspec.contrib.exit_head.head import EarlyExitHead, init, network_for
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.matmul import project
from jaxspec.training.batching import Batch, at_places
from jaxspec.training.losses import Divergence, ForwardKL, acceptance, masked_mean
from jaxspec.training.recipe import Recipe, check_at_least, option


@dataclasses.dataclass(frozen=True)
class EarlyExitRecipe(Recipe):
    """Trains an exit after some layers of a target that stays as it is: blocks and a norm before the target's own head.

    For SmolLM2-135M and the defaults 2.7 million parameters are trained. Verification goes on from what drafting
    computed, as without training.

    Example:
      >>> jaxspec.contrib.exit_head.EarlyExitRecipe.of(target, layers=2).layers
      2
    """

    layers: int = option("After how many of the target's layers it exits.")
    mlp_width: int | None = option("Of each block; by default the target's.", default=None)
    blocks: int = option("Before the norm; 0 trains the norm alone.", default=1)
    draft_vocabulary: int | None = option(
        "How many tokens it may guess, the most frequent of the data; None is all of them.", default=8192
    )
    places: int = option("The most places chosen in a row of the batch.", default=224)
    divergence: Divergence = option("Of the exit's distribution from the target's.", default_factory=ForwardKL)
    k: int = option("Drafts a round where it is evaluated.", default=4)

    def __post_init__(self):
        check_at_least(self, 1, "layers", "mlp_width", "draft_vocabulary", "places", "k")
        check_at_least(self, 0, "blocks")

    @classmethod
    def of(cls, target: LanguageModel, **options: Any) -> "EarlyExitRecipe":
        """Returns the recipe with an exit after a quarter of the target's layers, unless `layers` is given.

        Raises:
          ValueError: the target has not more layers than that.
        """
        defaults: dict[str, Any] = {"layers": max(1, target.module.config.num_layers // 4)}
        recipe = cls(**(defaults | options))
        EarlyExitDrafter(recipe.layers).check(target)
        return recipe

    # Other recipes have a field of this name; here it follows from `layers`.
    @property
    def capture(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride] no field
        """The state at the exit, as a layer index."""
        return (self.layers,)

    def init(self, key, target, token_counts):
        options = {"draft_vocabulary": self.draft_vocabulary, "token_counts": token_counts, "dtype": jnp.float32}
        head = init(target, key, layers=self.layers, mlp_width=self.mlp_width, blocks=self.blocks, **options)
        own = {name: x for name, x in head.params.items() if name != "head"}
        return {"exit": own} if head.ids is None else {"exit": own, "ids": head.ids}

    def loss(self, params, target, batch, features, key):
        places, chosen = _before_answers(batch, self.places, key)
        log_probs = project(target.normalize(at_places(features.last, places)), target.head).astype(jnp.float32)
        log_probs = jax.nn.log_softmax(log_probs)
        if "ids" in params:
            log_probs = log_probs[..., params["ids"]]
        (state,) = features.hidden
        guess = jax.nn.log_softmax(self.head(params, target)(target, at_places(state, places)))
        count = jnp.sum(chosen, dtype=jnp.float32)
        accepted = masked_mean(acceptance(log_probs, guess), chosen)
        return masked_mean(self.divergence(log_probs, guess), chosen), {"acceptance": accepted, "count": count}

    def drafter(self, params, target, token_counts) -> Drafter:
        return EarlyExitDrafter(self.layers, k=self.k, head=self.head(params, target))

    def save(self, params, target, token_counts, path: str | os.PathLike[str]) -> None:
        write_early_exit(self.head(params, target), target, path)

    def head(self, params: Any, target: LanguageModel) -> EarlyExitHead:
        """Returns the exit of these parameters, with its rows of the target's output head."""
        own, ids = params["exit"], params.get("ids")
        dtype = own["final_norm"]["scale"].dtype
        if ids is not None:
            own = own | {"head": target.head[ids].astype(dtype)}
        module = dataclasses.replace(network_for(target, self.mlp_width, self.blocks), dtype=dtype)
        return EarlyExitHead(module, own, self.layers, ids)


def _before_answers(batch: Batch, count: int, key: Array) -> tuple[Int[Array, "b a"], Bool[Array, "b a"]]:
    """Draws `count` places of each row whose next token is an answer's.

    Returns:
      The places, rising, and which of them precede an answer's token: a row may have fewer than `count`.
    """
    fits = jnp.pad(batch.answer[:, 1:], ((0, 0), (0, 1)))
    order = jnp.where(fits, jax.random.uniform(key, fits.shape), -1.0)
    places = jnp.sort(jax.lax.top_k(order, min(count, fits.shape[1]))[1].astype(jnp.int32), axis=1)
    return places, at_places(fits, places)

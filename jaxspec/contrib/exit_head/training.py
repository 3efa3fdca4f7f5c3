"""Trains an early exit of a frozen target, which reads out what its first layers already know.

Training starts from the exit that `EarlyExitDrafter` has without training: blocks that add nothing, the target's final
norm, and its output head. The exit learns the target's distribution of each answer token, from the first layers' state
of the token before.
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
from jaxspec.core.typed import typed
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.matmul import project
from jaxspec.training.dataset import Batch, at_places
from jaxspec.training.losses import Divergence, ForwardKL, acceptance, masked_mean
from jaxspec.training.recipe import Recipe, check_at_least, option


@dataclasses.dataclass(frozen=True)
class EarlyExitRecipe(Recipe):
    """Trains an exit after some layers of a frozen target: blocks and a norm before the target's own head.

    With SmolLM2-135M and the defaults, 2.7 million parameters are trained. Verification resumes from the results of
    drafting, as it does without training.

    Example:
      >>> jaxspec.contrib.exit_head.EarlyExitRecipe.of(target, layers=2).layers
      2
    """

    layers: int = option("The number of the target's layers before the exit.")
    mlp_width: int | None = option("The inner width of each block; by default the target's.", default=None)
    blocks: int = option("The number of blocks before the norm; 0 trains only the norm.", default=1)
    draft_vocabulary: int | None = option(
        "How many of the data's most frequent tokens it can guess; None means all tokens.", default=8192
    )
    places: int = option("The most places to choose in a row of the batch.", default=224)
    divergence: Divergence = option(
        "The divergence of the exit's distribution from the target's.", default_factory=ForwardKL
    )
    k: int = option("Drafts a round in evaluation.", default=4)

    def __post_init__(self):
        check_at_least(self, 1, "layers", "mlp_width", "draft_vocabulary", "places", "k")
        check_at_least(self, 0, "blocks")

    @classmethod
    @typed("target")
    def of(cls, target: LanguageModel, **options: Any) -> "EarlyExitRecipe":
        """Returns the recipe with an exit after a quarter of the target's layers, unless `layers` is given.

        Raises:
          ValueError: the target has no layers after the exit.
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
        """Returns the exit with these parameters, and with its rows of the target's output head."""
        own, ids = params["exit"], params.get("ids")
        dtype = own["final_norm"]["scale"].dtype
        if ids is not None:
            own = own | {"head": target.head[ids].astype(dtype)}
        module = dataclasses.replace(network_for(target, self.mlp_width, self.blocks), dtype=dtype)
        return EarlyExitHead(module, own, self.layers, ids)


def _before_answers(batch: Batch, count: int, key: Array) -> tuple[Int[Array, "b a"], Bool[Array, "b a"]]:
    """Draws at most `count` places before answer tokens of each row, increasing; returns which of them are valid."""
    fits = jnp.pad(batch.answer[:, 1:], ((0, 0), (0, 1)))
    order = jnp.where(fits, jax.random.uniform(key, fits.shape, jnp.float32), -1.0)
    places = jnp.sort(jax.lax.top_k(order, min(count, fits.shape[1]))[1].astype(jnp.int32), axis=1)
    return places, at_places(fits, places)

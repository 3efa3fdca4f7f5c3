"""Drafts with several models of one architecture at the same time, each on its own group of a mesh's devices."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from jaxspec.contrib.union import UnionDrafter, UnionState, chain_parents
from jaxspec.core.layout import Layout
from jaxspec.core.model import Model, kind_given
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.tree import positive
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.base import Drafter, DrafterInfo
from jaxspec.drafters.model import ModelDrafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import parameter_shardings, placed
from jaxspec.sharding.placement import Placement, put
from jaxspec.sharding.rules import Rules, as_tuple, pieces


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelStack:
    """Runs models of one architecture; once placed, they are side by side along mesh axes.

        mesh         model 0   model 1
        draft 0      a . .     . a .        a's parameters, split over `model`
        draft 1      b . .     . b .        b's

    Attributes:
      models: a tuple of models; once placed, one `LanguageModel` with all parameters stacked, `[m, ...]`, whose first
        axis is sharded over `axes`.
      axes: those mesh axes; empty until placed.
    """

    models: tuple[Model, ...] | Model
    axes: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})

    @property
    def first(self) -> Model:
        """One of the models, for what all have in common; once placed, its parameters are those of all models."""
        return self.models[0] if isinstance(self.models, tuple) else self.models

    @property
    def each_model(self) -> tuple[Model, ...]:
        """The models one by one, until they are placed."""
        if not isinstance(self.models, tuple):
            raise ValueError("the models are stacked on a mesh; for single models, use the stack from before shard")
        return self.models

    @property
    def placement(self) -> Layout:
        """The layout of each single model."""
        return self.first.traits.placement

    def shard(self, mesh: Mesh, rules: Rules) -> Self:
        """Places the models side by side, each on its own part of `mesh`, sharded there by the other rules.

        Args:
          mesh: the mesh.
          rules: the sharding rules; `rules.drafts` names the axes along which the models are placed.

        Returns:
          The placed stack.

        Raises:
          TypeError, ValueError: the models are not `LanguageModel`s, rules and mesh do not fit, or the number of models
            differs from the size of those axes.
        """
        models = self.each_model
        axes, count = as_tuple(Placement.on(mesh, rules).rules.drafts), len(models)
        first, *others = models
        if not isinstance(first, LanguageModel):
            raise TypeError(
                f"only LanguageModels run at the same time, got {type(first).__name__}; pass a UnionDrafter of "
                "ModelDrafters, which runs them one after the other"
            )
        if not axes or pieces(mesh, axes) != count:
            along = f"{pieces(mesh, axes)} along {' x '.join(axes)}"
            got = along if axes else f"rules without drafts, and a mesh with axes {', '.join(mesh.axis_names)}"
            raise ValueError(
                f"{count} drafts run side by side on a mesh axis with {count} places, got {got}; pass "
                f'jax.make_mesh(({count}, ...), ("draft", "model")), or Rules(drafts=...) with the name of another axis'
            )
        own = Placement.on(mesh, rules.without(axes))

        def stacked(sharding: NamedSharding, *parts: Any) -> Any:
            return _put_together(parts, NamedSharding(own.mesh, PartitionSpec(axes, *sharding.spec)))

        each = (first.params, *(model.params for model in others if isinstance(model, LanguageModel)))
        params = jax.tree.map(stacked, parameter_shardings(own, first.params), *each)
        together = placed(dataclasses.replace(first, params=params), own)
        return dataclasses.replace(self, models=together, axes=axes)

    def each(self, function: Callable[..., Any], own: Any, *shared: Any) -> Any:
        """Runs `function(number, model, own, *shared)` for each placed model, all at the same time.

        The devices of a model do not see another's arrays. Its loops must run as often as all others' do, since the
        devices of all models join some exchanges within a model (collective permutes).

        Args:
          function: takes the model's number, the model, its part of `own`, and all of `shared`.
          own: arrays `[m, ...]`.
          shared: arrays that all models see.

        Returns:
          The results as arrays `[m, ...]`, each part on its model's devices.
        """

        def one(model: Any, number: Array, own: Any, *shared: Any) -> Any:
            model, number, own = jax.tree.map(lambda x: x[0], (model, number, own))
            return jax.tree.map(lambda x: x[None], function(number, model, own, *shared))

        placement = self.placement
        if not isinstance(placement, Placement):
            raise ValueError("the models are not on a mesh; call shard first")
        split = PartitionSpec(self.axes)
        count = jax.tree.leaves(self.models)[0].shape[0]
        run = jax.shard_map(
            one,
            mesh=placement.mesh,
            in_specs=(split, split, split, *(PartitionSpec() for _ in shared)),
            out_specs=split,
            axis_names=set(self.axes),
            check_vma=False,
        )
        return run(self.models, jnp.arange(count, dtype=jnp.int32), own, *shared)


def _put_together(parts: tuple[Any, ...], sharding: NamedSharding) -> Any:
    """Stacks arrays, or only their shapes, directly on their devices: no device holds another's."""
    if any(isinstance(part, Tracer) for part in parts):
        return put(jnp.stack(parts), sharding)
    shape = (len(parts), *parts[0].shape)
    if isinstance(parts[0], jax.ShapeDtypeStruct):
        return put(jax.ShapeDtypeStruct(shape, parts[0].dtype), sharding)

    def piece(index: Any) -> Array:
        first, *rest = index
        (part,) = parts[first]  # the one model that a device holds
        return part[tuple(rest)][None]

    return jax.make_array_from_callback(shape, sharding, piece)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ParallelDrafter(Drafter):
    """Drafts chains with several models at the same time, each on its own devices of a mesh.

    The chains are gathered and verified jointly in one pass of the target. The proposals are those of a `UnionDrafter`
    of these models, token by token, and without a mesh that is what runs. On a mesh with an axis `draft`
    (`generate(mesh=)`, or `sharding.shard_models`), each group of devices along it holds one model and its cache,
    sharded over the other axes, and the target is sharded over all:

        draft 0    a   b   c   d       from the first model         target   all of a ... h
        draft 1    e   f   g   h       from the second                       in one pass

    The groups exchange tokens and, if the verifier reads them, distributions: `[b, k, v]` each, sharded over `draft`
    like the target's. `CoupledVerifier` and greedy decoding read none. Drafting and verification alternate on all
    devices; DSI and PEARL, which overlap them, need devices that only draft.

    Replicas of one model draw independently, so `MultiDraftVerifier(KSequence())` works with them too. With the noise
    that `CoupledVerifier` shares, all would draft equal tokens: pass different models there, or use `ModelDrafter`.

    Attributes:
      models: models of one architecture, with the target's vocabulary; or one model, of which `num_drafts` replicas
        draft. Models that are already on a mesh must be placed by rules with `drafts`
        (`sharding.DRAFTS_BESIDE.within(mesh)`), and are stacked immediately.
      k: the number of drafts a round in each chain.
      num_drafts: the number of chains; follows from `models` if there are several.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy.
      alike: whether one model drafts all chains; follows from `models`.

    Raises:
      TypeError, ValueError: the models differ in more than their weights, or `k` is not a positive integer.

    References:
      SpecInfer: Miao et al. (2023), arXiv:2305.09781, section 3, with several models.
      DSI (2024), arXiv:2405.14105.
      PEARL (2024), arXiv:2408.11850.

    Example:
      >>> drafter = jaxspec.contrib.ParallelDrafter(draft, k=3, num_drafts=2)
      >>> drafter.lengths, drafter.info.identically_distributed
      ((6,), True)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    models: ModelStack
    k: int = dataclasses.field(default=4, metadata={"static": True})
    num_drafts: int | None = dataclasses.field(default=None, metadata={"static": True})
    sampling: Policy | None = None
    alike: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self):
        if isinstance(self.k, DraftLength):
            raise ValueError(
                "ParallelDrafter verifies all drafts in one pass, so a draft length saves nothing, got "
                f"{type(self.k).__name__}; pass an integer k"
            )
        positive("k", self.k)
        if isinstance(self.models, ModelStack):  # JAX is rebuilding the pytree
            return
        models, alike = _models(self.models, self.num_drafts)
        object.__setattr__(self, "models", _stack(models))
        object.__setattr__(self, "num_drafts", len(models))
        object.__setattr__(self, "alike", alike)

    @property
    def tree(self) -> bool:
        return True

    @property
    def max_drafts(self) -> int:
        return self.k

    @property
    def lengths(self) -> tuple[int, ...]:
        return (sum(self._counts),)

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(context_length=self.models.first.context_length, identically_distributed=self.alike)

    def check(self, target: Model) -> None:
        self._drafter(self.models.first).check(target)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> UnionState:
        if not self.models.axes:
            return self._union().init(context, prefilled, slots)
        start = lambda _, model, own, context: self._drafter(model).init(context, None, slots)  # noqa: E731
        tokens = jnp.zeros((context.tokens.shape[0], self.lengths[0]), jnp.int32)
        return UnionState(self.models.each(start, (), _text(context)), tokens, tokens.astype(jnp.bool_))

    def held(self, state: UnionState) -> None:
        """Returns no limit, as the models' caches depend on tokens alone and can be fed any that are missing."""

    def extend(
        self, state: UnionState, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]
    ) -> UnionState:
        if not self.models.axes:
            return self._union().extend(state, context, prefilled, start)
        go_on = lambda _, model, own, context, start: self._drafter(model).extend(own, context, None, start)  # noqa: E731
        tokens = jnp.zeros_like(state.tokens)
        drafters = self.models.each(go_on, state.drafters, _text(context), start)
        return UnionState(drafters, tokens, tokens.astype(jnp.bool_))

    def propose(self, rng: Rng, state: UnionState, context: Context) -> tuple[Proposal, UnionState]:
        if not self.models.axes:
            return self._union().propose(rng, state, context)

        def draft(number, model, own, rng, context):
            proposal, own = self._drafter(model).propose(rng.of_draft(number), own, context)
            return proposal.dense(), own

        chains, own = self.models.each(draft, state.drafters, rng.afresh(), _text(context))
        target = context.target.traits.placement
        tokens, valid = target.rows((_side_by_side(chains.tokens), _side_by_side(chains.valid)))
        log_probs = None if chains.log_probs is None else target.logits(_side_by_side(chains.log_probs))
        proposal = Proposal(tokens, valid, log_probs, chain_parents(self._counts, tokens.shape[0]), self.k)
        return proposal, UnionState(own, tokens, valid)

    def observe(self, state: UnionState, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> UnionState:
        if not self.models.axes:
            return self._union().observe(state, context, verdict, hidden)
        # All caches are rolled back to the chain with the fewest accepted drafts: the others would wait for its model
        # to catch up anyway, and caches of equal length make every loop run equally often on all devices.
        heard = jax.tree.map(lambda *each: jnp.stack(each), *state.verdicts(self._counts, verdict))
        least = jnp.argmin(heard.accepted, axis=0)[None]
        verdict = jax.tree.map(lambda each: jnp.take_along_axis(each, least, axis=0)[0], heard)
        drafter, context = self._drafter(self.models.first), _text(context)
        observe = lambda own: drafter.observe(own, context, verdict, hidden)  # noqa: E731
        return dataclasses.replace(state, drafters=jax.vmap(observe)(state.drafters))

    @property
    def _counts(self) -> list[int]:
        return [self.k] * cast(int, self.num_drafts)  # set by `__post_init__`

    def _drafter(self, model: Model) -> ModelDrafter:
        return ModelDrafter(model, self.k, self.sampling)

    def _union(self) -> UnionDrafter:
        return UnionDrafter(tuple(self._drafter(model) for model in self.models.each_model))


def _text(context: Context) -> Context:
    """Returns the part of the context that a model drafter reads, without the target and its cache."""
    return dataclasses.replace(context, model=None, cache=cast(Any, None))


def _side_by_side(chains: Array) -> Array:
    """Reshapes `[m, b, k, ...]` to `[b, m * k, ...]`."""
    count, batch, k, *rest = chains.shape
    return jnp.moveaxis(chains, 0, 1).reshape(batch, count * k, *rest)


def _models(models: Any, num_drafts: int | None) -> tuple[tuple[Model, ...], bool]:
    """Returns one model for each chain, and whether all are the same model."""
    alike = not isinstance(models, tuple | list)
    if alike:
        if num_drafts is None:
            raise ValueError("ParallelDrafter needs several models, got one; pass num_drafts=, how many replicas draft")
        positive("num_drafts", num_drafts)
        models = (models,) * num_drafts
    if not models:
        raise ValueError("ParallelDrafter needs models, got none; pass (first, second), or model and num_drafts=2")
    if num_drafts not in (None, len(models)):
        raise ValueError(f"num_drafts is for one model, got {num_drafts} with {len(models)} models; leave it out")
    for model in models:
        if isinstance(model, type) or not isinstance(model, Model):
            raise TypeError(f"ParallelDrafter needs Models, got {kind_given(model)}; jaxspec.load makes one")
    return tuple(models), alike


def _stack(models: tuple[Model, ...]) -> ModelStack:
    """Stacks the models, and places them side by side if they are on a mesh."""
    # Tokenizers that were loaded separately may not compare equal, and drafting does not need them.
    models = tuple(dataclasses.replace(x, tokenizer=None) if isinstance(x, LanguageModel) else x for x in models)
    for other in models[1:]:
        if difference := _difference(models[0], other):
            raise ValueError(
                f"ParallelDrafter runs one program for all models, got models with different {difference}; pass "
                "UnionDrafter((ModelDrafter(first), ModelDrafter(second))), which runs them one after the other"
            )
    placement = models[0].traits.placement
    stack = ModelStack(models)
    return stack.shard(placement.mesh, placement.rules) if isinstance(placement, Placement) else stack


def _difference(first: Model, second: Model) -> str:
    """Describes the differences between two models other than the values of their weights."""
    if isinstance(first, LanguageModel) and isinstance(second, LanguageModel):
        if first.placement != second.placement:
            return "places on a mesh"
        one, other = (dict(vars(model.module.config), dtype=model.dtype) for model in (first, second))
        if names := [name for name in one | other if one.get(name) != other.get(name)]:
            return ", ".join(names)
    if jax.tree.structure(first) != jax.tree.structure(second):
        return "structure"
    one, other = ([(x.shape, x.dtype) for x in jax.tree.leaves(model)] for model in (first, second))
    return "" if one == other else "shapes or dtypes"

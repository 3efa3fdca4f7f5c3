"""Drafts with several models of one architecture at the same time on a mesh."""

import dataclasses
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jax import Array

from jaxspec.contrib.parallel.stack import ModelStack
from jaxspec.contrib.union import UnionDrafter, UnionState, chain_parents
from jaxspec.core.layout import placement_of
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.tree_arguments import positive
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.placement import Placement


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ParallelDrafter(Drafter):
    """Drafts chains with several models at the same time, each on its own devices of a mesh.

    The chains are gathered and verified jointly in one pass of the target. The proposals are those of a
    `UnionDrafter` of the same models, token by token, and without a mesh that is what runs. On a mesh with an axis
    `draft` (`generate(mesh=)`, or `sharding.shard_models`) each group of devices along it holds
    one model and its cache alone, split over the other axes, and the target is split over all:

        draft 0    a   b   c   d       from the first model         target   all of a ... h
        draft 1    e   f   g   h       from the second                       in one pass

    Between the groups move tokens, and where the verifier reads distributions, those: each `[b, k, v]`, cut
    over `draft` as the target's are. `CoupledVerifier` and greedy decoding read none. Drafting and
    verification take turns on all devices; DSI and PEARL, which overlap them, need devices that only draft.

    Replicas of one model draw independently, so `MultiDraftVerifier(KSequence())` takes them too.
    With the noise that `CoupledVerifier` shares they would all draft the same: pass different
    models there, or `ModelDrafter`.

    Attributes:
      models: models of one architecture, with the target's vocabulary; or one, of which
        `num_drafts` replicas draft. Models that lie on a mesh already must do so by rules with
        `drafts` (`sharding.DRAFTS_BESIDE.within(mesh)`), and are put side by side at once.
      k: drafted tokens a round in each chain.
      num_drafts: how many chains there are; follows from `models` if those are several.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's
        own, row by row.
      alike: whether one model drafts all chains; follows from `models`.

    Raises:
      TypeError, ValueError: the models differ in more than their weights, or `k` is no integer
        of at least 1.

    References:
      SpecInfer: Miao et al. (2023), arXiv:2305.09781, section 3, with several models.
      DSI (2024), arXiv:2405.14105.
      PEARL (2024), arXiv:2408.11850.

    Example:
      >>> drafter = jaxspec.contrib.ParallelDrafter(draft, k=3, num_drafts=2)
      >>> drafter.lengths, drafter.identically_distributed
      ((6,), True)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "parallel"
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
        if isinstance(self.models, ModelStack):  # a pytree that is put together again
            return
        models, alike = _models(self.models, self.num_drafts)
        object.__setattr__(self, "models", _stack(models))
        object.__setattr__(self, "num_drafts", len(models))
        object.__setattr__(self, "alike", alike)

    @property
    def tree(self) -> bool:
        return True

    @property
    def identically_distributed(self) -> bool:
        return self.alike

    @property
    def max_drafts(self) -> int:
        return self.k

    @property
    def lengths(self) -> tuple[int, ...]:
        return (sum(self._counts),)

    @property
    def context_length(self) -> int | None:
        return self.models.first.context_length

    def check(self, target: Model) -> None:
        self._drafter(self.models.first).check(target)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> UnionState:
        if not self.models.axes:
            return self._union().init(context, prefilled, slots)
        start = lambda _, model, own, context: self._drafter(model).init(context, None, slots)  # noqa: E731
        tokens = jnp.zeros((context.tokens.shape[0], self.lengths[0]), jnp.int32)
        return UnionState(self.models.each(start, (), _text(context)), tokens, tokens.astype(jnp.bool_))

    def propose(self, rng: Rng, state: UnionState, context: Context) -> tuple[Proposal, UnionState]:
        if not self.models.axes:
            return self._union().propose(rng, state, context)

        def draft(number, model, own, rng, context):
            return self._drafter(model).propose(rng.of_draft(number), own, context)

        chains, own = self.models.each(draft, state.drafters, rng.afresh(), _text(context))
        target = placement_of(context.target)
        tokens, valid = target.rows((_side_by_side(chains.tokens), _side_by_side(chains.valid)))
        log_probs = None if chains.log_probs is None else target.logits(_side_by_side(chains.log_probs))
        proposal = Proposal(tokens, valid, log_probs, chain_parents(self._counts, tokens.shape[0]), self.k)
        return proposal, UnionState(own, tokens, valid)

    def observe(self, state: UnionState, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> UnionState:
        if not self.models.axes:
            return self._union().observe(state, context, verdict, hidden)
        # All caches are rolled back to the chain with the fewest accepted drafts: the others wait for its model to
        # catch up anyway, and caches of one length make every loop run equally often on all devices.
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
    """Returns what a model drafter reads: the target and its cache stay where they are."""
    return dataclasses.replace(context, target=cast(Any, None), cache=cast(Any, None))


def _side_by_side(chains: Array) -> Array:
    """Reshapes `[m, b, k, ...]` to `[b, m * k, ...]`."""
    count, batch, k, *rest = chains.shape
    return jnp.moveaxis(chains, 0, 1).reshape(batch, count * k, *rest)


def _models(models: Any, num_drafts: int | None) -> tuple[tuple[Model, ...], bool]:
    """Returns the models, one for each chain, and whether they are one and the same."""
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
            got = f"the class {model.__name__} itself" if isinstance(model, type) else type(model).__name__
            raise TypeError(f"ParallelDrafter needs Models, got {got}; jaxspec.load makes one")
    return tuple(models), alike


def _stack(models: tuple[Model, ...]) -> ModelStack:
    """Stacks the models, and puts them side by side at once if they lie on a mesh."""
    models = tuple(map(_without_tokenizer, models))
    for other in models[1:]:
        if difference := _difference(models[0], other):
            raise ValueError(
                f"ParallelDrafter runs one program for all models, got models with different {difference}; pass "
                "UnionDrafter((ModelDrafter(first), ModelDrafter(second))), which runs them one after the other"
            )
    placement = placement_of(models[0])
    stack = ModelStack(models)
    return stack.shard(placement.mesh, placement.rules) if isinstance(placement, Placement) else stack


def _without_tokenizer(model: Model) -> Model:
    """Drops the tokenizer: two that were loaded separately may not compare equal, and drafting needs none."""
    return dataclasses.replace(model, tokenizer=None) if isinstance(model, LanguageModel) else model


def _difference(first: Model, second: Model) -> str:
    """Says in what two models differ besides the values of their weights."""
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

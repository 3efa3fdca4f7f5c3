"""Defines `MedusaHead`, Medusa's heads with their parameters, and drafts with them.

Each head reads the target's newest hidden state, and none of the other heads' guesses.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.leading import take_row
from jaxspec.core.model import Model
from jaxspec.core.parts import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy, draw
from jaxspec.core.state import Context, Proposal
from jaxspec.core.tree import Tree
from jaxspec.core.typed import DEPTH, WIDTH, typed
from jaxspec.core.validate import shown
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength, Fixed, as_draft_length, confidence
from jaxspec.drafters.base import AdjustableDrafter, DrafterInfo
from jaxspec.drafters.draft_model import check_capture
from jaxspec.drafters.draft_vocabulary import expand, places
from jaxspec.drafters.frontier import top_tokens
from jaxspec.drafters.processed import choose_in_order, process_part
from jaxspec.heads import untrained
from jaxspec.heads.medusa.network import ConditionedConfig, ConditionedHeads, MedusaHeads
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MedusaHead(Network):
    """Applies all heads of one drafter. `jaxspec.load_head` reads them; `MedusaDrafter` drafts with them.

    Attributes:
      module: static; the paper's `jaxspec.heads.medusa.network.MedusaHeads`, or `ConditionedHeads`.
      params: its `params` collection, including the target's rows of the output head.
      capture: the target's hidden state that it reads: the last layer's output, `(num_layers,)`.
      ids: the draft vocabulary: the target's token ids, increasing; `None` means all of them.
      accuracies: how often the token of rank `r` of head `i` was the target's, `[i][r]`, if measured;
        `jaxspec.core.tree.best_tree` makes a tree from it.
      placement: the layout of its logits over a mesh; set by `jaxspec.shard`.

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.1.

    Example:
      >>> head = jaxspec.heads.medusa.init(target, key, num_heads=3)
      >>> isinstance(head, jaxspec.heads.MedusaHead), head.num_heads
      (True, 3)
    """

    module: MedusaHeads | ConditionedHeads = dataclasses.field(metadata={"static": True})
    params: Any
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    ids: Int[Array, "n"] | None = None
    accuracies: tuple[tuple[float, ...], ...] | None = dataclasses.field(default=None, metadata={"static": True})
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})

    @property
    def num_heads(self) -> int:
        """The number of tokens that it guesses."""
        return self.module.config.num_heads

    def __call__(
        self, target: Any, hidden: Float[Array, "b t d"], tokens: Int[Array, "b t"]
    ) -> Float[Array, "b t k n"]:
        """Returns the logits of the guesses over the draft vocabulary, float32.

        Args:
          target: the target, which normalizes the states and embeds the tokens.
          hidden: the target's states named in `capture`.
          tokens: the token after each state.
        """
        dtype = self.module.dtype
        states = target.normalize(hidden).astype(dtype)
        logits: Any = self.module.apply({"params": self.params}, states, target.embed(tokens).astype(dtype))
        return logits

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """Converts indices in the draft vocabulary to the target's token ids."""
        return places if self.ids is None else self.ids[places]

    def places(self, tokens: Int[Array, "*any"], vocab_size: int) -> Int[Array, "*any"]:
        """Converts the target's token ids to indices in the draft vocabulary; -1 if they are not in it."""
        return tokens if self.ids is None else places(self.ids, vocab_size)[tokens]

    def over_vocabulary(self, logits: Float[Array, "*rows n"], vocab_size: int) -> Float[Array, "*rows v"]:
        """Expands logits to the target's vocabulary."""
        return logits if self.ids is None else expand(logits, self.ids, vocab_size)


@typed(num_heads=DEPTH, mlp_width=WIDTH, shared_blocks=(0, 2**10), num_blocks=(0, 2**10))
def init(
    target: LanguageModel,
    rng: Array,
    *,
    num_heads: int = 4,
    draft_vocabulary: int | None = None,
    mlp_width: int | None = None,
    shared_blocks: int = 2,
    num_blocks: int = 1,
    token_counts: np.ndarray | None = None,
    dtype: DTypeLike | None = None,
) -> MedusaHead:
    """Creates untrained Medusa heads that also read the last token, as a start of training.

    Each block adds nothing at first, like the paper's: the heads start as copies of the target's output head.

    Args:
      target: the model to draft for.
      rng: a JAX key for the random weights.
      num_heads: the number of tokens to guess.
      draft_vocabulary: how many of the most frequent tokens they can guess; `None` means all of them.
      mlp_width: the inner width of each block; `None` means four thirds of the target's width.
      shared_blocks: the number of blocks that all heads share.
      num_blocks: the number of blocks of each head.
      token_counts: how often each token occurs in texts, `int64[v]`; `None` means all equally often.
      dtype: the dtype of weights and activations; `None` uses the target's. Scales of norms are float32.

    Returns:
      Heads with `ConditionedHeads`, like those read from folders.

    Raises:
      ValueError: a number is out of range.

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.1.

    Example:
      >>> head = jaxspec.heads.medusa.init(target, key, num_heads=2)
      >>> jaxspec.generate(target, jaxspec.MedusaDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    untrained.check_arguments(target, rng, dtype)
    ids = untrained.draft_vocabulary(target, draft_vocabulary, token_counts)
    module = network_for(target, len(ids), num_heads, mlp_width, shared_blocks, num_blocks)
    state = jnp.zeros((1, 1, target.module.config.width), jnp.float32)
    params = untrained.initial(module, rng, state, state)
    silent = lambda path, x: jnp.zeros_like(x) if path[-2].key == "down" else x  # noqa: E731
    params = jax.tree.map_with_path(silent, params) | {"output": {"head": target.head[jnp.asarray(ids)]}}
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    module, every = dataclasses.replace(module, dtype=dtype), len(ids) == target.vocab_size
    capture = (target.module.config.num_layers,)
    return MedusaHead(module, untrained.in_dtype(params, dtype), capture, None if every else jnp.asarray(ids))


def network_for(
    target: LanguageModel, vocab_size: int, num_heads: int, mlp_width: int | None, shared_blocks: int, num_blocks: int
) -> ConditionedHeads:
    """Returns the network in float32 that fits a target; `mlp_width=None` means four thirds of the target's width."""
    config = target.module.config
    sizes = ConditionedConfig(
        width=config.width,
        vocab_size=vocab_size,
        num_heads=num_heads,
        mlp_width=mlp_width or 4 * config.width // 3,
        shared_blocks=shared_blocks,
        num_blocks=num_blocks,
        norm_eps=config.norm_eps,
    )
    return ConditionedHeads(sizes)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MedusaDrafterState:
    """Holds the state of a `MedusaDrafter` between rounds, which needs no cache, as heads only read the target's pass.

    Attributes:
      hidden: the state of the token before the last, unfed one; arbitrary for a one-token text.
      length_state: the draft length's state.
      submitted: the number of drafts that each row submitted in the last round.
    """

    hidden: Float[Array, "b d"]
    length_state: Any
    submitted: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MedusaDrafter(AdjustableDrafter):
    """Guesses up to `k` tokens with one head each, all at once.

    The paper's head `i` reads the state of the token at position `t` and guesses the token at `t + 2 + i`, while the
    target's output head predicts `t + 1`. Here the token at `t + 1` is committed, and the newest known state is that of
    the token before it, so the heads are used as they were trained:

        position           t    t+1   t+2  t+3
        text          ...  d    e                  e is committed and unfed
        newest state       d
        head 0                        .            the distribution of the token after e
        head 1                             .

    A chain takes head `i`'s most probable token under a greedy policy, and otherwise draws from head `i`'s
    distribution. No draft depends on another, so that distribution is reported for each. A tree has head `i`'s most
    probable tokens at depth `i`, equal below every parent. A one-token text has no state yet, so its row drafts nothing
    in that round.

    Attributes:
      head: a head from `jaxspec.load_head`.
      k: the largest number of drafts a round, at most the number of heads, which `None` means. Pass a `DraftLength` to
        choose it round by round.
      topology: a tree's shape, such as `best_tree(head.accuracies, 16)`, to draft a tree; `k` is then its depth.
      sampling: the policy to draw a chain with, shared by all rows; `None` uses each row's target policy.

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.

    Example:
      >>> head = jaxspec.heads.medusa.init(target, key, num_heads=2)
      >>> jaxspec.generate(target, jaxspec.MedusaDrafter(head), prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    head: MedusaHead
    k: int | DraftLength | None = dataclasses.field(default=None, metadata=NUMBER_IS_STATIC)
    topology: Tree | None = dataclasses.field(default=None, metadata={"static": True})
    sampling: Policy | None = None

    def __post_init__(self) -> None:
        if self.topology is not None and not isinstance(self.topology, Tree):
            raise TypeError(f"topology must be a Tree, got {shown(self.topology)}; pass best_tree(head.accuracies, 16)")
        length = self.draft_length
        if self.topology is not None and (length != Fixed(self.topology.depth) or self.sampling is not None):
            raise ValueError(
                f"a tree is as deep as its topology, here {self.topology.depth}, and takes the most probable tokens, "
                f"got k={self.k} and sampling={self.sampling}; leave k and sampling out"
            )

    @property
    def draft_length(self) -> DraftLength:
        if self.k is not None:
            return as_draft_length(self.k)
        if self.topology is not None:
            return as_draft_length(self.topology.depth)
        _check_kind(self.head)
        return as_draft_length(self.head.num_heads)

    @property
    def tree(self) -> bool:
        """Whether it drafts a tree."""
        return self.topology is not None

    @property
    def deterministic(self) -> bool:
        """Whether drafts are a function of the text."""
        return self.tree

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's last hidden state, which the heads read."""
        return self.head.capture

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.draft_length.lengths if self.topology is None else (self.topology.size,)

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(self.head, costs=lambda model, k: model.one_pass(self.head, k), bounded_by_heads=True)

    def check(self, target: Model) -> None:
        _check_kind(self.head)
        check_head(self.head, target)
        if self.max_drafts > self.head.num_heads:
            raise ValueError(
                f"there are {self.head.num_heads} heads for one token each, got k={self.max_drafts}; pass a smaller k, "
                "or a shallower tree"
            )
        if self.topology is not None and max(self.topology.ranks) >= self.head.module.config.vocab_size:
            raise ValueError(
                f"a node has {max(self.topology.ranks) + 1} children, the heads guess "
                f"{self.head.module.config.vocab_size} tokens; pass fewer"
            )
        if self.sampling is not None:
            check_policy.draft_policy(self.sampling)
        self.draft_length.check()

    def init(self, context, prefilled, slots):
        return self.extend(None, context, prefilled, jnp.zeros_like(context.length))

    def held(self, state: MedusaDrafterState) -> None:
        """Returns no limit, as the newest state comes from the pass over the fed tokens."""

    def extend(self, state: MedusaDrafterState | None, context, prefilled, start):
        # A one-token text has no state; the value taken here is never read.
        newest = take_row(prefilled.hidden[0], jnp.maximum(context.length - 2 - start, 0))
        return MedusaDrafterState(newest, self.draft_length.init(start.shape[0]), jnp.zeros_like(start))

    def propose(self, rng: Rng, state: MedusaDrafterState, context: Context):
        draftable = context.draftable & (context.length >= 2)
        if self.topology is not None:
            return self._draft_tree(self.topology, state, context, draftable), state
        longest = context.at_most(self.draft_length.longest(state.length_state, draftable, context.active))
        longest = jnp.where(draftable, longest, 0)
        proposal = self._draft_chain(rng, state, context, longest)
        submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)
        return proposal, dataclasses.replace(state, submitted=submitted)

    def observe(self, state: MedusaDrafterState, context, verdict, hidden):
        # The last token's state comes first, then the drafts'; the next token has none yet.
        count = verdict.appended(context)
        newest = jnp.where(count[:, None] > 0, take_row(hidden[0], jnp.maximum(count - 1, 0)), state.hidden)
        length_state = self.draft_length.observe(
            state.length_state, state.submitted, verdict.accepted, context.draftable, context.active
        )
        return MedusaDrafterState(newest, length_state, state.submitted)

    def _logits(self, state: MedusaDrafterState, context: Context) -> Float[Array, "b k n"]:
        last = context.last
        logits = self.head(context.target, state.hidden[:, None], last)
        return self.head.placement.logits(logits[:, 0, : self.max_drafts])

    def _expand(self, context: Context) -> Callable[[Float[Array, "b t n"]], Float[Array, "b t v"]]:
        return lambda logits: self.head.over_vocabulary(logits, context.target.vocab_size)

    def _draft_tree(
        self, tree: Tree, state: MedusaDrafterState, context: Context, draftable: Bool[Array, "b"]
    ) -> Proposal:
        levels, logits = np.sum(tree.ancestors, axis=1) - 1, self._logits(state, context)
        if context.processors:
            best, places = self._guess_down(tree, levels, logits, context)
        else:
            best, places = (x[:, levels, np.asarray(tree.ranks)] for x in top_tokens(logits, max(tree.ranks) + 1))
        parents = jnp.broadcast_to(jnp.asarray(tree.parents, jnp.int32), (*draftable.shape, tree.size))
        valid = draftable[:, None] & (best > -jnp.inf)
        return Proposal(self.head.token_ids(places), valid, None, parents, tree.depth)

    def _guess_down(
        self, tree: Tree, levels: Int[np.ndarray, "n_nodes"], logits: Float[Array, "b k n"], context: Context
    ) -> tuple[Float[Array, "b n_nodes"], Int[Array, "b n_nodes"]]:
        """Returns the score and the index of each node, level by level, processed given the nodes above it."""
        batch, parents, ranks = logits.shape[0], np.asarray(tree.parents), np.asarray(tree.ranks)
        best, places = jnp.zeros((batch, tree.size), jnp.float32), jnp.zeros((batch, tree.size), jnp.int32)
        paths = jnp.full((batch, tree.size + 1, tree.depth), -1, jnp.int32)  # the last row is the text's
        for level in range(tree.depth):
            nodes = np.flatnonzero(levels == level)
            above, parent = np.unique(parents[nodes], return_inverse=True)
            wide = jnp.broadcast_to(logits[:, level, None], (batch, len(above), logits.shape[2]))
            processed = process_part(context, wide, paths[:, above], self._expand(context), self.head.ids)
            scores, found = top_tokens(processed, int(max(ranks[nodes])) + 1)
            best = best.at[:, nodes].set(scores[:, parent, ranks[nodes]].astype(jnp.float32))
            places = places.at[:, nodes].set(found[:, parent, ranks[nodes]])
            paths = paths.at[:, nodes].set(paths[:, parents[nodes]])
            paths = paths.at[:, nodes, level].set(self.head.token_ids(places[:, nodes]))
        return best, places

    def _draft_chain(self, rng: Rng, state: MedusaDrafterState, context: Context, longest) -> Proposal:
        """Drafts a chain; the heads do not run if no row drafts anything."""
        policy = context.sampling if self.sampling is None else self.sampling
        vocab_size = context.target.vocab_size

        def none() -> Proposal:
            tokens = jnp.zeros((*longest.shape, self.max_drafts), jnp.int32)
            shape = (*tokens.shape, vocab_size)
            # Unused positions hold the uniform distribution, so that every row stays normalized.
            all_log_probs = None if policy.greedy else jnp.full(shape, -math.log(vocab_size), jnp.float32)
            return Proposal(tokens, tokens.astype(jnp.bool_), all_log_probs)

        def draft() -> Proposal:
            def choose(logits, offsets):
                if policy.greedy:
                    return argmax(logits), logits, None
                chosen, next_log_probs = draw(policy, logits, rng, offsets, vocab_size, self.head.ids)
                return chosen, logits, next_log_probs

            expand, all_log_probs = self._expand(context), None
            found = choose_in_order(context, self._logits(state, context), expand, self.head.ids, choose)
            chosen, logits, next_log_probs = found
            seen = confidence(logits, next_log_probs)
            if next_log_probs is not None:
                all_log_probs = context.target.traits.placement.logits(
                    self.head.over_vocabulary(next_log_probs, vocab_size)
                )
            valid = self._submitted(state.length_state, longest, seen, chosen)
            return Proposal(jnp.where(valid, self.head.token_ids(chosen), 0), valid, all_log_probs)

        return jax.lax.cond(jnp.any(longest > 0), draft, none) if self.max_drafts > 0 else none()

    def _submitted(self, length_state, longest, seen: Float[Array, "b k n"], chosen) -> Bool[Array, "b k"]:
        """Returns which drafts to submit; draft `i` depends on its distribution and on the drafts before it."""
        log_probs = jnp.take_along_axis(seen, chosen[..., None], axis=-1)[..., 0]
        active, valid = longest > 0, []
        for i in range(self.max_drafts):
            valid.append(active & self.draft_length.should_draft(length_state, seen[:, i]))
            active = valid[i] & (i + 1 < longest) & self.draft_length.continue_(length_state, log_probs[:, i])
        return jnp.stack(valid, axis=1)


def _check_kind(head: Any) -> None:
    if not isinstance(head, MedusaHead):
        raise TypeError(f"MedusaDrafter needs a MedusaHead, got {type(head).__name__}; jaxspec.load_head reads one")


def check_head(head: MedusaHead, target: Model) -> None:
    """Raises `TypeError` or `ValueError` unless `head` fits `target`: its last hidden states and its vocabulary."""
    config = head.module.config
    layers, _ = check_capture("MedusaDrafter", target, head.capture, config.width)
    if head.capture != (layers,):
        raise ValueError(
            f"Medusa's heads read the states after the last layer, got heads that read {head.capture} for a target of "
            f"{layers} layers; pass the heads that were trained for this target"
        )
    if head.ids is None and config.vocab_size != target.vocab_size:
        raise ValueError(
            f"the heads guess {config.vocab_size} tokens and have no draft vocabulary, the target has "
            f"{target.vocab_size} tokens; pass the heads that were trained for this target"
        )

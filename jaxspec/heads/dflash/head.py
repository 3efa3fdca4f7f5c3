"""Defines `DFlashHead`, a DFlash network with parameters, and its drafter of a round in one pass over masks."""

import dataclasses
import functools
import math
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy, validate
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.model import Model
from jaxspec.core.parts import argmax, at_tokens
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy, draw
from jaxspec.core.state import Context, Proposal
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength, as_draft_length, confidence
from jaxspec.drafters.base import AdjustableDrafter, DrafterInfo
from jaxspec.drafters.draft_model import check_capture
from jaxspec.drafters.draft_vocabulary import expand, places
from jaxspec.drafters.processed import choose_in_order, process_part
from jaxspec.heads.dflash.network import DFlashConfig, DFlashNetwork
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network
from jaxspec.nn.transformer import embed


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlashHead(Network):
    """Drafts blocks with a DFlash or DSpark network and its parameters, trained for one target.

    Attributes:
      module: the static network.
      params: its `params` collection, including the target's rows of the output head.
      ids: the draft vocabulary: token ids of the target, increasing.
      places: the index of each of the target's tokens in the draft vocabulary; -1 if it is not in it.
      capture: the target's hidden states that it reads, in this order (`i` enters layer `i`).
      confidence_scale: divisors of the log-odds of each draft's acceptance (sequential temperature scaling, DSpark,
        section 3.2); `None` means 1.
      embedding: its own embedding, `[v, d]`; `None` uses the target's.
      placement: the layout of its cache over a mesh; set by `jaxspec.shard`.
      cache_type: the class of its cache; set by `jaxspec.native_kernels`.

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
    embedding: Float[Array, "v d"] | None = None
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})
    cache_type: type[KVCache] = dataclasses.field(default=KVCache, metadata={"static": True})

    @classmethod
    def of(cls, module: DFlashNetwork, params: Any, ids: Any, capture: tuple[int, ...], vocab_size: int) -> Self:
        """Creates a head for a target of `vocab_size` tokens, which can guess those in `ids` (increasing, `int[n]`)."""
        ids = jnp.asarray(ids, jnp.int32)
        return cls(module, params, ids, places(ids, vocab_size), capture)

    @property
    def config(self) -> DFlashConfig:
        """The network's hyperparameters."""
        return self.module.config

    @property
    def vocab_size(self) -> int:
        """The size of the target's vocabulary."""
        return self.places.shape[0]

    @property
    def context_length(self) -> int | None:
        """The longest text that it can draft for."""
        return self.config.context_length

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """Returns an empty cache of context, with room for at least `capacity` tokens a row."""
        return cast(KVCache, self.empty_cache(self.config.kinds, batch, capacity))  # its layers are of one kind

    def embed(self, target: LanguageModel, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Embeds a block's tokens with its own embedding, or the target's."""
        config = self.config
        if not config.raw_embedding:
            return target.embed(tokens)
        if self.embedding is not None:
            return self.embedding[tokens] * jnp.asarray(config.embedding_scale, self.embedding.dtype)
        scale = {"embedding_scale": config.embedding_scale, "rounded_embedding_scale": True}
        return embed(dataclasses.replace(target.module.config, **scale), target.params, tokens)

    def context(self, hidden: tuple[Float[Array, "b t d"], ...], start: Int[Array, "b"]) -> KVEntries:
        """Returns the cache entries for the target's states of tokens at positions from `start` on."""
        positions = start[:, None] + jnp.arange(hidden[0].shape[1], dtype=jnp.int32)[None]
        return self._apply("context", hidden, positions)

    def blocks(
        self, anchors: Float[Array, "b a d"], positions: Int[Array, "b a"], seen: KVCache | KVEntries
    ) -> Float[Array, "b a n d"]:
        """Returns the state of each place of each block, from which its token is predicted.

        Args:
          anchors: the embeddings of the blocks' first tokens.
          positions: the positions of those tokens.
          seen: a cache of context, which every block sees whole; or the context of a text's first tokens, of which each
            block sees those before it.
        """
        where = {"cache": seen} if isinstance(seen, KVCache) else {"context": seen}
        return self._apply("__call__", anchors, positions, **where)

    def logits(self, known: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns logits over the draft vocabulary without the Markov head's term, float32."""
        return self.placement.logits(self._apply("logits", known))

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """Expands logits to the target's vocabulary."""
        return self.placement.logits(expand(logits, self.ids, self.vocab_size))

    def before(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t r"] | None:
        """Embeds the target's tokens that precede drafts, for the Markov head; `None` if there is none."""
        if (correction := self.config.correction) is not None:
            return self._apply("before_of", tokens) if correction.token_rank else None
        return self._apply("before", self.places[tokens]) if self.config.markov_rank else None

    def added(self, before: Float[Array, "b t r"] | None) -> Float[Array, "b t n"] | float:
        """Returns the Markov head's term of the drafts' logits."""
        return 0.0 if before is None else self._apply("added", before)

    def start(self, anchors: Int[Array, "b 1"], states: Float[Array, "b 1 d"] | None) -> Any:
        """Returns what the correction keeps before the first draft."""
        return None if self.config.correction is None else self._apply("start", anchors, states)

    def corrected(
        self,
        target: LanguageModel,
        kept: Any,
        place: Int[Array, ""],
        tokens: Int[Array, "b w"],
        states: Float[Array, "b w d"],
        logits: Float[Array, "b w n"],
    ) -> tuple[Float[Array, "b w n"], Any]:
        """Returns a draft's logits given the tokens before it, and what the correction keeps; of `w` nodes in a tree.

        Args:
          target: the model whose embedding the correction may read.
          kept: what it kept after the draft before, or `start`.
          place: the number of the draft.
          tokens: the tokens before the draft.
          states: the state of the draft's place.
          logits: the draft's logits without correction.
        """
        correction = self.config.correction
        if correction is None:
            return logits + self.added(self.before(tokens)), kept
        embedded = self.embed(target, tokens) if correction.reads_embeddings else None
        return self._apply("corrected", kept, place, tokens, embedded, states, logits)

    def candidates(
        self, tokens: Int[Array, "b w"], states: Float[Array, "b 1 d"], logits: Float[Array, "b w_or_1 n"]
    ) -> tuple[Int[Array, "b w_or_1 c"], Float[Array, "b w c"]]:
        """Returns the candidates of a draft, and their scores after each token; for a correction that `selects`."""
        return self._apply("candidates", tokens, states, logits)

    def refined(
        self, tokens: Int[Array, "b 2"], states: Float[Array, "b m d"], logits: Float[Array, "b k n"]
    ) -> Float[Array, "b k n"]:
        """Returns all drafts' logits, given the token before the anchor, the anchor, and the states of all places."""
        return self._apply("refined", tokens, states, logits, self.ids)

    def odds(self, known: Float[Array, "b t d"], before: Float[Array, "b t r"] | None) -> Float[Array, "b t"]:
        """Returns the uncalibrated log-odds that a draft is accepted if those before it are."""
        return self._apply("trusted", known, before)

    def log_trust(self, odds: Float[Array, "b t"]) -> Float[Array, "b t"]:
        """Returns the calibrated log-probability that each draft is accepted if those before it are."""
        scale = self.confidence_scale
        return jax.nn.log_sigmoid(odds if scale is None else odds / scale[None, : odds.shape[1]])

    def _apply(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self.module.apply({"params": self.params}, *arguments, method=method, **options)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlashState:
    """Holds a `DFlashDrafter`'s state between rounds.

    Attributes:
      cache: the keys and values of the context: of all committed tokens but the last.
      length_state: the draft length's state.
      submitted: the number of drafts that each row submitted in the last round.
    """

    cache: KVCache
    length_state: Any
    submitted: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlashDrafter(AdjustableDrafter):
    """Guesses a whole block in one pass, whose cost does not grow with `k`.

    A small network reads the last token, masks instead of the drafts, and the target's states of the text before. With
    a Markov head (DSpark), each drafted token then moves the logits of the next one by a low-rank product, so that the
    drafts of a block fit each other. Without one, they are drawn independently. The distribution reported for a draft
    is that of its final logits.

    The target's states after a token are known once it was verified. They enter the context at the end of each round,
    regardless of which drafter drafted in it, so a draft length may pause the drafter for any number of rounds:

        text        ... c  d  e        e is committed and unfed
        cache       ... c  d           the context: the target's states after each
        block                e _ _     the pass of this round, which leaves nothing in the cache

    A one-token text has no context, only its block.

    Attributes:
      head: a head from `jaxspec.load_head`, or trained by `jaxspec.heads.dflash.training.DFlashRecipe`.
      k: the largest number of drafts a round, by default and at most the number that the head was trained for. Pass a
        `DraftLength` to submit fewer: `CumulativeConfidence` uses the head's own estimates.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy.

    References:
      DFlash (2026), arXiv:2602.06036.
      DSpark, the paper in the repository deepseek-ai/DeepSpec, section 3.1.

    Example:
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> jaxspec.generate(target, jaxspec.DFlashDrafter(head), prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    head: DFlashHead
    k: int | DraftLength | None = dataclasses.field(default=None, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None

    def __post_init__(self) -> None:
        if isinstance(self.head, type) or not isinstance(self.head, DFlashHead):
            raise TypeError(
                f"DFlashDrafter needs a DFlashHead, got {type(self.head).__name__}; jaxspec.load_head makes one"
            )
        most = self.head.config.num_drafts
        if self.max_drafts > most:
            raise ValueError(f"this head drafts at most {most} tokens in a block, got k={self.max_drafts}; pass fewer")

    @property
    def draft_length(self) -> DraftLength:
        config = self.head.config
        k = config.num_drafts if self.k is None else self.k
        return as_draft_length(k, has_confidence=config.confidence != "none")

    @property
    def deterministic(self) -> bool:
        """Whether drafts are certain: those of a correction that guesses all of them at once (XPress)."""
        return (correction := self.head.config.correction) is not None and correction.parallel

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's states that the head reads."""
        return self.head.capture

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(
            self.head,
            self.head.context_length,
            lambda model, k: model.one_pass(self.head, k),
            bounded_by_heads=True,
        )

    def check(self, target: Model) -> None:
        if self.sampling is not None:
            check_policy.draft_policy(self.sampling)
        self.draft_length.check()
        check_capture("DFlashDrafter", target, self.head.capture, self.head.config.width)
        validate.same_vocabulary(draft=self.head.vocab_size, target=target.vocab_size)

    def init(self, context, prefilled, slots):
        none = jnp.zeros(context.tokens.shape[0], jnp.int32)
        fresh = DFlashState(self.head.init_cache(none.shape[0], slots), (), none)
        return self.extend(fresh, context, prefilled, none)

    def held(self, state: DFlashState) -> Int[Array, "b"]:
        return state.cache.length

    def extend(self, state: DFlashState, context, prefilled, start):
        entries = self.head.context(prefilled.hidden, start)
        cache = state.cache.truncate(jnp.minimum(state.cache.length, start)).append(entries)
        return DFlashState(
            cache.truncate(context.length - 1), self.draft_length.init(start.shape[0]), jnp.zeros_like(start)
        )

    def propose(self, rng: Rng, state: DFlashState, context: Context):
        policy = context.sampling if self.sampling is None else self.sampling
        draftable = context.draftable
        longest = context.at_most(self.draft_length.longest(state.length_state, draftable, context.active))
        longest = jnp.where(draftable, longest, 0)
        certain = policy.greedy or self.deterministic
        proposal = _nothing(longest.shape[0], self.max_drafts, None if certain else self.head.vocab_size)
        if self.max_drafts > 0:
            # The cache is only read, so no branch copies it.
            proposal = jax.lax.cond(
                jnp.any(longest > 0), lambda: self._draft(policy, longest, rng, state, context), lambda: proposal
            )
        submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)
        return proposal, dataclasses.replace(state, submitted=submitted)

    def observe(self, state: DFlashState, context: Context, verdict, hidden):
        cache = state.cache.append(self.head.context(hidden, state.cache.length))
        held = context.length - 1 + verdict.appended(context)
        length_state = self.draft_length.observe(
            state.length_state, state.submitted, verdict.accepted, context.draftable, context.active
        )
        return DFlashState(cache.truncate(held), length_state, state.submitted)

    def states(self, state: DFlashState, context: Context) -> Float[Array, "b m d"]:
        """Runs one pass over the block, and returns the state of each place, as `DFlashHead.blocks` does."""
        target = cast(LanguageModel, context.target)  # `check` rejects others
        embedded = self.head.embed(target, context.last)
        return self.head.blocks(embedded, context.length[:, None] - 1, state.cache)[:, 0]

    def _draft(self, policy: Policy, longest, rng: Rng, state: DFlashState, context: Context) -> Proposal:
        """Runs one pass over the block, then draws all drafts."""
        head = self.head
        last, states = context.last, self.states(state, context)
        known = states[:, -head.config.num_drafts :][:, : self.max_drafts]
        draw = self._refine if self.deterministic else self._draw
        places, logits, log_probs = draw(policy, states, known, rng, context)
        tokens = head.ids[places]
        seen, trusted = confidence(logits, log_probs), jnp.ones(tokens.shape, jnp.float32)
        if self.draft_length.reads_confidence:
            before = head.before(jnp.concatenate([last, tokens[:, :-1]], axis=1))
            trusted = jnp.exp(jnp.cumsum(head.log_trust(head.odds(known, before)), axis=1))
        valid = self._submitted(state.length_state, longest, seen, places, trusted)
        # A finished row keeps computing alongside longer ones; masking its tokens keeps rows independent.
        log_probs = None if log_probs is None else head.over_vocabulary(log_probs)
        return Proposal(jnp.where(valid, tokens, 0), valid, log_probs)

    def _draw(
        self, policy: Policy, states: Float[Array, "b m d"], known: Float[Array, "b k d"], rng: Rng, context: Context
    ) -> tuple[Int[Array, "b k"], Float[Array, "b k n"], Float[Array, "b k n"] | None]:
        """Draws tokens; returns their indices in the draft vocabulary, their logits, and their distributions.

        Without a correction no draft depends on another, and all are drawn at once.
        """
        head, offsets, logits = self.head, jnp.arange(self.max_drafts, dtype=jnp.int32), self.head.logits(known)
        config, last = head.config, context.last
        if config.correction is None and not config.markov_rank:
            choose = lambda logits, offsets: self._places(policy, logits, rng, offsets)  # noqa: E731
            return choose_in_order(context, logits, head.over_vocabulary, head.ids, choose)
        process = functools.partial(process_part, context, expand=head.over_vocabulary, ids=head.ids)
        selects = config.correction is not None and config.correction.selects
        target = cast(LanguageModel, context.target)  # `check` rejects others

        def after(before, draft):
            (token, path, kept), (offset, state, logits) = before, draft
            if selects:  # it never drafts most tokens, so that the remaining ones are found among those allowed
                logits = process(logits, path)
            logits, kept = head.corrected(target, kept, offset, token, state, logits)
            if not selects:
                logits = process(logits, path)
            places, logits, log_probs = self._places(policy, logits, rng, offset[None])
            token = head.ids[places]
            path = None if path is None else jnp.where((offsets == offset)[None, None], token[..., None], path)
            return (token, path, kept), (places, logits, log_probs)

        path = jnp.full((*last.shape, self.max_drafts), -1, jnp.int32) if context.processors else None
        kept = head.start(last, states[:, :1] if config.keeps_anchor else None)
        by_place = (offsets, *(jnp.swapaxes(x, 0, 1)[:, :, None] for x in (known, logits)))
        _, drawn = jax.lax.scan(after, (last, path, kept), by_place)
        return jax.tree.map(lambda x: jnp.swapaxes(x[:, :, 0], 0, 1), drawn)

    def _refine(
        self, policy: Policy, states: Float[Array, "b m d"], known: Float[Array, "b k d"], rng: Rng, context: Context
    ) -> tuple[Int[Array, "b k"], Float[Array, "b k n"], None]:
        """Guesses all tokens at once; returns the same as `_draw` without distributions."""
        del policy, known, rng
        head, at = self.head, jnp.maximum(context.length - 2, 0)
        tokens = jnp.concatenate([jnp.take_along_axis(context.tokens, at[:, None], axis=1), context.last], axis=1)
        logits = head.logits(states[:, -head.config.num_drafts :])
        logits = head.refined(tokens, states, logits)[:, : self.max_drafts]
        choose = lambda logits, offsets: (argmax(logits), logits, None)  # noqa: E731
        places, logits, _ = choose_in_order(context, logits, head.over_vocabulary, head.ids, choose)
        return places, logits, None

    def _places(
        self, policy: Policy, logits: Float[Array, "b t n"], rng: Rng, offsets: Int[Array, "t"]
    ) -> tuple[Int[Array, "b t"], Float[Array, "b t n"], Float[Array, "b t n"] | None]:
        """Returns drawn tokens, the logits, and the distributions that they are drawn from (`None` for the argmax)."""
        if policy.greedy:
            return argmax(logits), logits, None
        head = self.head
        ids = None if head.ids.shape[0] == head.vocab_size else head.ids
        places, log_probs = draw(policy, logits, rng, offsets, head.vocab_size, ids)
        return places, logits, log_probs

    def _submitted(
        self, length_state, longest, seen: Float[Array, "b k n"], places, trusted: Float[Array, "b k"]
    ) -> Bool[Array, "b k"]:
        """Returns which drafts to submit; draft `i` depends on its distribution and on the drafts before it."""
        length, log_probs = self.draft_length, at_tokens(seen, places)
        active, valid = longest > 0, []
        for i in range(self.max_drafts):
            worth = length.should_verify(length_state, trusted[:, i]) & length.should_draft(length_state, seen[:, i])
            valid.append(active & (i < longest) & worth)
            active = valid[i] & length.continue_(length_state, log_probs[:, i])
        return jnp.stack(valid, axis=1)


def _nothing(batch: int, k: int, vocab_size: int | None) -> Proposal:
    # Unused positions hold the uniform distribution, so that every row stays normalized.
    log_probs = None if vocab_size is None else jnp.full((batch, k, vocab_size), -math.log(vocab_size), jnp.float32)
    return Proposal(jnp.zeros((batch, k), jnp.int32), jnp.zeros((batch, k), jnp.bool_), log_probs)

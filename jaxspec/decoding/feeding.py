"""Feeds the prompt of a row some chunks at a time, so that other rows are decoded in between.

prompt          a b c d e f g h i j k
begin_feeding   . . . . . . . . . . .      a row of which nothing is fed
feed_some       a b c d . . . . . . .      one chunk; the drafter reads it too
feed_some       a b c d e f g h i j .      two more; the last token stays unfed
ready                                      the row, to insert into a slot
"""

import dataclasses
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import validate
from jaxspec.core.compiler import traced_for
from jaxspec.core.model import Model
from jaxspec.core.prefill import Chunks, Prefilled
from jaxspec.core.programs import Kept
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Context, GenerationState
from jaxspec.core.typed import typed
from jaxspec.core.validate import is_concrete, to_int32
from jaxspec.decoding.begin import begin, read_by_drafter
from jaxspec.decoding.options import Arguments, RowKeywords, TokenIds
from jaxspec.decoding.prompt_scores import PromptScores
from jaxspec.decoding.slots import row_arguments
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter, NoDrafter


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Feeding:
    """Holds a row whose prompt is being fed.

    Attributes:
      row: the row, as it is once the prompt is fed, but for its cache and the drafter's state.
      hidden: the target's captured states of the fed tokens, for the drafter.
      fed: the number of chunks that were fed.
      left: the number of chunks that are missing.
      reused: the number of tokens whose chunks came from another row (`reuse`).
      width: the number of tokens that a prompt is padded to.
      by_chunk: whether the drafter reads each chunk when it is fed; otherwise it reads the prompt at the end.

    Example:
        >>> feeding = jaxspec.serving.begin_feeding(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> int(feeding.fed), int(feeding.left)
        (0, 1)
    """

    row: GenerationState
    hidden: tuple[Float[Array, "1 s d"], ...]
    fed: Int[Array, ""]
    left: Int[Array, ""]
    reused: Int[Array, ""]
    width: int = dataclasses.field(metadata={"static": True})
    by_chunk: bool = dataclasses.field(metadata={"static": True})


@typed("target")
def begin_feeding(target: Model, drafter: Drafter | None, prompt: TokenIds, **options: Unpack[RowKeywords]) -> Feeding:
    """Creates a row whose prompt `feed_some` feeds.

    Args:
      target: the model that the slots were created with.
      drafter: the drafter that they were created with.
      prompt: `[1, t]` token ids.
      **options: those of `init`, with the capacity, kinds and sizes of the slots'.

    Raises:
      TypeError, ValueError: as in `feed`.

    Example:
        >>> feeding = jaxspec.serving.begin_feeding(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> feeding.row.length.tolist(), feeding.row.cache.length.tolist()
        ([5], [0])
    """
    return start_feeding(row_arguments(target, drafter, prompt, options))


@typed()
def feed_some(target: Model, drafter: Drafter | None, feeding: Feeding, chunks: Int[Array, ""] | int = 1) -> Feeding:
    """Feeds some chunks of a prompt. Pure; jit it with `feeding` donated, and prompts of all lengths share a program.

    A chunk has `target.traits.prompt_chunk` tokens. They are those that `feed` feeds in one call.

    Args:
      target: the model that `feeding` was created with.
      drafter: the drafter that it was created with.
      feeding: the result of `begin_feeding` or `feed_some`.
      chunks: the largest number of chunks to feed, traced or not.

    Example:
        >>> feeding = jaxspec.serving.begin_feeding(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> feeding = jaxspec.serving.feed_some(target, None, feeding, 1)
        >>> int(feeding.left), feeding.row.cache.length.tolist()
        (0, [4])
    """
    if is_concrete(chunks):
        validate.counts("feed_some", chunks=int(chunks))
    return feed_scored(target, drafter, feeding, None, chunks)[0]


def feed_scored(
    target: Model,
    drafter: Drafter | None,
    feeding: Feeding,
    scores: PromptScores | None,
    chunks: Int[Array, ""] | int,
) -> tuple[Feeding, PromptScores | None]:
    """Does what `feed_some` does, and adds the log-probabilities of the prompt's tokens to `scores`."""
    drafter, row, width = NoDrafter() if drafter is None else drafter, feeding.row, feeding.width
    text = Chunks.of(target, row.tokens[:, :width], row.length - 1, drafter.capture)

    def feed(index, carry):
        cache, hidden, drafter_state, scores = carry
        cache, hidden, logits = text.feed_with_logits(index, cache, hidden)
        scores = None if scores is None else scores.put(text, index, logits)
        end = jnp.minimum(text.start(index) + text.size, text.goal)
        cache = cache.truncate(end)
        if feeding.by_chunk:
            prefilled = Prefilled(cache, hidden)
            span = _Span(text, index, feeding.reused, width)
            drafter_state = _read_chunk(drafter, drafter_state, row.context.of(target), prefilled, span)
        return cache, hidden, drafter_state, scores

    stop = jnp.minimum(feeding.fed + to_int32(chunks), feeding.fed + feeding.left)
    carry = row.cache, feeding.hidden, row.drafter_state, scores
    with traced_for(target), jax.named_scope("prefill"):
        cache, hidden, drafter_state, scores = jax.lax.fori_loop(feeding.fed, stop, feed, carry)
    context = dataclasses.replace(row.context, cache=cache)
    fed = dataclasses.replace(
        feeding,
        row=dataclasses.replace(row, context=context, drafter_state=drafter_state),
        hidden=hidden,
        fed=stop,
        left=feeding.left + feeding.fed - stop,
    )
    return fed, scores


@typed()
def ready(target: Model, drafter: Drafter | None, feeding: Feeding) -> GenerationState:
    """Returns the row of a prompt that was fed, to insert into a slot. Pure.

    Raises:
      ValueError: chunks are missing. Traced values cannot raise.

    Example:
        >>> feeding = jaxspec.serving.begin_feeding(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> row = jaxspec.serving.ready(target, None, jaxspec.serving.feed_some(target, None, feeding, 9))
        >>> slots = jaxspec.serving.slots(target, None, 2, capacity=32)
        >>> jaxspec.serving.insert(slots, row, 1).state.length.tolist()
        [1, 5]
    """
    if is_concrete(feeding.left) and int(feeding.left) > 0:
        raise ValueError(f"{int(feeding.left)} chunks of the prompt are missing; feed them with feed_some")
    if feeding.by_chunk:
        return feeding.row
    drafter, row = NoDrafter() if drafter is None else drafter, feeding.row
    tokens, hidden = row.tokens[:, : feeding.width], tuple(x[:, : feeding.width] for x in feeding.hidden)
    with traced_for(target):
        context = read_by_drafter(row.context.of(target), row.cache, tokens, row.length)
        drafter_state = bounded.init(drafter, context, Prefilled(row.cache, hidden), row.tokens.shape[1])
    return dataclasses.replace(row, drafter_state=drafter_state)


@Kept
def start_feeding(arguments: Arguments) -> Feeding:
    """Returns the row of a call of which nothing is fed, with `done` and the counts replicated for every host."""
    target, drafter, width = arguments.target, arguments.drafter, arguments.rows.prompt.shape[1]
    replicate, row = arguments.placement.replicate, begin(arguments)
    row, zero = row.with_done(replicate(row.done)), jnp.int32(0)
    text = Chunks.of(target, row.tokens[:, :width], row.length - 1, drafter.capture)
    with traced_for(target):
        # One more, so that windows of one chunk and one token fit.
        hidden = tuple(jnp.pad(x, ((0, 0), (0, 1), (0, 0))) for x in text.blank(row.cache))
        context = row.context.of(target)
        seen = read_by_drafter(context, row.cache, row.tokens[:, :width], jnp.ones_like(row.length))

        def unread(count: int) -> Any:
            """Returns the drafter's state of a text of one token, of which nothing is read."""
            prefilled = Prefilled(row.cache, tuple(x[:, :count] for x in hidden))
            return bounded.init(drafter, seen, prefilled, row.tokens.shape[1])

        state, span = unread(1), _Span(text, zero, zero, width)
        by_chunk = _reads_chunks(drafter, state, context, Prefilled(row.cache, hidden), span)
        if not by_chunk:
            state = unread(width)  # with the shapes that `ready` returns
    row = dataclasses.replace(row, drafter_state=state)
    left = replicate(jnp.where(row.done[0], 0, text.count))
    return Feeding(row, hidden, zero, left, zero, width, by_chunk)


@dataclasses.dataclass(frozen=True)
class _Span:
    """Locates a chunk in a text of at most `width` tokens, of which `reused` were not fed."""

    text: Chunks
    index: Int[Array, ""]
    reused: Int[Array, ""]
    width: int

    @property
    def end(self) -> Int[Array, "1"]:
        """The number of tokens that are fed after it."""
        return jnp.minimum(self.text.start(self.index) + self.text.size, self.text.goal)

    def states(self, hidden: tuple[Float[Array, "1 s d"], ...]) -> tuple[Int[Array, ""], tuple[Array, ...]]:
        """Returns the chunk's states and the one before them, which is known if it was fed, and the first's index.

        A head pairs the last state of a chunk with the first token of the next one.
        """
        count = min(self.text.size, self.width) + 1
        start = jnp.clip(self.text.start(self.index) - 1, self.reused, self.width + 1 - count)
        return start, tuple(jax.lax.dynamic_slice_in_dim(x, start, count, axis=1) for x in hidden)


def _read_chunk(drafter: Drafter, state: Any, context: Context, prefilled: Prefilled, span: _Span) -> Any:
    """Returns the drafter's state after a chunk, as that of a text which ends one token later."""
    seen = read_by_drafter(context, prefilled.cache, context.tokens, span.end + 1)
    start = span.index * span.text.size  # what a draft model has read
    if drafter.capture:
        start, hidden = span.states(prefilled.hidden)
        prefilled = dataclasses.replace(prefilled, hidden=hidden)
    return bounded.extend(drafter, state, seen, prefilled, jnp.broadcast_to(start, span.end.shape))


def _reads_chunks(drafter: Drafter, state: Any, context: Context, prefilled: Prefilled, span: _Span) -> bool:
    """Returns whether the drafter can continue a prompt that it has read in part."""
    read = lambda state: _read_chunk(drafter, state, context, prefilled, span)  # noqa: E731
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    try:
        held, before, after = jax.eval_shape(lambda state: (drafter.held(state), state, read(state)), state)
    except NotImplementedError:
        return False
    return (held is None or held.ndim > 0) and shapes(after) == shapes(before)

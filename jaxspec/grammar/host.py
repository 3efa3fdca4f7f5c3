"""Computes on the host which tokens a grammar allows: for grammars without a table, in the text interface.

Grammars are read by `llguidance`: each row has a matcher, which advances along the drafts and rolls back.

While drafts are drawn, the program calls the host for each of them, since a draft's mask depends on those before it.
While the target scores them, the host computes the masks after the last ones, and passes all masks at once to the
verdict.
"""

import dataclasses
import functools
import itertools
import re
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, UInt32

from jaxspec.checkpoints.spelling import Speller
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import parts, processing
from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import GenerationState
from jaxspec.grammar.automaton import needed
from jaxspec.grammar.grammar import Grammar
from jaxspec.grammar.texts import MOST_FORCED, must_come, token_texts
from jaxspec.grammar.thinking import Follower

_ALL, _NOWHERE = np.uint32(0xFFFFFFFF), -2


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Known:
    """Holds the masks that the host has computed for a round.

    Attributes:
      paths: the drafts above each known position, padded with -1; -2 marks an unused position.
      allowed: a bit for each token, at each position.
      forced: the token that spells the only possible continuation there; -1 if there are several.
      matchers: the number of the `RowMatchers` to call for any other position; `None` to call none.
    """

    paths: Int[Array, "b n d"]
    allowed: UInt32[Array, "b n w"]
    forced: Int[Array, "b n"]
    matchers: Int[Array, ""] | None = None


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HostMasks(Processor):
    """Masks tokens that a grammar does not allow, as `RowMatchers` reports them in each round.

    At unknown positions with no matcher to call, everything is allowed.

    Attributes:
      nodes: the largest number of drafts a round.
      depth: the largest number of drafts along one path.
    """

    nodes: int = dataclasses.field(metadata={"static": True})
    depth: int = dataclasses.field(metadata={"static": True})

    def init(self, prompt: Prompt) -> Known:
        batch, words = prompt.length.shape[0], (prompt.vocab_size + 31) // 32
        return Known(
            jnp.full((batch, self.nodes + 1, self.depth), _NOWHERE, jnp.int32),
            jnp.full((batch, self.nodes + 1, words), _ALL, jnp.uint32),
            jnp.full((batch, self.nodes + 1), -1, jnp.int32),
        )

    def __call__(self, logits, state: Known, path):
        if state.matchers is not None:
            shape, types = path.shape[:2], (jnp.uint32, jnp.int32)
            answer = tuple(map(jax.ShapeDtypeStruct, ((*shape, state.allowed.shape[2]), shape), types))
            # One device makes the call, with replicated arrays.
            found, forced = jax.pure_callback(_answer, answer, state.matchers, parts.replicated(path))
            found, forced = parts.replicated(found), parts.replicated(forced)
        else:
            same = self._is_at(state, path)
            at = jnp.argmax(same, axis=2).astype(jnp.int32)
            found = jnp.take_along_axis(state.allowed, at[..., None], axis=1)
            found = jnp.where(jnp.any(same, axis=2)[..., None], found, _ALL)
            forced = jnp.where(jnp.any(same, axis=2), jnp.take_along_axis(state.forced, at, axis=1), -1)
        bits = jnp.arange(32, dtype=jnp.uint32)[None, None, None]
        there = ((found[..., None] >> bits) & jnp.uint32(1)).reshape(*path.shape[:2], -1)[..., : logits.shape[2]] > 0
        return processing.leave_one(jnp.where(there, logits, -jnp.inf), forced)

    def commit(self, state: Known, tokens, count) -> Known:
        return self.init(Prompt(tokens, count, count[:, None], 32 * state.allowed.shape[2]))

    def lead(self, state: Known, tokens, count):
        if state.matchers is None:
            return None
        given = (parts.replicated(tokens), parts.replicated(count))
        answer = (given[0], given[1], jnp.zeros(tokens.shape, jnp.bool_))
        answer = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), answer)
        led = jax.pure_callback(_answer_lead, answer, state.matchers, *given)
        return parts.replicated(led[0]), parts.replicated(led[1]), parts.replicated(led[2])

    def _is_at(self, state: Known, path: Int[Array, "b n d"]) -> Bool[Array, "b n m"]:
        """Returns which known position each position is."""
        missing = max(self.depth - path.shape[2], 0)
        wide = jnp.pad(path, ((0, 0), (0, 0), (0, missing)), constant_values=-1)[..., : self.depth]
        longer = jnp.any(path[..., self.depth :] >= 0, axis=2)[..., None]
        return jnp.all(wide[:, :, None] == state.paths[:, None], axis=3) & ~longer


# The longest forced text, in bytes, that does not use up the library's limits.
_LONGEST = 10_000


class RowMatchers:
    """Follows each row's grammar on the host; a row of `None` is unconstrained.

    Raises:
      ValueError: a grammar cannot be read, uses an unsupported feature that the message names, or allows no token.
    """

    def __init__(
        self,
        grammars: Sequence[Grammar | None],
        tokenizer: Tokenizer,
        vocab_size: int,
        stop_tokens: tuple[int, ...],
    ):
        self._words = (vocab_size + 31) // 32
        self._stop_tokens = stop_tokens
        self._stops = np.zeros(self._words, np.uint32)
        for token in stop_tokens:
            self._stops[token // 32] |= np.uint32(1 << token % 32)
        named = {token for one in grammars if one is not None for token in one.answer.named_tokens(tokenizer)}
        taken, self._texts = _ll_tokenizer(tokenizer, vocab_size, stop_tokens, tuple(sorted(named)))
        self._begin = functools.partial(_matcher, tokenizer, vocab_size, stop_tokens, taken, self._stops)
        known: dict[Any, Any] = {one: self._begin(one) for one in dict.fromkeys(grammars) if one is not None}
        self._known, self._grammars = known, list(grammars)
        self._emitted: list[list[int]] = [[] for _ in grammars]
        self._rows: list[Any] = [None if grammar is None else known[grammar].deep_copy() for grammar in grammars]
        # Grammars with a forced text that is too long to be looked at.
        self._long: set[Grammar | None] = set()
        # The known masks after each row's text, keyed by the drafts in between.
        self._found: list[dict[tuple[int, ...], tuple[UInt32[np.ndarray, "w"], int]]] = [{} for _ in grammars]
        self._number = next(_NUMBERS)
        _BY_NUMBER[self._number] = self

    def after_text(self, state: GenerationState, place: int) -> GenerationState:
        """Returns the state with masks that call this object about drafts after each row's text."""
        return _with_masks(
            state, place, dataclasses.replace(state.context.processed[place], matchers=np.int32(self._number))
        )

    def after_drafts(
        self, masks: HostMasks, state: GenerationState, place: int, tokens: Any, valid: Any, parents: Any
    ) -> GenerationState:
        """Returns the state with the masks after each draft."""
        rows, count = tokens.shape
        paths = np.full((rows, masks.nodes + 1, masks.depth), _NOWHERE, np.int32)
        allowed = np.full((rows, masks.nodes + 1, self._words), _ALL, np.uint32)
        forced = np.full((rows, masks.nodes + 1), -1, np.int32)
        for row, _ in self._followed():
            above = np.arange(-1, count - 1) if parents is None else parents[row]
            drafts: list[tuple[int, ...]] = [()]
            for node in range(-1, count):
                if node >= 0:
                    drafts.append((*drafts[above[node] + 1], int(tokens[row, node])))
                if node < 0 or valid[row, node]:
                    allowed[row, node + 1], forced[row, node + 1] = self._after(row, drafts[-1])
                    paths[row, node + 1] = -1
                    paths[row, node + 1, : len(drafts[-1])] = drafts[-1]
        known: Any = (paths, allowed, forced)  # NumPy arrays: the next program's call transfers them
        return _with_masks(state, place, Known(*known))

    def after_paths(
        self, paths: Int[np.ndarray, "b n d"]
    ) -> tuple[UInt32[np.ndarray, "b n w"], Int[np.ndarray, "b n"]]:
        """Returns the allowed and the forced tokens after paths of drafts, oldest first, padded with -1."""
        allowed = np.full((*paths.shape[:2], self._words), _ALL, np.uint32)
        forced = np.full(paths.shape[:2], -1, np.int32)
        for row, _ in self._followed():
            for place, path in enumerate(paths[row].tolist()):
                found = self._after(row, tuple(token for token in path if token >= 0))
                allowed[row, place], forced[row, place] = found
        return allowed, forced

    def lead(
        self, tokens: Int[np.ndarray, "b k"], count: Int[np.ndarray, "b"]
    ) -> tuple[Int[np.ndarray, "b k"], Int[np.ndarray, "b"], Bool[np.ndarray, "b k"]]:
        """Returns guesses truncated to what the grammar allows, as `Processor.lead` does."""
        led, lengths, forced = tokens.copy(), count.copy(), np.zeros(tokens.shape, np.bool_)
        for row, _ in self._followed():
            lengths[row] = self._lead(row, led[row], int(count[row]), forced[row])
        return led, lengths, forced

    def commit(self, tokens: np.ndarray, count: np.ndarray) -> None:
        """Advances the matchers by the tokens that a round emitted."""
        self._found = [{} for _ in self._rows]
        for row, matcher in self._followed():
            if count[row] and not matcher.is_stopped():
                self._emitted[row] += tokens[row, : count[row]].tolist()
                matcher.consume_tokens(tokens[row, : count[row]].tolist())

    def _lead(self, row: int, tokens: Int[np.ndarray, "k"], guessed: int, forced: Bool[np.ndarray, "k"]) -> int:
        """Writes forced tokens into a guess, and returns its allowed length."""
        path: tuple[int, ...] = ()
        for place, guess in enumerate(tokens.tolist()):
            allowed, token = self._after(row, path)
            forced[place] = token >= 0
            if token < 0 and (place >= guessed or not allowed[guess // 32] >> np.uint32(guess % 32) & 1):
                return place
            if token >= 0:
                guessed = guessed if token == guess else min(guessed, place)
                tokens[place] = token
            path = (*path, int(tokens[place]))
            if path[-1] in self._stop_tokens:
                return len(path)
        return len(tokens)

    def _must_come(self, row: int, matcher: Any, allowed: UInt32[np.ndarray, "w"]) -> int:
        """Returns the token that spells the only possible continuation; -1 if there are several."""
        words = np.flatnonzero(allowed)
        if len(words) > MOST_FORCED:
            return -1
        found = [32 * int(word) + bit for word in words for bit in range(32) if int(allowed[word]) >> bit & 1]
        if any(token in self._stop_tokens for token in found):
            return found[0] if len(found) == 1 else -1
        token = must_come(found, self._texts)
        if token < 0 or self._grammars[row] in self._long:
            return -1
        forced = matcher.compute_ff_bytes()
        if len(forced) > _LONGEST:  # which may have used up its limits, though the text may never come that far
            self._begin_anew(self._grammars[row])
            return -1
        return token if forced.startswith(self._texts[token]) else -1

    def _begin_anew(self, grammar: Any) -> None:
        """Follows all rows of a grammar with other tables, and never looks ahead in it."""
        self._long.add(grammar)
        self._known[grammar] = self._begin(grammar)
        for row, one in enumerate(self._grammars):
            if one == grammar:
                self._rows[row] = self._known[grammar].deep_copy()
                self._rows[row].consume_tokens(self._emitted[row])

    def _followed(self) -> list[tuple[int, Any]]:
        return [(row, matcher) for row, matcher in enumerate(self._rows) if matcher is not None]

    def _after(self, row: int, path: tuple[int, ...]) -> tuple[UInt32[np.ndarray, "w"], int]:
        """Returns the allowed and the forced token after drafts of a row; rolls the matcher back to the text."""
        if path not in self._found[row]:
            matcher = self._rows[row]
            taken = 0 if matcher.is_stopped() else matcher.try_consume_tokens(list(path))
            # After a token that is not allowed, or that ends the text, nothing is emitted.
            goes_on = taken == len(path) and not set(path) & set(self._stop_tokens)
            allowed = self._allowed(matcher) if goes_on else np.full_like(self._stops, _ALL)
            self._found[row][path] = allowed, self._must_come(row, matcher, allowed)
            if matcher is not self._rows[row]:
                return self._found[row][path]
            if path and matcher.is_error():  # drafts exceeded its limits, and it cannot roll back
                self._rows[row] = self._known[self._grammars[row]].deep_copy()
                self._rows[row].consume_tokens(self._emitted[row])
            elif taken:
                matcher.rollback(taken)
        return self._found[row][path]

    def _allowed(self, matcher: Any) -> UInt32[np.ndarray, "w"]:
        if matcher.is_error():  # it exceeded its limits: the row ends, with a status
            problem = matcher.get_error().split("\n")[0]  # without the library's state
            warnings.warn(f"a grammar cannot be followed any further: {problem:.300}", stacklevel=2)
            return np.zeros(self._words, np.uint32)
        if matcher.is_stopped():
            return self._stops
        return np.frombuffer(matcher.compute_bitmask(), np.uint32)[: self._words]


def _matcher(
    tokenizer: Tokenizer,
    vocab_size: int,
    stop_tokens: tuple[int, ...],
    taken: Any,
    stops: UInt32[np.ndarray, "w"],
    grammar: Grammar,
) -> Any:
    """Returns what follows a grammar on the host, with its own tables; copies of it share them.

    Raises:
      ValueError: the grammar cannot be read, uses an unsupported feature, or allows no token.
    """
    matcher = needed("llguidance").LLMatcher
    found = matcher(taken, grammar.answer.matcher_source(), log_level=0)
    if found.is_error():
        error = found.get_error()
        if "panic:" in error:
            error = "the library cannot follow it; name no special token such as <|end|>, as stop tokens end it"
        if grammar.kind != "lark":  # without the library's copy of rules that the caller never wrote
            error = error.split("\n   1 | ")[0].split("JSON schema: ")[-1]
        error = re.sub(r"\n *\d+ \| %llguidance .*\s*$", "", error)
        if grammar.kind == "regex":
            error = f"{grammar.source!r:.80}: {error.rsplit('error: ', 1)[-1]}"
        raise ValueError(f"this {grammar.kind} grammar is not supported: {error}")
    first = np.frombuffer(found.compute_bitmask(), np.uint32)[: len(stops)]
    if not np.any(first & ~stops):
        raise ValueError(f"this {grammar.kind} grammar allows no answer that has a token; pass another")
    if (free := grammar.thinking_of(tokenizer, vocab_size)) is not None:
        return Follower(found, free, stop_tokens)
    return found


# Objects that programs may call, by number: another text of the same shapes then compiles nothing.
_BY_NUMBER: weakref.WeakValueDictionary[int, RowMatchers] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def _answer(number: Any, paths: Any) -> Any:
    return _BY_NUMBER[int(number)].after_paths(np.asarray(paths))


def _answer_lead(number: Any, tokens: Any, count: Any) -> Any:
    return _BY_NUMBER[int(number)].lead(np.asarray(tokens), np.asarray(count))


def _with_masks(state: GenerationState, place: int, known: Known) -> GenerationState:
    """Returns the state with the masks of one processor replaced."""
    states = list(state.context.processed)
    states[place] = known
    return dataclasses.replace(state, context=dataclasses.replace(state.context, processed=tuple(states)))


@functools.lru_cache(maxsize=4)
def _ll_tokenizer(
    tokenizer: Tokenizer, vocab_size: int, stop_tokens: tuple[int, ...], named: tuple[int, ...] = ()
) -> tuple[Any, list[bytes]]:
    """Returns the tokenizer for `llguidance`, and the bytes of each token."""
    guidance = needed("llguidance")
    texts = token_texts(tokenizer, vocab_size, named)
    speller = Speller(tokenizer, vocab_size)

    class Texts:
        eos_token_id = stop_tokens[0]
        bos_token_id = tokenizer.bos_token_id
        tokens = texts
        special_token_ids = tuple(index for index, text in enumerate(texts) if not text)

        def __call__(self, text: bytes | str) -> list[int]:
            return speller.spell(text.encode() if isinstance(text, str) else text)

    taken = guidance.LLTokenizer(guidance.TokenizerWrapper(Texts()), n_vocab=vocab_size, eos_token=list(stop_tokens))
    return taken, texts

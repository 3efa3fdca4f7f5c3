"""Has the host find out what a grammar allows: for grammars without a table, in the text interface.

`llguidance` reads them: each row has a matcher, which is led down the drafts and back.

While drafts are drawn the program calls the host at each of them, since a draft's mask follows from those before it.
While the target runs over them the host finds out what may follow the last ones, and the verdict is told all at once.
"""

import dataclasses
import functools
import itertools
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
from jaxspec.grammar.extra import needed
from jaxspec.grammar.language import Grammar
from jaxspec.grammar.table import MOST_FORCED, must_come, token_texts

_ALL, _NOWHERE = np.uint32(0xFFFFFFFF), -2


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Known:
    """Holds what the host has found out for a round.

    Attributes:
      paths: the drafts above each position that it knows of; -1 pads, -2 is no position.
      allowed: a bit a token, at each of them.
      forced: the token that spells what must come there, where only one text can; -1 elsewhere.
      asked: the number of the `RowMatchers` that is called about any other position; `None` if nothing is.
    """

    paths: Int[Array, "b n d"]
    allowed: UInt32[Array, "b n w"]
    forced: Int[Array, "b n"]
    asked: Int[Array, ""] | None = None


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HostMasks(Processor):
    """Excludes what the host has found that a grammar does not allow; `RowMatchers` tells it, round by round.

    Where it was told nothing and has nobody to ask, everything is allowed.

    Attributes:
      nodes: the most drafts of a round.
      depth: the most along one path.
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
        if state.asked is not None:
            shape, types = path.shape[:2], (jnp.uint32, jnp.int32)
            answer = tuple(map(jax.ShapeDtypeStruct, ((*shape, state.allowed.shape[2]), shape), types))
            # One device calls, and with complete arrays.
            found, forced = jax.pure_callback(_answer, answer, state.asked, parts.replicated(path))
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
        if state.asked is None:
            return None
        given = (parts.replicated(tokens), parts.replicated(count))
        answer = (given[0], given[1], jnp.zeros(tokens.shape, jnp.bool_))
        answer = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), answer)
        led = jax.pure_callback(_answer_lead, answer, state.asked, *given)
        return parts.replicated(led[0]), parts.replicated(led[1]), parts.replicated(led[2])

    def _wide(self, path: Int[Array, "b n d"]) -> Int[Array, "b n d2"]:
        missing = max(self.depth - path.shape[2], 0)
        return jnp.pad(path, ((0, 0), (0, 0), (0, missing)), constant_values=-1)[..., : self.depth]

    def _is_at(self, state: Known, path: Int[Array, "b n d"]) -> Bool[Array, "b n m"]:
        """Returns which of the known positions each position is."""
        wide = self._wide(path)
        longer = jnp.any(path[..., self.depth :] >= 0, axis=2)[..., None]
        return jnp.all(wide[:, :, None] == state.paths[:, None], axis=3) & ~longer


class RowMatchers:
    """Follows a grammar in each row of a batch, on the host; a row of `None` is free.

    Raises:
      ValueError: a grammar cannot be read, or has what is not supported; the text says what.
    """

    def __init__(
        self,
        grammars: Sequence[Grammar | None],
        tokenizer: Tokenizer,
        vocab_size: int,
        stop_tokens: tuple[int, ...],
    ):
        matcher = needed("llguidance").LLMatcher
        taken, self._texts = _ll_tokenizer(tokenizer, vocab_size, stop_tokens)
        known: dict[Any, Any] = {}
        for grammar in dict.fromkeys(grammars):
            if grammar is None:
                continue
            known[grammar] = matcher(taken, grammar.matcher_source(), log_level=0)
            if known[grammar].is_error():
                raise ValueError(f"this {grammar.kind} grammar is not supported: {known[grammar].get_error()}")
        self._known, self._grammars = known, list(grammars)
        self._emitted: list[list[int]] = [[] for _ in grammars]
        self._rows: list[Any] = [None if grammar is None else known[grammar].deep_copy() for grammar in grammars]
        self._words = (vocab_size + 31) // 32
        # What is known of the positions behind each row's text, by the tokens between.
        self._found: list[dict[tuple[int, ...], tuple[UInt32[np.ndarray, "w"], int]]] = [{} for _ in grammars]
        self._number = next(_NUMBERS)
        _BY_NUMBER[self._number] = self
        self._stop_tokens = stop_tokens
        self._stops = np.zeros(self._words, np.uint32)
        for token in stop_tokens:
            self._stops[token // 32] |= np.uint32(1 << token % 32)

    def after_text(self, state: GenerationState, place: int) -> GenerationState:
        """Returns the state whose masks ask about drafts behind each row's text."""
        return _told(state, place, dataclasses.replace(state.processed[place], asked=np.int32(self._number)))

    def after_drafts(
        self, masks: HostMasks, state: GenerationState, place: int, tokens: Any, valid: Any, parents: Any
    ) -> GenerationState:
        """Returns the state with what may come after each draft."""
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
        told: Any = (paths, allowed, forced)  # as they are: the next program's call moves them
        return _told(state, place, Known(*told))

    def after_paths(
        self, paths: Int[np.ndarray, "b n d"]
    ) -> tuple[UInt32[np.ndarray, "b n w"], Int[np.ndarray, "b n"]]:
        """Returns what may come after drafts, the oldest first, and what must; -1 pads on the right."""
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
        """Returns guesses as far as they may come, as `Processor.lead` does."""
        led, lengths, forced = tokens.copy(), count.copy(), np.zeros(tokens.shape, np.bool_)
        for row, _ in self._followed():
            lengths[row] = self._lead(row, led[row], int(count[row]), forced[row])
        return led, lengths, forced

    def commit(self, tokens: np.ndarray, count: np.ndarray) -> None:
        """Takes in what a round has emitted."""
        self._found = [{} for _ in self._rows]
        for row, matcher in self._followed():
            if count[row] and not matcher.is_stopped():
                self._emitted[row] += tokens[row, : count[row]].tolist()
                matcher.consume_tokens(tokens[row, : count[row]].tolist())

    def _lead(self, row: int, tokens: Int[np.ndarray, "k"], guessed: int, forced: Bool[np.ndarray, "k"]) -> int:
        """Writes what must come into a guess, and returns how far it goes."""
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

    def _must_come(self, matcher: Any, allowed: UInt32[np.ndarray, "w"]) -> int:
        """Returns the token that spells what must come; -1 where several texts can follow."""
        words = np.flatnonzero(allowed)
        if len(words) > MOST_FORCED:
            return -1
        found = [32 * int(word) + bit for word in words for bit in range(32) if int(allowed[word]) >> bit & 1]
        if any(token in self._stop_tokens for token in found):
            return found[0] if len(found) == 1 else -1
        token = must_come(found, self._texts)
        return token if token >= 0 and matcher.compute_ff_bytes().startswith(self._texts[token]) else -1

    def _followed(self) -> list[tuple[int, Any]]:
        return [(row, matcher) for row, matcher in enumerate(self._rows) if matcher is not None]

    def _after(self, row: int, path: tuple[int, ...]) -> tuple[UInt32[np.ndarray, "w"], int]:
        """Returns what may come after drafts of a row, and what must; the matcher stands behind the text again."""
        if path not in self._found[row]:
            matcher = self._rows[row]
            taken = 0 if matcher.is_stopped() else matcher.try_consume_tokens(list(path))
            # Behind a token that is not allowed, or that ends the text, nothing is emitted.
            goes_on = taken == len(path) and not set(path) & set(self._stop_tokens)
            allowed = self._allowed(matcher) if goes_on else np.full_like(self._stops, _ALL)
            self._found[row][path] = allowed, self._must_come(matcher, allowed)
            if path and matcher.is_error():  # drafts went beyond its limits, and it does not come back
                self._rows[row] = self._known[self._grammars[row]].deep_copy()
                self._rows[row].consume_tokens(self._emitted[row])
            elif taken:
                matcher.rollback(taken)
        return self._found[row][path]

    def _allowed(self, matcher: Any) -> UInt32[np.ndarray, "w"]:
        if matcher.is_error():  # beyond its limits: the row ends, with a status
            warnings.warn(f"a grammar cannot be followed any further: {matcher.get_error():.300}", stacklevel=2)
            return np.zeros(self._words, np.uint32)
        if matcher.is_stopped():
            return self._stops
        return np.frombuffer(matcher.compute_bitmask(), np.uint32)[: self._words]


# Those that a program may call, by the number that it is given: another text of the same shapes compiles nothing.
_BY_NUMBER: weakref.WeakValueDictionary[int, RowMatchers] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def _answer(number: Any, paths: Any) -> Any:
    return _BY_NUMBER[int(number)].after_paths(np.asarray(paths))


def _answer_lead(number: Any, tokens: Any, count: Any) -> Any:
    return _BY_NUMBER[int(number)].lead(np.asarray(tokens), np.asarray(count))


def _told(state: GenerationState, place: int, known: Known) -> GenerationState:
    """Returns the state with what is known in the place of a processor."""
    states = list(state.processed)
    states[place] = known
    return dataclasses.replace(state, processed=tuple(states))


@functools.lru_cache(maxsize=4)
def _ll_tokenizer(tokenizer: Tokenizer, vocab_size: int, stop_tokens: tuple[int, ...]) -> tuple[Any, list[bytes]]:
    """Returns the tokenizer as `llguidance` takes it, and the bytes of each token."""
    guidance = needed("llguidance")
    texts = token_texts(tokenizer, vocab_size)
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

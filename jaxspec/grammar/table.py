"""Defines `GrammarTable`: the automaton of a regular grammar over tokens, as arrays in the graph."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt32

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.grammar.extra import needed
from jaxspec.grammar.language import Grammar
from jaxspec.processors import ids

# Of a state with more tokens none is looked for that must come.
_FEW = 64


class TableTooLargeError(ValueError):
    """Reports a grammar whose table is larger than what was allowed, or that is not known to have one.

    Example:
        >>> grammar = jaxspec.grammar.Grammar.regex("[a-z]{20}")
        >>> try:
        ...     table = grammar.table(target.tokenizer, target.vocab_size, max_bytes=100)
        ... except jaxspec.grammar.TableTooLargeError as error:
        ...     print(str(error).startswith("the grammar's 21 states"))
        True
    """


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GrammarTable(Processor):
    """Excludes the tokens that a grammar does not allow. Make one by `Grammar.table`.

    Its last state stands for texts that have left the grammar: they are drafts that are refused, and what would follow
    them is never emitted, so everything is allowed there.

    Attributes:
      allowed: a bit a token.
      following: the state after each class of tokens.
      classes: the class of each token.
      final: whether a text may end here: by the stop tokens of the call, and by no others.
      forced: the token that spells what must come, where only one text can; -1 elsewhere.
      start: the first state.

    Numbers of states and classes are powers of two, so that most grammars of one size share a program.

    Example:
        >>> table = jaxspec.grammar.Grammar.regex("[0-9]+").table(target.tokenizer, target.vocab_size)
        >>> policy = jaxspec.Sampling(temperature=0.8, processors=(table,))
        >>> table.final.tolist()  # before the first digit a text may not end
        [False, True, False, False]
    """

    allowed: UInt32[Array, "s w"]
    following: Int[Array, "s c"]
    classes: Int[Array, "v"]
    final: Bool[Array, "s"]
    forced: Int[Array, "s"]
    start: Int[Array, ""]

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return sum(x.nbytes for x in (self.allowed, self.following, self.classes, self.final, self.forced))

    def check(self, batch: int, vocab_size: int) -> None:
        if self.classes.shape[0] != vocab_size:
            raise ValueError(
                f"the grammar's table is over {self.classes.shape[0]} tokens, the target's logits over {vocab_size}; "
                "make it by grammar.table(tokenizer, target.vocab_size)"
            )

    def init(self, prompt: Prompt) -> tuple[Int[Array, "b"], Bool[Array, "b v"]]:
        state = jnp.broadcast_to(jnp.asarray(self.start), prompt.length.shape)
        return state, ids.listed(prompt.stop_tokens, prompt.vocab_size)

    def __call__(self, logits, state, path) -> Float[Array, "b n v"]:
        at, stops = self._after(state[0], path), state[1]
        bits = jnp.arange(32, dtype=jnp.uint32)[None, None, None]
        there = (jnp.asarray(self.allowed)[at][..., None] >> bits) & jnp.uint32(1)
        there = there.reshape(*at.shape, -1)[..., : logits.shape[2]] > 0
        # A stop token ends a text, also one that the grammar has within it.
        there = jnp.where(stops[:, None], jnp.asarray(self.final)[at][..., None], there)
        return jnp.where(there, logits, -jnp.inf)

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]):
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return self._after(state[0], jnp.where(new, tokens, -1)[:, None])[:, 0], state[1]

    def next_forced(self, state, path: Int[Array, "b n d"]) -> Int[Array, "b n"]:
        at, stops = self._after(state[0], path), state[1]
        token = jnp.asarray(self.forced)[at]
        # At the end of all texts only a stop token is left.
        end = jnp.asarray(self.final)[at] & ~jnp.any(jnp.asarray(self.allowed)[at] > 0, axis=-1)
        stop = jnp.where(jnp.any(stops, axis=1), jnp.argmax(stops, axis=1).astype(jnp.int32), -1)
        return jnp.where(end, stop[:, None], token)

    def allows(self, state, path: Int[Array, "b n d"], tokens: Int[Array, "b n"]) -> Bool[Array, "b n"]:
        at, stops = self._after(state[0], path), state[1]
        is_stop = jnp.take_along_axis(stops, tokens, axis=1)
        left = self._step(at, tokens) == self.final.shape[0] - 1
        return jnp.where(is_stop, jnp.asarray(self.final)[at], ~left)

    def _step(self, state: Int[Array, "*b"], token: Int[Array, "*b"]) -> Int[Array, "*b"]:
        return jnp.asarray(self.following)[state, jnp.asarray(self.classes)[token]].astype(jnp.int32)

    def _after(self, state: Int[Array, "b"], path: Int[Array, "b n d"]) -> Int[Array, "b n"]:
        """Returns the state after drafts; -1 is none."""
        states = jnp.broadcast_to(state[:, None], path.shape[:2])
        if path.shape[2] == 0:
            return states

        def step(states, token):
            return jnp.where(token < 0, states, self._step(states, jnp.maximum(token, 0))), None

        return jax.lax.scan(step, states, jnp.moveaxis(path, 2, 0))[0]


def make_table(grammar: Grammar, tokenizer: Tokenizer, vocab_size: int, max_bytes: int) -> GrammarTable:
    """Makes the table of a grammar, as `Grammar.table` does."""
    pattern = grammar.pattern
    if pattern is None:
        raise TableTooLargeError(
            f"this {grammar.kind} grammar is not known to be regular, so that it has no table; use it in the text "
            "interface, where the host works out what may come"
        )
    tokens = token_texts(tokenizer, vocab_size)
    states, start, final = _automaton(pattern, tokens, tokenizer)
    count, words = _power_of_two(len(states) + 1), (vocab_size + 31) // 32
    if count * words * 4 > max_bytes:
        raise TableTooLargeError(
            f"the grammar's {len(states)} states times {vocab_size} tokens take {count * words * 4:,} bytes, more than "
            f"max_bytes={max_bytes:,}; pass more, or use it in the text interface"
        )
    if not any(states) and not final:
        raise ValueError(f"no text of this tokenizer can match the grammar {grammar.source!r:.120}")
    # Small integers: the whole of it is there once, to find the classes.
    following = np.full((count, vocab_size), count - 1, np.int16 if count < 2**15 else np.int32)
    for state, found in enumerate(states):
        following[state, list(found)] = list(found.values())
    there = np.zeros((count, words * 32), np.uint8)
    there[:, :vocab_size] = following != count - 1
    there[len(states) :] = 1
    allowed = np.packbits(there, axis=1, bitorder="little").view("<u4")
    representatives, classes = _classes(following)
    ends = np.zeros(count, bool)
    ends[list(final)] = True
    forced = [-1 if ends[state] else _must_come(found, tokens) for state, found in enumerate(states)]
    return GrammarTable(
        jnp.asarray(allowed),
        jnp.asarray(_widened(following[:, representatives].astype(np.int32))),
        jnp.asarray(classes),
        jnp.asarray(ends),
        jnp.asarray(forced + [-1] * (count - len(states)), jnp.int32),
        jnp.asarray(start, jnp.int32),
    )


def token_texts(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Returns the bytes of each token; empty for special ones, which no grammar allows, and for padding."""
    count = min(tokenizer.vocab_size, vocab_size)
    texts = [b"" if tokenizer.is_special(index) else tokenizer.token_bytes(index) for index in range(count)]
    return texts + [b""] * (vocab_size - count)


def _automaton(pattern: str, tokens: list[bytes], tokenizer: Tokenizer) -> tuple[list[dict[int, int]], int, set[int]]:
    """Returns the tokens and states that follow each state, the first state, and those where a text may end."""
    outlines = needed("outlines_core")
    by_text: dict[bytes, list[int]] = {}
    for index, text in enumerate(tokens):
        if text:
            by_text.setdefault(text, []).append(index)
    # One that no text has: the calls' own stop tokens end a text.
    end = len(tokens)
    try:
        # To the end: else an alternative that is the beginning of a later one would hide that.
        index = outlines.Index(rf"(?:{pattern})\z", outlines.Vocabulary(end, by_text))
    except ValueError as error:
        raise ValueError(
            f"the regular expression {pattern!r:.120} has no automaton over these tokens: {error}"
        ) from None
    edges: dict[int, dict[int, int]] = index.get_transitions()
    final = set(index.get_final_states())
    names = {name: place for place, name in enumerate(sorted({index.get_initial_state(), *edges, *final}))}
    states: list[dict[int, int]] = [{} for _ in names]
    for name, found in edges.items():
        states[names[name]] = {token: names[to] for token, to in found.items() if token != end and to in names}
    return states, names[index.get_initial_state()], {names[name] for name in final}


def _classes(following: Int[np.ndarray, "s v"]) -> tuple[Int[np.ndarray, "c"], Int[np.ndarray, "v"]]:
    """Returns one token of each class, and each token's class: those of one lead from any state to the same."""
    random = np.random.default_rng(0).integers(1, 2**62, size=following.shape[0], dtype=np.int64)
    with np.errstate(over="ignore"):
        hashes = (following.astype(np.int64) * random[:, None]).sum(axis=0)
    _, first, classes = np.unique(hashes, return_index=True, return_inverse=True)
    if not np.array_equal(following[:, first][:, classes], following):  # two classes share a hash
        _, first, classes = np.unique(following, axis=1, return_index=True, return_inverse=True)
    return first, classes.reshape(-1).astype(np.int32)


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _widened(following: Int[np.ndarray, "s c"]) -> Int[np.ndarray, "s c2"]:
    """Returns the table with classes that no token is of."""
    return np.pad(following, ((0, 0), (0, _power_of_two(following.shape[1]) - following.shape[1])))


def _must_come(found: dict[int, int], tokens: list[bytes]) -> int:
    """Returns the longest token, if the others are beginnings of it; else -1."""
    if not 0 < len(found) <= _FEW:
        return -1
    longest = max(found, key=lambda token: len(tokens[token]))
    return longest if all(tokens[longest].startswith(tokens[token]) for token in found) else -1

"""Defines `ThinkingBudget`, which ends a model's thinking after a number of tokens."""

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import processing, validate
from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.grammar.thinking import Thinking

_State = tuple[Int[Array, "b"], Int[Array, "b"]]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ThinkingBudget(Processor):
    """Ends a text's thinking after a number of tokens: then the tokens of its end must come. Create one with `of`.

    Attributes:
      following: the next state, by class of tokens and state: the thinking's own, then that after its end, and last
        that before its beginning.
      classes: the class of each token.
      end: the tokens that end the thinking.
      budget: the number of tokens within the thinking, int32.
      begins: the first state, int32.

    Example:
        >>> budget = jaxspec.grammar.ThinkingBudget.of(target.tokenizer, target.vocab_size, 3, end="sea")
        >>> decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
        >>> "sea" in decoder.generate("the", max_new_tokens=8, stop_tokens=(), processors=[budget]).text
        True
    """

    following: Int[Array, "c s"]
    classes: Int[Array, "v"]
    end: Int[Array, "n"]
    budget: Int[Array, ""]
    begins: Int[Array, ""]

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, vocab_size: int, budget: int, *, end: str = "</think>", start: str | None = None
    ) -> Self:
        """Makes a processor from texts; equal arguments have the same result, so that requests share a program.

        Args:
          tokenizer: the target's tokenizer.
          vocab_size: the number of tokens in the target's logits.
          budget: the number of tokens after which the thinking ends.
          end: the text that ends the thinking.
          start: the token with which a model may begin to think; `None` if the prompt has opened the thinking.

        Raises:
          TypeError, ValueError: an argument has the wrong type, a number is out of range, a text is empty, or `start`
            is not one token.
        """
        validate.instance("tokenizer", tokenizer, Tokenizer, "pass target.tokenizer")
        validate.counts("ThinkingBudget.of", vocab_size=vocab_size)
        validate.integers("ThinkingBudget.of", budget=(budget, 0, 2**31 - 1))
        if not validate.text("end", end):
            raise ValueError('end must not be empty; pass "</think>", say')
        if start is not None:
            validate.text("start", start)
        return _made(cls, tokenizer, int(vocab_size), int(budget), start, end)

    def check(self, batch: int, vocab_size: int) -> None:
        del batch
        if self.classes.shape[0] != vocab_size:
            raise ValueError(
                f"ThinkingBudget is over {self.classes.shape[0]} tokens, the target's logits over {vocab_size}; make "
                "it with ThinkingBudget.of(tokenizer, target.vocab_size, budget)"
            )

    def init(self, prompt: Prompt) -> _State:
        rows = prompt.length.shape
        return jnp.broadcast_to(self.begins, rows).astype(jnp.int32), jnp.zeros(rows, jnp.int32)

    def __call__(self, logits, state: _State, path) -> Float[Array, "b n v"]:
        return processing.leave_one(logits, self.next_forced(state, path))

    def commit(self, state: _State, tokens: Int[Array, "b m"], count: Int[Array, "b"]) -> _State:
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        at, spent = self._after(state, jnp.where(new, tokens, -1)[:, None])
        return at[:, 0], spent[:, 0]

    def next_forced(self, state: _State, path: Int[Array, "b n d"]) -> Int[Array, "b n"]:
        at, spent = self._after(state, path)
        over = spent - self.budget
        token = jnp.asarray(self.end)[jnp.clip(over, 0, self.end.shape[0] - 1)]
        return jnp.where(self._thinks(at) & (over >= 0), token, -1)

    def allows(self, state: _State, path: Int[Array, "b n d"], tokens: Int[Array, "b n"]) -> Bool[Array, "b n"]:
        forced = self.next_forced(state, path)
        return (forced < 0) | (forced == tokens)

    def _thinks(self, state: Int[Array, "*b"]) -> Bool[Array, "*b"]:
        return state < self.following.shape[1] - 2

    def _after(self, state: _State, path: Int[Array, "b n d"]) -> tuple[Int[Array, "b n"], Int[Array, "b n"]]:
        """Returns the states, and the numbers of tokens within the thinking, after drafts, padded with -1."""
        begin, spent = (jnp.broadcast_to(x[:, None], path.shape[:2]) for x in state)
        if path.shape[2] == 0:
            return begin, spent

        def step(carry, token):
            at, spent = carry
            to = jnp.asarray(self.following)[jnp.asarray(self.classes)[jnp.maximum(token, 0)], at].astype(jnp.int32)
            counts = (self._thinks(at) & (token >= 0)).astype(jnp.int32)
            return (jnp.where(token < 0, at, to), spent + counts), None

        (at, spent), _ = jax.lax.scan(step, (begin, spent), jnp.moveaxis(path, 2, 0))
        return at, spent


@functools.lru_cache(maxsize=64)
def _made(cls: Any, tokenizer: Tokenizer, vocab_size: int, budget: int, start: str | None, end: str) -> Any:
    thinking = Thinking.of(tokenizer, vocab_size, start, end)
    is_start = np.arange(vocab_size) == (-1 if start is None else thinking.start)
    _, first, classes = np.unique(
        np.stack([thinking.classes, is_start]), axis=1, return_index=True, return_inverse=True
    )
    over, steps = thinking.over, thinking.steps[thinking.classes[first]]
    following = np.full((len(first), over + 2), over, np.int32)
    following[:, :over] = np.minimum(steps[:, :over], over)  # a token with more than the end ends it too
    following[:, over + 1] = np.where(is_start[first], 0, over)
    ids = tokenizer.encode(end, add_special_tokens=False)
    return cls(
        jnp.asarray(following),
        jnp.asarray(classes.reshape(-1).astype(np.int32)),
        jnp.asarray(ids, jnp.int32),
        jnp.asarray(budget, jnp.int32),
        jnp.asarray(0 if start is None else over + 1, jnp.int32),
    )

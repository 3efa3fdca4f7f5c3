"""Generates answers with a model: the target for conversations, and a draft for on-policy data.

Conversations of similar length are decoded together. A row's samples depend only on the seed, the conversation's index
and the position, and not on the other conversations in its batch.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.model import Model
from jaxspec.core.sampling import Greedy, Sampling
from jaxspec.decoding.generate import generate
from jaxspec.training.dataset import Batch
from jaxspec.training.prompts import Conversation

_NARROWEST = 64


@dataclasses.dataclass(frozen=True)
class AnswerOptions:
    """Defines how the target answers.

    Attributes:
      max_new_tokens: the largest number of tokens of one answer; with 0, only each first prompt is kept, to be learned
        from as a text.
      temperature: the sampling temperature; 0 is greedy decoding.
      seed: the seed of sampling, in [0, 2^32).
      batch: the number of rows to decode together.
      max_length: the largest number of tokens of a conversation; a turn that may exceed it is left out, and so are
        all later ones.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    batch: int = 32
    max_length: int = 1024

    def check(self, target: Model) -> None:
        """Checks the options against each other and the target.

        Raises:
          ValueError: an option is out of range.
        """
        for name, least in (("max_new_tokens", 0), ("batch", 1), ("max_length", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2^32), got {self.seed}")
        if self.max_length <= self.max_new_tokens:
            raise ValueError(
                f"max_length {self.max_length} leaves no room for a prompt in addition to max_new_tokens "
                f"{self.max_new_tokens}; pass a larger max_length or a smaller max_new_tokens"
            )
        if target.context_length is not None and self.max_length > target.context_length:
            raise ValueError(
                f"max_length {self.max_length} is more than the target's context of {target.context_length} tokens; "
                "pass a smaller max_length"
            )


@dataclasses.dataclass
class Dialogue:
    """Holds a conversation as it is generated.

    Attributes:
      index: its index in the prompt files, which its keys are derived from.
      conversation: the given turns.
      tokens: the text so far.
      written: for each token, whether it is part of an answer.
      answers: the answers so far, as text.
      ended: whether a turn did not fit.
    """

    index: int
    conversation: Conversation
    tokens: list[int] = dataclasses.field(default_factory=list)
    written: list[bool] = dataclasses.field(default_factory=list)
    answers: list[str] = dataclasses.field(default_factory=list)
    ended: bool = False

    def messages(self) -> list[Mapping[str, Any]]:
        """Returns all messages up to the next turn, for a chat template."""
        return self.conversation.messages(self.answers)

    def extend(self, prompt: list[int], answer: list[int], text: str) -> None:
        """Adds an answer after its prompt, which repeats the conversation so far.

        The template may tokenize an earlier answer differently than the target did, or strip its white space. From
        there to the end of the prompt, no token counts as written by the target.
        """
        pairs = enumerate(zip(self.tokens, prompt, strict=False))
        same = next((place for place, (a, b) in pairs if a != b), min(len(self.tokens), len(prompt)))
        self.written = self.written[:same] + [False] * (len(prompt) - same) + [True] * len(answer)
        self.tokens = prompt + answer
        self.answers.append(text)


def answer_all(
    target: Model,
    tokenizer: Tokenizer,
    conversations: Sequence[tuple[int, Conversation]],
    options: AnswerOptions,
    report: Callable[[int, int], None] = lambda answers, tokens: None,
) -> list[Dialogue]:
    """Answers every turn of every conversation, one turn after the other.

    Args:
      target: the model that answers.
      tokenizer: its tokenizer, with a chat template.
      conversations: each conversation with its index, which its keys are derived from.
      options: how to answer.
      report: called after each batch with the number of its answers and of their tokens.

    Returns:
      One dialogue for each conversation, in order; it has no tokens if its first turn did not fit.

    Raises:
      ValueError: the chat template rejects a conversation.
      FloatingPointError: the target's logits were not finite.
    """
    dialogues = [Dialogue(index, conversation) for index, conversation in conversations]
    for turn in range(max((len(dialogue.conversation.turns) for dialogue in dialogues), default=0)):
        waiting = []
        for dialogue in dialogues:
            if dialogue.ended or turn >= len(dialogue.conversation.turns):
                continue
            prompt = tokenizer.apply_chat_template(dialogue.messages())
            if options.max_new_tokens == 0:
                dialogue.ended = True
                if len(prompt) <= options.max_length:
                    dialogue.tokens, dialogue.written = prompt, [False] * len(prompt)
            elif turn < len(dialogue.conversation.answers):
                _use_given(tokenizer, dialogue, prompt, options)
            elif len(prompt) + options.max_new_tokens > options.max_length:
                dialogue.ended = True
            else:
                waiting.append((dialogue, prompt))
        waiting.sort(key=lambda row: (len(row[1]), row[0].index))  # rows of similar length, shortest first
        for start in range(0, len(waiting), options.batch):
            rows = waiting[start : start + options.batch]
            answers = _generate(target, tokenizer, rows, options)
            for (dialogue, prompt), answer in zip(rows, answers, strict=True):
                dialogue.extend(prompt, answer, tokenizer.decode(answer))
            report(len(rows), sum(map(len, answers)))
    return dialogues


def _use_given(tokenizer: Tokenizer, dialogue: Dialogue, prompt: list[int], options: AnswerOptions) -> None:
    """Adds the given answer of a conversation, and the stop token that the template puts after it."""
    turn = len(dialogue.answers)
    text = dialogue.conversation.answers[turn]
    messages = [*dialogue.messages(), dialogue.conversation.answer(turn)]
    text_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    if text_ids[: len(prompt)] != prompt:
        raise ValueError(
            "the chat template does not put an answer after its prompt, so given answers cannot be found in it; "
            "leave out answers, so that the target writes them"
        )
    answer = text_ids[len(prompt) :]
    end = next((place for place, token in enumerate(answer) if token in tokenizer.eos_token_ids), len(answer) - 1)
    if len(prompt) + end + 1 > options.max_length:
        dialogue.ended = True
    else:
        dialogue.extend(prompt, answer[: end + 1], text)


def _generate(
    target: Model, tokenizer: Tokenizer, rows: list[tuple[Dialogue, list[int]]], options: AnswerOptions
) -> list[list[int]]:
    """Decodes the new tokens of each row, including the stop token.

    The arrays have `options.batch` rows and one of a few widths, so that few programs are compiled. Rows that only fill
    up the batch have a budget of 0 tokens.
    """
    longest = max(len(prompt) for _, prompt in rows)
    prompts = np.zeros((options.batch, _width(longest)), np.int32)
    lengths, budgets = np.ones(options.batch, np.int32), np.zeros(options.batch, np.int32)
    indices = np.zeros(options.batch, np.uint32)
    for row, (dialogue, prompt) in enumerate(rows):
        prompts[row, : len(prompt)] = prompt
        lengths[row], budgets[row], indices[row] = len(prompt), options.max_new_tokens, dialogue.index
    generation = generate(
        target,
        None,
        jnp.asarray(prompts),
        prompt_length=jnp.asarray(lengths),
        key=conversation_keys(options.seed, indices),
        sampling=Greedy() if options.temperature == 0 else Sampling(options.temperature),
        max_new_tokens=jnp.asarray(budgets),
        stop_tokens=tokenizer.eos_token_ids,
    )
    generation.raise_for_status()
    tokens, count = np.asarray(generation.tokens), np.asarray(generation.length)
    return [tokens[row, : count[row]].tolist() for row in range(len(rows))]


def conversation_keys(seed: int, indices: np.ndarray) -> jax.Array:
    """Returns one key for each conversation. Its turns share it, as sampling also folds in the position."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(seed, impl="threefry2x32"), indices)


def _width(length: int) -> int:
    """Returns the smallest of a few widths that holds `length` tokens."""
    width = _NARROWEST
    while width < length:
        width *= 2
    return width


def rewritten(draft: Model, batch: Batch, key: Array, ends: tuple[int, ...]) -> Batch:
    """Replaces each conversation's first answer by the draft's, at temperature 1, to learn where it goes wrong.

    The new answer is at most as long as the text that it replaces. Rows without an answer, or with nothing before it,
    are unchanged.

    Args:
      draft: the model that writes.
      batch: conversations.
      key: the key of sampling.
      ends: tokens that end an answer.

    Returns:
      The batch with its answers replaced.

    References:
      DistillSpec: Zhou et al. (2023), arXiv:2310.08461, section 3.
      GKD: Agarwal et al. (2023), arXiv:2306.13649.
    """
    tokens, length, answer = (np.asarray(x) for x in (batch.tokens, batch.length, batch.answer))
    first = np.argmax(answer, axis=1)
    budget = np.where(first > 0, length - first, 0).astype(np.int32)
    result = generate(
        draft,
        None,
        jnp.asarray(tokens),
        prompt_length=jnp.asarray(np.maximum(first, 1), jnp.int32),
        key=key,
        sampling=Sampling(temperature=1.0),
        max_new_tokens=jnp.asarray(budget),
        stop_tokens=ends,
        capacity=2 * tokens.shape[1],
    )
    written, count = np.asarray(result.tokens), np.asarray(result.length)
    place = np.arange(tokens.shape[1])[None] - first[:, None]
    fresh = (place >= 0) & (place < count[:, None])
    kept = np.where((budget == 0)[:, None], answer, fresh)
    moved = np.take_along_axis(written, np.clip(place, 0, written.shape[1] - 1), axis=1)
    length = np.where(budget == 0, length, first + count).astype(np.int32)
    text = np.where(fresh, moved, np.where(np.arange(tokens.shape[1])[None] < length[:, None], tokens, 0))
    return Batch(jnp.asarray(text, jnp.int32), jnp.asarray(length), jnp.asarray(kept))

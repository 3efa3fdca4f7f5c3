"""A group's conversations, turn by turn, whoever answers them; and the program that answers."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import jaxspec
from jaxspec.bench.groups import Group, is_asked, prompt_of
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.state import Generation
from jaxspec.training.prompts import Conversation

# Token ids by row.
Prompts = dict[int, list[int]]
Answers = dict[int, list[int]]


def dialogue(
    tokenizer: Tokenizer,
    questions: Sequence[Conversation],
    group: Group,
    widest: int | None,
    answer: Callable[[int, Prompts], tuple[dict[str, Any], Answers]],
) -> Iterator[dict[str, Any]]:
    """One record for each turn of a group's conversations.

    Args:
      tokenizer: the target's.
      questions: those of the run, which the group's rows are members of.
      group: what is asked together.
      widest: the most tokens of a prompt. A row whose text is longer is left out with all its later turns, which the
        record says; `None` is no bound.
      answer: given a turn and its prompts, what to record of it, and the answers that later turns follow.
    """
    rows = [questions[index] for index in group.members]
    said: list[dict[int, str]] = [{} for _ in rows]
    gone: set[int] = set()
    for turn in range(max(len(row.turns) for row in rows)):
        asked = [row for row, one in enumerate(rows) if is_asked(one, turn) and row not in gone]
        prompts = {row: prompt_of(tokenizer, rows[row], turn, said[row]) for row in asked}
        left_out = {row for row in asked if widest is not None and len(prompts[row]) > widest}
        gone |= left_out
        live = {row: prompts[row] for row in asked if row not in left_out}
        if not asked:
            continue
        record = {
            "task": group.task,
            "turn": turn,
            "questions": [group.members[row] for row in live],
            "left_out": [group.members[row] for row in sorted(left_out)],
            "prompt_tokens": [len(prompt) for prompt in live.values()],
            "cases": {},
        }
        if live:
            record["cases"], answers = answer(turn, live)
            for row, tokens in answers.items():
                said[row][turn] = tokenizer.decode(tokens)
        yield record


def turn_key(seed: int, group: Group, turn: int) -> jax.Array:
    """Of the draws of a group's turn."""
    return jax.random.fold_in(jax.random.key(seed), 1000 * turn + group.members[0])


@functools.partial(jax.jit, static_argnames="new_tokens")
def generate(target, drafter, tokens, length, budget, key, policy, verifier=None, *, new_tokens: int) -> Generation:
    """One program for every budget up to `new_tokens`: 0 is the prompt alone."""
    return jaxspec.generate(
        target,
        drafter,
        tokens,
        prompt_length=length,
        key=key,
        sampling=policy,
        verifier=verifier,
        max_new_tokens=budget,
        stop_tokens=target.tokenizer.eos_token_ids,
        capacity=tokens.shape[1] + new_tokens,
    )


def counts_of(result: Generation, live: Sequence[int]) -> dict[str, list[int]]:
    """New tokens, rounds and drafts of some rows, for JSON; by position in the draft all rows together.

    Raises:
      FloatingPointError: the target's logits were not finite.
    """
    result.raise_for_status()
    rows = list(live)
    stats = jax.device_get(result.stats)
    of_rows = {name: getattr(stats, name)[rows].tolist() for name in ("rounds", "drafted", "accepted")}
    of_places = {name: getattr(stats, name)[rows].sum(0).tolist() for name in ("drafted_at", "accepted_at")}
    return {"tokens": np.asarray(result.length)[rows].tolist(), **of_rows, **of_places}


def texts_of(result: Generation, live: Sequence[int]) -> dict[str, list[Any]]:
    """Token ids of some rows, and what the target thinks of all of a row's together, for JSON."""
    log_probs = np.asarray(result.total_log_prob())
    return {"ids": list(tokens_of(result, live).values()), "log_probs": log_probs[list(live)].tolist()}


def tokens_of(result: Generation, live: Sequence[int]) -> Answers:
    """The new tokens of some rows."""
    tokens, length = jax.device_get((result.tokens, result.length))
    return {row: tokens[row, : length[row]].tolist() for row in live}

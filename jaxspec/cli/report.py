"""Prints what is said about a generation besides its text."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from rich.text import Text

from jaxspec.drafters.base import Drafter
from jaxspec.named import VERIFIERS
from jaxspec.text.comparison import Comparison, Difference
from jaxspec.text.result import TextResult

_HEADER_WIDTH = 60
_SEPARATOR = " · "


def header(row: int, prompt: str) -> str:
    """Returns a line that names a prompt of a batch."""
    line = " ".join(prompt.split())
    return f"[{row + 1}] {line if len(line) <= _HEADER_WIDTH else line[: _HEADER_WIDTH - 3] + '...'}"


def vocabulary_line(drafter: Drafter) -> Text | None:
    """Returns a line about what a draft of another tokenizer can guess; `None` for other drafters."""
    if (found := drafter.model_part.shared_tokens) is None:
        return None
    shared, size = found
    line = f"the draft has another tokenizer: it guesses the {shared:,} of {size:,} tokens that both have"
    return Text(f"{line} ({shared / size:.0%})", style="dim")


def summary_line(results: list[TextResult], *, draft: str | None, drafts: str | None) -> Text:
    """Returns the speed and the acceptance of all prompts together.

    Args:
      results: a result a prompt.
      draft: the drafter's name; `None` for plain decoding.
      drafts: how many tokens are drafted a round, in words; `None` for plain decoding.
    """
    stats = jax.tree.map(lambda *rows: np.concatenate(rows), *(result.stats for result in results))
    parts = [
        f"{sum(len(result.token_ids) for result in results)} tokens",
        f"{results[0].tokens_per_second:.1f} tokens/s",
    ]
    if draft is not None:
        parts.append(f"draft {draft}")
    if drafts is not None:
        parts.append(f"k {drafts}")
        parts.append(f"mean acceptance length {stats.mean_acceptance_length():.2f}")
        parts.append(f"acceptance rate {stats.acceptance_rate():.1%}")
    if results[0].seed is not None:
        parts.append(f"seed {results[0].seed}")
    return Text(_SEPARATOR.join(parts), style="dim")


def comparison_lines(comparison: Comparison, *, same_tokens: bool) -> Iterator[Text]:
    """Yields both speeds, their ratio, and whether the tokens are the same.

    Args:
      comparison: of speculative with plain decoding.
      same_tokens: whether the verifier promises the tokens of plain decoding.
    """
    faster = comparison.ratio >= 1
    yield Text("compared in one process, compilation not counted", style="dim")
    yield Text(f"  speculative {comparison.speculative:9.1f} tokens/s")
    yield Text(f"  plain       {comparison.plain:9.1f} tokens/s")
    advice = "" if faster else "   speculation does not pay here"
    yield Text(f"  ratio       {comparison.ratio:9.2f}{advice}", style="bold green" if faster else "bold yellow")
    differences = [difference for difference in comparison.differences if difference is not None]
    if not differences:
        yield Text("tokens: identical", style="bold green")
        return
    yield Text("tokens: differ", style="bold yellow")
    for difference in differences:
        yield Text("  " + _describe(difference))
    if comparison.sampled and not same_tokens:
        yield Text(
            "  Sampled tokens differ from plain ones by design; their distribution is the same. "
            f"With --verifier {' or '.join(name for name, kind in VERIFIERS.items() if kind.same_tokens)} the tokens "
            "are the same too."
        )


def json_line(
    prompt: str, result: TextResult, shared: Mapping[str, Any], comparison: Comparison | None, *, row: int
) -> str:
    """Returns one prompt's result as a JSON object on one line.

    Args:
      prompt: its text.
      result: its result.
      shared: what to say of all prompts: the names of the models and the numbers of drafts.
      comparison: with plain decoding, or `None`.
      row: which prompt it is, from 0.
    """
    record = {
        "prompt": prompt,
        "text": result.text,
        "token_ids": result.token_ids,
        "stop_reason": result.stop_reason,
        **shared,
        "seed": result.seed,
        "prompt_tokens": result.prompt_tokens,
        "new_tokens": len(result.token_ids),
        "tokens_per_second": result.tokens_per_second,
        "mean_acceptance_length": result.mean_acceptance_length,
        "acceptance_rate": result.acceptance_rate,
        "rounds": int(result.stats.rounds[0]),
        "drafted": int(result.stats.drafted[0]),
        "accepted": int(result.stats.accepted[0]),
        "first_seconds": result.timing.first_seconds,
        "seconds": result.timing.seconds,
    }
    if comparison is not None:
        record["compare"] = _comparison_record(comparison, comparison.differences[row])
    return json.dumps(record, ensure_ascii=False)


def alternatives(result: TextResult) -> list[list[dict[str, Any]]]:
    """Returns the likely tokens in the place of each, for JSON: a log-probability of -inf is `None`."""
    finite = lambda value: value if not isinstance(value, float) or math.isfinite(value) else None  # noqa: E731
    return [
        [{name: finite(value) for name, value in vars(one).items()} for one in some] for some in result.alternatives
    ]


def _comparison_record(comparison: Comparison, difference: Difference | None) -> dict:
    record = {
        "tokens_per_second": comparison.speculative,
        "plain_tokens_per_second": comparison.plain,
        "ratio": comparison.ratio,
        "tokens": "identical" if difference is None else "differ",
    }
    if difference is not None:
        record["first_difference"] = difference.position
        record["logit_gap"] = difference.logit_gap if math.isfinite(difference.logit_gap) else None
    return record


def _describe(difference: Difference) -> str:
    return (
        f"prompt {difference.row + 1}, new token {difference.position + 1}: {difference.speculative!r}, "
        f"plain decoding {difference.plain!r}; the two best logits there are {difference.logit_gap:.2g} apart"
    )

"""Prepares a training run of data that `jaxspec data` made: checks, how many updates, and what to validate on."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.batching import Batch
from jaxspec.training.dataset import Dataset, manifest_of
from jaxspec.training.evaluation import Prompts, prompts_of
from jaxspec.training.files import MANIFEST, sha256
from jaxspec.training.state import TrainingOptions


def check_made_for(data: Dataset, target: LanguageModel, name: str) -> None:
    """Checks that data are of a target's tokens, and no longer than its context.

    Args:
      data: a training set.
      target: the model to draft for.
      name: what it was loaded by.

    Raises:
      ValueError: they are not.
    """
    tokenizer = target.tokenizer
    if data.vocab_size != target.vocab_size or (tokenizer is not None and tokenizer.digest != data.tokenizer):
        raise ValueError(
            f"the data were made with another tokenizer than that of {name} (vocabulary {data.vocab_size}, model "
            f"{target.vocab_size}); make them with `jaxspec data --model {name}`"
        )
    longest = int(data.lengths.max(initial=0))
    if target.context_length is not None and longest > target.context_length:
        raise ValueError(
            f"the data have conversations of {longest} tokens, the context of {name} is {target.context_length}; make "
            f"them with `jaxspec data --max-length {target.context_length}`"
        )


def options_for_epochs(data: Dataset, epochs: float, *, devices: int, **options: Any) -> TrainingOptions:
    """Returns options with as many updates as read the data so often.

    Args:
      data: what is trained on.
      epochs: how often they are read.
      devices: how many share the rows of a batch.
      **options: the other fields of `TrainingOptions`.

    Raises:
      ValueError: an option is out of range, or `epochs` is not above 0.
    """
    one = TrainingOptions(steps=1, **(options | {"warmup_steps": 0}))
    if not 0 < epochs < math.inf:
        raise ValueError(f"epochs must be above 0, got {epochs}")
    batches = data.batches(batch_tokens=one.batch_tokens, seed=one.seed, devices=devices).steps_per_epoch
    return TrainingOptions(steps=math.ceil(epochs * batches / one.accumulation), **options)


def validation_prompts(aside: Dataset, target: LanguageModel, max_new_tokens: int) -> Prompts | None:
    """Returns the conversations set aside up to their first answers, those that the target has room to answer.

    Args:
      aside: conversations that are not trained on.
      target: the model to draft for.
      max_new_tokens: how many tokens are decoded after each.
    """
    room = math.inf if target.context_length is None else target.context_length - max_new_tokens
    rows = [prompts_of(*aside.read(index)) for index in range(len(aside))]
    rows = tuple(row for row in rows if 0 < len(row) <= room)
    return Prompts(rows, max_new_tokens=max_new_tokens) if rows else None


def all_batches(data: Dataset, options: TrainingOptions) -> Iterator[Batch]:
    """Yields each conversation once, in batches."""
    batches = data.batches(batch_tokens=options.batch_tokens, seed=options.seed)
    return (batches.batch(step) for step in range(batches.steps_per_epoch))


def describe_folder(folder: Path) -> dict[str, Any]:
    """Returns what a report says of a training set, finished or not: its hash and its counts, without its path."""
    manifest = manifest_of(folder, unfinished=True)
    total = {
        name: sum(shard[name] for shard in manifest["shards"]) for name in ("sequences", "tokens", "answer_tokens")
    }
    sources = {name: manifest[name] for name in ("options", "prompts")}
    return {"name": folder.name, "manifest_sha256": sha256((folder / MANIFEST).read_bytes())} | total | sources

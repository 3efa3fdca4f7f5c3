"""Makes a training set: the target answers prompts, shard by shard, and resumes after interruptions."""

import collections
import dataclasses
import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.model import Model
from jaxspec.io.files import exclusive, write_bytes
from jaxspec.io.manifest import sha256
from jaxspec.nn.digest import model_digest
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.answers import AnswerOptions, Dialogue, answer_all
from jaxspec.training.files import VERSION, Sequences, check_same_making, read_manifest, write_manifest
from jaxspec.training.prompts import TURNS_FILE, Conversation, Exclusion, hash_lines, normalize, read_prompts

_TOO_LONG, _CUT = "longer than max_length", "turns cut at max_length"

Files = Sequence[str | os.PathLike[str]]


def make_data(
    target: Model,
    prompts: Files,
    out: str | os.PathLike[str],
    options: AnswerOptions = AnswerOptions(),  # noqa: B008 (frozen)
    *,
    exclude: Files = (),
    shard: int = 256,
    limit: int | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Lets the target answer prompts, and writes the conversations as shards with a manifest.

    After an interruption, call it again with the same arguments: it resumes with the first unfinished shard, and the
    files become those of an uninterrupted call, to the byte.

    Args:
      target: the model that answers; its tokenizer must have a chat template.
      prompts: prompt files (`read_prompts`).
      out: the folder to write into.
      options: how the target answers.
      exclude: prompt files of evaluations: conversations that share a turn, or 13 words in a row, are left out.
      shard: the number of conversations in a shard.
      limit: the largest number of conversations to use, after exclusion; `None` uses all.
      name: the target's name, for the manifest.

    Returns:
      The manifest.

    Raises:
      ValueError: arguments are invalid, a prompt file cannot be parsed, or the folder has a set that was made in
        another way or is being made by another process.
      OSError: a file cannot be read or written.
      FloatingPointError: the target's logits were not finite.
    """
    options.check(target)
    tokenizer = target.traits.tokenizer
    if tokenizer is None or not tokenizer.has_chat_template:
        raise ValueError(
            "the target needs a tokenizer with a chat template to answer prompts; pass an instruction-tuned model"
        )
    for value, argument in ((shard, "shard"), (1 if limit is None else limit, "limit")):
        if value < 1:
            raise ValueError(f"{argument} must be at least 1, got {value}")
    chosen, left_out = _choose(read_prompts(prompts), Exclusion.read(exclude), limit)
    if not chosen:
        raise ValueError(f"no prompt is left to answer: {left_out}")
    making = {
        "target": {
            "name": name,
            "vocab_size": target.vocab_size,
            "dtype": str(target.dtype) if isinstance(target, LanguageModel) else "",
            "tokenizer": tokenizer.digest,
            "weights": model_digest(target),
        },
        "options": dataclasses.asdict(options) | {"shard": shard, "limit": limit},
        "prompts": [_file(path) for path in prompts],
        "excluded": [_file(path) for path in exclude],
    }
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    groups = [chosen[start : start + shard] for start in range(0, len(chosen), shard)]
    with exclusive(folder):
        manifest = _begin(folder, making, chosen, left_out)
        _answer_shards(target, tokenizer, folder, manifest, groups, options, left_out)
    return manifest


def _choose(
    conversations: list[Conversation], exclusion: Exclusion, limit: int | None
) -> tuple[list[tuple[int, Conversation]], dict[str, int]]:
    """Chooses conversations, each with its index in the files, and counts the others by reason."""
    chosen, left_out = [], collections.Counter()
    for index, conversation in enumerate(conversations):
        reason = exclusion.reason(conversation)
        if reason is None and limit is not None and len(chosen) == limit:
            reason = "beyond limit"
        if reason is None:
            chosen.append((index, conversation))
        else:
            left_out[reason] += 1
    return chosen, dict(sorted(left_out.items()))


def _begin(
    folder: Path, making: dict[str, Any], chosen: list[tuple[int, Conversation]], left_out: dict[str, int]
) -> dict[str, Any]:
    """Returns the folder's manifest if the set was made in the same way, or writes a new one."""
    known = read_manifest(folder)
    if known is not None:
        check_same_making(folder, known, making)
        return known
    hashes = hash_lines(conversation for _, conversation in chosen)
    manifest = {
        "version": VERSION,
        **making,
        "conversations": len(chosen),
        "categories": sorted({conversation.category for _, conversation in chosen}),
        "counts": {field: _counts(chosen, field) for field in ("category", "source", "license")},
        "turns": {"file": TURNS_FILE, "sha256": sha256(hashes)},
        "left_out": left_out,
        "shards": [],
        "complete": False,
    }
    write_bytes(folder / TURNS_FILE, hashes)
    write_manifest(folder, manifest)
    return manifest


def _answer_shards(
    target: Model,
    tokenizer: Tokenizer,
    folder: Path,
    manifest: dict[str, Any],
    groups: list[list[tuple[int, Conversation]]],
    options: AnswerOptions,
    left_out: dict[str, int],
) -> None:
    """Makes each missing shard, and records it in the manifest."""
    names = [f"shard-{number:05d}.npz" for number in range(len(groups))]
    noted = {entry["file"]: entry for entry in manifest["shards"]}
    finished = {name: entry for name, entry in noted.items() if _is_complete(folder / name, entry["sha256"])}
    todo = [(name, group) for name, group in zip(names, groups, strict=True) if name not in finished]
    dtype = np.uint16 if target.vocab_size <= 2**16 else np.int32
    with _Progress(sum(_to_generate(group) for _, group in todo)) as progress:
        for name, group in todo:
            dialogues = answer_all(target, tokenizer, group, options, progress.report)
            sequences = _pack(dialogues, manifest["categories"], dtype)
            data = sequences.to_bytes()
            write_bytes(folder / name, data)
            finished[name] = _entry(name, data, sequences, dialogues)
            entries, total = [finished[name] for name in names if name in finished], collections.Counter(left_out)
            for entry in entries:
                total.update(entry["left_out"])
            complete = len(entries) == len(names)
            manifest |= {"shards": entries, "left_out": dict(sorted(total.items())), "complete": complete}
            write_manifest(folder, manifest)


def _is_complete(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path.read_bytes()) == digest


def _to_generate(group: list[tuple[int, Conversation]]) -> int:
    return sum(len(conversation.turns) - len(conversation.answers) for _, conversation in group)


def _pack(dialogues: list[Dialogue], categories: list[str], dtype: type[np.generic]) -> Sequences:
    kept = [dialogue for dialogue in dialogues if dialogue.tokens]
    tokens = [np.asarray(dialogue.tokens, dtype) for dialogue in kept]
    none = [np.zeros(0, dtype)]  # for shards without sequences
    return Sequences(
        tokens=np.concatenate(none + tokens),
        offsets=np.cumsum([0, *map(len, tokens)], dtype=np.int64),
        answer=np.concatenate([np.zeros(0, bool)] + [np.asarray(dialogue.written, bool) for dialogue in kept]),
        category=np.array([categories.index(dialogue.conversation.category) for dialogue in kept], np.int32),
        conversation=np.array([_conversation_hash(dialogue.conversation) for dialogue in kept], np.uint64),
    )


def _conversation_hash(conversation: Conversation) -> int:
    text = "\n".join(map(normalize, conversation.turns))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _entry(name: str, data: bytes, sequences: Sequences, dialogues: list[Dialogue]) -> dict[str, Any]:
    counts = {
        _TOO_LONG: sum(not dialogue.tokens for dialogue in dialogues),
        _CUT: sum(len(d.conversation.turns) - len(d.answers) for d in dialogues if d.answers),
    }
    return {
        "file": name,
        "sha256": sha256(data),
        "sequences": len(sequences.category),
        "tokens": len(sequences.tokens),
        "answer_tokens": int(sequences.answer.sum()),
        "left_out": {reason: count for reason, count in counts.items() if count},
    }


def _file(path: str | os.PathLike[str]) -> dict[str, str]:
    return {"file": Path(path).name, "sha256": sha256(Path(path).read_bytes())}


def _counts(chosen: Iterable[tuple[int, Conversation]], field: str) -> dict[str, int]:
    return dict(sorted(collections.Counter(getattr(conversation, field) for _, conversation in chosen).items()))


class _Progress:
    """Shows a progress bar of answers, with tokens a second."""

    def __init__(self, answers: int):
        self._bar = tqdm(total=answers, desc="answers", unit="answer", smoothing=0.05)
        self._tokens, self._start = 0, time.perf_counter()

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def report(self, answers: int, tokens: int) -> None:
        """Adds answers and their tokens to the bar."""
        self._tokens += tokens
        rate = self._tokens / (time.perf_counter() - self._start)
        self._bar.set_postfix_str(f"{rate:.0f} tokens/s", refresh=False)
        self._bar.update(answers)

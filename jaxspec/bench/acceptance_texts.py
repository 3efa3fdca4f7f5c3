"""Reads the texts that acceptance is measured on: one prompt per line, or conversations as JSON lines."""

import os
from pathlib import Path

from jaxspec.bench.acceptance import Text
from jaxspec.checkpoints.chat_template import text_of
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.io.files import decode_text, reading
from jaxspec.training.prompts import Conversation, read_prompts


def read_texts(
    path: str | os.PathLike[str], tokenizer: Tokenizer, *, chat: bool, limit: int | None = None
) -> list[Text]:
    """Reads texts from a file, and returns their token ids.

    JSON lines have the format of `jaxspec.training.prompts.read_prompts`: the last turn is the prompt, and its answer,
    if the line has one, is the given answer. Any other file has one prompt per line.

    Args:
      path: the file.
      tokenizer: the target's tokenizer.
      chat: whether to apply the tokenizer's chat template.
      limit: the number of texts to read; `None` means all.

    Raises:
      FileFormatError: if the file is not text, or a line has no prompt; names the line.
      ValueError: if the file is empty, or the tokenizer has no chat template.
      OSError: if the file cannot be read.
    """
    path = Path(path)
    with reading(path, advice="pass a file of UTF-8 text"):
        lines = [line.strip() for line in decode_text(path.read_bytes()).split("\n") if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty; expected prompts, one per line, or JSON lines")
    if chat and not tokenizer.has_chat_template:
        raise ValueError("the target's tokenizer has no chat template; leave chat out")
    found = read_prompts([path]) if lines[0].startswith("{") else [Conversation((line,)) for line in lines]
    return [_chat(tokenizer, one) if chat else _plain(tokenizer, one) for one in found[:limit]]


def _chat(tokenizer: Tokenizer, conversation: Conversation) -> Text:
    given = conversation.answers[: len(conversation.turns)]
    answered = len(given) == len(conversation.turns)
    messages = conversation.messages(given[:-1] if answered else given)
    prompt = tokenizer.apply_chat_template(messages)
    if not answered:
        return Text(tuple(prompt))
    whole = tokenizer.apply_chat_template([*messages, conversation.answer(len(given) - 1)], add_generation_prompt=False)
    if whole[: len(prompt)] != prompt:
        raise ValueError(
            "the chat template does not put an answer after its prompt, so the answers of the file cannot be "
            "found; leave them out, so that the target writes them"
        )
    return Text(tuple(prompt), tuple(whole[len(prompt) :]))


def _plain(tokenizer: Tokenizer, conversation: Conversation) -> Text:
    """Joins the messages by empty lines; the answer's tokens follow the longest prefix shared with the prompt's."""
    said = [text_of(one) for one in conversation.messages(conversation.answers)]
    answered = len(conversation.answers) == len(conversation.turns)
    prompt = tokenizer.encode("\n\n".join(said[:-1] if answered else said))
    if not answered:
        return Text(tuple(prompt))
    whole = tokenizer.encode("\n\n".join(said))
    same = next((place for place, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    return Text(tuple(whole[:same]), tuple(whole[same:]))

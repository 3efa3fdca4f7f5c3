"""Tokenizers of a few hundred tokens, and a model that recites a given text."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import jaxspec
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.pytree import register_dataclass
from jaxspec.testing.history_models import HistoryModel, history_model, nearby

END = "<|end|>"
VOCAB = 310
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LINES = ["the sea is wide and the sea is deep", "hello world, hello there", "grüße, straße, 中文 中文", "one two three"]


def byte_level(*, chat_template=TEMPLATE, bos=None, marks=()) -> Tokenizer:
    """Returns a byte-level BPE tokenizer; unseen text takes one token per byte. Each of `marks` is a special token."""
    special = [END, "<|system|>", "<|user|>", "<|assistant|>", *marks]
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(LINES * 4, trainer)
    names = {"eos_token": END} | ({} if bos is None else {"bos_token": bos})
    ends = [backend.token_to_id(END)]
    return Tokenizer(backend, special_tokens=names, eos_token_ids=ends, chat_template=chat_template)


def sentencepiece() -> Tokenizer:
    """Pieces with `▁` for a space, and byte tokens for all else."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in (*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b", ".", "é", "▁▁", "ab"):
        vocab[piece] = len(vocab)
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    stages = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(stages)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, eos_token_ids=[2])


def _recite(follows, tokens):
    """Logits that name, after position `i`, the token `follows[i]`."""
    here = follows[jnp.minimum(jnp.arange(tokens.shape[1]), follows.shape[0] - 1)]
    logits = 8.0 * jax.nn.one_hot(here, VOCAB)
    return jnp.broadcast_to(logits[None], (*tokens.shape, VOCAB))


def recite_ids(ids: list[int]) -> jaxspec.Model:
    """Returns a model that says `ids[i + 1]` after position `i`, for any input, and 0 after the last."""
    padded = np.zeros(128, np.int32)
    padded[: len(ids) - 1] = ids[1:]
    return jaxspec.from_function(_recite, jnp.asarray(padded), vocab_size=VOCAB)


def reciter(tokenizer: Tokenizer, prompt: str, text: str) -> jaxspec.Model:
    """Returns a model that continues `prompt` with `text`, and then ends, for any other input too."""
    before = len(tokenizer.encode(prompt)) - 1
    end = tokenizer.eos_token_ids[0]
    follows = [end] * before + tokenizer.encode(text)
    padded = np.full(128, end, np.int32)
    padded[: len(follows)] = follows
    return jaxspec.from_function(_recite, jnp.asarray(padded), vocab_size=VOCAB)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HistoryTextModel(HistoryModel):
    """The model without a network, with a tokenizer: programs of it compile in half the time."""

    tokenizer: Tokenizer | None = dataclasses.field(metadata={"static": True})
    context_length = 512
    traits = property(lambda self: jaxspec.core.ModelTraits(tokenizer=self.tokenizer))


@functools.cache
def history_models() -> tuple[HistoryTextModel, HistoryTextModel]:
    """A target with a byte-level tokenizer, and a draft that is nearly the target."""
    base = history_model(0, vocab=VOCAB, scale=2.0)
    target = HistoryTextModel(base.a, base.b, byte_level())
    return target, nearby(target, 0.3)

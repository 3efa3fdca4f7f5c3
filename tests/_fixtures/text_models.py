"""Tokenizers of a few hundred tokens, and a model that recites a given text."""

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import jaxspec
from jaxspec.checkpoints.tokenizer import Tokenizer

END = "<|end|>"
VOCAB = 310
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LINES = ["the sea is wide and the sea is deep", "hello world, hello there", "grüße, straße, 中文 中文", "one two three"]


def byte_level(*, chat_template=TEMPLATE, bos=None) -> Tokenizer:
    """Byte-level BPE; what it was not trained on takes a token a byte."""
    special = [END, "<|system|>", "<|user|>", "<|assistant|>"]
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
    """A model that says `ids[i + 1]` after position `i`, whatever it is given, and 0 after the last."""
    padded = np.zeros(128, np.int32)
    padded[: len(ids) - 1] = ids[1:]
    return jaxspec.from_function(_recite, jnp.asarray(padded), vocab_size=VOCAB)


def reciter(tokenizer: Tokenizer, prompt: str, text: str) -> jaxspec.Model:
    """A model that continues `prompt` with `text`, whatever else it is given, and then ends."""
    before = len(tokenizer.encode(prompt)) - 1
    end = tokenizer.eos_token_ids[0]
    follows = [end] * before + tokenizer.encode(text)
    padded = np.full(128, end, np.int32)
    padded[: len(follows)] = follows
    return jaxspec.from_function(_recite, jnp.asarray(padded), vocab_size=VOCAB)

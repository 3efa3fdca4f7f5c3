"""Builds a tokenizer from the vocabulary in a GGUF file's metadata.

GGUF names the kind of tokenizer (`gpt2`: byte-level BPE, `llama`: SentencePiece BPE) and, for the
first, how text is cut up before merging (`tokenizer.ggml.pre`); what those names stand for is
written down here, after the tokenizers that the models were released with.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.families.table import find_gguf_family

_KEY = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "▁"

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

# Tokens that end a turn or a text, whatever the file says of them.
_END_TEXTS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
)


@dataclasses.dataclass(frozen=True)
class _Split:
    """Defines a way to cut text before the merges of a byte-level vocabulary.

    Attributes:
      regex: matches the pieces; `None` is GPT-2's.
      single_digits: whether each digit is a piece of its own.
      normal_form: whether text is brought into Unicode's normal form C.
      whole_words_first: whether a piece that is a token stays one, however it would be merged.
      adds_bos: whether texts begin with the beginning token, unless the file says otherwise.
    """

    regex: str | None = None
    single_digits: bool = False
    normal_form: bool = False
    whole_words_first: bool = False
    adds_bos: bool = False


_GPT2 = _Split()
_LLAMA3 = _Split(regex=_LLAMA3_SPLIT, whole_words_first=True, adds_bos=True)
_SPLITS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _Split(single_digits=True),
    "starcoder": _Split(single_digits=True),
    "qwen2": _Split(regex=_QWEN2_SPLIT, normal_form=True),
    "deepseek-r1-qwen": _Split(regex=_QWEN2_SPLIT, normal_form=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Builds the tokenizer that a GGUF file's metadata describes.

    Args:
      metadata: the file's key-value pairs.

    Raises:
      ValueError: there is no vocabulary, or its kind or way of splitting text is not supported.
    """
    tokens = metadata.get(_KEY + "tokens")
    if not tokens:
        raise ValueError("the metadata has no tokenizer (tokenizer.ggml.tokens); pass a file that has one")
    kind = metadata.get(_KEY + "model")
    if kind not in _KINDS:
        raise ValueError(f"unsupported GGUF tokenizer model {kind!r}; supported: {', '.join(_KINDS)}")
    backend, adds_bos = _KINDS[kind](metadata, tokens)
    special = _special_tokens(metadata, tokens)
    _add_special_tokens(backend, metadata, tokens, special)
    adds_bos = metadata.get(_KEY + "add_bos_token", adds_bos)
    _add_ends(backend, special, adds_bos, metadata.get(_KEY + "add_eos_token", False))
    return Tokenizer(
        backend,
        special_tokens=special,
        eos_token_ids=_ends(metadata, tokens),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    name = metadata.get(_KEY + "pre", "default")
    if name not in _SPLITS:
        raise ValueError(
            f"unsupported GGUF pre-tokenizer {name!r} (tokenizer.ggml.pre); supported: {', '.join(sorted(_SPLITS))}"
        )
    split = _SPLITS[name]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get(_KEY + "merges", ())]
    backend = tokenizers.Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=split.whole_words_first))
    stages: list[pre_tokenizers.PreTokenizer] = []
    if split.single_digits:
        stages.append(pre_tokenizers.Digits(individual_digits=True))
    if split.regex:
        stages.append(pre_tokenizers.Split(Regex(split.regex), behavior="isolated"))
    stages.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.regex is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(stages)
    backend.decoder = decoders.ByteLevel()
    if split.normal_form:
        backend.normalizer = normalizers.NFC()
    return backend, split.adds_bos


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    family = find_gguf_family(metadata.get("general.architecture"))
    merges_by_id = family is not None and family.gguf is not None and family.gguf.merges_by_id
    return (_sentencepiece_by_id if merges_by_id else _sentencepiece_by_score)(metadata, tokens), True


def _sentencepiece_by_score(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    backend = _sentencepiece_bpe(metadata, tokens, metadata.get(_KEY + "scores"))
    prefix = metadata.get(_KEY + "add_space_prefix", True)
    scheme = "first" if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    backend.decoder = _sentencepiece_decoder(strip=prefix)
    return backend


def _sentencepiece_by_id(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    # Runs of spaces are stored as spaces, and merges go by place in the vocabulary, not by score.
    tokens = [_SPACE * len(token) if token.isspace() and set(token) == {" "} else token for token in tokens]
    backend = _sentencepiece_bpe(metadata, tokens, [-index for index in range(len(tokens))])
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = _sentencepiece_decoder(strip=False)
    return backend


def _sentencepiece_bpe(
    metadata: Mapping[str, Any], tokens: list[str], ranks: Sequence[float] | None
) -> tokenizers.Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    if merges := metadata.get(_KEY + "merges"):
        merges = [tuple(merge.split(" ", 1)) for merge in merges]
    elif ranks is None:
        raise ValueError("the tokenizer has neither merges nor scores (tokenizer.ggml.scores)")
    else:
        merges = _merges_from_ranks(vocab, ranks)
    unknown = metadata.get(_KEY + "unknown_token_id")
    unk_token = None if unknown is None else tokens[unknown]
    return tokenizers.Tokenizer(BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True, unk_token=unk_token))


def _merges_from_ranks(vocab: Mapping[str, int], ranks: Sequence[float]) -> list[tuple[str, str]]:
    """Lists every way to put two tokens together into a third, best rank first."""
    found: list[tuple[float, int, int, str, str]] = []
    for token, index in vocab.items():
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        splits = [(left, right) for left, right in splits if left in vocab and right in vocab]
        splits.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        found.extend((ranks[index], len(left), len(right), left, right) for left, right in splits)
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in found]


def _sentencepiece_decoder(*, strip: bool) -> decoders.Decoder:
    stages = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        stages.append(decoders.Strip(content=" ", left=1))
    return decoders.Sequence(stages)


def _special_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {}
    for name, key in keys.items():
        index = metadata.get(f"{_KEY}{key}_token_id")
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise ValueError(f"{_KEY}{key}_token_id is {index}, the vocabulary has {len(tokens)} tokens")
        special[name] = tokens[index]
    return special


def _add_special_tokens(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: list[str], special: Mapping[str, str]
) -> None:
    """Makes control and user-defined tokens match as one piece; only the first are hidden when decoding."""
    kinds = metadata.get(_KEY + "token_type") or [1] * len(tokens)
    hidden = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (_UNKNOWN, _CONTROL)]
    hidden = list(dict.fromkeys([*special.values(), *hidden]))
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in hidden])
    shown = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    vocab = backend.get_vocab(with_added_tokens=False)
    backend.add_tokens([AddedToken(token, normalized=False) for token in shown if token in vocab])


def _add_ends(backend: tokenizers.Tokenizer, special: Mapping[str, str], adds_bos: bool, adds_eos: bool) -> None:
    """Makes `encode` put the first and last token around a text, where the model was trained so."""
    first = [special["bos_token"]] if adds_bos and "bos_token" in special else []
    last = [special["eos_token"]] if adds_eos and "eos_token" in special else []
    # Set even if it adds nothing: transformers does so on reading a folder, and the two are then equal.
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys(first + last)],
    )


def _ends(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[int, ...]:
    named = [metadata.get(f"{_KEY}{key}_token_id") for key in ("eos", "eot", "eom")]
    kinds = metadata.get(_KEY + "token_type") or ()
    known = (index for index, kind in enumerate(kinds) if kind == _CONTROL and tokens[index] in _END_TEXTS)
    return tuple(sorted({*known, *(index for index in named if index is not None)}))


# By `tokenizer.ggml.model`: each builds the tokenizer, and says whether texts begin with the beginning token.
_KINDS = {"gpt2": _byte_level, "llama": _sentencepiece}

"""Builds a tokenizer from the vocabulary in a GGUF file's metadata.

GGUF names the kind of tokenizer (`gpt2`: byte-level BPE, `llama`: SentencePiece BPE) and, for the first, how text is
split before merging (`tokenizer.ggml.pre`). This module defines those names, after the tokenizers that the models were
released with, and, where a file has no name, as llama.cpp does.
"""

import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from jaxspec.checkpoints.chat_template import with_tool_use
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.families.settings import COUNT, FLAG, NUMBER, TEXT, TEXTS, SettingError, check_settings, integer, list_of
from jaxspec.families.table import find_gguf_family

_logger = logging.getLogger(__name__)

_KEY, _TEMPLATE, _TOOL_USE = "tokenizer.ggml.", "tokenizer.chat_template", "tokenizer.chat_template.tool_use"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "▁"

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# llama.cpp's own, where a file names none: of no model.
_UNNAMED_SPLITS = (r"[\p{P}$+<=>^~|]+", _GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")
_DEEPSEEK_CODER_SPLITS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")

_ENDING = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_IDS = tuple(f"{name}_token_id" for name in ("bos", "unknown", *_ENDING))
_METADATA = {
    **dict.fromkeys((f"{_KEY}model", f"{_KEY}pre", _TEMPLATE, _TOOL_USE), TEXT),
    **dict.fromkeys((f"{_KEY}tokens", f"{_KEY}merges"), TEXTS),
    f"{_KEY}scores": list_of(NUMBER, "numbers that float32 holds"),
    f"{_KEY}token_type": list_of(integer(0, 6), "integers from 0 to 6"),
    **dict.fromkeys((_KEY + name for name in _IDS), COUNT),
    # Not used for padding. Where llama.cpp has no padding token, files give an id beyond the vocabulary, or -1.
    f"{_KEY}padding_token_id": integer(-1, 2**32 - 1),
    **dict.fromkeys((f"{_KEY}add_{name}" for name in ("bos_token", "eos_token", "space_prefix")), FLAG),
}

# What llama.cpp takes where a file of SentencePiece lacks them.
_SENTENCEPIECE_IDS = {f"{_KEY}{name}_token_id": index for index, name in enumerate(("unknown", "bos", "eos"))}
# Tokens that are control tokens by their text, of any type in the file, as in llama.cpp (`llama-vocab.cpp`). The first
# end a turn, a text or a file, even if the metadata do not name them; the others mark gaps to fill in.
_END = re.compile(
    r"</s>|<eos>|<\|endoftext\|>|<\|end_of_text\|>|<\uff5cend▁of▁sentence\uff5c>|<end_of_utterance>|<end_of_turn>"
    r"|<\|(im_end|eot_id|eom_id|end|return|calls?|flush)\|>|<turn\|>|<\|tool_response>|_?<EOT>|\[EO[TS]\]|\[e~\["
    r"|<\|fim_(pad|repo)\|>|<fim[-_]pad>|<PAD>|\[PAD\]|<fim-repo>|<REPO>|<reponame>|<\|(repo_name|file_sep)\|>"
)
# These end nothing in a vocabulary that has all the others on the right: it ends messages within a turn with them.
_WITHIN_TURNS = {"<|end|>": ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"}), "</s>": ({"<|tool_response>"},)}
_GAP = re.compile(
    r"<\|fim_(prefix|suffix|middle)\|>|<fim[-_](prefix|suffix|middle)>|<\uff5cfim▁(begin|hole|end)\uff5c>"
    r"|▁?<(PRE|SUF|MID)>|<\|(code_)?(prefix|suffix|middle)\|>"
)


@dataclasses.dataclass(frozen=True)
class _Split:
    """Defines how text is split before the merges of a byte-level vocabulary.

    Attributes:
      regexes: match the pieces, each within those of the one before; none means GPT-2's pattern.
      single_digits: whether each digit is a separate piece.
      normal_form: whether text is normalized to Unicode's NFC.
      whole_words_first: whether a piece that is a token is kept, and not built by merges.
      adds_bos: whether encoding adds the BOS token, unless the file says otherwise.
    """

    regexes: tuple[str, ...] = ()
    single_digits: bool = False
    normal_form: bool = False
    whole_words_first: bool = False
    adds_bos: bool = False


_LLAMA3 = _Split((_LLAMA3_SPLIT,), whole_words_first=True, adds_bos=True)
# The names of each way to split, as llama.cpp has them.
_NAMED: tuple[tuple[_Split, str], ...] = (
    (_Split(_UNNAMED_SPLITS), "default"),
    (_Split(), "gpt-2 phi-2 olmo mpt jais trillion gigachat exaone4 granite-docling roberta-bpe"),
    (_Split(single_digits=True), "smollm starcoder refact command-r codeshell exaone minerva-7b"),
    (_Split((_QWEN2_SPLIT,), normal_form=True), "qwen2 deepseek-r1-qwen"),
    (_Split((_QWEN2_SPLIT,)), "stablelm2 megrez hunyuan"),
    (_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
    (_Split((_LLAMA3_SPLIT,)), "dbrx smaug-bpe chatglm-bpe"),
    (_Split((_TEKKEN_SPLIT,), whole_words_first=True, adds_bos=True), "tekken"),
    (_Split(_DEEPSEEK_CODER_SPLITS, single_digits=True), "deepseek-coder"),
)
_SPLITS = {name: split for split, names in _NAMED for name in names.split()}


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Builds the tokenizer that a GGUF file's metadata describes.

    Args:
      metadata: the file's key-value pairs.

    Raises:
      SettingError: the vocabulary is missing or inconsistent, or its kind or pre-tokenizer is not supported.
    """
    check_settings(metadata, _METADATA)
    tokens = metadata.get(_KEY + "tokens")
    if not tokens:
        raise SettingError(_KEY + "tokens", "the metadata has no tokenizer; pass a file that has one")
    if _KINDS.get(metadata.get(_KEY + "model", "")) is _sentencepiece:
        own: dict[str, Any] = {name: index for name, index in _SENTENCEPIECE_IDS.items() if index < len(tokens)}
        metadata = own | dict(metadata)
    _check_vocabulary(metadata, tokens)
    kind = metadata.get(_KEY + "model")
    if kind not in _KINDS:
        raise SettingError(_KEY + "model", f"unsupported GGUF tokenizer model {kind!r}; supported: {', '.join(_KINDS)}")
    backend, adds_bos = _KINDS[kind](metadata, tokens)
    special = _special_tokens(metadata, tokens)
    kinds = _token_kinds(metadata, tokens)
    _add_special_tokens(backend, tokens, kinds, special)
    _add_start(backend, special, metadata.get(_KEY + "add_bos_token", adds_bos))
    return Tokenizer(
        backend,
        special_tokens=special,
        eos_token_ids=_ends(metadata, tokens),
        chat_template=with_tool_use(metadata.get(_TEMPLATE), metadata.get(_TOOL_USE)),
    )


def _check_vocabulary(metadata: Mapping[str, Any], tokens: list[str]) -> None:
    """Checks that tokens are unique, that lists have one entry per token, and that ids are in the vocabulary."""
    # Empty tokens mean nothing, and converters leave several of them.
    if len(set(tokens)) < len(tokens) - max(tokens.count("") - 1, 0):
        twice, _ = next(one for one in Counter(tokens).most_common(2) if one[0])
        raise SettingError(_KEY + "tokens", f"the token {twice!r} occurs twice")
    for name in ("scores", "token_type"):
        if (values := metadata.get(_KEY + name)) is not None and len(values) != len(tokens):
            raise SettingError(f"{_KEY}{name} or {_KEY}tokens", f"expected {len(tokens)} entries, got {len(values)}")
    for name in _IDS:
        if (index := metadata.get(_KEY + name)) is not None and index >= len(tokens):
            raise SettingError(_KEY + name, f"{index}, but the vocabulary has {len(tokens)} tokens")


def _bpe(metadata: Mapping[str, Any], vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> BPE:
    try:
        return BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises `Exception` itself
        raise SettingError(_KEY + ("merges" if _KEY + "merges" in metadata else "tokens"), str(error)) from error


def _stored_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the merges in the metadata, where a space separates the two tokens of a pair."""
    merges = [one.partition(" ") for one in metadata.get(_KEY + "merges", ())]
    if wrong := [left for left, space, right in merges if not (left and space and right)]:
        raise SettingError(_KEY + "merges", f"expected two tokens separated by a space, got {wrong[0]!r}")
    return [(left, right) for left, _, right in merges]


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    name = metadata.get(_KEY + "pre") or "default"
    if name not in _SPLITS:
        raise SettingError(
            _KEY + "pre", f"unsupported GGUF pre-tokenizer {name!r}; supported: {', '.join(sorted(_SPLITS))}"
        )
    if name == "default":
        _logger.warning(
            "%spre names no pre-tokenizer, so texts are split as llama.cpp does then, which the model was hardly "
            "trained with; convert the model again",
            _KEY,
        )
    split = _SPLITS[name]
    vocab = {token: index for index, token in enumerate(tokens)}
    model = _bpe(metadata, vocab, _stored_merges(metadata), ignore_merges=split.whole_words_first)
    backend = tokenizers.Tokenizer(model)
    stages: list[pre_tokenizers.PreTokenizer] = []
    if split.single_digits:
        stages.append(pre_tokenizers.Digits(individual_digits=True))
    stages += [pre_tokenizers.Split(Regex(one), behavior="isolated") for one in split.regexes]
    stages.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split.regexes))
    backend.pre_tokenizer = pre_tokenizers.Sequence(stages)
    backend.decoder = decoders.ByteLevel()
    if split.normal_form:
        backend.normalizer = normalizers.NFC()
    return backend, split.adds_bos


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    family = find_gguf_family(metadata.get("general.architecture"))
    if family is not None and family.gguf is not None and family.gguf.merges_by_id:
        # Runs of spaces are stored as spaces, and merges are ranked by token id, not by score.
        tokens = [_SPACE * len(token) if token.isspace() and set(token) == {" "} else token for token in tokens]
        backend = _sentencepiece_bpe(metadata, tokens, [-index for index in range(len(tokens))])
        backend.normalizer = normalizers.Replace(" ", _SPACE)
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        backend.decoder = _sentencepiece_decoder(strip=False)
        return backend, True
    backend = _sentencepiece_bpe(metadata, tokens, metadata.get(_KEY + "scores"))
    prefix = metadata.get(_KEY + "add_space_prefix", True)
    # A space goes before every text between special tokens, as in llama.cpp, even if it begins with one.
    stages = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*stages, normalizers.Replace(" ", _SPACE)])
    backend.decoder = _sentencepiece_decoder(strip=prefix)
    return backend, True


def _sentencepiece_bpe(
    metadata: Mapping[str, Any], tokens: list[str], ranks: Sequence[float] | None
) -> tokenizers.Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    if not (merges := _stored_merges(metadata)):
        if ranks is None:
            raise SettingError(_KEY + "scores", "the tokenizer has neither merges nor scores")
        merges = _merges_from_ranks(vocab, ranks)
    unknown = metadata.get(_KEY + "unknown_token_id")
    unk_token = None if unknown is None else tokens[unknown]
    model = _bpe(metadata, vocab, merges, fuse_unk=True, byte_fallback=True, unk_token=unk_token)
    return tokenizers.Tokenizer(model)


def _merges_from_ranks(vocab: Mapping[str, int], ranks: Sequence[float]) -> list[tuple[str, str]]:
    """Lists every pair of tokens that joins into a third, best rank first."""
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
        if index is not None and 0 <= index < len(tokens):
            special[name] = tokens[index]
    return special


def _token_kinds(metadata: Mapping[str, Any], tokens: list[str]) -> list[int]:
    """Returns the type of each token, with those that look like control tokens as such."""
    kinds = metadata.get(_KEY + "token_type") or [_NORMAL] * len(tokens)
    is_control = lambda token: _END.fullmatch(token) or _GAP.fullmatch(token)  # noqa: E731
    return [_CONTROL if is_control(token) else kind for token, kind in zip(tokens, kinds, strict=True)]


def _add_special_tokens(
    backend: tokenizers.Tokenizer, tokens: list[str], kinds: list[int], special: Mapping[str, str]
) -> None:
    """Makes control and user-defined tokens match as one piece; decoding hides only control tokens."""
    hidden = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (_UNKNOWN, _CONTROL)]
    hidden = list(dict.fromkeys([*special.values(), *hidden]))
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in hidden])
    shown = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    vocab = backend.get_vocab(with_added_tokens=False)
    backend.add_tokens([AddedToken(token, normalized=False) for token in shown if token in vocab])


def _add_start(backend: tokenizers.Tokenizer, special: Mapping[str, str], adds_bos: bool) -> None:
    """Makes `encode` add the BOS token, if the model was trained with it; no EOS token, since texts are continued."""
    first = [special["bos_token"]] if adds_bos and "bos_token" in special else []
    # Set even if it adds nothing, as transformers does when it reads a folder, so that both tokenizers are equal.
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A"],
        special_tokens=[(token, backend.token_to_id(token)) for token in first],
    )


def _ends(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[int, ...]:
    named = [metadata.get(f"{_KEY}{key}_token_id") for key in _ENDING]
    ends = {index for index, token in enumerate(tokens) if _END.fullmatch(token)}
    ends |= {index for index in named if index is not None}
    within = {one for one, others in _WITHIN_TURNS.items() if any(map(set(tokens).issuperset, others))}
    return tuple(sorted(index for index in ends if tokens[index] not in within))


# By `tokenizer.ggml.model`: builds the tokenizer, and says whether encoding adds the BOS token by default.
_KINDS = {"gpt2": _byte_level, "llama": _sentencepiece}

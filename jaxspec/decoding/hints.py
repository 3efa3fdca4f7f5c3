"""Says what to pass instead of unknown keyword arguments, among them those of other libraries."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

_COMMON = {
    **dict.fromkeys(
        ("eos_token_id", "stop_token_ids"), "pass stop_tokens=..., or leave it out for the model's end tokens"
    ),
    "ignore_eos": "pass stop_tokens=()",
    **dict.fromkeys(("num_return_sequences", "n", "best_of"), "pass answers=..."),
    "num_beams": "there is no beam search; pass answers=... for several samples",
    **dict.fromkeys(
        ("max_tokens", "max_length", "n_predict"), "pass max_new_tokens=..., which does not count the prompt"
    ),
}
# For calls with token ids.
TOKENS = MappingProxyType(
    {
        **_COMMON,
        "do_sample": "pass sampling=Sampling(temperature=1.0), or leave it out for greedy decoding",
        **{name: f"pass sampling=Sampling({name}=...)" for name in ("temperature", "top_p", "top_k", "min_p")},
        **dict.fromkeys(("seed", "rng", "rng_key"), "pass key=jax.random.key(seed)"),
        **dict.fromkeys(
            ("stop", "stop_strings", "schema", "regex", "choices", "grammar"),
            "that is for text; use SpeculativeDecoder, or pass ids as stop_tokens=...",
        ),
        **dict.fromkeys(
            ("attention_mask", "pad_token_id"), "pass prompt_length=..., the length of each row without padding"
        ),
        **dict.fromkeys(
            (
                "logits_processor",
                "processors",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
                "logit_bias",
                "bad_words",
                "min_new_tokens",
                "allowed_tokens",
            ),
            "pass sampling=Sampling(processors=...) or Greedy(processors), with those of jaxspec.processors",
        ),
        **dict.fromkeys(("logprobs", "alternatives"), "pass report=jaxspec.core.Report(alternatives=...)"),
        **dict.fromkeys(("k", "num_drafts"), "pass it to the drafter, such as NGramDrafter(k=4)"),
        "assistant_model": "pass a drafter as the second argument, such as ModelDrafter(model)",
    }
)
# For calls with text.
TEXT = MappingProxyType(
    {
        **_COMMON,
        "do_sample": "pass temperature=0 for greedy decoding, or another temperature",
        **dict.fromkeys(("sampling", "sampling_params"), "pass temperature=..., top_p=..., top_k=... or min_p=..."),
        **dict.fromkeys(("key", "rng", "rng_key"), "pass seed=..."),
        **dict.fromkeys(("stop_strings", "stop_sequences"), "pass stop=..."),
        **dict.fromkeys(("min_tokens", "min_length"), "pass min_new_tokens=..."),
        **dict.fromkeys(("logprobs", "top_logprobs", "report"), "pass alternatives=..."),
        **dict.fromkeys(("response_format", "guided_json", "json_schema"), "pass schema=..."),
        **dict.fromkeys(
            ("drafter", "draft", "assistant_model", "k", "num_drafts", "verifier", "lossy", "tokenizer", "bit_exact"),
            "pass it to SpeculativeDecoder(...)",
        ),
        "prompt_length": "leave it out; prompts may have any lengths",
    }
)


def refuse_unknown(given: Collection[str], known: Collection[str], hints: Mapping[str, str]) -> None:
    """Raises `TypeError` for a keyword argument that is not `known`; the text says what to pass instead."""
    for name in given:
        if name in known:
            continue
        if not isinstance(name, str):
            raise TypeError(f"options have names, got {name!r:.80}; pass {{'temperature': 0}}, say")
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"; {hints[name]}" if name in hints else f"; did you mean {near[0]}?" if near else ""
        raise TypeError(f"unexpected keyword argument '{name}'{advice} (options: {', '.join(sorted(known))})")


def hinted(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a function of token ids refuse unknown keyword arguments by `refuse_unknown`."""
    known = [one.name for one in inspect.signature(function).parameters.values()]

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        refuse_unknown(kwargs, known, TOKENS)
        return function(*args, **kwargs)

    return call

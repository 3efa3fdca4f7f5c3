"""Makes a request to llama.cpp's server, and reads its reply: the same in its process and by HTTP."""

from collections.abc import Mapping
from typing import Any

from jaxspec.bench.peers.worker import Request

LOOKUP = 10  # tokens; there is no common default, and this is Spec-Bench's
LOOKUP_KEY = 2  # tokens that must have come before
CACHES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def body(request: Request) -> dict[str, Any]:
    """Returns the request, which asks for the new tokens by their ids: texts need not tell them."""
    return {
        "prompt": request.prompt,
        "n_predict": request.max_new_tokens,
        "temperature": request.temperature,
        "samplers": ["temperature"],
        "seed": request.seed,
        "ignore_eos": not request.stop,
        "cache_prompt": False,  # a prompt that came before costs as much
        "return_tokens": True,
    }


def token_ids(reply: Mapping[str, Any]) -> list[int]:
    """Returns the ids of the new tokens.

    Raises:
      RuntimeError: it is no reply, or does not have as many ids as it says tokens were made.
    """
    if "tokens_predicted" not in reply:
        raise RuntimeError(f"llama.cpp did not answer: {reply}")
    ids = [int(index) for index in reply["tokens"]]
    if len(ids) != reply["tokens_predicted"]:
        raise RuntimeError(f"llama.cpp made {reply['tokens_predicted']} tokens and gave {len(ids)}")
    return ids

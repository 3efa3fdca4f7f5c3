"""Talks to a server through LiteLLM's adapter for OpenAI: URL MODEL. Run by its own environment's Python."""

import asyncio
import os
import sys
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # asks no other server

import litellm
import pydantic

URL, MODEL = sys.argv[1:]
GIVEN = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0, "temperature": 0}
ASKED = {**GIVEN, "messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 12}


class Answer(pydantic.BaseModel):
    """A city of two."""

    city: Literal["Paris", "Rome"]


whole = litellm.completion(**ASKED)
text = whole.choices[0].message.content
assert text and whole.usage.completion_tokens > 0
pieces = list(litellm.completion(**ASKED, stream=True, stream_options={"include_usage": True}))
assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == text
assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
assert asyncio.run(litellm.acompletion(**ASKED)).choices[0].message.content == text
scored = litellm.completion(**ASKED, logprobs=True, top_logprobs=2)
assert len(scored.choices[0].logprobs.content[0].top_logprobs) == 2
chosen = litellm.completion(**ASKED | {"max_tokens": 40}, response_format=Answer).choices[0].message.content
assert Answer.model_validate_json(chosen).city in ("Paris", "Rome")
completed = litellm.text_completion(
    model=f"text-completion-openai/{MODEL}",
    prompt="The sea is",
    max_tokens=8,
    temperature=0,
    api_base=f"{URL}/v1",
    api_key="none",
)
assert completed.choices[0].text
for wrong, kind in (({"temperature": -1}, litellm.BadRequestError), ({"model": "openai/no"}, litellm.NotFoundError)):
    try:
        litellm.completion(**ASKED | wrong)
    except kind:
        continue
    raise AssertionError(f"{wrong} is an error")
print("LiteLLM: complete")

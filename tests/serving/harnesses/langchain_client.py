"""Talks to a server through LangChain's adapter for OpenAI: URL MODEL. Run by its own environment's Python."""

import asyncio
import sys
from typing import Literal

import openai
import pydantic
from langchain_openai import ChatOpenAI, OpenAI

URL, MODEL = sys.argv[1:]
GIVEN = {"base_url": f"{URL}/v1", "api_key": "none", "model": MODEL, "temperature": 0, "max_retries": 0}
ASKED = "Name a river."


class Answer(pydantic.BaseModel):
    """A city of two."""

    city: Literal["Paris", "Rome"]


chat = ChatOpenAI(**GIVEN, max_tokens=12)
whole = chat.invoke(ASKED)
assert whole.content and whole.usage_metadata["output_tokens"] > 0
assert "".join(piece.content for piece in chat.stream(ASKED)) == whole.content
assert [one.content for one in chat.batch([ASKED] * 3)] == [whole.content] * 3
assert asyncio.run(chat.ainvoke(ASKED)).content == whole.content
scored = chat.bind(logprobs=True, top_logprobs=2).invoke(ASKED)
assert len(scored.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2
assert chat.bind(stop=[" "]).invoke(ASKED).content == whole.content.split(" ")[0]
chosen = ChatOpenAI(**GIVEN, max_tokens=40).with_structured_output(Answer, method="json_schema").invoke(ASKED)
assert chosen.city in ("Paris", "Rome")
assert OpenAI(**GIVEN, max_tokens=8).invoke("The sea is")
try:
    ChatOpenAI(**GIVEN | {"temperature": -1}).invoke(ASKED)
except openai.BadRequestError as error:
    assert "temperature" in str(error)
else:
    raise AssertionError("a wrong temperature is an error")
print("LangChain: complete")

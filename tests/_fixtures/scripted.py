"""A model that writes one of several texts, whichever the user's message names by its first character."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from tests._fixtures import text_models
from tests._fixtures.text_models import VOCAB

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
# Its functions, its thinking, which `open` opens and `enable_thinking` skips, and the calls of earlier turns.
TEMPLATE = (
    "{% if tools %}<|system|>{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call><|end|>{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}{{ c.function.arguments.x }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% elif open is defined %}<think>\n{% endif %}{% endif %}"
)
LONGEST = 160


@functools.cache
def tokenizer(marks=MARKS, template=TEMPLATE):
    """A tokenizer with marks of thinking and calls."""
    return text_models.byte_level(chat_template=template, marks=marks)


def _speak(values, tokens):
    """Logits of the text that the character after the first user's mark selects, from the assistant's mark on."""
    scripts, chosen, marks = values
    rows = jnp.arange(tokens.shape[0])
    user, assistant = (jnp.argmax(tokens == mark, axis=1) for mark in marks)
    script = scripts[chosen[tokens[rows, jnp.minimum(user + 1, tokens.shape[1] - 1)]]]
    place = jnp.clip(jnp.arange(tokens.shape[1])[None] - assistant[:, None], 0, LONGEST - 1)
    return 8.0 * jax.nn.one_hot(jnp.take_along_axis(script, place, axis=1), VOCAB)


def model(tokenizer, texts):
    """Returns a model that answers a message that begins with "a" by the first text, "b" by the second, ..."""
    end = tokenizer.eos_token_ids[0]
    scripts = np.full((len(texts), LONGEST), end, np.int32)
    chosen = np.zeros(VOCAB, np.int32)
    for index, text in enumerate(texts):
        ids = tokenizer.encode(text, add_special_tokens=False)
        scripts[index, : len(ids)] = ids
        chosen[tokenizer.encode("abcdefghijkl"[index], add_special_tokens=False)[0]] = index
    marks = [tokenizer.encode(name, add_special_tokens=False)[0] for name in ("<|user|>", "<|assistant|>")]
    values = (jnp.asarray(scripts), jnp.asarray(chosen), jnp.asarray(marks, jnp.int32))
    return jaxspec.from_function(_speak, values, vocab_size=VOCAB)


def asks(name):
    """Returns the message that selects a text."""
    return [{"role": "user", "content": name}]
